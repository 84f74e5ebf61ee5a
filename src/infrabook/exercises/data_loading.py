"""Answers to the exercises of ``data-loading``."""

from __future__ import annotations

import math

from .. import data_loading
from ..lab import exercise


@exercise(
    "data-loading/1",
    mistakes={
        "the copy is part of what the loop does between two batches.": lambda: math.ceil(90 / 20),
        "with so many the loop still waits, if not for long.": lambda: 90 // 25,
    },
    tolerance=0,
)
def _workers_that_keep_up() -> int:
    return next(
        count for count in range(1, 99)
        if data_loading.interval(load=90, copy=5, step=20, workers=count) == 25
    )  # fmt: skip


@exercise(
    "data-loading/2",
    mistakes={
        "those are the batches in flight; prefetch_factor counts each worker's.": lambda: 25,
        "what it takes in any case has to be hidden, too: count all of it.": lambda: math.ceil(
            math.ceil((620 - 60) / 25) / 4
        ),
        "rounded up, since almost hidden is not hidden.": lambda: 6.25,
    },
    tolerance=0,
)
def _prefetch_that_hides_it() -> int:
    return data_loading.prefetch_needed(slowest=620, step=25, workers=4)


def _lost(streams: int) -> int:
    return 10_000 - sum(data_loading.batch_sizes(10_000, 64, streams=streams, drop_last=True))


@exercise(
    "data-loading/3",
    mistakes={
        "that is what a map-style dataset loses; here each worker has a last batch of its own.": lambda: _lost(1),
        "that is one worker's loss.": lambda: _lost(8) // 8,
        "those are the samples of a batch, and not all of a last batch's are missing.": lambda: 8 * 64,
    },
    tolerance=0,
)
def _samples_never_seen() -> int:
    return _lost(8)
