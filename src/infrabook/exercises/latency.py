"""Answers to the exercises of ``latency``."""

from __future__ import annotations

from .. import roofline
from ..lab import exercise


@exercise(
    "latency/1",
    mistakes={
        "count an addition and a multiplication.": lambda: float(roofline.gemm(8192, 64, 8192).intensity) / 2,
        "the result is written too.": lambda: 2 * 8192 * 64 * 8192 / (2 * 2 * 8192 * 64),
    },
    tolerance=0.005,
)
def _intensity() -> float:
    return float(roofline.gemm(8192, 64, 8192).intensity)


@exercise(
    "latency/2",
    mistakes={
        "that is the share over all waves.": lambda: float(roofline.waves(4096, 4096, 108).wave_efficiency),
        "that is the idle share.": lambda: 1 - 52 / 108,
    },
    tolerance=0.01,
)
def _last_wave() -> float:
    return 52 / 108


@exercise(
    "latency/3",
    mistakes={
        "a fused kernel still reads once and writes once.": lambda: 5.0,
        "each operation reads and writes.": lambda: 2.0,
    },
    tolerance=0.005,
)
def _saved_by_fusing() -> float:
    return 4.0
