"""GPU cells that read well without a GPU: run where there is one, else show what was recorded on one.

Records live in ``data/gpu.json``: {key: {card: {date, versions, result}}}. ``tools/record_gpu.py`` writes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from typing import Any

import torch


def records(key: str) -> dict[str, dict[str, Any]]:
    """What was recorded under ``key``, by card."""
    text = resources.files("infrabook").joinpath("data/gpu.json").read_text("utf8")
    found: dict[str, dict[str, Any]] = json.loads(text).get(key, {})
    return found


def available(need: tuple[int, int] = (0, 0), count: int = 1) -> bool:
    """Whether ``count`` GPUs are here, the first of at least compute capability ``need``."""
    return (
        torch.cuda.is_available() and torch.cuda.device_count() >= count and torch.cuda.get_device_capability() >= need
    )


def on_gpu(
    key: str, measure: Callable[[], dict[str, Any]], *, need: tuple[int, int] = (0, 0), count: int = 1
) -> dict[str, Any] | None:
    """``measure()`` on this machine's GPU, else the recorded result, else None; says which it is.

    ``measure`` returns plain data. ``need`` is the least compute capability, (8, 0) for BF16 tensor cores, and
    ``count`` how many GPUs it takes.
    """
    if available(need, count):
        print(f"measured now on {torch.cuda.get_device_name()}, torch {torch.__version__}")
        return measure()
    found = records(key)
    for card, row in found.items():
        print(f"recorded on {card}, {row['date']}, {', '.join(f'{k} {v}' for k, v in row['versions'].items())}")
        result: dict[str, Any] = row["result"]
        return result
    missing = "No GPU here" if count == 1 else f"This takes {count} GPUs"
    print(f"{missing}, and no result is recorded yet. Run this lab on a GPU (Colab: Runtime, Change runtime type).")
    return None


def fresh_peak(step: Callable[[], Any], *, warmup: int = 1) -> int:
    """``max_memory_allocated`` in bytes over one call of ``step``, after ``warmup`` calls."""
    for _ in range(warmup):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated())
