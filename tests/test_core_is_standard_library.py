"""The core runs anywhere: it imports the standard library alone, and quickly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import infrabook

SOURCE = Path(infrabook.__file__).parent
NEEDS_MORE = {"bpe", "nn", "measure", "lab", "labfile", "site", "exercises", "explore", "explorers", "programs"}

IMPORT_ALL = """
import importlib, json, sys, time
before = set(sys.modules)
started = time.perf_counter()
for name in {names!r}:
    importlib.import_module(name)
spent = time.perf_counter() - started
top = sorted({{name.partition(".")[0] for name in set(sys.modules) - before}})
ours = [*sys.stdlib_module_names, "__mp_main__"]  # the second name that multiprocessing gives the main module
print(json.dumps({{"spent": spent, "foreign": [n for n in top if n not in ours]}}))
"""

TIME_A_LEDGER = """
import json, time
started = time.perf_counter()
from infrabook import memory, models
imported = time.perf_counter()
model = models.get("llama-2-7b")
memory.training(model)
first = time.perf_counter()
best = 9.0
for _ in range(50):
    again = time.perf_counter()
    memory.training(model, batch=2, zero=3, data_parallel=8)
    best = min(best, time.perf_counter() - again)
print(json.dumps({"import": imported - started, "first ledger": first - imported, "ledger": best}))
"""


def core() -> list[str]:
    """Every module of the core by its dotted name."""
    names = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts[0] not in NEEDS_MORE and parts != ("__init__",):
            names.append(".".join(("infrabook", *(part for part in parts if part != "__init__"))))
    return names


def run(code: str) -> dict[str, object]:
    """What ``code`` prints as JSON, run by an interpreter that sees no installed package but ours."""
    start = f"import sys; sys.path.insert(0, {str(SOURCE.parent)!r})\n"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", start + code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_core_imports_the_standard_library_alone() -> None:
    names = core()
    assert {"infrabook.memory", "infrabook.ledger", "infrabook.cli"} <= set(names)
    assert run(IMPORT_ALL.format(names=names))["foreign"] == ["infrabook"]


def test_core_imports_and_answers_quickly() -> None:
    """Bounds are wide, for machines that are busy; on an idle one a ledger takes about a millisecond."""
    spent = run(TIME_A_LEDGER)
    assert all(isinstance(seconds, float) and seconds < 1 for seconds in spent.values()), spent
