"""Answers to the exercises of ``rnn-gradients``."""

from __future__ import annotations

import math

from .. import recurrent
from ..lab import exercise


@exercise(
    "rnn-gradients/1",
    mistakes={
        "after that many there is still more than a millionth.": lambda: 25,
        "a millionth is ten to the power of minus six.": lambda: recurrent.steps_until(1 / math.sqrt(3), 1e-9),
        "that is with the radius one half.": lambda: recurrent.steps_until(0.5, 1e-6),
    },
    tolerance=0,
)
def _millionth() -> float:
    return recurrent.steps_until(1 / math.sqrt(3), 1e-6)


@exercise(
    "rnn-gradients/2",
    mistakes={
        "that is the gate, and the bias is asked for.": lambda: 0.5**0.01,
        "that bias leaves half of it after one step.": lambda: 0.0,
    },
    tolerance=0.01,
)
def _bias() -> float:
    gate = 0.5**0.01
    return math.log(gate / (1 - gate))


@exercise(
    "rnn-gradients/3",
    mistakes={
        "clipping multiplies all of the gradient by one number.": lambda: "larger",
        "every part of the gradient is multiplied by the same number.": lambda: "smaller",
    },
)
def _share() -> str:
    return "the same"
