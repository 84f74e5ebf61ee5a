"""Answers to the exercises of ``int8-quantization``."""

from __future__ import annotations

from .. import quantization
from ..lab import exercise


@exercise(
    "int8-quantization/1",
    mistakes={
        "the zero points are missing.": lambda: 3 + 16 / 64,
        "the scales are missing.": lambda: 3 + 3 / 64,
        "the zero points have three bits here.": lambda: 3 + 32 / 64,
        "that is for groups of 128.": lambda: 3 + 19 / 128,
    },
    tolerance=0.0005,
)
def _bits_of_three() -> float:
    return float(quantization.bits_per_weight(3, 64, zero_bits=3))


@exercise(
    "int8-quantization/2",
    mistakes={
        "that is for two signed factors.": lambda: quantization.safe_length(),
        "signed codes reach -128.": lambda: quantization.safe_length(255, 127),
        "that is an accumulator without a sign bit.": lambda: (2**32 - 1) // (255 * 128),
        "unsigned codes end at 255.": lambda: quantization.safe_length(256, 128),
    },
    tolerance=1e-9,
)
def _longest_sum() -> int:
    return quantization.safe_length(255, 128)


@exercise(
    "int8-quantization/3",
    mistakes={
        "each of the two conversions moves three bytes an element, and the layer itself one.": lambda: 2 * 10**6,
        "count inputs and outputs.": lambda: 10**6,
    },
    tolerance=1e-6,
)
def _weights_to_break_even() -> int:
    weights = 0
    while quantization.layer_bytes(10**6, weights, 10**6, conversions="separate") > quantization.layer_bytes(
        10**6, weights, 10**6, conversions="none"
    ):
        weights += 10**5
    return weights
