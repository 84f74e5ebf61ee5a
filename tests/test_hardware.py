"""The hardware table against arithmetic: SMs x units x clock, bus x clock, lanes x rate."""

from __future__ import annotations

from fractions import Fraction

import pytest

from infrabook.errors import InfrabookError
from infrabook.hardware import DTYPES, dram_bandwidth, gpu, gpus, link, links, matrix_peak

# Operations a clock relative to fp16 with sums in fp32, by NVIDIA's and AMD's instruction tables.
TIMES_FP16 = {
    "tf32/fp32": Fraction(1, 2), "bf16/fp32": 1, "fp16/fp32": 1, "fp8/fp32": 2, "int8/int32": 2, "int4/int32": 4,
}  # fmt: skip
GEFORCE = {"fp16/fp16": 2, "fp8/fp16": 4, "int8/int32": 4, "int4/int32": 8}  # not halved for wide sums
CLOCKED = [card for card in gpus() if card.tensor_mhz]


@pytest.mark.parametrize("card", CLOCKED, ids=lambda card: card.name)
def test_matrix_peaks_are_sms_times_units_times_clock(card):
    fp16 = card.sms * card.fp16_flop_per_clock_per_sm * card.tensor_mhz * 10**6
    times = TIMES_FP16 | (GEFORCE if "GeForce" in card.variant else {"fp16/fp16": 1, "fp8/fp16": 2})
    checked = 0
    for peak in card.peaks:
        factor = times.get(f"{peak.dtype}/{peak.accumulate}")
        if factor is not None:
            assert peak.flop_per_s == pytest.approx(float(fp16 * factor), rel=0.01), peak
            checked += 1
    assert checked >= 2


@pytest.mark.parametrize("card", gpus(), ids=lambda card: card.name)
def test_vector_peak_is_sms_times_units_times_boost_clock(card):
    vector = card.sms * card.fp32_flop_per_clock_per_sm * card.boost_mhz * 10**6
    assert card.peak("fp32") == pytest.approx(vector, rel=0.01)


@pytest.mark.parametrize("card", [c for c in gpus() if c.memory_mhz], ids=lambda card: card.name)
def test_dram_bandwidth_is_bus_times_double_data_rate(card):
    rate = dram_bandwidth(bus_bits=card.bus_bits, mhz=card.memory_mhz)
    assert card.bandwidth_bytes_per_s == pytest.approx(float(rate), rel=0.003)


def test_half_of_the_table_has_a_bandwidth_witness():
    assert sum(bool(card.memory_mhz) for card in gpus()) > len(gpus()) / 2


@pytest.mark.parametrize("card", gpus(), ids=lambda card: card.name)
def test_every_row_is_complete_and_sourced(card):
    assert card.source
    assert link(card.pcie).name.startswith("pcie")
    assert not card.nvlink or link(card.nvlink).name.startswith("nvlink")
    assert {peak.dtype for peak in card.peaks} <= set(DTYPES)
    assert card.shared_bytes_per_sm < card.l1_bytes_per_sm
    assert card.physical_gb >= card.label_gb
    if card.memory_bytes:  # within 10 % of the label, read as GB or as GiB
        assert card.label_gb * 10**9 * 0.9 < card.memory_bytes < card.label_gb * 2**30 * 1.01


def test_peaks_are_dense():
    """Half of what data sheets print with 2:4 sparsity."""
    sparse = {"a100-sxm-80gb": 624, "h100-sxm": 1979, "h100-pcie": 1513, "h100-nvl": 1671, "l4": 242, "b200": 4500}
    for name, tflops in sparse.items():
        assert gpu(name).peak("bf16") == pytest.approx(tflops / 2 * 10**12, rel=0.001)


def test_a_geforce_halves_its_rate_for_sums_in_fp32():
    card = gpu("rtx-4090")
    assert card.peak("fp16", "fp16") == pytest.approx(2 * card.peak("fp16"), rel=0.001)
    assert card.peak("fp8", "fp16") == pytest.approx(2 * card.peak("fp8"), rel=0.001)
    assert gpu("l4").peak("fp16", "fp16") == gpu("l4").peak("fp16")


@pytest.mark.parametrize(
    ("name", "dtype", "accumulate", "words"),
    [
        ("h100-sxm", "int4", "fp32", "h100-sxm has no int4 units"),
        ("t4", "bf16", "fp32", "t4 has no bf16 units"),
        ("v100-sxm2-32gb", "tf32", "fp32", "has no tf32 units"),
        ("a100-sxm-40gb", "fp8", "fp32", "has no fp8 units"),
        ("h200", "fp4", "fp32", "has no fp4 units"),
        ("b200", "int4", "fp32", "has no int4 units"),
        ("h100-sxm", "bf16", "fp16", "h100-sxm has no bf16 with fp16 sums; it accumulates in fp32"),
        ("h100-sxm", "int8", "fp16", "accumulates in int32"),
        ("h100-sxm", "bfloat16", "fp32", "'bfloat16' is not a dtype known here"),
    ],
)
def test_a_missing_unit_is_an_error_that_names_it(name, dtype, accumulate, words):
    with pytest.raises(InfrabookError, match=words):
        gpu(name).peak(dtype, accumulate)


def test_formats_with_one_accumulator_need_none_named():
    card = gpu("h100-sxm")
    assert card.peak("int8") == card.peak("int8", "int32")
    assert card.peak("fp64_tensor") == 2 * card.peak("fp64") - 10**11  # 66.9 and 33.5, each rounded


@pytest.mark.parametrize("name", ["H100 SXM", "h100_sxm", " h100-sxm "])
def test_names_forgive_case_and_separators(name):
    assert gpu(name).name == "h100-sxm"


@pytest.mark.parametrize(
    ("name", "near"),
    [("h100", "h100-sxm, h100-pcie, h100-nvl"), ("rtx4090", "rtx-4090"), ("mi300", "mi300x"), (None, "near: v100")],
)
def test_a_wrong_gpu_is_answered_with_near_matches(name, near):
    with pytest.raises(InfrabookError, match=f"no GPU is called {name!r}; .*{near}"):
        gpu(name)


def test_a_wrong_link_is_answered_with_near_matches():
    with pytest.raises(InfrabookError, match="no link is called 'nvlink9'; near: nvlink"):
        link("nvlink9")


def test_nvlink_marketing_is_twice_one_direction():
    for wire in links():
        if wire.name.startswith(("nvlink", "infiniband")):
            assert wire.both_ways_bytes_per_s == 2 * wire.bytes_per_s


@pytest.mark.parametrize(("generation", "gt_per_s"), [(3, 8), (4, 16), (5, 32), (6, 64)])
def test_pcie_marketing_counts_both_ways_before_line_coding(generation, gt_per_s):
    wire = link(f"pcie{generation}-x16")
    assert wire.both_ways_bytes_per_s == 2 * 16 * gt_per_s * 10**9 // 8
    assert 0.9 < 2 * wire.bytes_per_s / wire.both_ways_bytes_per_s < 1


def test_every_link_is_sourced():
    assert all(wire.source for wire in links())


@pytest.mark.parametrize("mhz", [0, -1, float("nan"), "1410", True])
def test_a_clock_has_to_be_a_positive_number(mhz):
    with pytest.raises(InfrabookError, match="mhz has to be"):
        matrix_peak(sms=108, cores_per_sm=4, fma_per_core=256, mhz=mhz)
    with pytest.raises(InfrabookError, match="mhz has to be"):
        dram_bandwidth(bus_bits=5120, mhz=mhz)


def test_a_step_costs_what_nccls_cost_model_says_for_the_class_of_link() -> None:
    for wire in links():
        expected = {"nvlink": "3.4", "pcie": "5.7", "infiniband": "14"}[wire.name.split("-")[0].rstrip("23456")]
        assert wire.latency_s == Fraction(expected) / 10**6, wire.name
