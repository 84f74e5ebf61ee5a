"""Answers to the exercises of ``attention``."""

from __future__ import annotations

from .. import attention, models
from ..lab import exercise

H, D, HEADS, KV_HEADS = 4096, 128, 32, 8


@exercise(
    "attention/1",
    mistakes={
        "that is a layer in which each head has keys and values of its own.": lambda: 4 * H * HEADS * D,
        "that is one pair of key and value heads for all.": lambda: 2 * H * HEADS * D + 2 * H * D,
        "the output projection is part of it, as wide as the queries.": lambda: H * HEADS * D + 2 * H * KV_HEADS * D,
        "keys and values have a matrix each.": lambda: 2 * H * HEADS * D + H * KV_HEADS * D,
    },
    tolerance=0,
)
def _grouped() -> int:
    return 2 * H * HEADS * D + 2 * H * KV_HEADS * D


@exercise(
    "attention/2",
    mistakes={
        "that is division by the square root.": lambda: attention.keys_seen(4096, 1),
        "divide scores by d and their variance is divided by d squared.": lambda: attention.keys_seen(4096, 16),
        "that is all of them, which is close.": lambda: 4096,
    },
    tolerance=0.0001,
)
def _divided_by_d() -> float:
    return attention.keys_seen(4096, 1 / 16)


@exercise(
    "attention/3",
    mistakes={
        "that counts scores which the mask throws away.": lambda: attention.overtakes_feed_forward(
            models.get("llama-3-8b")
        ),
        "that is Llama-2-7B, whose feed-forward layer is narrower.": lambda: (
            2 * attention.overtakes_feed_forward(models.get("llama-2-7b"))
        ),
        "the feed-forward layer has three matrices.": lambda: 2 * 14_336,
    },
    tolerance=1e-9,
)
def _crossing() -> int:
    return int(2 * attention.overtakes_feed_forward(models.get("llama-3-8b")))
