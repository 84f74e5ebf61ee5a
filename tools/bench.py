"""What the site costs: building it, opening a page, starting an explorer and moving one. python tools/bench.py

Everything is measured by running the real commands on a copy of the tree, and the real pages in Chromium over
the loopback interface, so a reader's network comes on top. A part whose tools are absent says so.
"""

import gzip
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TARGETS = {"rebuild": 5.0, "bytes": 500_000, "cold": 4.0, "p95": 30.0, "schedule": 2.0, "search": 1.0}
STARTS, MOVES = 3, 60
PACKED = {".woff2", ".png", ".jpg", ".zip", ".gz"}  # a server does not compress these again
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
]  # fmt: skip
COLD = """(name) => new Promise((done) => {
    const form = document.querySelector(`form[data-explorer="${name}"]`), began = performance.now();
    new MutationObserver(() => form.dataset.state === "ready" && done(performance.now() - began))
        .observe(form, { attributes: true, attributeFilter: ["data-state"] });
    const range = form.querySelector("[type=range]");
    range.value = Number(range.value) + Number(range.step) * (Number(range.value) < Number(range.max) ? 1 : -1);
    range.dispatchEvent(new Event("input", { bubbles: true }));
})"""
MOVED = """async ([name, moves]) => {
    const form = document.querySelector(`form[data-explorer="${name}"]`), stage = form.querySelector(".explorer-stage");
    const range = form.querySelector("[type=range]"), low = Number(range.min);
    const count = (Number(range.max) - low) / Number(range.step) + 1;
    const times = [];
    for (let i = 0; i < moves; i++) {
        await new Promise((done) => {
            new MutationObserver((_, seen) => { // a new view, or a sentence
                seen.disconnect();
                const drawn = performance.now();
                requestAnimationFrame(() => { times.push([drawn - began, performance.now() - began]); done(); });
            }).observe(stage, { childList: true, subtree: true });
            let next = low + (i % count) * Number(range.step);
            if (String(next) === range.value) next = low + ((i + 1) % count) * Number(range.step);
            range.value = next;
            const began = performance.now();
            range.dispatchEvent(new Event("input", { bubbles: true }));
        });
    }
    return times;
}"""


def main() -> None:
    rows = [*schedules(), layouts()]
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_of(ROOT, Path(folder) / "book")
        html = tree / "_build" / "html"
        rows += builds(tree)
        if (html / "index.html").is_file():
            rows += pages(html)
        else:
            rows.append(("pages and explorers", "not measured: the site did not build", "", ""))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


# -- the library ---------------------------------------------------------------------------------------------
def schedules() -> list[tuple[str, str, str, str]]:
    """A pipeline of 64 stages and 512 micro-batches: listed, timed, and its bubble."""
    from infrabook.parallel import pipeline

    rows = []
    for name in ("1F1B", "ZB-H2"):
        began = time.perf_counter()
        line = pipeline.simulate(pipeline.build(name, 64, micro_batches=512), pipeline.Times(message=0.1))
        bubble, took = line.bubble_of_total, time.perf_counter() - began
        words = f"{took:.2f} s, idle {float(bubble):.1%}"
        rows.append((f"{name}, 64 stages, 512 micro-batches", words, *held(took, TARGETS["schedule"], "s")))
    return rows


def layouts() -> tuple[str, str, str, str]:
    """A search over more than ten thousand layouts of a 70B on 1,024 GPUs."""
    from infrabook import hardware, models
    from infrabook.parallel import layout

    job = layout.Job(models.get("llama-2-70b"), batch=2048, sequence=4096)
    cluster = layout.Cluster(hardware.gpu("h100-sxm"), 1024, across=hardware.link("infiniband-ndr"))
    began = time.perf_counter()
    found = layout.search(
        job, cluster, zero=(0, 1, 2, 3), recomputation=("none", "selective", "full"), micro_batch=(1, 2, 4, 8, 16),
        chunks=(1, 2, 4, 5, 8, 10, 20),
    )  # fmt: skip
    took = time.perf_counter() - began
    return (f"search over {len(found):,} layouts", f"{took:.2f} s", *held(took, TARGETS["search"], "s"))


# -- building ------------------------------------------------------------------------------------------------
def copy_of(root: Path, tree: Path) -> Path:
    """The files git knows or would, as they are now, with the installed front-end packages beside them."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0"):
        if name and (root / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, tree / name)
    if (root / "node_modules").is_dir():
        (tree / "node_modules").symlink_to(root / "node_modules")
    return tree


def builds(tree: Path) -> list[tuple[str, str, str, str]]:
    """A clean build, and one after a word was added to a chapter."""
    clean = seconds(tree, "--clean")
    if isinstance(clean, str):
        return [("clean build", f"not measured: {clean}", "", "")]
    rows = [("clean build", f"{clean:.1f} s", "", "")]
    chapters = sorted((tree / "book").glob("*/*.md")) or sorted((tree / "book").glob("*.md"))
    if not chapters:
        return [*rows, ("rebuild after one chapter", "not measured: there is no chapter", "", "")]
    with chapters[0].open("a", encoding="utf8") as text:
        text.write("\nOne more word.\n")
    again = seconds(tree)
    if isinstance(again, str):
        return [*rows, ("rebuild after one chapter", f"not measured: {again}", "", "")]
    return [*rows, ("rebuild after one chapter", f"{again:.1f} s", *held(again, TARGETS["rebuild"], "s"))]


def seconds(tree: Path, *options: str) -> float | str:
    """How long ``tools/build_site.py`` takes, or why it did not."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    command = [sys.executable, "tools/build_site.py", *options]
    with tempfile.TemporaryFile("w+", encoding="utf8") as said:  # a pipe would wait for all that a build leaves running
        began = time.perf_counter()
        status = subprocess.run(command, cwd=tree, env=environment, stdout=said, stderr=said, check=False).returncode
        took = time.perf_counter() - began
        said.seek(0)
        lines = [line.strip() for line in said if re.search(r"(?i)error", line)]
    return took if status == 0 else f"the build failed ({' '.join(lines[-1:])[:160]})"


# -- reading -------------------------------------------------------------------------------------------------
def pages(html: Path) -> list[tuple[str, str, str, str]]:
    """Bytes of each page before an explorer starts, and how fast explorers start and move."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if not chromium:
        return [("pages and explorers", "not measured: playwright or Chromium is absent", "", "")]
    with served(html) as site, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        rows = weights(browser, site, html)
        found = [
            (path.relative_to(html).as_posix(), name)
            for path in sorted(html.rglob("*.html"))
            for name in dict.fromkeys(re.findall(r'data-explorer="(\w+)"', path.read_text("utf8")))
        ]
        if not found:
            return [*rows, ("explorers", "not measured: no page shows one", "", "")]
        seen: set[str] = set()
        for path, name in found:
            if name not in seen:
                seen.add(name)
                rows += speeds(browser, site, path, name)
        browser.close()
    return rows


def weights(browser: Any, site: str, html: Path) -> list[tuple[str, str, str, str]]:
    """Gzipped bytes that a page fetches by itself: the middle, and the heaviest three."""
    sizes = {}
    for path in sorted(html.rglob("*.html")):
        name = path.relative_to(html).as_posix()
        if name.startswith("_static/"):
            continue
        context = browser.new_context()
        page = context.new_page()
        fetched: list[str] = []
        page.on("requestfinished", lambda request, fetched=fetched: fetched.append(request.url))
        page.goto(site + name, wait_until="networkidle")
        context.close()
        sizes[name] = sum(packed(html / url.removeprefix(site).split("?")[0].split("#")[0]) for url in set(fetched))
    heaviest = sorted(sizes, key=lambda name: sizes[name], reverse=True)[:3]
    rows = [("bytes of a page, gzipped, median", f"{statistics.median(sizes.values()) / 1e3:.0f} KB", "", "")]
    for name in heaviest:
        verdict = held(sizes[name], TARGETS["bytes"], "KB", 1000)
        rows.append((f"  heaviest: {name}", f"{sizes[name] / 1e3:.0f} KB", *verdict))
    return rows


def packed(path: Path) -> int:
    """Bytes of a file as a server sends it."""
    data = path.read_bytes() if path.is_file() else b""
    return len(data) if path.suffix in PACKED else len(gzip.compress(data, 6))


def speeds(browser: Any, site: str, path: str, name: str) -> list[tuple[str, str, str, str]]:
    """From the first touch of a slider to the first answer, and from a move to the next frame."""
    cold, frames, answers = [], [], []
    for _ in range(STARTS):
        context = browser.new_context()  # its cache is empty
        page = context.new_page()
        page.goto(site + path, wait_until="networkidle")
        if not page.locator(f'form[data-explorer="{name}"] [type=range]').count():
            context.close()
            return [(f"{name}", "not measured: it has no slider", "", "")]
        cold.append(page.evaluate(COLD, name) / 1000)
        for answered, drawn in page.evaluate(MOVED, [name, MOVES]):
            answers.append(answered)
            frames.append(drawn)
        context.close()
    middle = statistics.median(cold)
    p95 = statistics.quantiles(frames, n=20)[-1]
    words = (
        f"p50 {statistics.median(frames):.0f} ms, p95 {p95:.0f} ms ({statistics.median(answers):.0f} ms to the answer)"
    )
    return [
        (f"{name}: cold start to first answer", f"{middle:.1f} s", *held(middle, TARGETS["cold"], "s")),
        (f"{name}: slider to next frame", words, *held(p95, TARGETS["p95"], "ms")),
    ]


def held(value: float, target: float, unit: str, scale: float = 1) -> tuple[str, str]:
    """The target in words, and whether ``value`` keeps it."""
    return f"target {target / scale:g} {unit}", "kept" if value <= target else "missed"


@contextmanager
def served(html: Path) -> Iterator[str]:
    """The site's address on this machine."""

    class Quiet(SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(html)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()


if __name__ == "__main__":
    main()
