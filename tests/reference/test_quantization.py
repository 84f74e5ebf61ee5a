"""Reference cases of quantization: bits per weight, sizes, NF4's levels, scales, zero points and codes."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import pytest

from infrabook import quantization
from infrabook.formats import BLOCKS
from infrabook.quantization import BLOCK_FORMATS

from .cases import Case, cases, passes

CASES = cases("quantization")
EXCUSED: dict[tuple[str, str], str] = {
    ("quant-gguf-q8_1", "gguf-py constant"): "gguf-py 0.19's own table, which its C struct outgrew; the struct is ours",
}


def answer(case: Case, quantity: str, unit: str) -> Any:
    """What the library says."""
    inputs = case["inputs"]
    if "type" in inputs:
        one = BLOCK_FORMATS[inputs["type"]]
        assert one.block == inputs["block"]
        assert inputs.get("bytes_per_block", one.bytes_per_block) == one.bytes_per_block
        return one.bytes_per_block if unit == "bytes" else float(one.bits_per_weight)
    if "dq_block" in inputs:
        bits, size = inputs["bits"], inputs["block"]
        plain = quantization.bits_per_weight(bits, size, scale_bits=32)
        double = quantization.double_quantized(
            bits, block=size, scale_bits=inputs["dq_bits"], second_block=inputs["dq_block"]
        )
        if match := re.search(r"saving on ([\d,]+)", quantity):
            return float((plain - double) * int(match[1].replace(",", "")) / 8 / 10**9)
        return float(
            {"overhead without DQ": plain - bits, "overhead with DQ": double - bits, "total": double}[quantity]
        )
    if "offset" in inputs:
        levels = quantization.nf4_levels(
            inputs["offset"], positive_levels=inputs["positive"], negative_levels=inputs["negative"]
        )
        return levels[int(quantity.removeprefix("level "))]
    if "group" in inputs:
        found = quantization.bits_per_weight(
            inputs["bits"], inputs["group"], scale_bits=inputs["scale_bits"], zero_bits=inputs["zero_bits"]
        )
        return float(found)
    if "params" in inputs:
        bits = inputs.get("bits_per_weight", 8 * inputs.get("bytes", 0))
        size = Fraction(quantization.size_bytes(int(inputs["params"]), bits))
        return float(size / (2**30 if "GiB" in unit else 10**9))
    if "x" in inputs:
        return codes(inputs, quantity)
    if match := re.match(r"(\w+): ", quantity):
        name = {"MXFP8": "mxfp8_e4m3", "MXFP6": "mxfp6_e3m2"}.get(match[1], match[1].lower())
        return float(BLOCKS[name].bits_per_element)
    raise AssertionError(f"no answer to {quantity!r}")


def codes(inputs: dict[str, Any], quantity: str) -> Any:
    """Scales, zero points and codes of a few numbers, in torch's order."""
    x = inputs["x"]
    unsigned = inputs["dtype"] == "quint8"
    largest = max(map(abs, x))
    scheme = quantization.affine(min(x), max(x)) if unsigned else quantization.symmetric(largest, convention="127.5")
    if "restricted" in quantity:
        return float(quantization.symmetric(largest).scale)
    if "scale" in quantity:
        return float(scheme.scale)
    return scheme.zero_point if quantity == "zero point" else scheme.quantize(x, order="shift, then round")


@pytest.mark.parametrize("name", CASES)
def test_quantization(name: str) -> None:
    compared = 0
    for expected in CASES[name]["expected"]:
        if (name, expected["quantity"]) in EXCUSED:
            continue
        compared += 1
        assert passes(expected, answer(CASES[name], expected["quantity"], expected["unit"])), expected
    assert compared


def test_every_excuse_is_of_a_case() -> None:
    for name, quantity in EXCUSED:
        assert quantity in [expected["quantity"] for expected in CASES[name]["expected"]]
