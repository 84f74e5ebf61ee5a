"""Answers to the exercises of ``layout``."""

from __future__ import annotations

from .. import models, recipes
from ..lab import exercise
from ..parallel import layout
from ..units import GB


@exercise(
    "layout/1",
    mistakes={
        "that is with dp 4, which leaves half of the GPUs without work.": lambda: 128 // 4,
        "that is the number of data-parallel ranks.": lambda: 16_384 // (8 * 16 * 16),
    },
    tolerance=0,
)
def _micro_batches() -> int:
    run = next(run for run in layout.published() if run.name == "llama-3-405b-131k")
    return layout.micro_batches(run.job, run.layout)


@exercise(
    "layout/2",
    mistakes={
        "that is without ZeRO.": lambda: _states(zero=0),
        "that is ZeRO-3; ZeRO-1 divides the optimizer's states alone.": lambda: _states(zero=3),
        "that divides by all GPUs; ZeRO divides among the data-parallel ranks.": lambda: _states(512),
    },
    tolerance=0.02,
)
def _states_gb() -> float:
    return _states()


def _states(data: int = 16, *, zero: int = 1) -> float:
    account = recipes.states(
        models.get("llama-2-70b"), zero=zero, data_parallel=data, tensor_parallel=8, pipeline_parallel=4
    )
    return float(account.total / GB)


@exercise(
    "layout/3",
    mistakes={
        "that is 5% of the ideal time; the whole step has the bubble in it.": lambda: _least(of_total=False),
    },
    tolerance=0,
)
def _chunks() -> int:
    return _least()


def _least(*, of_total: bool = True, stages: int = 16, count: int = 32) -> int:
    def bubble(chunks: int) -> float:
        idle = (stages - 1) / chunks
        return idle / (count + idle * of_total)

    return next(chunks for chunks in range(1, 100) if bubble(chunks) < 0.05)
