"""Answers to the exercises of ``memory-hierarchy``."""

from __future__ import annotations

from fractions import Fraction

from .. import hardware, hierarchy, occupancy, tiling
from ..lab import exercise


def _blocks(**given: int) -> int:
    return occupancy.resident("h100-sxm", **given).blocks


@exercise(
    "memory-hierarchy/1",
    mistakes={
        "shared memory would allow that many; look at the registers.": lambda: 5,
        "the system keeps 1 KiB of shared memory for every block, but that is not what runs out.": lambda: 4,
        "that is what the warps would allow.": lambda: 8,
    },
    tolerance=1e-9,
)
def _resident_blocks() -> int:
    return _blocks(threads=256, registers=96, shared_bytes=40 * 1024)


@exercise(
    "memory-hierarchy/2",
    mistakes={
        "that is for FP32 operands; these have two bytes.": lambda: 4 * _side(),
        "a square tile does T/2 FLOP for each byte of BF16, not T.": lambda: _side() / 2,
    },
    tolerance=0.01,
)
def _large_enough() -> float:
    return _side()


def _side() -> float:
    card = hardware.gpu("a100-sxm-80gb")
    ridge = Fraction(card.peak("bf16"), card.bandwidth_bytes_per_s)
    assert tiling.intensity(64, 64) == 32
    return float(2 * ridge)


@exercise(
    "memory-hierarchy/3",
    mistakes={
        "that is of the whole card; divide by its SMs.": lambda: float(_in_flight() / 1024),
        "cycles become seconds by the clock of the SMs, in Hz.": lambda: float(
            860 * hardware.gpu("b200").bandwidth_bytes_per_s / 148 / 1024
        ),
        "that is for an H100.": lambda: float(
            hierarchy.level("h100-sxm", "HBM").in_flight_bytes / hardware.gpu("h100-sxm").sms / 1024
        ),
    },
    tolerance=0.01,
)
def _in_flight_kib() -> float:
    return float(_in_flight() / hardware.gpu("b200").sms / 1024)


def _in_flight() -> Fraction:
    return hierarchy.level("b200", "HBM").in_flight_bytes
