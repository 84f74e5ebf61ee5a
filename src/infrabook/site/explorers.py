"""Live explorers on a page: the ``{explorer}`` directive, and what the reader's browser needs to run them.

In a chapter::

    ```{explorer} model_ledger
    :batch: 4
    :recipe: bf16-adamw
    ```

The first frame is rendered here, by the library itself, with the options as values to start from; an unknown
explorer or a value that its control does not take fails the build. A lab that ends a cell with an explorer needs
no directive: its stored HTML becomes live too. Only pages with an explorer load a script.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from ..errors import InfrabookError
from ..explore import load

PACKAGE = Path(__file__).parent.parent
ASSETS = Path(__file__).parent / "assets" / "explorer"
SCRIPTS = ("explorer.css", "explorer.js", "explorer-worker.js")
PYODIDE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip")
NOT_IN_BROWSER = {"site", "measure", "nn", "lab.py", "labfile.py", "cli.py"}  # need a kernel, PyTorch or a shell
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class AnyOption(dict[str, Any]):
    """An option list that takes every name: an explorer's controls say which exist."""

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> Any:
        return str

    def __bool__(self) -> bool:
        return True


class ExplorerDirective(SphinxDirective):
    """Controls and first frame of an explorer of ``infrabook.explorers``."""

    required_arguments = 1
    option_spec: ClassVar[Any] = AnyOption()

    def run(self) -> list[nodes.Node]:
        name, values = self.arguments[0], dict(self.options)
        frames = recorded(self.env).setdefault(self.env.docname, [])
        if any(name == other for other, _, _ in frames):
            raise self.error(f"the page shows the explorer {name!r} twice; a link could not tell them apart")
        try:
            html = frame(name, values)
        except InfrabookError as sentence:
            raise self.error(f"explorer {name}: {sentence}") from sentence
        frames.append((name, values, digest(html)))
        return [nodes.raw("", html, format="html")]


def frame(name: str, values: dict[str, str]) -> str:
    """The explorer ``name`` as it stands on a page, started from ``values``; ``view: first`` puts its view on top."""
    settings = {key: value for key, value in values.items() if key != "view"}
    return load(name).at(**settings).html(view_first=values.get("view") == "first")


def digest(data: str | bytes) -> str:
    """A short name for content.

    >>> digest("a") == digest(b"a"), len(digest("a"))
    (True, 12)
    """
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()[:12]


def library_zip(package: Path = PACKAGE) -> bytes:
    """The part of the library that needs the standard library alone, the same bytes for the same sources."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(package.rglob("*")):
            place = path.relative_to(package)
            if path.suffix not in (".py", ".toml") or place.parts[0] in NOT_IN_BROWSER:
                continue
            entry = zipfile.ZipInfo(f"{package.name}/{place.as_posix()}")  # 1980-01-01: no time of its own
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    return packed.getvalue()


# -- which pages show what -----------------------------------------------------------------------------------
def recorded(env: Any) -> dict[str, list[tuple[str, dict[str, str], str]]]:
    """{page: [(explorer, values, digest of its first frame)]} as of the last build."""
    if not hasattr(env, "explorer_frames"):
        env.explorer_frames = {}  # Sphinx pickles what an extension leaves on its environment
    frames: dict[str, list[tuple[str, dict[str, str], str]]] = env.explorer_frames
    return frames


def outdated(app: Sphinx, env: BuildEnvironment, *_: set[str]) -> list[str]:
    """Pages whose first frame the library would now draw otherwise."""
    return [page for page, frames in recorded(env).items() if any(map(changed, frames))]


def changed(shown: tuple[str, dict[str, str], str]) -> bool:
    """Whether a recorded first frame is no longer what the library says; an error is for the directive to tell."""
    name, values, was = shown
    try:
        return digest(frame(name, values)) != was
    except InfrabookError:
        return True


def forget(app: Sphinx, env: BuildEnvironment, page: str) -> None:
    """A page is read anew."""
    recorded(env).pop(page, None)


def merge(app: Sphinx, env: BuildEnvironment, pages: set[str], other: BuildEnvironment) -> None:
    """Take over what a parallel reader noted."""
    recorded(env).update({page: frames for page, frames in recorded(other).items() if page in pages})


def drop_widget_state(app: Sphinx, doctree: nodes.document) -> None:
    """Keep the state of a lab's widgets (some 16 to 38 KB) out of its page, which cannot use it."""
    notes = getattr(app.env, "nb_metadata", {}).get(app.env.docname, {})
    notes.get("js_files", {}).pop("ipywidgets_state", None)


# -- files ---------------------------------------------------------------------------------------------------
def configure(app: Sphinx, config: Config) -> None:
    """An explorer's cell holds a widget view and HTML: the page takes the HTML, and no widget script."""
    config.nb_mime_priority_overrides = [*config.nb_mime_priority_overrides, ("html", WIDGET_VIEW, None)]
    config.nb_ipywidgets_js = {}


def copy_scripts(app: Sphinx) -> None:
    """Style and scripts, before pages are written, so that their addresses carry a checksum."""
    if app.builder.format != "html":
        return
    out = Path(app.outdir, "_static", "explorer")
    out.mkdir(parents=True, exist_ok=True)
    for name in SCRIPTS:
        shutil.copyfile(ASSETS / name, out / name)


def add_scripts(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Load the scripts on a page that shows an explorer."""
    if "data-explorer=" in context.get("body", ""):
        app.add_css_file("explorer/explorer.css")
        app.add_js_file("explorer/explorer.js", loading_method="defer")


def write_engine(app: Sphinx, error: Exception | None) -> None:
    """Pyodide under its version and the library under its digest, so that both may be cached for ever."""
    if error or app.builder.format != "html":
        return
    source = pyodide(Path(app.confdir, app.config.explorer_pyodide))
    info = json.loads((source / "pyodide-lock.json").read_text("utf8"))["info"]
    version = json.loads((source / "package.json").read_text("utf8"))["version"]
    out = Path(app.outdir, "_static", "explorer")
    engine = out / f"pyodide-{version}"
    library = library_zip()
    archive = out / f"infrabook-{digest(library)}.zip"
    for old in {*out.glob("infrabook-*.zip")} - {archive}:
        old.unlink()
    for old in {*out.glob("pyodide-*")} - {engine}:
        shutil.rmtree(old)
    archive.write_bytes(library)
    engine.mkdir(exist_ok=True)
    for name in PYODIDE:
        target = engine / name
        if not target.exists() or target.stat().st_size != (source / name).stat().st_size:
            shutil.copyfile(source / name, target)
    about = {"engine": engine.name, "info": info, "library": archive.name}
    (out / "explorer.json").write_text(json.dumps(about), "utf8")


def pyodide(folder: Path) -> Path:
    """``folder``, if it holds all of Pyodide that a page needs."""
    absent = [name for name in (*PYODIDE, "pyodide-lock.json", "package.json") if not (folder / name).is_file()]
    if absent:
        raise ExtensionError(f"{folder} lacks {', '.join(absent)}: run `make site`, which installs Pyodide")
    return folder


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the parts; ``explorer_pyodide`` is the folder of npm's ``pyodide``, below the configuration's."""
    app.add_config_value("explorer_pyodide", "node_modules/pyodide", "html")
    app.add_directive("explorer", ExplorerDirective)
    app.connect("config-inited", configure)
    app.connect("builder-inited", copy_scripts)
    app.connect("env-get-outdated", outdated)
    app.connect("env-purge-doc", forget)
    app.connect("env-merge-info", merge)
    app.connect("doctree-read", drop_widget_state)
    app.connect("html-page-context", add_scripts)
    app.connect("build-finished", write_engine)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
