"""Tensor parallelism: collectives, bytes, limits and shares, against published tables and the real DTensor."""

from __future__ import annotations

import sys
from fractions import Fraction

import pytest

from infrabook import collectives, models
from infrabook.activations import one_layer
from infrabook.errors import InfrabookError
from infrabook.measure.ranks import launch
from infrabook.models import Transformer
from infrabook.parallel import tensor
from infrabook.programs import collectives as wire_program
from infrabook.programs import tensor_parallel as program

LLAMA = models.get("llama-2-7b")


def test_four_all_reduces_a_layer_of_2bsh_bytes() -> None:
    calls = tensor.layer_calls(LLAMA, batch=2, sequence=4096)
    assert tensor.counted(calls, "forward") == tensor.counted(calls, "backward") == {"all-reduce": 2}
    assert {call.nbytes for call in calls} == {2 * 2 * 4096 * 4096}


@pytest.mark.parametrize("degree", [2, 3, 8])
def test_sequence_parallelism_sends_the_same_bytes(degree: int) -> None:
    plain, divided = (tensor.layer_calls(LLAMA, sequence_parallel=sp) for sp in (False, True))
    assert tensor.counted(divided) == {"all-gather": 4, "reduce-scatter": 4}
    assert tensor.bytes_sent(plain, degree) == tensor.bytes_sent(divided, degree)
    megatron = tensor.layer_calls(LLAMA, sequence_parallel=True, keep_gathered=False)
    assert tensor.counted(megatron) == {"all-gather": 6, "reduce-scatter": 4}


def test_full_recomputation_repeats_the_forward_collectives() -> None:
    assert tensor.counted(tensor.layer_calls(LLAMA, recomputation="full")) == {"all-reduce": 6}


def test_a_layer_with_one_norm_sums_once_a_pass() -> None:
    falcon = Transformer("falcon", 2, 64, 8, 8, 8, 256, 100, 64, gated=False, norms_per_layer=1)
    assert tensor.counted(tensor.layer_calls(falcon)) == {"all-reduce": 2}


def test_degrees_are_limited_by_heads_and_key_value_heads() -> None:
    assert tensor.degrees(LLAMA) == (1, 2, 4, 8, 16, 32)
    grouped = models.get("llama-3-8b")
    assert tensor.degrees(grouped, copy_kv=False) == (1, 2, 4, 8)
    assert tensor.degrees(grouped) == (1, 2, 4, 8, 16, 32)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tensor.check(LLAMA, 3), "3 tensor-parallel ranks do not divide llama-2-7b's 32 heads"),
        (lambda: tensor.check(models.get("llama-3-8b"), 16, copy_kv=False), "8 key-value heads, which 16 ranks do not"),
        (
            lambda: tensor.check(Transformer("odd", 2, 96, 12, 6, 8, 384, 100, 64), 4),
            "4 tensor-parallel ranks and 6 key-value heads of odd: neither divides",
        ),
        (lambda: tensor.check(Transformer("odd", 2, 64, 8, 8, 8, 172, 100, 64), 8), "feed-forward of 172"),
        (lambda: tensor.training(LLAMA, degree=8, sequence=100, sequence_parallel=True), "length of 100 tokens"),
        (lambda: tensor.step(LLAMA, "h100-sxm", degree=2, link="nvlink4", utilization=2), "utilization has to be"),
        (lambda: tensor.layer_calls(models.get("mixtral-8x7b")), "has experts or latent attention"),
        (lambda: tensor.layer_calls(LLAMA, batch=0), "batch has to be greater than 0"),
        (lambda: program.layer_plan("none"), "how can be naive, prepared or sequence"),  # type: ignore[arg-type]
    ],
)
def test_nonsense_is_refused_in_the_readers_words(call, words: str) -> None:
    with pytest.raises(InfrabookError, match=words):
        call()


def test_a_divided_loss_reduces_three_numbers_a_token() -> None:
    divided = tensor.outer_calls(LLAMA, sequence=4096)
    gathered = tensor.outer_calls(LLAMA, sequence=4096, parallel_loss=False)
    loss = [call for call in divided if call.where == "loss"]
    assert [call.nbytes for call in loss] == [4 * 4096] * 3
    (logits,) = (call for call in gathered if call.where == "logits")
    assert logits.nbytes == 2 * 4096 * 32000
    rest = tensor.training(LLAMA, degree=8, sequence=4096, parallel_loss=False)["logits gathered from other ranks"]
    assert rest == 4 * 4096 * 32000 * 7 // 8


def test_activations_of_a_gpt_layer_follow_korthikanti() -> None:
    """10 + 24/t + 5as/ht without, (34 + 5as/h)/t with sequence parallelism, in units of sbh."""
    gpt, s = Transformer("22B", 48, 6144, 64, 64, 96, 24576, 51200, 2048, gated=False, norm="layernorm"), 2048
    unit, core = s * 6144, Fraction(5 * 64 * s, 6144)
    for t in (1, 2, 4, 8):
        plain = one_layer(gpt, attention="eager", tensor_parallel=t).total
        divided = one_layer(gpt, attention="eager", tensor_parallel=t, sequence_parallel=True).total
        assert Fraction(plain) / unit == 10 + Fraction(24, t) + core / t
        assert Fraction(divided) / unit == (34 + core) / t


def test_exposure_is_the_ratio_of_its_two_times() -> None:
    """m × k by k × n in BF16 over 4 ranks: 2mkn/4 FLOP, then an all-reduce of 2mn bytes."""
    m, k, n, peak, bandwidth = 512, 4096, 1024, 10**15, 10**11
    product = Fraction(2 * m * k * n, 4 * peak)
    total = collectives.time_s("all-reduce", size_bytes=2 * m * n, ranks=4, bandwidth_bytes_per_s=bandwidth)
    assert tensor.exposure(k, degree=4, peak_flop_per_s=peak, bandwidth_bytes_per_s=bandwidth) == total / product


def test_a_step_computes_less_and_says_more_with_every_rank() -> None:
    steps = [tensor.step(LLAMA, "h100-sxm", degree=t, link="nvlink4", sequence=4096) for t in (1, 2, 4, 8)]
    assert steps[0].communication_s == 0
    assert [step.compute_s * step.degree for step in steps] == [steps[0].compute_s] * 4
    assert sorted(step.share for step in steps) == [step.share for step in steps]
    nodes = {"degree": 16, "link": "nvlink4", "ranks_per_node": 8, "across": "infiniband-ndr"}
    slow, nested = (tensor.step(LLAMA, "h100-sxm", algorithm=name, **nodes) for name in ("ring", "hierarchical"))
    fast = tensor.step(LLAMA, "h100-sxm", degree=16, link="nvlink4")
    assert fast.communication_s < nested.communication_s < slow.communication_s / 3


# -- the real thing ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("how", ["naive", "prepared", "sequence"])
def test_dtensor_gives_the_same_numbers_with_the_predicted_collectives(how: str, ranks: int) -> None:
    every = launch(program.compare, ranks, how)
    calls = tensor.calls(
        program.SMALL, batch=2, sequence=32, dtype="fp32", sequence_parallel=how == "sequence",
        shared_input=how != "naive", parallel_loss=False,
    )  # fmt: skip
    for rank, found in enumerate(every):
        assert found["loss"] == pytest.approx(found["wanted"], abs=1e-5)
        assert found["gradients"] < 1e-5
        for when, place in (("forward", 0), ("backward", 1)):
            rows = [(row.op, row.nbytes) for row in found[when]]
            wanted = [(call.op, call.nbytes) for call in calls if call.when == when]
            assert sorted(rows) == sorted(wanted)
            assert found["debug"][when] == tensor.counted(calls, when), "PyTorch's own CommDebugMode"
            if sys.platform == "linux":
                sent = sum(
                    sum(wire_program.predicted(op, size_bytes=size, rank=rank, ranks=ranks)) for op, size in rows
                )
                assert found["sent"][place] == sent, (when, rank)


def test_a_divided_loss_is_the_same_loss() -> None:
    (found, _) = launch(program.compare, 2, "prepared", parallel_loss=True)
    assert found["loss"] == pytest.approx(found["wanted"], abs=1e-5)
    assert found["gradients"] < 1e-5
    calls = tensor.calls(program.SMALL, batch=2, sequence=32, dtype="fp32")
    for when in ("forward", "backward"):
        rows = sorted((row.op, row.nbytes) for row in found[when])
        assert rows == sorted((call.op, call.nbytes) for call in calls if call.when == when)


def test_f_and_g_by_hand_sum_once_forward_and_once_backward() -> None:
    for found in launch(program.by_hand, 2):
        assert found["equal"]
        assert found["forward"] == found["backward"] == {"all-reduce": (1, 512)}
