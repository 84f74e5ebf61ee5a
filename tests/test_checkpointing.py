"""Recomputation and offloading against what autograd saves and what PyTorch's counter counts."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from infrabook import checkpointing, flops, hardware, memory, models, recipes
from infrabook.errors import InfrabookError
from infrabook.measure.saved import fake_tensors, saved_for_backward
from infrabook.measure.work import total
from infrabook.nn.transformer import GPTBlock, Llama

LLAMA = replace(models.get("llama-2-7b"), layers=4)
CPU = {"rmsnorm": "fp32", "statistics_bytes": 4}


def test_recomputing_every_layer_keeps_what_autograd_keeps() -> None:
    """Autograd sees the inputs; the layer being recomputed comes on top when backward begins."""
    with fake_tensors():
        net = Llama(LLAMA, recompute=True)
        ids = torch.zeros(1, 512, dtype=torch.long)
        with saved_for_backward(net) as saved:
            net(ids, ids)
    trade = checkpointing.recompute(LLAMA, sequence=512, **CPU)
    layer = memory.one_layer(LLAMA, sequence=512, **CPU).total
    tables, token_ids, scalar = 2 * 512 * LLAMA.head_dim * 2, 8 * 512, 4
    assert saved.total == trade.kept - layer + tables + token_ids + scalar


def test_early_stop_equals_the_counter() -> None:
    work = {}
    for recompute in (False, True):
        with torch.device("meta"):
            net = Llama(LLAMA, recompute=recompute)
            ids = torch.zeros(1, 256, dtype=torch.long)
        work[recompute] = total(net(ids, ids).backward)
    assert work[True] - work[False] == checkpointing.recompute(LLAMA, sequence=256, early_stop=True).flop


def test_one_segment_keeps_everything_and_one_input() -> None:
    model = models.get("llama-2-7b")
    everything = memory.activations(model, sequence=1024).total
    assert checkpointing.recompute(model, segments=1, sequence=1024).kept == everything + 2 * 1024 * model.hidden


def test_best_number_of_segments_is_a_root_only_where_layers_save_little() -> None:
    model = models.get("llama-2-7b")
    kept = {c: checkpointing.recompute(model, segments=c, sequence=1024).kept for c in (1, 2, 4, 8, 16, 32)}
    assert min(kept, key=kept.__getitem__) == checkpointing.best_segments(model, sequence=1024) == 32


def test_selective_repeats_scores_and_values() -> None:
    gpt = models.Transformer("gpt", 4, 512, 8, 8, 64, 2048, 1000, 128, gated=False, norm="layernorm")
    trade = checkpointing.recompute(gpt, selective=True, sequence=128, attention="eager")
    once = flops.forward(gpt, sequence=128)
    assert trade.flop == once[flops.SCORES] + once[flops.VALUES]


def test_offloading_sends_what_the_layers_save_and_brings_it_back() -> None:
    every = memory.activations(LLAMA, sequence=512)
    inside = sum(row.value for row in every if row.name.startswith("layers"))
    trade = checkpointing.offload_activations(LLAMA, sequence=512)
    assert trade.out_bytes == trade.in_bytes == trade.cpu_bytes == inside
    assert trade.kept == every.total - inside + inside / Fraction(2)  # two of four layers


def test_optimizer_on_the_cpu_sends_gradients_and_gets_weights() -> None:
    count = 10**9
    states = recipes.states(count, "bf16-adamw")
    model = models.get("llama-2-7b")
    trade = checkpointing.offload_optimizer(model)
    parameters = trade.out_bytes // 2
    assert (trade.out_bytes, trade.in_bytes, trade.cpu_bytes) == (2 * parameters, 2 * parameters, 12 * parameters)
    assert states.of("optimizer") == 12 * count


def test_step_hides_traffic_behind_its_pass_and_no_more() -> None:
    model = models.get("llama-2-7b")
    states = recipes.states(model, "bf16-adamw").total
    kept = memory.activations(model, sequence=2048).total
    trade = checkpointing.offload_activations(model, sequence=2048)
    slow, fast = (
        checkpointing.step(model, "h100-sxm", trade, states=states, activations=kept, sequence=2048, link=link)
        for link in ("pcie3-x16", "nvlink4")
    )
    plain = checkpointing.step(model, "h100-sxm", None, states=states, activations=kept, sequence=2048)
    assert fast.seconds == plain.seconds
    assert slow.seconds > plain.seconds
    assert slow.hidden_s <= slow.link_s
    assert slow.memory_bytes == fast.memory_bytes < plain.memory_bytes


def test_two_trades_add_up() -> None:
    model = models.get("llama-2-7b")
    states, kept = recipes.states(model, "bf16-adamw").total, memory.activations(model, sequence=2048).total
    plain, full, cpu = (
        checkpointing.step(model, "h100-sxm", trade, states=states, activations=kept, sequence=2048)
        for trade in (None, checkpointing.recompute(model, sequence=2048), checkpointing.offload_optimizer(model))
    )
    both = checkpointing.both(plain, full, cpu)
    assert plain.memory_bytes - both.memory_bytes == 2 * plain.memory_bytes - full.memory_bytes - cpu.memory_bytes
    assert both.seconds - plain.seconds == full.seconds + cpu.seconds - 2 * plain.seconds


def test_a_wider_link_hides_earlier() -> None:
    lengths = [
        checkpointing.tokens_to_hide(models.get("llama-2-7b"), "h100-sxm", link=link, utilization=Fraction(1, 2))
        for link in ("pcie3-x16", "pcie4-x16", "pcie5-x16", "nvlink4")
    ]
    assert lengths == sorted(lengths, reverse=True)
    assert hardware.link("nvlink4").bytes_per_s > hardware.link("pcie5-x16").bytes_per_s


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: checkpointing.recompute(LLAMA, segments=3, sequence=64), "4 layers do not divide into 3"),
        (lambda: checkpointing.offload_optimizer(LLAMA, update="somewhere"), "the update can be on the CPU or"),
        (
            lambda: checkpointing.step(LLAMA, "h100-sxm", None, states=1, activations=1, utilization=Fraction(3, 2)),
            "utilization is a share of the peak",
        ),
    ],
)
def test_nonsense_gets_a_sentence(call, words: str) -> None:
    with pytest.raises(InfrabookError, match=words):
        call()


@pytest.mark.parametrize("selective", [False, True])
def test_selective_recomputation_keeps_what_the_account_says(selective: bool) -> None:
    gpt = models.Transformer("gpt", 1, 256, 8, 8, 32, 1024, 100, 128, gated=False, norm="layernorm")
    with fake_tensors():
        block = GPTBlock(gpt, selective=selective)
        x = torch.randn(2, 128, 256, requires_grad=True)
        with saved_for_backward(block) as saved:
            block(x)
    how = "selective" if selective else "none"
    account = memory.one_layer(gpt, batch=2, sequence=128, attention="eager", recomputation=how, statistics_bytes=2)
    assert saved.total == account.total + (0 if selective else 128 * 128)  # the causal mask, made again


def test_selective_recomputation_gives_the_same_gradients() -> None:
    gpt = models.Transformer("gpt", 1, 64, 4, 4, 16, 256, 100, 32, gated=False, norm="layernorm")
    gradients = []
    for selective in (False, True):
        torch.manual_seed(0)
        block = GPTBlock(gpt, dropout=0.1, selective=selective)
        torch.manual_seed(1)
        block(torch.ones(1, 8, 64)).sum().backward()
        gradients.append([parameter.grad for parameter in block.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
