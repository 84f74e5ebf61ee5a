"""Answers to the exercises of ``flops``."""

from __future__ import annotations

from .. import flops, models, parameters
from ..lab import exercise


@exercise(
    "flops/1",
    mistakes={
        "that leaves the feed-forward layer out.": lambda: 2,
        "that is for scores counted by the causal half.": lambda: 12,
        "that is a gated layer of three matrices.": lambda: 8,
    },
    tolerance=0.001,
)
def _crossover_in_widths() -> float:
    return float(flops.crossover(models.get("gpt2-xl")) / 1600)


@exercise(
    "flops/2",
    mistakes={
        "that is with the logits of every position.": lambda: flops.forward(models.get("gpt2"), sequence=1024).total,
        "the last position still needs its logits.": lambda: (
            flops.forward(models.get("gpt2"), sequence=1024, head=False).total
        ),
    },
    tolerance=1e-6,
)
def _forward_of_a_server() -> int:
    return int(flops.forward(models.get("gpt2"), sequence=1024, logits="last").total)


@exercise(
    "flops/3",
    mistakes={
        "that is all parameters over active ones; attention's scores are work too.": lambda: float(
            parameters.count(models.get("mixtral-8x7b")).total / parameters.active(models.get("mixtral-8x7b")).total
        ),
        "not four: attention and the ends are not divided among experts.": lambda: 4,
    },
    tolerance=0.005,
)
def _overstated_by_six_n() -> float:
    mixtral = models.get("mixtral-8x7b")
    return float(6 * parameters.count(mixtral).total / flops.per_token(mixtral, sequence=4096))
