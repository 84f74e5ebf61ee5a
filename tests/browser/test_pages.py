"""Every page in a browser without a network: nothing leaves, nothing fails, nothing moves, everybody can read it."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
HTML = Path(os.environ.get("INFRABOOK_HTML", ROOT / "_build" / "html"))
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
BUDGET = 500_000
CHAPTER = "book/3-one-gpu/seven-billion.html"

SHIFTS = """() => new Promise(resolve => {
    let sum = 0;
    const add = entry => { if (!entry.hadRecentInput) sum += entry.value; };
    new PerformanceObserver(list => list.getEntries().forEach(add)).observe({type: "layout-shift", buffered: true});
    setTimeout(() => resolve(sum), 400);
})"""
WIDE = """() => {
    const page = document.documentElement, width = page.clientWidth;
    if (page.scrollWidth <= width) return [];
    return [...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > width + 1)
        .slice(0, 3).map(e => e.outerHTML.slice(0, 120));
}"""
FIGURES = """async () => Promise.all([...document.querySelectorAll('article img[src*="_images/"]')].map(async image => {
    image.scrollIntoView();
    await image.decode();
    const about = getComputedStyle(image), drawing = await (await fetch(image.currentSrc)).text();
    const width = image.clientWidth - parseFloat(about.paddingLeft) - parseFloat(about.paddingRight);
    const sizes = [...drawing.matchAll(/ scale\\(([\\d.]+) -[\\d.]+\\)/g)].map(found => 100 * found[1]);
    const points = drawing.match(/<svg[^>]*? width="([\\d.]+)pt"/)[1];
    return [image.currentSrc, Math.min(...sizes) * width / points];
}))"""
AXE_RUN = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations
    .filter(found => ["serious", "critical"].includes(found.impact))
    .map(found => `${found.id} (${found.nodes.length}): ${found.nodes[0].html.slice(0, 160)}`)"""


def names() -> list[str]:
    """Every page of the built site but the first, which only leads to book/index.html."""
    paths = (path.relative_to(HTML) for path in HTML.rglob("*.html"))
    found = sorted(path.as_posix() for path in paths if not path.parts[0].startswith("_"))
    return [name for name in found if name != "index.html"] or ["book/index.html"]


every_page = pytest.mark.parametrize("name", names())
Visit = Callable[..., "Page"]


@pytest.fixture
def visit(browser: Browser, site: str) -> Iterator[Visit]:
    """``visit("index.html", dark=True)``: a page of the site in a fresh profile, and all that it asked for or said."""
    contexts = []

    def visited(name: str, *, width: int = 1280, dark: bool = False) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
        )
        contexts.append(context)
        page = context.new_page()
        asked: list[str] = []
        said: list[str] = []
        page.asked, page.said = asked, said  # type: ignore[attr-defined]  # notes for the test that visits
        context.on("request", lambda request: asked.append(request.url))
        context.on("response", lambda answer: said.append(answer.url) if answer.status >= 400 else None)
        context.on("weberror", lambda error: said.append(str(error.error)))
        context.on("console", lambda words: said.append(words.text) if words.type == "error" else None)
        page.goto(site + name, wait_until="load")
        return page

    yield visited
    for context in contexts:
        context.close()


@every_page
def test_page_on_a_desk_by_day(name: str, visit: Visit, site: str, html: Path) -> None:
    """One visit, all that can be seen from it; a visit is what costs time."""
    page: Any = visit(name)
    assert page.evaluate(SHIFTS) < 0.01, "nothing moves while the page loads"
    assert [url for url in page.asked if not url.startswith((site, "data:", "blob:"))] == []
    assert page.said == [], "nothing fails"
    assert not [url for url in page.asked if url.endswith("-narrow.svg")], "drawings for phones stay there"
    loaded = {html / (urlsplit(url).path.lstrip("/") or "index.html") for url in page.asked if url.startswith(site)}
    sizes = {path.name: len(gzip.compress(path.read_bytes(), 6)) for path in loaded if path.is_file()}
    assert sum(sizes.values()) <= BUDGET, sorted(sizes.items(), key=lambda item: -item[1])[:5]
    assert not any("pyodide" in path.as_posix() for path in loaded), "Pyodide waits for the first touch"
    assert serious(page, "light") == []


@every_page
def test_page_on_a_phone_by_night(name: str, visit: Visit) -> None:
    page: Any = visit(name, width=390, dark=True)
    assert page.evaluate(SHIFTS) < 0.01, "nothing moves while the page loads"
    for drawing, words in page.evaluate(FIGURES):
        assert drawing.endswith("-narrow.svg"), "a phone gets the drawing made for it"
        assert drawing.replace("-narrow", "") not in page.asked, "and does not load the other one"
        assert words >= 9, f"the smallest words of {drawing} are {words:.1f} px high"
    for width in (390, 768, 1400):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(WIDE) == [], f"nothing is wider than {width} px"
    page.set_viewport_size({"width": 390, "height": 900})
    assert serious(page, "dark") == []


def serious(page: Page, theme: str) -> list[str]:
    """What axe-core calls serious or critical, under the theme that the page has to be in."""
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    page.add_script_tag(path=AXE)
    found: list[str] = page.evaluate(AXE_RUN)
    return found


# -- keyboard and what the theme's trimmed parts have to do ---------------------------------------------------
def focused(page: Page) -> str:
    """Text, label and classes of what has the focus."""
    shown = page.evaluate("(e => [e.textContent, e.ariaLabel, e.title, e.className])(document.activeElement)")
    return " ".join(map(str, shown))


def test_first_tab_skips_to_the_text(visit: Visit) -> None:
    page = visit(CHAPTER)
    page.keyboard.press("Tab")
    assert "Skip to main content" in focused(page)
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#main-content"


def test_search_opens_with_the_keyboard_and_finds(visit: Visit, site: str) -> None:
    page: Any = visit(CHAPTER)
    page.keyboard.press("Control+k")
    field = page.locator("#pst-search-dialog input[type=search]")
    field.wait_for(state="visible")
    assert page.evaluate("document.activeElement.name") == "q"
    page.keyboard.type("autograd")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=autograd")
    page.locator("#search-results li a").first.wait_for()
    assert page.locator("#search-results li a").count() > 2
    assert page.said == []


@pytest.mark.parametrize("width", [390, 1280])
def test_search_has_a_visible_button_at_every_width(visit: Visit, width: int) -> None:
    page = visit(CHAPTER, width=width)
    page.locator("button.search-button__button:visible").first.click()
    page.locator("#pst-search-dialog input[type=search]").wait_for(state="visible")


def test_theme_can_be_changed_with_the_keyboard(visit: Visit) -> None:
    page = visit(CHAPTER)
    for _ in range(80):
        page.keyboard.press("Tab")
        if "theme-switch-button" in focused(page):
            break
    else:
        pytest.fail("80 times Tab did not reach the theme button")
    seen = set()
    for _ in range(3):
        seen.add(page.evaluate("document.documentElement.dataset.mode + ' ' + document.documentElement.dataset.theme"))
        page.locator(".theme-switch-button:visible").focus()  # the theme's tooltip takes the focus away
        page.keyboard.press("Enter")
    assert {mode.split()[0] for mode in seen} == {"auto", "light", "dark"}
    assert {mode.split()[1] for mode in seen} == {"light", "dark"}


def test_every_icon_button_shows_an_icon(visit: Visit) -> None:
    page = visit(CHAPTER, width=390)
    for selector in (".primary-toggle", ".search-button", ".theme-switch-button", ".secondary-toggle"):
        icon = page.locator(f"{selector}:visible .fa-solid:visible").first
        box = icon.bounding_box()
        assert box is not None
        assert box["width"] > 10, selector
        assert "svg" in icon.evaluate("e => getComputedStyle(e).maskImage || getComputedStyle(e).webkitMaskImage")


def test_contents_open_and_close_on_a_phone(visit: Visit) -> None:
    page = visit(CHAPTER, width=390)
    link = page.locator(".bd-sidebar-primary nav a", has_text="Notation").first
    assert not link.is_visible()
    page.locator(".primary-toggle:visible").first.click()
    link.wait_for(state="visible")
    page.keyboard.press("Escape")
    link.wait_for(state="hidden")


def test_a_quoted_number_leads_to_its_cell(visit: Visit) -> None:
    page = visit(CHAPTER)
    number = page.locator(".bd-article .labnum a").first
    words = number.inner_text()
    number.click()
    page.wait_for_url("**/notebooks/**")
    cell = page.locator(".labcell:target + .cell")
    assert cell.is_visible()
    assert words.replace(",", "") in cell.inner_text().replace(",", "")
