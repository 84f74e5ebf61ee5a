"""Fonts, formulas, icons and the style sheet, all served by the site itself; colours come from ``palette``.

What the theme brings and no page needs is left out: a page has to be light before a reader starts an explorer.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from .. import palette

HERE = Path(__file__).parent / "assets"
# the theme's icon scripts (icons.css draws its ten icons), and what only search.html needs
LEFT_OUT = ("fontawesome.js", "searchtools.js", "language_data.js", "searchindex.js")
MENDED = (
    # the theme is known before the first paint, or everything would move and flash when its script runs
    (
        r'dataset\.mode = localStorage\.getItem\("mode"\) \|\| ""',
        'dataset.mode = localStorage.getItem("mode") || "auto"',
    ),
    (
        r'dataset\.theme = localStorage\.getItem\("theme"\) \|\| ""',
        'dataset.theme = {dark: "dark", light: "light"}[localStorage.getItem("mode")] || '
        '(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")',
    ),
    # names that a screen reader can say, and that agree with what is seen
    (r'<summary><span class="toctree-toggle"', '<summary aria-label="pages below"><span class="toctree-toggle"'),
    (r'(<button class="btn search-button-field[^>]*?) aria-label="[^"]*"', r"\1"),
    (r'<summary aria-label="Toggle hidden content">', "<summary>"),
    (r'<div role="list" class="citation-list">', '<div class="citation-list">'),
)
PHONE = "(max-width: 40rem)"  # as in book.css
FONT = "@fontsource-variable/source-serif-4/files/source-serif-4-latin-wght-{}.woff2"


def package(app: Sphinx, name: str) -> Path:
    """A file or folder of the front-end packages that ``make site`` installs."""
    path = Path(app.confdir) / "node_modules" / name
    if not path.exists():
        raise ExtensionError(f"node_modules/{name} is missing: run `make site`, which installs it")
    return path


def configure(app: Sphinx, config: Any) -> None:
    """Our own static files and templates."""
    config.html_static_path.append(str(HERE / "static"))
    config.html_css_files += ["icons.css", "book.css"]
    config.templates_path = [*config.templates_path, str(HERE / "templates")]


def mended(html: str) -> str:
    """Part of a page as the theme made it, with ``MENDED`` applied and without the scripts of ``LEFT_OUT``.

    >>> mended('<script defer src="_static/scripts/fontawesome.js?v=1"></script><script src="a.js"></script>')
    '<script src="a.js"></script>'
    """
    names = "|".join(map(re.escape, LEFT_OUT))
    html = re.sub(rf'<script\b[^>]*\bsrc="[^"]*/?\b(?:{names})(?:\?[^"]*)?"[^>]*></script>\s*', "", html)
    for found, instead in MENDED:
        html = re.sub(found, instead, html)
    return html


def size_of(svg: str) -> tuple[int, int] | None:
    """Width and height in pixels of a drawing that says them in points, as matplotlib's do.

    >>> size_of('<svg width="300.1pt" height="150pt" viewBox="0 0 300.1 150">')
    (400, 200)
    """
    found = re.search(r'<svg\b[^>]*?\bwidth="([\d.]+)pt" height="([\d.]+)pt"', svg)
    return (round(float(found[1]) * 4 / 3), round(float(found[2]) * 4 / 3)) if found else None


def narrow_of(drawing: Path) -> Path:
    """Where the drawing for phones of a figure's file lies, if there is one.

    >>> narrow_of(Path("labfig/curve.svg")).name
    'curve-narrow.svg'
    """
    return drawing.with_name(f"{drawing.stem}-narrow{drawing.suffix}")


def with_sizes(app: Sphinx, body: str) -> str:
    """The page with the size of each drawing in its tag: its room is there before the drawing is.

    A figure that has a drawing for phones becomes a ``<picture>``, of which a browser loads the one that it shows.
    """
    sources = {name: Path(app.srcdir, source) for source, name in app.builder.images.items()}

    def sized(match: re.Match[str]) -> str:
        source = sources.get(match["name"])
        size = size_of(source.read_text("utf8")) if source and source.suffix == ".svg" and source.is_file() else None
        if not source or not size:
            return match[0]
        image = f'<img width="{size[0]}" height="{size[1]}" {match["rest"]}'
        beside = narrow_of(source)
        small = size_of(beside.read_text("utf8")) if beside.is_file() else None
        if not small:
            return image
        name = narrow_of(Path(match["name"])).name
        folder = Path(app.outdir, "_images")
        folder.mkdir(exist_ok=True)
        shutil.copyfile(beside, folder / name)
        return (
            f'<picture><source media="{PHONE}" srcset="{match["folder"]}{name}" width="{small[0]}" '
            f'height="{small[1]}" />{image}</picture>'
        )

    tag = r'<img (?P<rest>(?![^>]*\bwidth=)[^>]*?src="(?P<folder>[^"]*_images/)(?P<name>[^"]+)"[^>]*>)'
    return re.sub(tag, sized, body)


def page_context(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """What ``templates/layout.html`` calls."""
    context["mended"] = mended
    if context.get("body"):
        context["body"] = with_sizes(app, context["body"])


def variables() -> str:
    """The palette as custom properties, for the style sheet.

    >>> "--book-weights: #0072B2" in variables()
    True
    """
    colours = palette.KINDS | palette.PHASES
    rows = [
        f"  --book-{kind.replace('_', '-')}: {colour};" for kind, (colour, _) in colours.items() if colour != "none"
    ]
    return "\n".join([":root {", *rows, "}", ""])


def write(app: Sphinx, error: Exception | None) -> None:
    """Copy the packages' files once, write the palette's style sheet, and drop what no page loads."""
    if error or app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    for unused in {*static.rglob("*.map"), *static.glob("scripts/fontawesome.js*"), *static.rglob("*.ttf")}:
        unused.unlink()
    vendor = static / "vendor"
    for folder in ("katex/fonts", "fonts"):
        (vendor / folder).mkdir(parents=True, exist_ok=True)
    shutil.copyfile(package(app, "katex/dist/katex.min.css"), vendor / "katex/katex.min.css")
    for font in package(app, "katex/dist/fonts").glob("*.woff2"):
        shutil.copyfile(font, vendor / "katex/fonts" / font.name)
    for style in ("normal", "italic"):
        source = package(app, FONT.format(style))
        shutil.copyfile(source, vendor / "fonts" / source.name)
    (static / "palette.css").write_text(variables(), "utf8")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("config-inited", configure)
    app.connect("html-page-context", page_context)
    app.connect("build-finished", write)
    app.add_css_file("palette.css")
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
