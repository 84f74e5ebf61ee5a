"""Formulas rendered when the site is built: they arrive as HTML, so no script runs and nothing moves.

One Node process renders all of them with the pinned KaTeX, a line of JSON each way; it ends when its input does, also
if the build is killed. A formula that KaTeX does not take is a warning with its place, and so fails a strict build.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.locale import _
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

LOGGER = logging.getLogger(__name__)
SCRIPT = """
const katex = require(process.argv[1]);
require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const { tex, display } = JSON.parse(line);
  let answer;
  try { answer = { html: katex.renderToString(tex, { displayMode: display, throwOnError: true, strict: "error" }) }; }
  catch (error) { answer = { error: String(error.message) }; }
  process.stdout.write(JSON.stringify(answer) + "\\n");
});
"""


class Renderer:
    """KaTeX in a Node process that starts with the first formula."""

    def __init__(self, katex: Path) -> None:
        self.katex = katex
        self.process: subprocess.Popen[str] | None = None

    @cache  # noqa: B019  (one renderer a build)
    def __call__(self, tex: str, display: bool) -> str:
        """The HTML of a formula; raises ``ValueError`` with KaTeX's sentence."""
        process = self.process or self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps({"tex": tex, "display": display}), file=process.stdin, flush=True)
        line = process.stdout.readline()
        if not line:
            raise ExtensionError("Node ended while it rendered formulas; run `make site` to install it again")
        answer: dict[str, str] = json.loads(line)
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["html"]

    def start(self) -> subprocess.Popen[str]:
        """Start Node."""
        node = shutil.which("node")
        if node is None:
            raise ExtensionError("formulas need Node: run `make site`, which takes it from the machine or from PyPI")
        self.process = subprocess.Popen(
            [node, "-e", SCRIPT, str(self.katex)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf8",
        )
        return self.process

    def close(self) -> None:
        """End Node."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait(timeout=10)
            self.process = None


def render(translator: HTML5Translator, node: nodes.math | nodes.math_block, *, display: bool) -> str:
    """A formula's HTML, or its source and a warning."""
    renderer: Renderer = translator.builder.app.infrabook_katex  # type: ignore[attr-defined]
    try:
        return renderer(node.astext(), display)
    except ValueError as error:
        LOGGER.warning("formula: %s", error, location=node, type="katex")
        return translator.encode(node.astext())


def visit_math(translator: HTML5Translator, node: nodes.math) -> None:
    """An inline formula."""
    translator.body.append(translator.starttag(node, "span", "", CLASS="math notranslate nohighlight"))
    translator.body.append(render(translator, node, display=False) + "</span>")
    raise nodes.SkipNode


def visit_displaymath(translator: HTML5Translator, node: nodes.math_block) -> None:
    """A formula on a line of its own, with its number if it has one."""
    translator.body.append(translator.starttag(node, "div", CLASS="math notranslate nohighlight", tabindex="0"))
    if node["number"]:
        number = get_node_equation_number(translator, node)
        translator.body.append(f'<span class="eqno">({number})')
        translator.add_permalink_ref(node, _("Link to this equation"))
        translator.body.append("</span>")
    translator.body.append(render(translator, node, display=True) + "</div>\n")
    raise nodes.SkipNode


def begin(app: Sphinx) -> None:
    """A renderer for this build."""
    app.infrabook_katex = Renderer(Path(app.confdir) / "node_modules/katex/dist/katex.min.js")  # type: ignore[attr-defined]


def end(app: Sphinx, error: Exception | None) -> None:
    """The renderer's end."""
    app.infrabook_katex.close()  # type: ignore[attr-defined]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("katex", inline_renderers=(visit_math, None), block_renderers=(visit_displaymath, None))
    app.add_css_file("vendor/katex/katex.min.css")
    app.connect("builder-inited", begin)
    app.connect("build-finished", end)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
