"""Reference cases of number formats: sizes, ranges, steps and counts, from the formats' five facts."""

from __future__ import annotations

import re
from typing import Any

import pytest

from infrabook import recipes
from infrabook.formats import FORMATS, Format, get

from .cases import Case, cases, passes

CASES = cases("dtypes")


def format_of(case: Case) -> Format:
    """The format that a case is about: by its dtype, by its widths, or by its own name."""
    inputs = case["inputs"]
    if "dtype" in inputs:
        return get(inputs["dtype"])
    widths = inputs["exponent_bits"], inputs["mantissa_bits"]
    for one in FORMATS.values():
        if (one.exponent, one.mantissa) == widths and one.special == "ieee" and one.bias is None:
            return one
    return Format(case["id"], *widths)


def counts(one: Format, quantity: str) -> list[int]:
    """Numbers in each interval that ``quantity`` names, as in ``[1,2], [1,2), (1,2)``."""
    intervals = re.findall(r"([\[(])\s*(-?[\d.]+)\s*,\s*(-?[\d.]+)\s*([\])])", quantity)
    return [one.between(float(low), float(high), ends=left + right) for left, low, high, right in intervals]


def answer(one: Format, case: Case, quantity: str) -> Any:
    """What the library says to ``quantity``; torch's own opinion where it is asked for."""
    if "torch.finfo" in quantity:
        torch = pytest.importorskip("torch")
        return torch.finfo(getattr(torch, case["inputs"]["dtype"])).eps
    if "representable values" in quantity:
        return counts(one, quantity)
    if quantity == "positive values":
        return [float(value) for value in one.numbers()]
    if "eps" in quantity:
        return float(one.eps)
    known = {
        "bits": one.stored_bits, "bits used": one.bits, "storage": one.stored_bits / 8, "max": float(one.max),
        "min normal": float(one.min_normal), "min subnormal": float(one.min_subnormal), "finite values": one.finite,
    }  # fmt: skip
    return known[quantity]


@pytest.mark.parametrize("name", CASES)
def test_format(name: str) -> None:
    case = CASES[name]
    one = format_of(case)
    for expected in case["expected"]:
        assert passes(expected, answer(one, case, expected["quantity"])), expected


def test_both_modules_store_an_element_in_as_many_bits() -> None:
    for name, bits in recipes.BITS.items():
        if name in FORMATS:
            assert FORMATS[name].stored_bits == bits
