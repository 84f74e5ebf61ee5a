"""Answers to the exercises of ``pipeline-schedules``."""

from __future__ import annotations

from ..lab import exercise
from ..parallel import pipeline
from ..parallel.pipeline import Times

TIMES = Times(20, 22, 18)


@exercise(
    "pipeline-schedules/1",
    mistakes={
        "that is without interleaving: the stages are a quarter as long.": lambda: 100 * 7 / 32,
        "that is of the whole step; the question is about the time the work alone takes.": lambda: 100 * 7 / 135,
        "the last rank waits for p - 1 stages, not p.": lambda: 100 * 8 / 128,
    },
    tolerance=0.001,
)
def _interleaved_bubble() -> float:
    return float(100 * pipeline.simulate(pipeline.interleaved(8, 32, chunks=4)).bubble_of_ideal)


@exercise(
    "pipeline-schedules/2",
    mistakes={
        "that is 1F1B's: here W fills part of it.": lambda: 7 * 60,
        "that is ZB-H2's, which keeps twice as much.": lambda: 7 * (20 + 22 - 36),
        "the last rank waits for p - 1 hops, not p.": lambda: 8 * 24,
    },
    tolerance=1e-9,
)
def _idle_under_h1() -> float:
    line = pipeline.simulate(pipeline.zb_h1(8, 64), TIMES)
    return float(line.makespan - line.busy(0))


def _h2(steps: int) -> float:
    return float(pipeline.simulate(pipeline.repeated(pipeline.zb_h2(8, 64), steps), TIMES).makespan)


@exercise(
    "pipeline-schedules/3",
    mistakes={
        "that is all the idle time of the waiting step; some of it is there without waiting too.": lambda: (
            _h2(1) - 64 * 60
        ),
        "that is what is idle without waiting; the question is what waiting adds.": lambda: 7 * (20 + 22 - 36),
    },
    tolerance=1e-9,
)
def _waiting_adds() -> float:
    return 2 * _h2(1) - _h2(2)
