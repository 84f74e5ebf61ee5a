"""Answers to the exercises of ``rnn``."""

from __future__ import annotations

from .. import recurrent
from ..lab import exercise


@exercise(
    "rnn/1",
    mistakes={
        "that is one layer.": lambda: recurrent.parameters("lstm", 650, 650).total,
        "that has one bias for each gate; PyTorch has two.": lambda: (
            recurrent.parameters("lstm", 650, 650, layers=2, biases=1).total
        ),
        "that is a GRU.": lambda: recurrent.parameters("gru", 650, 650, layers=2).total,
    },
    tolerance=0,
)
def _medium() -> int:
    return int(recurrent.parameters("lstm", 650, 650, layers=2).total)


@exercise(
    "rnn/2",
    mistakes={
        "that is what one bias would do.": lambda: 0.1,
        "the gradient of each of the two is the gradient of their sum.": lambda: 0.05,
    },
    tolerance=1e-9,
)
def _moved() -> float:
    return 0.1 + 0.1


@exercise(
    "rnn/3",
    mistakes={
        "the input's products need no state: they are one.": lambda: 2048,
        "that would be without a state to wait for.": lambda: 1,
    },
    tolerance=0,
)
def _products() -> int:
    return 1024 + 1
