"""The built site, served on this machine alone, and a Chromium that can reach nothing else."""

from __future__ import annotations

import mimetypes
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[2]
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
]  # fmt: skip


def absent(why: str) -> None:
    """Skip with the reason; where everything has to run, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


class Quiet(SimpleHTTPRequestHandler):
    """Files with the types a browser insists on for modules and WebAssembly, and no log."""

    extensions_map = {  # noqa: RUF012  # the base class has it as an instance-wide dict too
        **mimetypes.types_map,
        ".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm", ".css": "text/css",
    }  # fmt: skip
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="session")
def html() -> Path:
    """The built site's folder."""
    built = Path(os.environ.get("INFRABOOK_HTML", ROOT / "_build" / "html"))
    if not (built / "index.html").is_file():
        absent(f"{built.name} holds no built site: run `make site` first")
    return built


@pytest.fixture(scope="session")
def site(html: Path) -> Iterator[str]:
    """Address of the served site, with a slash at its end."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(html)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for the whole run."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        absent("playwright is not installed")
    if not CHROMIUM:
        absent("there is no Chromium on this machine (or name it in CHROMIUM)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, site: str) -> Iterator[Callable[..., Page]]:
    """``open_page("book/index.html", width=390)``: a page of the site, in a profile of its own.

    A script error, or a request to another host, fails the test.
    """
    contexts, wrong = [], []

    def request(asked: Any) -> None:
        if not asked.url.startswith((site, "blob:", "data:")):
            wrong.append(f"a request left the site: {asked.url}")

    def opened(path: str = "index.html", *, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light",
            permissions=["clipboard-read", "clipboard-write"],
        )  # fmt: skip
        context.set_default_timeout(30_000)
        context.on("request", request)
        context.on("weberror", lambda error: wrong.append(f"a script failed: {error.error}"))
        contexts.append(context)
        page = context.new_page()
        page.goto(site + path, wait_until="load")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not wrong
