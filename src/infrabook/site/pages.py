"""What surrounds a page: whose copy this is, when its lab ran, its links, and the table of all chapters.

The repository is the reader's own: ``INFRABOOK_REPOSITORY`` (owner/name, set by the Pages workflow) or the git
remote ``origin`` where it is on GitHub. Without one the links that need it are left out.
"""

from __future__ import annotations

import calendar
import datetime
import json
import os
import re
import shutil
import subprocess
import tomllib
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from ..labfile import KEY

LABS_BRANCH = "labs"  # the Pages workflow writes labs there, each pinned to the commit it was stamped from


def repository(folder: Path) -> str:
    """``owner/name`` on GitHub of this copy of the book, or ``""``."""
    named = os.environ.get("INFRABOOK_REPOSITORY", "")
    if not named:
        command = ["git", "-C", str(folder), "config", "--get", "remote.origin.url"]
        remote = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        match = re.search(r"github\.com[/:]([\w.-]+/[\w.-]+?)(?:\.git)?/?$", remote)
        named = match[1] if match else ""
    if named and not re.fullmatch(r"[\w.-]+/[\w.-]+", named):
        raise ExtensionError(f"INFRABOOK_REPOSITORY is {named!r}; it has to be owner/name")
    return named


def configure(app: Sphinx, config: Any) -> None:
    """Addresses of this copy, from its repository."""
    name = repository(Path(app.confdir))
    config.infrabook_repository = name
    base = os.environ.get("INFRABOOK_BASE_URL", "")
    if not base and name:
        owner, project = name.split("/")
        base = f"https://{owner.lower()}.github.io/{project}/"
    config.html_baseurl = base or "http://127.0.0.1:8000/"
    config.ogp_site_url = config.html_baseurl
    config.ogp_site_name = config.html_title or config.project
    config.notfound_urls_prefix = "/" + "/".join(config.html_baseurl.split("/")[3:])


def lab_of(app: Sphinx, page: str) -> Path | None:
    """The notebook behind a page: itself, or the one of the chapter's name."""
    name = re.sub(r"^(book|notebooks)/", "", page)
    path = Path(app.srcdir, "notebooks", name + ".ipynb")
    return path if path.is_file() else None


def said_day(iso: str) -> str:
    """A date as a person writes it.

    >>> said_day("2026-11-29")
    '29 November 2026'
    """
    day = datetime.date.fromisoformat(iso)
    return f"{day.day} {calendar.month_name[day.month]} {day.year}"


def provenance(notebook: dict[str, Any]) -> str:
    """When and with what a lab's outputs were made."""
    run = notebook["metadata"].get(KEY)
    if not run:
        raise ExtensionError("a lab in the table of contents has never run: run `make labs`")
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    return f"Lab last run on {said_day(run['date'])} with {versions}, on {run['device']}."


def page_context(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """The line below a title: when the lab ran, and the ways to run it or to report an error."""
    name = app.config.infrabook_repository
    links: list[tuple[str, str]] = []
    lab = lab_of(app, page)
    words = ""
    if lab:
        words = provenance(json.loads(lab.read_text("utf8")))
        inside = lab.relative_to(app.srcdir).as_posix()
        if page.startswith("book/"):
            links.append(("the lab", context["pathto"](inside.removesuffix(".ipynb"))))
        if name:
            links.append(
                ("open in Colab", f"https://colab.research.google.com/github/{name}/blob/{LABS_BRANCH}/{inside}")
            )
        links.append(("download notebook", context["pathto"]("_downloads/labs/" + lab.name, 1)))
    if doctree is not None:
        if name:
            title = quote(f"Error on {page}")
            links.append(("report an error", f"https://github.com/{name}/issues/new?title={title}"))
        else:
            links.append(("report an error", context["pathto"]("book/errata").rstrip("#") + "#report-an-error"))
    if (words or links) and context.get("body"):
        line = " · ".join(f'<a href="{escape(url)}">{escape(text)}</a>' for text, url in links)
        note = f'<p class="page-origin">{escape(words)} {line}</p>'
        context["body"] = context["body"].replace("</h1>", "</h1>" + note, 1)


def copy_labs(app: Sphinx, error: Exception | None) -> None:
    """The labs as files to download."""
    if error or app.builder.format != "html":
        return
    target = Path(app.outdir) / "_downloads" / "labs"
    target.mkdir(parents=True, exist_ok=True)
    for page in app.env.found_docs:
        lab = lab_of(app, page)
        if lab:
            shutil.copyfile(lab, target / lab.name)


def finished(app: Sphinx) -> set[str]:
    """The chapters that the table of contents lists."""
    return {page for page in app.env.found_docs if re.match(r"book/\d", page)}


class Contents(SphinxDirective):
    """``{contents-and-status}``: every chapter of the curriculum; the finished ones are links."""

    def run(self) -> list[nodes.Node]:
        file = Path(self.env.srcdir, "book", "chapters.toml")
        self.env.note_dependency(str(file))
        parts = tomllib.loads(file.read_text("utf8"))["part"]
        listed = self.env.found_docs
        unknown = {page for page in listed if re.match(r"book/\d", page)} - {
            f"book/{part['folder']}/{chapter['slug']}" for part in parts for chapter in part["chapters"]
        }
        if unknown:
            raise ExtensionError(f"book/chapters.toml does not know {', '.join(sorted(unknown))}")
        lines = []
        for number, part in enumerate(parts, 1):
            lines += [f"## {number} · {part['title']}", "", "| chapter | status |", "|---|---|"]
            for chapter in part["chapters"]:
                page = f"book/{part['folder']}/{chapter['slug']}"
                done = page in listed
                title = f"[{chapter['title']}](/{page}.md)" if done else chapter["title"]
                lab = f"finished, with [its lab](/notebooks/{part['folder']}/{chapter['slug']}.ipynb)"
                lines.append(f"| {title} | {lab if done else 'planned'} |")
            lines.append("")
        done_count = sum(re.match(r"book/\d", page) is not None for page in listed)
        total = sum(len(part["chapters"]) for part in parts)
        said = nodes.paragraph("", f"{done_count} of {total} chapters are finished.")
        return [said, *self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("infrabook_repository", "", "env", [str])
    app.add_directive("contents-and-status", Contents)
    app.connect("config-inited", configure)
    app.connect("html-page-context", page_context)
    app.connect("build-finished", copy_labs)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
