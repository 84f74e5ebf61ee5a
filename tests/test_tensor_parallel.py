"""Tensor parallelism: collectives, bytes, limits and shares, against published tables and the real DTensor."""

from __future__ import annotations

import json
import re
import sys
from fractions import Fraction

import pytest
import torch

from infrabook import collectives, models, recipes
from infrabook.activations import activations, one_layer
from infrabook.errors import InfrabookError
from infrabook.explore import load
from infrabook.measure import fake_ranks
from infrabook.measure.ranks import launch, torchrun
from infrabook.measure.saved import fake_tensors, saved_for_backward
from infrabook.models import Transformer
from infrabook.nn.transformer import GPTBlock, Llama
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


# -- one rank of many, on fake tensors ---------------------------------------------------------------------------
@pytest.mark.parametrize("degree", [2, 8])
@pytest.mark.parametrize("how", ["prepared", "sequence"])
def test_a_gpt_layer_saves_what_the_account_says(how: program.How, degree: int) -> None:
    """Beside the account: a causal mask of a byte a score, and two statistics of two bytes for each norm and token."""
    length = hidden = 1024
    gpt = Transformer("gpt", 1, hidden, 16, 16, 64, 4096, 51200, length, gated=False, norm="layernorm")
    sequence = how == "sequence"
    with fake_ranks.fake_ranks({"tp": degree}) as mesh, fake_tensors():
        block = program.split_gpt_layer(GPTBlock(gpt), mesh, how)
        x = torch.randn(1, length // degree if sequence else length, hidden, requires_grad=True)
        with saved_for_backward(block) as saved:
            block(x)
    account = one_layer(
        gpt, sequence=length, attention="eager", tensor_parallel=degree, sequence_parallel=sequence, keep_gathered=True
    )
    assert saved.total == account.total + length**2 + 8 * length // (degree if sequence else 1)
    if (how, degree) == ("sequence", 8):
        assert Fraction(account.total) / (length * hidden) == Fraction(71, 4), "17.75, where Megatron-LM has 14.25"


@pytest.mark.parametrize("how", ["prepared", "sequence"])
def test_one_of_eight_ranks_holds_what_the_account_says_to_the_byte(how: program.How) -> None:
    model = Transformer("four layers", 4, 1024, 16, 8, 64, 2816, 32000, 2048)
    seen = fake_ranks.training_step(
        lambda: Llama(model), model, axes={"tp": 8}, wrap=lambda net, mesh: program.split(net, mesh, how), sequence=1024
    )
    options = {"sequence": 1024, "rmsnorm": "fp32", "statistics_bytes": 4, "rotary_tables": True}
    saved = activations(
        model, **options, tensor_parallel=8, sequence_parallel=how == "sequence", keep_gathered=True
    )  # fmt: skip
    (other,) = tensor.gathered_logits(model, degree=8, sequence=1024)
    states = recipes.states(model, "pure-bf16", tensor_parallel=8)
    assert seen.after_forward["parameters"] == states.of("weights")
    assert 0 <= seen.after_forward["activations"] - saved.total - other.value <= 4096  # a loss, and rounding to 512
    surplus = 2 * model.vocab * model.hidden * 7 // 8  # DTensor's gradient of a divided embedding is whole
    assert abs(seen.after_backward["gradients"] - states.of("gradients") - surplus) <= 4096


def test_the_explorer_shows_the_librarys_step_and_refuses_in_its_words() -> None:
    explorer = load("tensor_split")
    step = tensor.step(
        LLAMA, "h100-sxm", degree=8, link="nvlink4", utilization=Fraction(1, 2), sequence=4096, keep_gathered=True
    )
    assert f'data-value="{float(step.share):.9g}"' in explorer()
    assert "234.9 MB a layer" in explorer()
    flat = explorer(degree=16, algorithm="ring")
    assert float(re.findall(r'data-value="([^"]+)"', flat)[0]) > 0.9
    for given, words in (
        ({"degree": 7}, "7 tensor-parallel ranks do not divide llama-2-7b's 32 heads"),
        ({"degree": 16, "each": 64, "gpu": "t4"}, "has no bf16 units"),
        ({"degree": 32, "sequence": 1000, "sequence_parallel": True}, "does not divide a length of 1000 tokens"),
    ):
        with pytest.raises(InfrabookError, match=words):
            explorer(**given)


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_same_program_runs_under_torchrun(nodes: int) -> None:
    said = torchrun("infrabook.programs.tensor_parallel", "how=sequence", "layers=1", ranks=2 // nodes, nodes=nodes)
    every = [json.loads(line.partition(": ")[2]) for line in said.splitlines()]
    assert len(every) == 2
    for found in every:
        assert found["loss"] == pytest.approx(found["wanted"], abs=1e-5)
        assert found["gradients"] < 1e-5
        assert found["forward"] == {"reduce-scatter": 3, "all-gather": 4}, "two of each for the layer"
