"""Answers to the exercises of ``number-formats``."""

from __future__ import annotations

from fractions import Fraction

from ..formats import FORMATS
from ..lab import exercise


@exercise(
    "number-formats/1",
    mistakes={
        "so it is not lost, but it is subnormal: most of its bits are.": lambda: 4,
        "that is where it stops being the smallest number; full precision begins at the smallest normal one.": lambda: (
            8
        ),
        "2^-14 is not reached yet; it is between two powers of two.": lambda: 4096,
        "a power of two is asked for.": lambda: 2**-14 / 1e-8,
    },
    tolerance=1e-6,
)
def _least_scale_for_full_precision() -> int:
    scale = 1
    while scale * Fraction(1e-8) < FORMATS["fp16"].min_normal:
        scale *= 2
    return scale


@exercise(
    "number-formats/2",
    mistakes={
        "that is its largest number; it never gets there.": lambda: 448,
        "there steps are still 1: the next sum is a number of the format.": lambda: 8,
        "that sum is not a number of the format, and is rounded to even, which is back.": lambda: 17,
        "look for the first sum that is halfway between two numbers of the format.": lambda: 32,
    },
    tolerance=1e-9,
)
def _counter_in_e4m3() -> float:
    return float(FORMATS["fp8_e4m3"].stall(1) or 0)


@exercise(
    "number-formats/3",
    mistakes={
        "that is for an update upwards. Below 1 the numbers are twice as close.": lambda: 0.001 / 2**-7,
        "FP16 has 10 bits of fraction, BF16 has 7.": lambda: 0.001 / 2**-11,
        "that compares the update with half a step, as rounding to nearest does.": lambda: 2 * 0.001 / 2**-8,
        "that is the update itself; the chance is its share of the distance to the next number.": lambda: 0.001,
    },
    tolerance=0.005,
)
def _chance_of_a_step_down() -> float:
    one = FORMATS["bf16"]
    return float(Fraction(1, 1000) / one.ulp(Fraction(999, 1000)))
