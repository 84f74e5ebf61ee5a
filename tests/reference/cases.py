"""The reference cases of ``shared/reference/cases.jsonl``: what papers, configs and other calculators say.

The folder stands beside a checkout of the repository. Without it these tests are skipped, except in CI.
Test modules say ``from .cases import cases, passes``; this folder is a package, so that a module here may
have the name of one in ``tests/``.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

Case = dict[str, Any]

FOLDER = Path(os.environ.get("INFRABOOK_REFERENCE") or Path(__file__).resolve().parents[3] / "shared" / "reference")


@cache
def every() -> tuple[Case, ...]:
    """All cases, in the file's order; without the file the calling module is skipped, or in CI fails."""
    path = FOLDER / "cases.jsonl"
    if not path.is_file():
        reason = f"no reference cases at {path}; set INFRABOOK_REFERENCE to the folder that has them"
        if os.environ.get("CI") == "true":
            raise FileNotFoundError(reason)
        pytest.skip(reason, allow_module_level=True)
    return tuple(json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip())


def cases(topic: str) -> dict[str, Case]:
    """The cases of one topic by id."""
    found = {case["id"]: case for case in every() if case["topic"] == topic}
    if not found:
        raise LookupError(f"no reference case has the topic {topic!r}")
    return found


def passes(expected: dict[str, Any], value: Any) -> bool:
    """Whether ``value`` is within the tolerance of an ``expected`` entry (equal, where both are 0)."""
    want = expected["value"]
    if not isinstance(want, int | float):
        return bool(value == want)
    slack = max(expected["tol_abs"] or 0, (expected["tol_rel"] or 0) * abs(want))
    return bool(abs(value - want) <= slack)
