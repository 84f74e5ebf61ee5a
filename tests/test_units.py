"""Units are what they say: exact inside, rounded half to even for people, and refused with a sentence."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, cast

import pytest

from infrabook import units
from infrabook.errors import InfrabookError


def test_giga_is_ten_to_the_nine_and_gibi_two_to_the_thirty() -> None:
    assert (units.GB, units.GIB) == (1_000_000_000, 1_073_741_824)
    assert [units.BYTES[name] for name in ("KB", "MB", "TB", "PB")] == [10**3, 10**6, 10**12, 10**15]
    assert [units.BYTES[name] for name in ("KiB", "MiB", "TiB", "PiB")] == [2**10, 2**20, 2**40, 2**50]


@pytest.mark.parametrize(
    ("value", "unit", "digits", "text"),
    [
        (112 * 10**9, "GB", 2, "112.00 GB"), (112 * 10**9, "GiB", 2, "104.31 GiB"), (1536, "KiB", 1, "1.5 KiB"),
        (0, "GB", 2, "0.00 GB"), (-5 * 10**8, "GB", 1, "-0.5 GB"), (1_234_567, "B", 2, "1,234,567 B"),
        (Fraction(3, 2), "B", 1, "1.5 B"), (10**15, "GB", 0, "1,000,000 GB"), (0.5, "B", 1, "0.5 B"),
    ],
)  # fmt: skip
def test_show(value: Any, unit: str, digits: int, text: str) -> None:
    assert units.show(value, unit, digits) == text


@pytest.mark.parametrize(
    ("tenths", "text"), [(5, "0 GB"), (15, "2 GB"), (25, "2 GB"), (35, "4 GB"), (-5, "0 GB"), (-15, "-2 GB")]
)
def test_a_half_is_rounded_to_even(tenths: int, text: str) -> None:
    """Banker's rounding, also of -0.5, which has no sign once it is 0."""
    assert units.show(tenths * 10**8, "GB", 0) == text


def test_a_float_that_is_not_quite_a_half_is_rounded_by_its_decimal_value() -> None:
    assert units.exact(0.1) == Fraction(1, 10)
    assert units.exact(2.675) == Fraction(2675, 1000)
    assert isinstance(units.exact(4.0), int)
    assert isinstance(units.exact(Fraction(8, 2)), int)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("80 GB", 80 * 10**9), ("80GB", 80 * 10**9), ("79.65 GiB", Fraction("79.65") * 2**30), ("512", 512),
        ("1,024 B", 1024),
        (" 1.5 KiB ", 1536), ("16_384 B", 16384), ("0.5 B", Fraction(1, 2)),
    ],
)  # fmt: skip
def test_an_amount_of_memory_is_read_exactly(text: str, value: Any) -> None:
    assert units.quantity(text) == value


def test_what_show_writes_quantity_reads() -> None:
    values: tuple[int, ...] = (0, 1, 10**9, 2**30, 123_456_789_012)
    for value in values:
        for unit in ("B", "KB", "GB", "MiB", "TiB"):
            lost = Fraction(units.quantity(units.show(value, unit, 9))) - value
            assert abs(lost) * 10**9 <= units.BYTES[unit]


@pytest.mark.parametrize(
    ("value", "noun", "digits", "text"),
    [
        (6_738_415_616, "", 2, "6.74 G"), (989_400_000_000_000, "FLOP/s", 1, "989.4 TFLOP/s"), (999, "FLOP",
        2, "999 FLOP"),
        (1000, "tokens", 0, "1 ktokens"), (Fraction(1, 3), "FLOP", 2, "0.33 FLOP"), (10**18, "FLOP", 0, "1 EFLOP"),
        (-2_000_000, "", 1, "-2.0 M"), (0, "", 1, "0"),
    ],
)  # fmt: skip
def test_scaled(value: Any, noun: str, digits: int, text: str) -> None:
    assert units.scaled(value, noun, digits) == text


def test_percent_is_exact_until_it_is_shown() -> None:
    assert units.percent(1, 3) == "33.3%"
    assert units.percent(Fraction(1, 8), 1, 0) == "12%"  # 12.5 to even
    assert units.percent(Fraction(3, 8), 1, 0) == "38%"  # 37.5 to even
    assert units.percent(3, 2) == "150.0%"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: units.show(1, "Gb"), "'Gb' is not a unit of bytes; use one of B, KB, MB, GB"),
        (lambda: units.quantity("80 Gb"), "'Gb' is not a unit of bytes"),
        (lambda: units.quantity("eighty"), "'eighty' is not an amount of memory; write it as '80 GB'"),
        (lambda: units.quantity("-1 GB"), "is not an amount of memory"),
        (lambda: units.quantity(""), "is not an amount of memory"),
        (lambda: units.percent(1, 0), "a share of nothing is not defined: the whole is 0"),
        (lambda: units.positive("layers", 0), "layers has to be greater than 0, and is 0"),
        (lambda: units.positive("layers", -1), "layers has to be greater than 0, and is -1"),
        (lambda: units.positive("layers", 1.5), "layers has to be a whole number greater than 0, and is 1.5"),
        (lambda: units.positive("layers", True), "and is True"),
        (lambda: units.positive("layers", cast(Any, "7")), "and is '7'"),
        (lambda: units.positive("rate", float("nan"), whole=False),
        "rate has to be a number greater than 0, and is nan"),
        (lambda: units.positive("rate", float("inf"), whole=False), "and is inf"),
        (lambda: units.positive("batch", -1, zero=True), "batch has to be 0 or more, and is -1"),
    ],
)  # fmt: skip
def test_bad_input_is_answered_in_words(call: Any, words: str) -> None:
    with pytest.raises(InfrabookError) as caught:
        call()
    assert words in str(caught.value)


def test_what_is_positive_passes() -> None:
    units.positive("layers", 32)
    units.positive("batch", 0, zero=True)
    units.positive("rate", Fraction(1, 3), whole=False)
    units.positive("rate", 2.0)
