"""The built site holds what it promises: every page, every anchor, no other host, little weight.

Run after ``tools/build_site.py --strict``. Without a built site these tests are skipped, except in CI.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import tomllib
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from bs4 import BeautifulSoup, Tag

from infrabook import labfile
from infrabook.site import assets, pages

pytestmark = pytest.mark.site

ROOT = Path(__file__).parents[2]
HTML = Path(os.environ.get("INFRABOOK_HTML", ROOT / "_build" / "html"))
GENERATED = {"404", "index", "search"}
BUDGET = 500_000  # bytes of a page, gzipped, before an explorer starts
BUILT = (HTML / "index.html").is_file()


def toc() -> list[str]:
    """Every page of the table of contents, in order."""
    table = yaml.safe_load((ROOT / "_toc.yml").read_text("utf8"))
    found = [table["root"]]

    def walk(entries: list[dict[str, Any]]) -> None:
        for entry in entries:
            found.append(entry["file"])
            walk(entry.get("sections", []))

    for part in table["parts"]:
        walk(part["chapters"])
    return found


PAGES = toc()
CHAPTERS = [page for page in PAGES if re.match(r"book/\d", page)]
LABS = [page for page in PAGES if page.startswith("notebooks/")]
every_page = pytest.mark.parametrize("page", PAGES)
every_chapter = pytest.mark.parametrize("page", CHAPTERS)


@pytest.fixture(autouse=True)
def _needs_the_site(request: pytest.FixtureRequest) -> None:
    if not BUILT and "unit" not in request.keywords:
        reason = f"no built site in {HTML.parent.name}/{HTML.name}: run `make site` first"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


@cache
def soup(page: str) -> BeautifulSoup:
    """A built page."""
    return BeautifulSoup((HTML / f"{page}.html").read_text("utf8"), "html.parser")


def article(page: str) -> Tag:
    """A page's own part, without what surrounds it."""
    found = soup(page).select_one("article.bd-article")
    assert found is not None
    return found


def built() -> list[str]:
    """Every HTML page of the site."""
    paths = (path.relative_to(HTML) for path in HTML.rglob("*.html"))
    return sorted(path.with_suffix("").as_posix() for path in paths if not path.parts[0].startswith("_"))


def target(page: str, address: str) -> tuple[Path, str]:
    """The file and the anchor that a local address leads to."""
    parts = urlsplit(address)
    place = HTML / f"{page}.html"
    if parts.path.startswith("/"):
        place = HTML / parts.path.lstrip("/")
    elif parts.path:
        place = place.parent / unquote(parts.path)
    if place.is_dir() or parts.path.endswith("/"):
        place = place / "index.html"
    return Path(os.path.normpath(place)), unquote(parts.fragment)


def local(address: str) -> bool:
    """Whether an address is the site's own."""
    return not re.match(r"[a-z][a-z+.-]*:|//", address)


# -- pages ---------------------------------------------------------------------------------------------------
def test_site_has_the_pages_of_the_contents_and_no_others() -> None:
    assert set(built()) == set(PAGES) | GENERATED


@every_page
def test_page_has_one_title_and_text(page: str) -> None:
    titles = article(page).select("h1")
    assert len(titles) == 1
    assert len(article(page).get_text()) > 200
    title = soup(page).title
    assert title is not None
    assert "ML Infra, Recomputed" in title.get_text()


@every_page
def test_page_says_what_language_it_is_in_and_what_it_is_about(page: str) -> None:
    document = soup(page)
    assert document.html is not None
    assert document.html["lang"] == "en"
    assert document.select_one('meta[property="og:site_name"]')["content"] == "ML Infra, Recomputed"  # type: ignore[index]


def test_first_page_leads_to_the_book() -> None:
    assert "url=book/index.html" in (HTML / "index.html").read_text("utf8")


def test_contents_lists_all_47_chapters_and_links_the_finished_ones() -> None:
    parts = tomllib.loads((ROOT / "book" / "chapters.toml").read_text("utf8"))["part"]
    rows = [row.find_all("td") for row in article("book/contents").select("tbody tr")]
    shown = [cells[0].get_text() for cells in rows]
    assert shown == [chapter["title"] for part in parts for chapter in part["chapters"]]
    assert len(shown) == 47
    linked = [link["href"] for cells in rows for link in cells[0].select("a")]
    assert len(linked) == len(CHAPTERS)
    assert {f"book/{href}".removesuffix(".html") for href in linked} == set(CHAPTERS)
    assert f"{len(CHAPTERS)} of 47 chapters are finished" in article("book/contents").get_text()


@every_chapter
def test_chapter_has_its_lab_below_it_in_the_sidebar(page: str) -> None:
    lab = page.replace("book/", "notebooks/", 1)
    assert lab in LABS
    hrefs = [link["href"] for link in soup(page).select(".bd-sidebar-primary nav a[href]")]
    assert any(target(page, str(href))[0] == HTML / f"{lab}.html" for href in hrefs)


# -- quoted numbers ------------------------------------------------------------------------------------------
QUOTED = re.compile(r"\{num\}`([\w/.-]*):([a-z][a-z0-9_]*)")
FIGURE = re.compile(r"\{labfig\}\s+([\w/.-]*):([a-z][a-z0-9_]*)")


def quoted(page: str) -> set[tuple[str, str]]:
    """(lab, key) of every number and figure in a page's source."""
    source = (ROOT / f"{page}.md").read_text("utf8")
    own = page.partition("/")[2]
    return {(lab or own, key) for pattern in (QUOTED, FIGURE) for lab, key in pattern.findall(source)}


@every_chapter
def test_chapter_quotes_its_lab(page: str) -> None:
    assert len(quoted(page)) > 5


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("book/")])
def test_every_quoted_number_lands_on_the_cell_that_stored_it(page: str) -> None:
    wanted: dict[tuple[Path, str], set[str]] = {}
    for lab, key in quoted(page):
        cells = json.loads((ROOT / "notebooks" / f"{lab}.ipynb").read_text("utf8"))["cells"]
        stored = [
            [
                out["metadata"]["scrapbook"]["name"]
                for out in cell.get("outputs", [])
                if out.get("metadata", {}).get("scrapbook")
            ]
            for cell in cells
        ]
        first = next(keys[0] for keys in stored if key in keys)
        anchor = "cell-" + first.replace("_", "-")
        wanted.setdefault((HTML / "notebooks" / f"{lab}.html", anchor), set()).add(key)
    links = {target(page, str(link["href"])) for link in article(page).select(".labnum a")}
    assert links == set(wanted)
    for (place, anchor), keys in wanted.items():
        lab = place.relative_to(HTML).with_suffix("").as_posix()
        mark = soup(lab).find(id=anchor)
        assert mark is not None, f"{lab} has no anchor {anchor}"
        cell = mark.find_next_sibling()
        assert cell is not None
        assert "cell" in cell["class"]
        for key in keys:
            assert f"{key} = " in cell.get_text() or (cell.find("img") and f'"{key}"' in cell.get_text()), key


# -- links and images ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("page", sorted({*PAGES, *GENERATED}))
def test_every_local_link_leads_somewhere(page: str) -> None:
    addresses = [str(tag[name]) for name in ("href", "src", "srcset") for tag in soup(page).select(f"[{name}]")]
    for address in filter(local, addresses):
        place, anchor = target(page, address)
        anchor = anchor.partition("?")[0]  # settings of an explorer follow its name
        if page == "404" and not address.startswith("/"):
            continue  # a page of the place where it is shown
        assert place.is_file(), f"{page}: {address}"
        if anchor and place.suffix == ".html" and anchor != "":
            found = soup(place.relative_to(HTML).with_suffix("").as_posix())
            assert found.find(id=anchor) or found.select_one(f'[name="{anchor}"]'), f"{page}: {address}"


@every_page
def test_images_say_what_they_show(page: str) -> None:
    for image in article(page).find_all("img"):
        words = str(image.get("alt", ""))
        assert len(words) > 20, image
        assert not re.search(r"\.(svg|png)$", words), "a file's name says nothing"
    for drawing in article(page).select('svg[role="img"]'):
        assert drawing.get("aria-label") or drawing.find("title")


@every_page
def test_every_drawing_has_its_room_and_its_form_for_phones(page: str) -> None:
    """One picture, of which a browser loads one form: the sizes of both are there before it is."""
    for image in article(page).select('img[src$=".svg"][src*="_images/"]'):
        assert image.parent is not None
        (source,) = image.parent.select("picture > source")
        assert source["media"] == "(max-width: 40rem)"
        assert source["srcset"] == str(image["src"]).replace(".svg", "-narrow.svg")
        assert int(source["width"]) < 400 < int(image["width"])  # type: ignore[arg-type]
        assert int(source["height"]) > 100  # type: ignore[arg-type]


# -- no other host -------------------------------------------------------------------------------------------
LOADED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\ssrc=[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|<link\b(?=[^>]*rel=[\"']?(?:stylesheet|preload|prefetch|icon|modulepreload|preconnect|dns-prefetch))"
    r"[^>]*href=[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|<object\b[^>]*?\sdata=[\"']?((?:https?:)?//[^\"'\s>]+)",
    re.IGNORECASE,
)
IN_CODE = re.compile(
    r"(?:url\(|@import|\bimport|\bfrom|importScripts\(|import\(|fetch\(|new (?:Shared)?Worker\()\s*"
    r"[\"'`]?((?:https?:)?//[^\s\"'`)]+)"
)
MINE = ("vendor", "pyodide-")


def test_no_page_style_or_script_loads_anything_from_another_host() -> None:
    seen = 0
    for path in HTML.rglob("*"):
        inside = path.relative_to(HTML).parts
        if path.suffix not in {".html", ".js", ".mjs", ".css", ".svg"} or any(part.startswith(MINE) for part in inside):
            continue
        seen += 1
        text = path.read_text("utf8", "ignore")
        found = [next(filter(None, match)) for match in LOADED.findall(text)] if path.suffix == ".html" else []
        if path.suffix != ".html":
            text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)  # a comment may name its source
            found += [address for address in IN_CODE.findall(text) if "www.w3.org" not in address]
        assert not found, f"{path.relative_to(HTML)}: {found[:3]}"
    assert seen > 30


def test_no_widget_state_and_no_trimmed_script_is_in_a_page() -> None:
    for page in built():
        text = (HTML / f"{page}.html").read_text("utf8")
        assert "vnd.jupyter.widget-state" not in text
        assert "fontawesome.js" not in text
        if page != "search":
            assert "searchindex.js" not in text
    assert "searchindex.js" in (HTML / "search.html").read_text("utf8")


def test_every_icon_of_the_theme_is_drawn() -> None:
    """Font Awesome is left out, so a name that icons.css lacks would show as a square."""
    drawn = set(re.findall(r"\.(fa-[a-z-]+) \{ --icon", (HTML / "_static" / "icons.css").read_text("utf8")))
    used = {
        name for page in built() for tag in soup(page).select(".fa-solid, .fa-regular, .fa-brands, .fas, .fab")
        for name in tag["class"] if name.startswith("fa-")
    } - {"fa-solid", "fa-lg"}  # fmt: skip
    assert used
    assert used <= drawn


# -- weight --------------------------------------------------------------------------------------------------
def weigh(path: Path) -> int:
    """Bytes on the wire: gzipped, but for what is compressed already."""
    data = path.read_bytes()
    return len(data) if path.suffix in {".woff2", ".png", ".webp"} else len(gzip.compress(data, 6))


def weight(page: str) -> dict[str, int]:
    """What a page loads before an explorer starts, with the text's fonts and what formulas usually need."""
    document = soup(page)
    addresses = [f"{Path(page).name}.html"]
    addresses += [
        str(tag["href"]) for tag in document.select('link[rel~="stylesheet"], link[rel~="preload"], link[rel~="icon"]')
    ]
    addresses += [str(tag["src"]) for tag in document.select("script[src], img[src]")]
    files = {target(page, address)[0] for address in addresses if local(address)}
    files |= set((HTML / "_static" / "vendor" / "fonts").glob("*.woff2"))
    if document.select(".katex"):
        files |= {
            path
            for path in (HTML / "_static/vendor/katex/fonts").glob("*.woff2")
            if re.search("Main-Reg|Math-It|Size", path.name)
        }
    return {path.relative_to(HTML).as_posix(): weigh(path) for path in files}


@every_page
def test_page_is_light_before_an_explorer_starts(page: str) -> None:
    parts = weight(page)
    heaviest = sorted(((size, name) for name, size in parts.items()), reverse=True)[:5]
    assert sum(parts.values()) <= BUDGET, heaviest


# -- where a page comes from ---------------------------------------------------------------------------------
@pytest.mark.parametrize("page", CHAPTERS + LABS)
def test_chapter_and_lab_say_when_the_lab_ran(page: str) -> None:
    line = article(page).select_one(".page-origin")
    assert line is not None
    words = line.get_text()
    assert re.search(r"Lab last run on \d{1,2} [A-Z][a-z]+ \d{4} with Python 3\.\d+\.\d+, ", words)
    assert "torch" in words
    assert "numpy" in words
    lab = page.partition("/")[2]
    about = json.loads((ROOT / "notebooks" / f"{lab}.ipynb").read_text("utf8"))["metadata"][labfile.KEY]
    assert all(f"{name} {number}" in words for name, number in about["versions"].items())


@pytest.mark.parametrize("page", CHAPTERS + LABS)
def test_lab_can_be_downloaded_as_it_is_stored(page: str) -> None:
    links = [str(link["href"]) for link in article(page).select(".page-origin a") if "download" in link.get_text()]
    assert len(links) == 1
    place, _ = target(page, links[0])
    assert place.read_bytes() == (ROOT / "notebooks" / f"{page.partition('/')[2]}.ipynb").read_bytes()


@every_page
def test_every_page_offers_to_report_an_error(page: str) -> None:
    assert "report an error" in article(page).get_text()


# -- whose copy this is (no built site needed) ---------------------------------------------------------------
def origin(page: str, repository: str) -> str:
    """The line below a title, as a copy that belongs to ``repository`` shows it."""
    app = SimpleNamespace(config=SimpleNamespace(infrabook_repository=repository), srcdir=str(ROOT))
    context: dict[str, Any] = {"body": "<h1>T</h1>", "pathto": lambda place, *_: "/" + place}
    pages.page_context(app, page, "page.html", context, object())  # type: ignore[arg-type]
    return str(context["body"])


@pytest.mark.unit
def test_repository_is_what_the_workflow_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INFRABOOK_REPOSITORY", "reader/their-book")
    assert pages.repository(tmp_path) == "reader/their-book"
    monkeypatch.setenv("INFRABOOK_REPOSITORY", "not a repository")
    with pytest.raises(Exception, match="it has to be owner/name"):
        pages.repository(tmp_path)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("remote", "name"),
    [
        ("https://github.com/reader/their-book.git", "reader/their-book"),
        ("git@github.com:reader/their-book.git", "reader/their-book"),
        ("https://github.com/reader/their.book", "reader/their.book"), ("https://elsewhere.example/reader/book.git",
        ""),
        ("", ""),
    ],
)  # fmt: skip
def test_repository_is_the_origin_where_it_is_on_github(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, remote: str, name: str
) -> None:
    monkeypatch.delenv("INFRABOOK_REPOSITORY", raising=False)
    monkeypatch.setattr("infrabook.site.pages.subprocess.run", lambda *_, **__: SimpleNamespace(stdout=remote + "\n"))
    assert pages.repository(tmp_path) == name


@pytest.mark.unit
@pytest.mark.parametrize("page", CHAPTERS[:1] + LABS[:1])
def test_a_published_page_links_to_colab_and_to_its_readers_issues(page: str) -> None:
    line = origin(page, "reader/their-book")
    lab = page.partition("/")[2]
    assert f"https://colab.research.google.com/github/reader/their-book/blob/labs/notebooks/{lab}.ipynb" in line
    assert "https://github.com/reader/their-book/issues/new?title=" in line
    assert "Lab last run on" in line


@pytest.mark.unit
def test_a_copy_without_a_repository_names_nobodys() -> None:
    line = origin(CHAPTERS[0], "")
    assert "github" not in line
    assert "colab" not in line
    assert "/book/errata#report-an-error" in line


@pytest.mark.unit
def test_a_drawing_for_phones_is_used_where_there_is_one(tmp_path: Path) -> None:
    svg = '<svg width="{}pt" height="150pt" viewBox="0 0 {} 150"></svg>'
    for name, width in (("both", 480), ("both-narrow", 270), ("wide", 450)):
        (tmp_path / f"{name}.svg").write_text(svg.format(width, width), "utf8")
    images = {f"{name}.svg": f"{name}.svg" for name in ("both", "wide")}
    app: Any = SimpleNamespace(srcdir=tmp_path, outdir=tmp_path / "html", builder=SimpleNamespace(images=images))
    (tmp_path / "html").mkdir()
    body = '<p><img alt="a" src="../_images/both.svg" /><img alt="b" src="../_images/wide.svg" /></p>'
    assert assets.with_sizes(app, body) == (
        '<p><picture><source media="(max-width: 40rem)" srcset="../_images/both-narrow.svg" width="360" height="200" />'
        '<img width="640" height="200" alt="a" src="../_images/both.svg" /></picture>'
        '<img width="600" height="200" alt="b" src="../_images/wide.svg" /></p>'
    )
    assert [path.name for path in (tmp_path / "html" / "_images").iterdir()] == ["both-narrow.svg"]


@pytest.mark.unit
def test_what_the_theme_brings_in_vain_is_left_out() -> None:
    kept = '<script src="a.js"></script>'
    head = '<script src="../_static/searchtools.js"></script><script src="../searchindex.js"></script>'
    assert assets.mended(head + kept) == kept
