"""Answers to the exercises of ``training-step``."""

from __future__ import annotations

from .. import iteration
from ..lab import exercise

RATE, GRADIENT, EPS = 1e-3, 1e-4, 1e-8


@exercise(
    "training-step/1",
    mistakes={
        "momentum is made by the first step, which has not come yet.": lambda: 12,
        "the gradients are there by then.": lambda: 4,
        "that many are kept by Adam after its first step.": lambda: 16,
    },
    tolerance=0,
)
def _before_the_first_step() -> int:
    plan = iteration.recipe("momentum", "fp32")
    return int(sum(tensor.bytes_per_element for tensor in plan.tensors if tensor.kind != "optimizer"))


@exercise(
    "training-step/2",
    mistakes={
        "rate times gradient is what SGD does.": lambda: RATE * GRADIENT,
        "both averages are corrected for having begun at zero.": lambda: RATE * 0.1 / 0.001**0.5,
    },
)
def _first_step() -> float:
    return RATE * GRADIENT / (GRADIENT + EPS)


@exercise(
    "training-step/3",
    mistakes={
        "the shorter one's tokens weigh more, not less.": lambda: 100 / 300,
        "they would weigh the same if sums were divided by all tokens.": lambda: 1,
    },
)
def _weight() -> float:
    return (1 / 2 / 100) / (1 / 2 / 300)
