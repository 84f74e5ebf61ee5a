"""Reference cases of number formats: their sizes here; ranges and steps come with the ``formats`` module."""

from __future__ import annotations

import pytest

from infrabook import recipes

from .cases import cases, passes

CASES = cases("dtypes")

LATER = "`formats`, the module of ranges and steps, comes with the chapter on number formats"
WITHOUT_SIZE: dict[str, str] = {
    "dtype-float4_e2m1": LATER,
    "dtype-e5m2fnuz-eps-bug": LATER,
    "dtype-count-e4m3fn-1-2": LATER,
    "dtype-count-e5m2-1-2": LATER,
}
NOT_A_SIZE = {  # quantities of the other cases that wait for the same module
    "max", "min normal", "min subnormal", "eps (1 ulp at 1.0)", "eps", "bits used",
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in CASES if name not in WITHOUT_SIZE])
def test_size(name: str) -> None:
    case = CASES[name]
    dtype = case["inputs"].get("dtype", name.removeprefix("dtype-"))
    sizes = {"bits": recipes.bits(dtype), "storage": recipes.bytes_of(dtype)}
    compared = [e for e in case["expected"] if e["quantity"] not in NOT_A_SIZE]
    assert compared
    for expected in compared:
        assert passes(expected, sizes[expected["quantity"]]), expected


def test_every_excuse_is_of_a_case() -> None:
    assert set(WITHOUT_SIZE) <= set(CASES)
