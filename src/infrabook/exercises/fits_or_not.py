"""Answers to the exercises of ``fits-or-not``."""

from __future__ import annotations

from .. import kv_cache, models
from ..lab import exercise
from ..units import GB, GIB


@exercise(
    "fits-or-not/1",
    mistakes={
        "that counts keys or values, not both.": lambda: 10**10 // (32 * 8 * 128 * 2 * 4096),
        "that is for 32 heads; the cache has 8.": lambda: 10**10 // (2 * 32 * 32 * 128 * 2 * 4096),
        "10 GB are 10·10^9 bytes.": lambda: 10 * 2**30 // (2 * 32 * 8 * 128 * 2 * 4096),
    },
    tolerance=0,
)
def _conversations() -> int:
    return kv_cache.max_batch(models.get("mistral-7b"), 10**10, context=4096)


@exercise(
    "fits-or-not/2",
    mistakes={
        "that is what lives between the steps and the gradients; the step makes something more.": lambda: 8,
        "that is a copy of both moments; only the second one's square root is taken.": lambda: 12,
    },
    tolerance=0,
)
def _bytes_in_the_optimizer_step() -> int:
    return 2 + 2 + 2 * 2 + 2


@exercise(
    "fits-or-not/3",
    mistakes={
        "that is one of the two, or both in a format of two bytes.": lambda: 4 * 8192 * 128_256 / GIB,
        "those are GB.": lambda: 2 * 4 * 8192 * 128_256 / GB,
    },
    tolerance=0.005,
)
def _loss_gradients() -> float:
    return 2 * 4 * 8192 * models.get("llama-3-8b").vocab / GIB
