"""The reference cases on hardware, in the library's terms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from infrabook.errors import InfrabookError
from infrabook.hardware import dram_bandwidth, gpu, link, matrix_peak
from infrabook.units import GB, GIB, KIB

from .cases import Case, cases, passes

CASES = cases("hardware")
TERA = 10**12
Answer = Callable[[Case], dict[str, Any]]

EXCUSED = {
    "hw-peak-tpu": "The table holds GPUs; a TPU's peaks belong to no Gpu.",
    "hw-tpu-v5p-ici": "The table holds GPUs' links; the torus between TPUs is none of them.",
}
EXCUSED_QUANTITIES = {("hw-capacity-labels", "TPU v5p label"): "The table holds GPUs and no TPU."}

PEAKS = {
    "hw-peak-v100-sxm2": ("v100-sxm2-32gb", "fp32"),
    "hw-peak-a100": ("a100-sxm-80gb", "fp32"),
    "hw-peak-h100-sxm": ("h100-sxm", "fp32"),
    "hw-peak-h100-pcie": ("h100-pcie", "fp32"),
    "hw-peak-t4": ("t4", "fp32"),
    "hw-peak-rtx4090-fp16acc": ("rtx-4090", "fp16"),
}
BANDWIDTHS = {
    "hw-hbm-bw-v100": "v100-sxm2-32gb",
    "hw-hbm-bw-a100-40": "a100-sxm-40gb",
    "hw-hbm-bw-a100-80-sxm": "a100-sxm-80gb",
    "hw-hbm-bw-a100-80-pcie": "a100-pcie-80gb",
    "hw-hbm-bw-h100-sxm": "h100-sxm",
    "hw-hbm-bw-h200": "h200",
    "hw-hbm-bw-t4": "t4",
    "hw-hbm-bw-rtx4090": "rtx-4090",
}
ON_CHIP = {
    "hw-onchip-v100": "v100-sxm2-32gb",
    "hw-onchip-t4": "t4",
    "hw-onchip-a100": "a100-sxm-80gb",
    "hw-onchip-h100-sxm": "h100-sxm",
    "hw-onchip-b200": "b200",
}
NVLINKS = {
    "hw-nvlink-v100-nvlink2": "v100-sxm2-32gb",
    "hw-nvlink-a100-nvlink3": "a100-sxm-80gb",
    "hw-nvlink-h100-nvlink4": "h100-sxm",
    "hw-nvlink-b200-nvlink5": "b200",
}
CAPACITIES = {"hw-capacity-h100-80gb": "h100-sxm", "hw-capacity-h200-141gb": "h200"}


def rate_or_none(name: str, dtype: str) -> int:
    """The peak, or 0 for units that the library says are not there."""
    card = gpu(name)
    if dtype in {peak.dtype for peak in card.peaks}:
        return card.peak(dtype)
    with pytest.raises(InfrabookError, match=f"has no {dtype} units"):
        card.peak(dtype)
    return 0


def rtx_4090(case: Case) -> dict[str, Any]:
    card = gpu("rtx-4090")
    assert card.peak("int8") == card.peak("fp8", "fp16")  # one figure for both in the case
    return {
        "FP32 vector": card.peak("fp32") / TERA,
        "FP16/BF16 tensor, FP32 accumulate, dense": card.peak("fp16") / TERA,
        "FP16 tensor, FP16 accumulate, dense": card.peak("fp16", "fp16") / TERA,
        "INT8/FP8 tensor dense": card.peak("int8") / TERA,
    }


def blackwell(case: Case) -> dict[str, Any]:
    return {
        "B200 (HGX/DGX) dense BF16": gpu("b200").peak("bf16") / TERA,
        "dense FP8": gpu("b200").peak("fp8") / TERA,
        "dense FP4": gpu("b200").peak("fp4") / TERA,
        "GB200 per GPU dense BF16": gpu("gb200").peak("bf16") / TERA,
    }


def b200_bandwidth(case: Case) -> dict[str, Any]:
    wide, reported = (
        dram_bandwidth(bus_bits=bits, mhz=case["inputs"]["mem_clock_mhz"]) / GB for bits in case["inputs"]["bus_bits"]
    )
    return {"with the 7680-bit bus reported by current drivers": reported, "with 8192-bit bus": wide}


def a100_device_query(case: Case) -> dict[str, Any]:
    card = gpu("a100-sxm-40gb")
    assert card.memory_bytes == case["inputs"]["deviceQuery_bytes"]
    return {
        "GiB": card.memory_bytes / GIB,
        "decimal GB": card.memory_bytes / GB,
        "SMs": card.sms,
        "L2": card.l2_bytes,
        "memory bus": card.bus_bits,
    }


def labels(case: Case) -> dict[str, Any]:
    given = case["inputs"]["labels"]
    for name, card in [
        ("V100", "v100-sxm2-16gb"), ("V100", "v100-sxm2-32gb"), ("A100-40", "a100-sxm-40gb"),
        ("A100-80", "a100-sxm-80gb"), ("H100 SXM", "h100-sxm"), ("H100 PCIe", "h100-pcie"), ("H200", "h200"),
        ("B200", "b200"), ("T4", "t4"), ("L4", "l4"), ("RTX 4090", "rtx-4090"),
    ]:  # fmt: skip
        assert gpu(card).label_gb in given[name]["label_GB"]
        assert gpu(card).physical_gb in given[name]["label_GB"]
        assert gpu(card).memory_type == given[name]["memory"]
    b200 = gpu("b200")
    return {
        "A100-80 label": f"{gpu('a100-sxm-80gb').label_gb}",
        "H200 label": f"{gpu('h200').label_gb}",
        "B200 label": f"{b200.label_gb} (usable) / {b200.physical_gb} (physical)",
    }


def matrix(case: Case) -> dict[str, Any]:
    """Arithmetic and table, which have to pass each on its own."""
    name, accumulate = PEAKS[case["id"]]
    card, given = gpu(name), case["inputs"]
    by_clock = matrix_peak(
        sms=given["sms"],
        cores_per_sm=given["tensor_cores_per_sm"],
        fma_per_core=given["fma_per_tc_per_clock"],
        mhz=given["boost_mhz"],
    )
    assert (card.sms, card.tensor_mhz) == (given["sms"], given["boost_mhz"])
    (expected,) = case["expected"]
    assert passes(expected, by_clock / TERA)
    return {expected["quantity"]: card.peak("fp16", accumulate) / TERA}


def bandwidth(case: Case) -> dict[str, Any]:
    given = case["inputs"]
    by_clock = dram_bandwidth(bus_bits=given["bus_bits"], mhz=given["mem_clock_mhz"], per_clock=given["ddr"])
    (expected,) = case["expected"]
    assert passes(expected, by_clock / GB)
    card = gpu(BANDWIDTHS[case["id"]])
    assert card.bus_bits == given["bus_bits"]
    return {expected["quantity"]: card.bandwidth_bytes_per_s / GB}


def on_chip(case: Case) -> dict[str, Any]:
    card, given = gpu(ON_CHIP[case["id"]]), case["inputs"]
    assert card.sms == given["sms"]
    assert card.l2_bytes == given["l2_MiB"] * 2**20
    assert card.l1_bytes_per_sm == given["l1_shared_KiB_per_sm"] * KIB
    return {
        "register file per SM": card.register_bytes / card.sms,
        "register file per GPU": card.register_bytes / KIB,
        "total max shared memory": card.shared_bytes / KIB,
    }


def nvlink(case: Case) -> dict[str, Any]:
    wire, given = link(gpu(NVLINKS[case["id"]]).nvlink), case["inputs"]
    assert (wire.links, wire.lanes_per_link) == (given["links"], given["lanes_per_link"])
    return {
        "unidirectional per GPU": wire.bytes_per_s / GB,
        "bidirectional (marketing figure)": wire.both_ways_bytes_per_s / GB,
    }


def capacity(case: Case) -> dict[str, Any]:
    total = gpu(CAPACITIES[case["id"]]).memory_bytes
    return {"total": total, "decimal GB": total / GB, "GiB": total / GIB}


ANSWERS: dict[str, Answer] = {
    **dict.fromkeys(PEAKS, matrix),
    **dict.fromkeys(BANDWIDTHS, bandwidth),
    **dict.fromkeys(ON_CHIP, on_chip),
    **dict.fromkeys(NVLINKS, nvlink),
    **dict.fromkeys(CAPACITIES, capacity),
    "hw-peak-rtx4090": rtx_4090,
    "hw-peak-l4": lambda case: {
        "dense FP16/BF16 tensor": gpu("l4").peak("fp16") / TERA,
        "FP32 vector": gpu("l4").peak("fp32") / TERA,
    },
    "hw-peak-b200": blackwell,
    "hw-hbm-bw-b200": b200_bandwidth,
    "hw-capacity-a100-40": a100_device_query,
    "hw-capacity-labels": labels,
    "hw-pcie": lambda case: {
        f"Gen{g} x16 unidirectional": link(f"pcie{g}-x16").bytes_per_s / GB for g in case["inputs"]["gens"]
    },
    "hw-ib-ndr": lambda case: {
        "NDR port": link("infiniband-ndr").bytes_per_s / GB,
        "DGX H100 node, 8 x NDR": case["inputs"]["hcas_per_node"] * link("infiniband-ndr").bytes_per_s / GB,
        "HDR port": link("infiniband-hdr").bytes_per_s / GB,
    },
    "hw-llmanalysis-int4": lambda case: {"H100 INT4 tensor rate": rate_or_none("h100-sxm", "int4")},
}


def test_every_case_is_answered_or_excused():
    assert set(CASES) == set(ANSWERS) | set(EXCUSED)
    assert not set(ANSWERS) & set(EXCUSED)


@pytest.mark.parametrize("name", ANSWERS)
def test_case(name):
    case = CASES[name]
    got = ANSWERS[name](case)
    for expected in case["expected"]:
        if (name, expected["quantity"]) not in EXCUSED_QUANTITIES:
            value = got[expected["quantity"]]
            assert passes(expected, value), f"{expected['quantity']}: {value} is not {expected['value']}"
