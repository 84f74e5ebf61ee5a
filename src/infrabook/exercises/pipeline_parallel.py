"""Answers to the exercises of ``pipeline-parallel``."""

from __future__ import annotations

from fractions import Fraction

from .. import activations, models
from ..lab import exercise
from ..parallel import pipeline
from ..parallel.pipeline import Times
from ..units import GB


@exercise(
    "pipeline-parallel/1",
    mistakes={
        "that is a tenth of the time the work takes; a step is work and waiting.": lambda: 50,
        "that is one in ten of p, not of p - 1: the last rank starts after p - 1 hops.": lambda: 54,
        "with one less it is still a tenth: the smallest is asked for.": lambda: 46,
    },
    tolerance=0,
)
def _enough_micro_batches() -> int:
    limit = Fraction(1, 10)
    return next(m for m in range(1, 99) if pipeline.simulate(pipeline.one_f_one_b(6, m)).bubble_of_total <= limit)


def _kept(micro_batches: int, layers: int = 2) -> float:
    one = activations.one_layer(models.get("llama-2-7b"), sequence=4096).total
    return float(micro_batches * layers * one / GB)


@exercise(
    "pipeline-parallel/2",
    mistakes={
        "that is GPipe's, which keeps every micro-batch.": lambda: _kept(64),
        "stages are counted from 0: stage 3 keeps p - 3.": lambda: _kept(12),
        "that is what the first stage keeps.": lambda: _kept(16),
        "a stage has two layers here.": lambda: _kept(13, layers=1),
    },
)
def _what_stage_3_keeps() -> float:
    return _kept(pipeline.in_flight(pipeline.one_f_one_b(16, 64))[3])


@exercise(
    "pipeline-parallel/3",
    mistakes={
        "that is without messages.": lambda: 71 * 60,
        "those are the messages of filling and draining; 1F1B waits for more.": lambda: 71 * 60 + 2 * 7 * 2,
        "nobody waits for every message: several are under way at a time.": lambda: 71 * 60 + 2 * 7 * 64 * 2,
    },
    tolerance=1e-9,
)
def _step_with_messages() -> float:
    return float(pipeline.simulate(pipeline.one_f_one_b(8, 64), Times(20, 20, 20, message=2)).makespan)
