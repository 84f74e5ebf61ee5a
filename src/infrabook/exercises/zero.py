"""Answers to the exercises of ``zero``."""

from __future__ import annotations

from .. import models, parameters
from ..lab import exercise
from ..parallel import zero
from ..parallel.zero import Sharding
from ..units import GB, GIB

SEVENTY = 68_976_648_192


@exercise(
    "zero/1",
    mistakes={
        "that is stage 1: gradients are divided too.": lambda: SEVENTY * (4 + 12 / 64) / GB,
        "that is stage 3: ZeRO-2 leaves the weights whole on every rank.": lambda: SEVENTY * 16 / 64 / GB,
        "those are GiB.": lambda: SEVENTY * (2 + 14 / 64) / GIB,
        "that divides nothing.": lambda: SEVENTY * 16 / GB,
    },
    tolerance=0.005,
)
def _stage_two() -> float:
    return float(zero.states(models.get("llama-2-70b"), Sharding(2, 64)).total / GB)


@exercise(
    "zero/2",
    mistakes={
        "that reduces once a step, which takes a place to add up whole gradients.": lambda: 2,
        "the weights are updated, and gathered, once a step.": lambda: 16,
        "that is stage 3, which gathers twice for each micro-batch as well.": lambda: 24,
        "and the updated weights?": lambda: 8,
    },
    tolerance=0.001,
)
def _accumulated() -> int:
    return 8 + 1


@exercise(
    "zero/3",
    mistakes={
        "that sends the whole gradients, and a rank has only its shard of them.": lambda: 2 * 7 / 8 * _gradients() / GB,
        "an all-reduce has two halves.": lambda: 7 / 8 * _gradients() / 8 / GB,
        "that is inside the node: one reduce-scatter of whole gradients.": lambda: 7 / 8 * _gradients() / GB,
        "that counts 64 replicas; there are 8 of each shard.": lambda: 2 * 63 / 64 * _gradients() / 8 / GB,
    },
    tolerance=0.002,
)
def _across() -> float:
    count = parameters.count(models.get("llama-2-7b")).total
    sent = zero.traffic(count, Sharding(3, 8, replicas=8))
    return float(sent["all-reduce of gradient shards among replicas"] / GB)


def _gradients() -> int:
    return 2 * int(parameters.count(models.get("llama-2-7b")).total)
