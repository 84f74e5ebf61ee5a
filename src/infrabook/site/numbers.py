"""Quote what a lab computed, so that no result in prose is typed by hand.

In a chapter (a lab is named by its path below ``notebooks/``, without the ending; a chapter's own lab by nothing)::

    {num}`3-one-gpu/seven-billion:total_gb:.1f`     value, format spec, link to the cell that computed it
    {num}`:total_gb:.1f`                            the same, from the lab of the chapter's own name

    ```{labfig} :ledger_figure
    :alt: what the picture shows
    A caption that states the finding.
    ```

    $M = \\labnum{:total_gb:.1f}$ GB                inside any formula

``infrabook.lab.record`` stores the values. A missing or doubled key, a lab edited since it ran, a figure without
alt text: each is a warning, and the build treats warnings as errors.
"""

from __future__ import annotations

import ast
import json
import math
import re
from base64 import b64decode
from functools import cache
from os.path import relpath
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.directives.patches import Figure
from sphinx.environment import BuildEnvironment
from sphinx.errors import ConfigError
from sphinx.transforms import SphinxTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxRole

from ..labfile import NARROW, code_hash, recorded_hash
from .assets import narrow_of

LOGGER = logging.getLogger(__name__)
REFERENCE = re.compile(r"([\w/.-]*):([a-z][a-z0-9_]*)(?::(.+))?")
POWER = re.compile(r"^(-?[\d.]+)e\+?(-?\d+)$")
IN_MATH = re.compile(r"\\labnum\{([^{}]+)\}")
IMAGES = {"image/svg+xml": ".svg", "image/png": ".png"}
LABS = "notebooks"


class LabError(Exception):
    """What is wrong with a reference, in words for the author."""


@cache
def read_lab(path: Path, mtime_ns: int) -> dict[str, tuple[int, dict[str, str]]]:
    """{key: (index of its cell, {mime type: data})} of a notebook's stored outputs."""
    notebook = json.loads(path.read_text("utf8"))
    if recorded_hash(notebook) != code_hash(notebook):
        raise LabError(f"{path.name} was edited after it ran: run `make labs LABS={LABS}/.../{path.name}`")
    found: dict[str, tuple[int, dict[str, str]]] = {}
    for index, cell in enumerate(notebook["cells"]):
        for output in cell.get("outputs", ()):
            stored = output.get("metadata", {}).get("scrapbook")
            if not stored:
                continue
            if stored["name"] in found:
                raise LabError(f"{path.name} stores the key {stored['name']!r} twice")
            skip = len(stored.get("mime_prefix", ""))
            found[stored["name"]] = (index, {k[skip:]: "".join(v) for k, v in output["data"].items()})
    return found


def lookup(env: BuildEnvironment, docname: str, text: str) -> tuple[str, dict[str, str], str | None]:
    """(label, mime bundle, format spec) of a reference ``lab:key[:format]``."""
    match = REFERENCE.fullmatch(text.strip())
    if not match:
        raise LabError(f"{text!r} is not of the form lab:key or lab:key:format")
    lab, key, spec = match.groups()
    lab = lab or docname.partition("/")[2]
    path = Path(env.srcdir, LABS, lab + ".ipynb")
    env.note_dependency(str(path))  # read this chapter again when the lab changes
    if not path.is_file():
        raise LabError(f"{text!r}: there is no lab {path.relative_to(env.srcdir)}")
    stored = read_lab(path, path.stat().st_mtime_ns)
    if key not in stored:
        raise LabError(f"{lab}.ipynb stores no key {key!r}; it has {', '.join(sorted(stored))}")
    return f"{lab}:{key}", stored[key][1], spec


def formatted(env: BuildEnvironment, docname: str, text: str) -> tuple[str, str]:
    """(label, the value as the chapter prints it)."""
    label, data, spec = lookup(env, docname, text)
    try:
        value = ast.literal_eval(data["text/plain"])
    except (KeyError, ValueError, SyntaxError):
        value = None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise LabError(f"{label} is no int, float or str: {data.get('text/plain')!r}")
    if isinstance(value, float) and not (spec and math.isfinite(value)):
        raise LabError(f"{label} = {value}: a float has to be finite and needs a format")
    try:
        return label, format(value, spec or "")
    except ValueError as error:
        raise LabError(f"{label} = {value!r}: {error}") from error


def keep_narrow(file: Path, data: dict[str, str]) -> None:
    """The drawing for phones beside the figure ``file``, where ``assets`` looks for it; none if the lab stores none."""
    beside = narrow_of(file)
    if NARROW not in data:
        beside.unlink(missing_ok=True)
    elif not beside.exists() or beside.read_text("utf8") != data[NARROW]:
        beside.write_text(data[NARROW], "utf8")


def complain(env: BuildEnvironment, error: Exception, location: Any) -> None:
    """Warn now, and in the next build too: an incremental build would forget."""
    LOGGER.warning("%s", error, type="labnum", location=location)
    env.note_reread()


def cell_link(env: BuildEnvironment, label: str, text: str) -> nodes.inline:
    """``text``, linked to the cell that stored ``label``."""
    target = addnodes.pending_xref(
        "", nodes.inline(text, text), refdomain="std", reftype="ref", reftarget=label,
        refexplicit=True, refwarn=True, refdoc=env.docname,
    )  # fmt: skip
    return nodes.inline("", "", target, classes=["labnum"])


class Num(SphinxRole):
    """The role ``{num}``."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        try:
            label, text = formatted(self.env, self.env.docname, self.text)
        except LabError as error:
            complain(self.env, error, self.get_location())
            return [nodes.problematic(self.rawtext, self.rawtext)], []
        node = cell_link(self.env, label, text)
        self.set_source_info(node)
        return [node], []


class LabFigure(Figure):
    """The directive ``{labfig}``: a figure that a lab drew and stored."""

    def run(self) -> list[nodes.Node]:
        env = self.state.document.settings.env
        location = "{}:{}".format(*self.state_machine.get_source_and_line(self.lineno))
        try:
            label, data, _ = lookup(env, env.docname, self.arguments[0])
            formats = [mime for mime in IMAGES if mime in data]
            if not formats:
                raise LabError(f"{label} is no image: {', '.join(data)}")
            if not self.options.get("alt") or not self.content:
                raise LabError(f"{label}: a figure needs :alt: and a caption")
        except LabError as error:
            complain(env, error, location)
            return []
        stem = Path(env.app.outdir).parent / "labfig" / re.sub(r"\W", "-", label)
        stem.parent.mkdir(parents=True, exist_ok=True)
        for mime in formats:
            raw = data[mime].encode() if "svg" in mime else b64decode(data[mime])
            file = stem.with_name(stem.name + IMAGES[mime])
            if not file.exists() or file.read_bytes() != raw:
                file.write_bytes(raw)
            keep_narrow(file, data)
        suffix = ".*" if len(formats) > 1 else IMAGES[formats[0]]
        self.arguments[0] = "/" + Path(relpath(stem, env.srcdir)).as_posix() + suffix
        result = super().run()
        for caption in result[0].findall(nodes.caption):
            caption += [nodes.Text(" ("), cell_link(env, label, "computed here"), nodes.Text(")")]
        return result


class LabTransform(SphinxTransform):
    """Give cells with stored values an anchor; fill in ``\\labnum{}`` inside formulas."""

    default_priority = 400  # after PropagateTargets (260), before SphinxDomains (850)

    def apply(self, **kwargs: Any) -> None:
        for node in self.document.findall(lambda n: isinstance(n, nodes.math | nodes.math_block)):
            self.fill(node)  # type: ignore[arg-type]
        path = Path(self.env.doc2path(self.env.docname))
        labs = Path(self.env.srcdir, LABS)
        if path.suffix != ".ipynb" or labs not in path.parents:
            return
        lab = path.relative_to(labs).with_suffix("").as_posix()
        try:
            stored = read_lab(path, path.stat().st_mtime_ns)
        except LabError as error:
            complain(self.env, error, self.env.docname)
            return
        for cell in list(self.document.findall(nodes.container)):
            names = [
                f"{lab}:{key}" for key, (index, _) in stored.items()
                if cell.get("nb_element") == "cell_code" and index == cell["cell_index"]
            ]  # fmt: skip
            if names:
                anchor = nodes.make_id("cell-" + names[0].split(":")[1])
                target = nodes.target("", "", names=names, classes=["labcell"], ids=[anchor])
                self.document.note_explicit_target(target)
                assert cell.parent is not None
                cell.parent.insert(cell.parent.index(cell), target)
                drawn = [name for name in names if IMAGES.keys() & stored[name.split(":")[1]][1].keys()]
                for image, name in zip(cell.findall(nodes.image), drawn, strict=False):
                    image["alt"] = self.described(lab, name.split(":")[1])
                    keep_narrow(Path(self.env.srcdir, image["uri"].lstrip("/")), stored[name.split(":")[1]][1])

    def described(self, lab: str, key: str) -> str:
        """A figure's alt text on its lab's page: the one that the chapter gives it."""
        chapter = Path(self.env.srcdir, "book", lab + ".md")
        self.env.note_dependency(str(chapter))
        source = chapter.read_text("utf8") if chapter.is_file() else ""
        found = re.search(rf"\{{labfig\}}\s+(?:{re.escape(lab)})?:{key}\s*\n(?::[\w-]+:.*\n)*?:alt:\s*(.+)", source)
        return (
            found[1].strip()
            if found
            else f"Figure {key.replace('_', ' ')}: what it shows is printed by the cells above"
        )

    def fill(self, node: nodes.Element) -> None:
        def value(match: re.Match[str]) -> str:
            try:
                number = formatted(self.env, self.env.docname, match[1])[1].replace(",", "{,}").replace("%", r"\%")
                return POWER.sub(r"\1 \\times 10^{\2}", number)
            except LabError as error:
                complain(self.env, error, node)
                return r"\text{?}"

        text = IN_MATH.sub(value, node.astext())
        if text != node.astext():
            node.children = []
            node += nodes.Text(text)
            node.rawsource = text


def check_mode(app: Sphinx, config: Any) -> None:
    """Stored outputs are the only source, so nothing may be executed at build time; a kind of our own is no mistake."""
    if config.nb_execution_mode != "off":
        raise ConfigError("quoted numbers come from stored outputs: set execute_notebooks: 'off'")
    config.suppress_warnings += ["mystnb.unknown_mime_type"]  # NARROW: keep_narrow takes it


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_role("num", Num())
    app.add_directive("labfig", LabFigure)
    app.add_transform(LabTransform)
    app.connect("config-inited", check_mode)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
