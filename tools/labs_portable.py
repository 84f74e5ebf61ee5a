"""Stored outputs have to hold elsewhere: python tools/labs_portable.py [notebook ...]

Runs every lab again with PyTorch's plain kernels, as on a processor without AVX, and once more with a single thread,
and compares each output strictly with the stored one; cells tagged ``nbval-ignore-output`` may differ.
"""

import difflib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from run_labs import ROOT, execute, labs
from tqdm import tqdm

SETTINGS: dict[str, dict[str, str]] = {
    "plain kernels": {"ATEN_CPU_CAPABILITY": "default"},
    "one thread": {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
}


@contextmanager
def environment(more: dict[str, str]) -> Iterator[None]:
    """Inside, kernels start with these variables."""
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def shown(output: Any) -> str:
    """An output as text to compare: its data, what it recorded, and nothing that counts executions."""
    kept = {key: value for key, value in output.items() if key not in ("execution_count", "transient")}
    return json.dumps(kept, indent=0, sort_keys=True)


def differences(before: Any, after: Any) -> Iterator[tuple[int, str]]:
    """(number of a code cell, the first lines that differ) for each cell whose outputs changed."""
    cells = [(one, two) for one, two in zip(before.cells, after.cells, strict=True) if one.cell_type == "code"]
    for number, (one, two) in enumerate(cells, 1):
        if "nbval-ignore-output" in one.metadata.get("tags", []):
            continue
        stored, now = ("\n".join(map(shown, cell.outputs)).splitlines() for cell in (one, two))
        if stored != now:
            lines = list(difflib.unified_diff(stored, now, lineterm="", n=0))[3:]
            yield number, "\n".join(line[:160] for line in lines[:6])


def compare(paths: list[Path], settings: dict[str, dict[str, str]] = SETTINGS) -> int:
    """How many labs gave another output under some setting; says which cells and what."""
    changed = set()
    work = [(path, name) for path in paths for name in settings]
    progress = tqdm(work, unit="run", disable=not sys.stderr.isatty())
    for path, name in progress:
        progress.set_description(f"{path.stem}, {name}")
        with environment(settings[name]):
            after = execute(path)
        for number, lines in differences(nbformat.read(path, as_version=4), after):
            changed.add(path)
            print(f"{path.stem}, code cell {number}, {name}:\n{lines}\n", flush=True)
        print(f"{'differs' if path in changed else 'same   '} {path.resolve().relative_to(ROOT)}, {name}", flush=True)
    return len(changed)


if __name__ == "__main__":
    sys.exit(min(compare(labs(sys.argv[1:])), 1))
