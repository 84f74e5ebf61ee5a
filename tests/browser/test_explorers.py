"""Every explorer of every page, moved in a browser that has no network, agrees with the library."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlsplit
from xml.etree import ElementTree

import pytest

from infrabook import explore
from infrabook.explore import Check, Choice, Number

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser
Open = Callable[..., "Page"]

CONFIG = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}  # fmt: skip
SHOWN = """([name, expected]) => {
    const form = document.querySelector(`form[data-explorer="${name}"]`);
    const error = form.querySelector(".explorer-error")?.textContent;
    const number = form.querySelector(".explorer-number")?.dataset.value;
    if (expected.error) return error === expected.error + ".";
    return !error && form.dataset.state === "ready" && number === expected.number;
}"""


def built() -> Path:
    """The built site's folder, wherever it is."""
    return Path(os.environ.get("INFRABOOK_HTML", Path(__file__).parents[2] / "_build" / "html"))


def shown() -> list[tuple[str, str]]:
    """(page, explorer) for every explorer that stands in the built HTML."""
    found = []
    for path in sorted(built().rglob("*.html")):
        for name in re.findall(r'<form[^>]* data-explorer="(\w+)"', path.read_text("utf8")):
            found.append((path.relative_to(built()).as_posix(), name))
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a page and explorer; without a built site one that says so."""
    if "place" in metafunc.fixturenames:
        places = shown() or [("index.html", "model_ledger")]
        metafunc.parametrize("place", places, ids=[f"{page.removesuffix('.html')}:{name}" for page, name in places])


@pytest.fixture
def page_of(html: Path) -> Callable[[str], str]:
    """Page of the site that shows an explorer, at its own defaults if there is one."""

    def found(name: str) -> str:
        started = {page: (html / page).read_text("utf8") for page, other in shown() if other == name}
        return next((page for page, text in started.items() if explore.load(name).html() in text), next(iter(started)))

    return found


# -- reading a page ------------------------------------------------------------------------------------------
def form_of(page: Page, name: str) -> Locator:
    """The explorer's form, scrolled to."""
    form = page.locator(f'form[data-explorer="{name}"]').first
    form.scroll_into_view_if_needed()
    return form


def values_of(form: Locator) -> dict[str, Any]:
    """What its controls hold."""
    values: dict[str, Any] = form.evaluate(
        """form => Object.fromEntries([...form.querySelectorAll("[name]")].map(
            el => [el.name, el.type === "checkbox" ? el.checked : el.value]))"""
    )
    return values


def library(name: str, values: dict[str, Any]) -> dict[str, str]:
    """What the library says to the same values, in this process."""
    answer = json.loads(explore.reply(name, json.dumps(values)))
    if "error" in answer:
        return {"error": answer["error"]}
    (number,) = (
        el for el in ElementTree.fromstring(f"<div>{answer['html']}</div>").iter()
        if el.get("class") == "explorer-number"
    )  # fmt: skip
    return {"number": number.attrib["data-value"]}


def agrees(page: Page, name: str) -> dict[str, str]:
    """Wait until the page shows what the library says for the values its controls hold."""
    expected = library(name, values_of(form_of(page, name)))
    page.wait_for_function(SHOWN, arg=[name, expected])
    return expected


def type_in(form: Locator, control: str, value: str) -> None:
    """Type ``value`` and leave the field, as a reader does."""
    field = form.locator(f"[name={control}]")
    field.fill(value)
    field.press("Enter")
    field.blur()


def numeric(name: str) -> str:
    """An explorer's first numeric control."""
    return next(key for key, control in explore.load(name).controls.items() if isinstance(control, Number))


# -- every explorer of every page ----------------------------------------------------------------------------
def test_every_control_moves_the_number_as_the_library_says(
    open_page: Open, html: Path, place: tuple[str, str]
) -> None:
    path, name = place
    page = open_page(path)
    form = form_of(page, name)
    assert library(name, values_of(form))["number"] == form.locator(".explorer-number").get_attribute("data-value")
    for key, control in explore.load(name).controls.items():
        field = form.locator(f"[name={key}]")
        before = values_of(form)[key]
        if isinstance(control, Number):
            slider = form.locator(".explorer-numeric", has=page.locator(f"[name={key}]")).locator("[type=range]")
            at_end = slider.evaluate("el => Number(el.value) >= Number(el.max)")
            slider.press("ArrowLeft" if at_end else "ArrowRight")
            assert values_of(form)[key] != before
        elif isinstance(control, Choice):
            others = [control.key(value) for _, value in control.pairs if control.key(value) != before]
            field.select_option(others[-1])
        elif isinstance(control, Check):
            field.set_checked(not before)
        else:
            folded = form.locator("details", has=page.locator(f"[name={key}]"))
            if not folded.evaluate("el => el.open"):
                folded.locator("summary").click()
            field.fill(json.dumps(CONFIG) if key == "config" else "1 2 3")
            field.blur()
        agrees(page, name)
        if isinstance(control, Number):
            type_in(form, key, control.key(control.stops[0] if control.only_stops else control.high))
            agrees(page, name)
            type_in(form, key, "nonsense")
            assert "nonsense" in agrees(page, name)["error"]
            type_in(form, key, str(before))
            agrees(page, name)


def test_no_explorer_moves_the_page_or_makes_it_wider(open_page: Open, html: Path, place: tuple[str, str]) -> None:
    path, name = place
    page = open_page(path, width=390, height=844)
    page.evaluate(
        """async () => {
            await document.fonts.ready;
            window.shifts = [];
            new PerformanceObserver(list => list.getEntries().forEach(entry => window.shifts.push(...entry.sources
                .map(source => source.node?.nodeType === 1 ? source.node : source.node?.parentElement)
                .filter(node => node?.closest?.(".explorer") || node?.closest?.("article"))
                .map(node => `${entry.value.toFixed(4)} ${node.tagName}.${node.className}`)))
            ).observe({ type: "layout-shift" }); // from here on: what the page does on loading is its own matter
        }"""
    )
    form = form_of(page, name)
    key = numeric(name)
    for value in ("nonsense", explore.load(name).controls[key].key(explore.load(name).controls[key].high)):
        type_in(form, key, value)
        agrees(page, name)
    assert (
        page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(() => done(window.shifts))))") == []
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    overflowing = form.evaluate(
        """form => [...form.querySelectorAll("*")].filter(el => el.checkVisibility() && !el.closest(".explorer-quiet")
            && el.getBoundingClientRect().right > innerWidth + 0.5).map(el => el.outerHTML.slice(0, 80))"""
    )
    assert overflowing == []


def test_the_label_of_a_capacity_stays_in_its_column(open_page: Open, page_of: Callable[[str], str]) -> None:
    page = open_page(page_of("model_ledger"), width=390, height=844)
    made = explore.load("model_ledger")
    views = [made(gpu=gpu, batch=batch) for _, gpu in made.controls["gpu"].pairs for batch in (1, 8, 64)]  # type: ignore[union-attr]
    outside = form_of(page, "model_ledger").evaluate(
        """(form, views) => views.flatMap(html => {
            const view = form.querySelector(".explorer-view");
            view.innerHTML = html;
            const [label, bar, answer] = [".meter-name", ".meter", ".explorer-answer"].map(
                part => view.querySelector(part).getBoundingClientRect());
            return label.left < bar.left - 1 || label.right > bar.right + 1 || label.top < answer.bottom - 1
                ? [`${view.querySelector(".meter-name").textContent} ${[label.left, label.right]}`] : [];
        })""",
        views,
    )
    assert outside == []


# -- loading -------------------------------------------------------------------------------------------------
def test_a_page_loads_no_python_until_a_control_is_touched(open_page: Open, page_of: Callable[[str], str]) -> None:
    page = open_page(page_of("model_ledger"))
    asked: list[str] = []
    page.context.on("request", lambda request: asked.append(urlsplit(request.url).path.rsplit("/", 1)[1]))
    page.mouse.wheel(0, 3000)
    page.wait_for_load_state("networkidle")
    assert not [name for name in asked if "worker" in name or "pyodide" in name]
    form = form_of(page, "model_ledger")
    form.locator("[name=batch]").focus()  # coming near is enough
    with page.expect_request(re.compile("pyodide.asm.wasm")):
        pass
    type_in(form, "batch", "2")
    agrees(page, "model_ledger")
    assert asked.count("explorer-worker.js") == 1


@pytest.mark.parametrize(
    "part", ["explorer.json", "pyodide.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "infrabook-*.zip"]
)
def test_a_failed_fetch_offers_a_retry_that_retries(open_page: Open, page_of: Callable[[str], str], part: str) -> None:
    page = open_page(page_of("model_ledger"))
    failures: list[str] = []
    broken = True  # until the reader has seen it: on a slow machine the first try may fail before anything is typed

    def fail(route: Any) -> None:
        if not broken:
            return route.continue_()
        failures.append(route.request.url)
        return route.abort()

    page.context.route(f"**/{part}", fail)
    form = form_of(page, "model_ledger")
    type_in(form, "batch", "4")
    again = form.get_by_role("button", name="Try again")
    again.wait_for()
    assert form.locator(".explorer-error").inner_text().startswith("Could not load Python")
    assert values_of(form)["batch"] == "4"
    broken = False
    again.click()
    agrees(page, "model_ledger")
    assert failures


def test_a_page_opened_from_a_file_says_to_serve_it(browser: Any, html: Path, page_of: Callable[[str], str]) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto((html / page_of("model_ledger")).as_uri())
    form = form_of(page, "model_ledger")
    assert "serve the site" in form.locator(".explorer-status").inner_text()
    assert form.locator("fieldset").evaluate("el => el.disabled")
    assert form.locator(".explorer-number").is_visible()
    context.close()


# -- links ---------------------------------------------------------------------------------------------------
def test_a_link_carries_the_settings_and_restores_them(open_page: Open, page_of: Callable[[str], str]) -> None:
    path = page_of("model_ledger")
    page = open_page(path)
    form = form_of(page, "model_ledger")
    form.locator("[name=model]").select_option("mistral-7b")
    agrees(page, "model_ledger")
    form.get_by_role("button", name="Copy link").scroll_into_view_if_needed()
    scrolled, entries = page.evaluate("[scrollY, history.length]")
    type_in(form, "batch", "3")
    expected = agrees(page, "model_ledger")
    form.get_by_role("button", name="Copy link").click()
    form.get_by_text("Link copied.").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.url
    assert page.evaluate("[scrollY, history.length]") == [scrolled, entries]
    settings = dict(parse_qsl(urlsplit(copied).fragment.partition("?")[2]))
    assert settings["model"] == "mistral-7b"
    assert settings["batch"] == "3"

    fresh = open_page(f"{path}#{urlsplit(copied).fragment}")
    assert agrees(fresh, "model_ledger") == expected
    assert values_of(form_of(fresh, "model_ledger"))["batch"] == "3"
    assert fresh.locator("form.explorer").first.evaluate("el => el.getBoundingClientRect().top < innerHeight")
    fresh.reload()
    assert agrees(fresh, "model_ledger") == expected


def test_a_pasted_config_travels_in_the_link(open_page: Open, page_of: Callable[[str], str]) -> None:
    config = json.dumps(CONFIG, indent=2)
    page = open_page(f"{page_of('model_ledger')}#model_ledger?config={quote(config)}&batch=2")
    form = form_of(page, "model_ledger")
    expected = agrees(page, "model_ledger")
    assert expected["number"] == library("model_ledger", {"config": config, "batch": 2})["number"]
    assert form.locator("textarea").is_visible()
    assert form.locator("textarea").input_value() == config


@pytest.mark.parametrize(
    ("fragment", "says"),
    [
        ("batch=abc", "'abc'"),
        ("batch=100000", "batch has to be a whole number from 1 to 256"),
        ("model=gpt-9", "'gpt-9'"),
        ("bach=4", "'bach' is not a setting of model_ledger"),
        ("batch=%zz", "batch has to be"),
        ("config=%7B", "config"),
        ("batch=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E", "<img src=x"),
    ],
)
def test_a_malformed_link_gives_a_sentence_and_the_defaults(
    open_page: Open, page_of: Callable[[str], str], fragment: str, says: str
) -> None:
    page = open_page(page_of("model_ledger"))
    first = values_of(form_of(page, "model_ledger"))
    page = open_page(f"{page_of('model_ledger')}#model_ledger?{fragment}")
    form = form_of(page, "model_ledger")
    form.locator(".explorer-error").wait_for()
    sentence = form.locator(".explorer-error").inner_text()
    assert sentence.startswith("This link's settings cannot be used")
    assert says in sentence
    assert values_of(form) == first
    assert form.locator(".explorer-number").get_attribute("data-value") == library("model_ledger", first)["number"]
    type_in(form, "batch", "2")
    agrees(page, "model_ledger")


def test_a_new_link_on_the_same_page_is_followed(open_page: Open, page_of: Callable[[str], str]) -> None:
    page = open_page(page_of("model_ledger"))
    page.evaluate("location.hash = 'model_ledger?batch=7'")
    form = form_of(page, "model_ledger")
    page.wait_for_function("document.querySelector('form.explorer [name=batch]').value === '7'")
    agrees(page, "model_ledger")
    assert values_of(form)["batch"] == "7"


# -- using it ------------------------------------------------------------------------------------------------
def test_reset_brings_the_first_frame_back_at_once(open_page: Open, page_of: Callable[[str], str]) -> None:
    page = open_page(page_of("model_ledger"))
    form = form_of(page, "model_ledger")
    first, view = values_of(form), form.locator(".explorer-view").inner_html()
    type_in(form, "batch", "8")
    agrees(page, "model_ledger")
    page.wait_for_function("location.hash.includes('batch=8')")
    type_in(form, "sequence", "oops")
    agrees(page, "model_ledger")
    form.get_by_role("button", name="Reset").click()
    assert values_of(form) == first
    assert form.locator(".explorer-view").inner_html() == view
    assert form.locator(".explorer-error").count() == 0
    assert page.evaluate("location.hash") == ""
    slider = form.get_by_role("slider", name="batch, slider")
    assert slider.get_attribute("aria-valuetext") == first["batch"]


def test_a_mistake_leaves_the_last_good_view_in_place(open_page: Open, page_of: Callable[[str], str]) -> None:
    page = open_page(page_of("model_ledger"))
    form = form_of(page, "model_ledger")
    type_in(form, "batch", "8")
    good = agrees(page, "model_ledger")["number"]
    link = "batch=8"
    page.wait_for_function(f"location.hash.includes('{link}')")
    for wrong in ("", "0", "257", "2.5", "3,5", "1e99", "٣"):
        type_in(form, "batch", wrong)
        assert agrees(page, "model_ledger")["error"].startswith("batch has to be a whole number from 1 to 256")
        assert form.locator(".explorer-number").get_attribute("data-value") == good
        assert values_of(form)["batch"] == wrong  # not clamped
        assert form.evaluate("form => [...form.querySelectorAll('[aria-invalid=true]')].map(el => el.name)") == [
            "batch"
        ]
    told, view = (form.locator(f".explorer-{part}").bounding_box() for part in ("error", "view"))
    assert told is not None
    assert view is not None
    assert told["y"] + told["height"] <= view["y"] + 0.5, "the sentence covers the view"
    assert link in page.url
    type_in(form, "batch", "8")
    agrees(page, "model_ledger")
    assert form.locator(".explorer-error, [aria-invalid=true]").count() == 0


def test_a_long_sentence_takes_the_headlines_place(open_page: Open, page_of: Callable[[str], str]) -> None:
    page = open_page(page_of("model_ledger"), width=390, height=844)
    form = form_of(page, "model_ledger")
    answer = form.locator(".explorer-answer")
    type_in(form, "batch", "no number at all, and of more letters than two lines on a phone can take")
    agrees(page, "model_ledger")
    told, table = form.locator(".explorer-error").bounding_box(), form.locator(".meter").bounding_box()
    assert told is not None
    assert table is not None
    assert told["y"] + told["height"] <= table["y"]
    assert not answer.is_visible()
    type_in(form, "batch", "2")
    agrees(page, "model_ledger")
    assert answer.is_visible()


def test_the_first_touch_is_answered_at_once(open_page: Open, page_of: Callable[[str], str]) -> None:
    page = open_page(page_of("model_ledger"))
    page.context.route("**/pyodide.asm.wasm", lambda route: None)  # Python never comes
    form = form_of(page, "model_ledger")
    before = form.locator(".explorer-view").bounding_box()
    opacity = form.evaluate(
        """form => {
            const field = form.querySelector("[name=batch]");
            field.value = "2";
            field.dispatchEvent(new Event("input", { bubbles: true }));
            return getComputedStyle(form.querySelector(".explorer-view")).opacity;
        }"""
    )
    assert float(opacity) < 1
    said = form.locator(".explorer-message")
    assert "Starting Python" in said.inner_text()
    assert said.get_attribute("role") == "status"
    assert form.locator(".explorer-view").bounding_box() == before


def test_the_last_of_many_moves_wins(open_page: Open, page_of: Callable[[str], str]) -> None:
    page = open_page(page_of("model_ledger"))
    form = form_of(page, "model_ledger")
    slider = form.get_by_role("slider", name="sequence, slider")
    slider.evaluate(
        """el => { for (let i = 0; i < 200; i++) { el.value = i % (Number(el.max) + 1);
            el.dispatchEvent(new Event("input", { bubbles: true })); } }"""
    )
    agrees(page, "model_ledger")


def test_everything_works_from_the_keyboard(open_page: Open, page_of: Callable[[str], str]) -> None:
    page = open_page(page_of("model_ledger"))
    form = form_of(page, "model_ledger")
    controls = explore.load("model_ledger").controls
    form.locator(f"[name={next(iter(controls))}]").focus()
    reached = []
    while page.evaluate("document.activeElement.closest('form.explorer') !== null"):
        name, kind, ring = page.evaluate(
            """() => { const el = document.activeElement, style = getComputedStyle(el);
                return [el.name || el.textContent || el.getAttribute("aria-label"), el.type || el.tagName,
                        style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1]; }"""
        )
        reached.append(name)
        if kind == "range" and name == "batch, slider":
            page.keyboard.press("ArrowRight")
        if kind == "SUMMARY":
            page.keyboard.press("Enter")
        assert ring or not reached[1:], f"{name} does not show that it has the focus"
        page.keyboard.press("Tab")
    assert set(controls) <= set(reached)
    assert {"Reset", "Copy link", "batch, slider", "sequence, slider"} <= set(reached)
    assert values_of(form)["batch"] == "2"
    agrees(page, "model_ledger")
    form.locator("[name=batch]").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("16")
    page.keyboard.press("Enter")
    agrees(page, "model_ledger")


def test_what_changed_is_read_out(open_page: Open, page_of: Callable[[str], str]) -> None:
    page = open_page(page_of("model_ledger"))
    form = form_of(page, "model_ledger")
    status = form.locator(".explorer-status")
    assert (status.get_attribute("role"), status.get_attribute("aria-live")) == ("status", "polite")
    type_in(form, "batch", "2")
    agrees(page, "model_ledger")
    assert form.locator(".explorer-number").inner_text() in (status.text_content() or "")


def test_two_explorers_on_a_page_do_not_disturb_each_other(
    open_page: Open, page_of: Callable[[str], str], site: str, browser: Any
) -> None:
    path = page_of("model_ledger")
    second = explore.load("model_ledger").at(batch=5).html().replace('id="model_ledger"', 'id="second"')
    context = browser.new_context()
    page = context.new_page()

    def doubled(route: Any) -> None:
        answer = route.fetch()
        head, tag, tail = answer.text().partition('<form class="explorer"')
        route.fulfill(response=answer, body=head + tag + tail.replace("</form>", f"</form>{second}", 1))

    page.route(f"**/{path}", doubled)
    page.goto(f"{site}{path}#model_ledger?sequence=512")
    forms = page.locator('form[data-explorer="model_ledger"]')
    assert forms.count() == 2
    one, two = forms.nth(0), forms.nth(1)
    page.wait_for_function("document.querySelector('form.explorer [name=sequence]').value === '512'")
    agrees(page, "model_ledger")
    followed = library("model_ledger", values_of(two))["number"]  # the link speaks to both
    two.locator(f'.explorer-number[data-value="{followed}"]').wait_for()
    untouched = two.locator(".explorer-number").get_attribute("data-value")
    type_in(one, "batch", "bad")
    agrees(page, "model_ledger")
    assert two.locator(".explorer-error").count() == 0
    assert two.locator(".explorer-number").get_attribute("data-value") == untouched
    assert values_of(two)["batch"] == "5"
    context.close()
