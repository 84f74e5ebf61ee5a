"""Reference cases of rooflines: ridge points of published peaks, intensities, critical batches."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from infrabook import hardware, roofline
from infrabook.parallel import tensor

from .cases import cases, passes

CASES = cases("roofline")
Inputs = dict[str, Any]
EXCUSED = {name: "the table holds GPUs, and this is a TPU" for name in CASES if name.startswith("hw-ridge-tpu")}
CARDS = {
    "hw-ridge-v100": "v100-sxm2-32gb", "hw-ridge-a100-40": "a100-sxm-40gb", "hw-ridge-a100-80": "a100-sxm-80gb",
    "hw-ridge-h100-sxm": "h100-sxm", "hw-ridge-h100-pcie": "h100-pcie", "hw-ridge-h200": "h200",
    "hw-ridge-b200": "b200", "hw-ridge-t4": "t4", "hw-ridge-l4": "l4", "hw-ridge-rtx4090": "rtx-4090",
}  # fmt: skip


def ridge(name: str, i: Inputs) -> Inputs:
    """From the case's own two numbers, which the table's card has to agree with within a percent."""
    card = hardware.gpu(CARDS[name])
    dtype = "bf16" if any(peak.dtype == "bf16" for peak in card.peaks) else "fp16"
    given = Fraction(str(i["peak_tflops_dense_16bit"])) * 1000 / Fraction(str(i["hbm_GB_per_s"]))
    assert abs(roofline.ridge(card, dtype=dtype) / given - 1) < Fraction(2, 100), float(
        roofline.ridge(card, dtype=dtype)
    )
    bound = roofline.Bound(
        roofline.Kernel("one byte", 1, 1), int(i["peak_tflops_dense_16bit"] * 10**12), int(i["hbm_GB_per_s"] * 10**9)
    )
    return {"ridge point": Fraction(bound.peak_flop_per_s) / bound.bandwidth_bytes_per_s}


def product(name: str, i: Inputs) -> Inputs:
    dtype = {1: "fp8", 2: "bf16", 4: "fp32"}[i["bytes"]]
    return {"arithmetic intensity": roofline.gemm(i["M"], i["K"], i["N"], dtype=dtype).intensity}


def scaling_book(name: str, i: Inputs) -> Inputs:
    """Critical batches by its rule, peak over bandwidth (times bytes over two), with its own figures."""
    # Exposure falls as one over the divided width, so its value at width 1 is the width where both take equally long.
    alone = tensor.exposure(1, degree=2, peak_flop_per_s=197 * 10**12, bandwidth_bytes_per_s=45 * 10**9)
    return {
        "2-chip sharded matmul D threshold": alone,
        "v5e critical batch bf16": Fraction(197 * 10**12, 820 * 10**9),
        "int8 (3.94e14/8.1e11)/2": Fraction(394 * 10**12, 810 * 10**9) / 2,
        "H100 critical batch": Fraction(1, 1) * 990 * 10**12 / (3320 * 10**9),
    }


def weights(name: str, i: Inputs) -> Inputs:
    load = roofline.Bound(roofline.Kernel("weights", 0, int(i["params"]) * i["bytes"]), 1, int(i["chips"] * i["bw"]))
    return {"weight load time": 1000 * load.memory_s}


@pytest.mark.parametrize("name", [name for name in CASES if name not in EXCUSED])
def test_case(name: str) -> None:
    how = (
        ridge if name.startswith("hw-ridge") else product if "matmul" in name
        else weights if "200b" in name else scaling_book
    )  # fmt: skip
    found = how(name, CASES[name]["inputs"])
    for expected in CASES[name]["expected"]:
        assert passes(expected, found[expected["quantity"]]), (expected, found)


def test_every_excuse_is_of_a_case() -> None:
    assert set(EXCUSED) <= set(CASES)
