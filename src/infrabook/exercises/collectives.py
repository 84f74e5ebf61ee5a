"""Answers to the exercises of ``collectives``."""

from __future__ import annotations

from fractions import Fraction

from .. import collectives
from ..lab import exercise

LATENCY, BANDWIDTH = Fraction(14, 10**6), 50 * 10**9


@exercise(
    "collectives/1",
    mistakes={
        "that is an all-reduce, which does it twice.": lambda: 2 * 2**30 * 15 // 16,
        "1 GiB is the whole, not a rank's shard.": lambda: 2**30 * 15,
        "a rank's own shard is there already, and the last one to arrive need not go on.": lambda: 2**30,
        "that is one shard, one step of the ring.": lambda: 2**30 // 16,
    },
    tolerance=1e-9,
)
def _gathered() -> int:
    return int(collectives.bytes_sent("all-gather", size_bytes=2**30, ranks=16))


@exercise(
    "collectives/2",
    mistakes={
        "an all-reduce has two halves of (n-1)/n.": lambda: 230 * 7 / 8,
        "that is the limit for many ranks; here n is 8.": lambda: 460,
        "multiply, not divide: more goes over the bus than the buffer has.": lambda: 230 / (2 * 7 / 8),
    },
)
def _bus() -> float:
    return float(230 * collectives.bus_factor("all-reduce", ranks=8))


@exercise(
    "collectives/3",
    mistakes={
        "that is what one message carries; the buffer has 64 of them.": lambda: float(LATENCY * BANDWIDTH),
        "an all-reduce has 126 steps, and sends 126/64 of the buffer; both grow alike.": lambda: float(
            126 * LATENCY * BANDWIDTH
        ),
        "each step has its latency; that is one latency against all the bytes.": lambda: float(
            LATENCY * BANDWIDTH * 64 / 126
        ),
    },
)
def _balance() -> float:
    return float(64 * LATENCY * BANDWIDTH)
