"""Work against PyTorch's own counter, and what the shortcuts are."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from infrabook import flops, models, parameters
from infrabook.errors import InfrabookError
from infrabook.measure.work import counted, dispatched, total
from infrabook.models import Transformer
from infrabook.nn.transformer import GPT, Llama

SMALL_GPT = replace(models.get("gpt2"), layers=2, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn=256, vocab=101)
SMALL_LLAMA = Transformer("small", 3, 64, 4, 2, 16, 176, 101, 128)


def ids(sequence: int) -> torch.Tensor:
    return torch.zeros(2, sequence, dtype=torch.long, device="meta")


@pytest.mark.parametrize("sequence", [1, 7, 128])
def test_forward_of_gpt_equals_the_counter_row_by_row(sequence: int) -> None:
    with torch.device("meta"):
        net = GPT(SMALL_GPT)
    seen: dict[str, int] = {}
    for path, work in counted(lambda: net(ids(sequence), ids(sequence))).items():
        seen[path.split(".")[-1]] = seen.get(path.split(".")[-1], 0) + work
    account = flops.forward(SMALL_GPT, batch=2, sequence=sequence)
    assert seen["query"] == account["attention query"]
    assert seen["output"] == account["attention output"]
    assert seen["up"] == account["feed-forward up"]
    assert seen["head"] == account["head"]
    blocks = sum(work for path, work in seen.items() if path.isdigit())
    assert blocks == account[flops.SCORES] + account[flops.VALUES]
    assert sum(seen.values()) == account.total


def test_forward_of_llama_with_grouped_keys_equals_the_counter() -> None:
    with torch.device("meta"):
        net = Llama(SMALL_LLAMA)
    assert total(lambda: net(ids(64), ids(64))) == flops.forward(SMALL_LLAMA, batch=2, sequence=64).total


def test_backward_is_twice_forward_and_checkpoints_spare_the_last_product() -> None:
    account = flops.forward(SMALL_GPT, batch=2, sequence=32)
    work = {}
    for recompute in (False, True):
        with torch.device("meta"):
            net = GPT(SMALL_GPT, recompute=recompute)
        work[recompute] = total(net(ids(32), ids(32)).backward)
    assert work[False] == 2 * account.total
    assert work[True] - work[False] == account.total - account["head"] - account["feed-forward down"]


def test_training_adds_up_and_selective_repeats_scores_and_values_alone() -> None:
    model = models.get("gpt2")
    once = flops.forward(model, sequence=1024)
    none, selective, full = (
        flops.training(model, sequence=1024, recomputation=how) for how in ("none", "selective", "full")
    )
    assert none.total == 3 * once.total
    assert selective.total - none.total == once[flops.SCORES] + once[flops.VALUES]
    assert full.total - none.total == once.total - once["head"]


def test_causal_counts_are_ordered_and_exact_is_the_triangle() -> None:
    model = models.get("llama-2-7b")
    full, half, exact = (
        flops.forward(model, sequence=100, causal=how)[flops.SCORES] for how in ("full", "half", "exact")
    )
    assert half * 2 == full
    assert exact == full * Fraction(101, 200)


def test_decoding_with_a_cache_scores_every_token_of_it() -> None:
    model = models.get("llama-2-7b")
    assert (
        flops.forward(model, sequence=1, context=99)[flops.SCORES]
        == 2 * model.layers * model.heads * model.head_dim * 100
    )


def test_window_bounds_the_keys_of_a_layer() -> None:
    mistral = models.get("mistral-7b")
    near, far = (
        flops.forward(mistral, sequence=1, context=c)[flops.SCORES] for c in (mistral.window, 4 * mistral.window)
    )
    assert near == far


def test_experts_count_as_often_as_tokens_visit_them() -> None:
    mixtral = models.get("mixtral-8x7b")
    account = flops.forward(mixtral, sequence=1)
    assert account["experts up"] == 2 * mixtral.layers * 2 * mixtral.hidden * mixtral.moe.ffn


def test_weights_are_worked_on_twice_a_parameter() -> None:
    model = models.get("llama-2-7b")
    account = flops.forward(model, sequence=1)
    in_matrices = (
        parameters.count(model).total - parameters.count(model)["embedding"] - model.hidden * (2 * model.layers + 1)
    )
    assert account.total - account[flops.SCORES] - account[flops.VALUES] == 2 * in_matrices


def test_shortcuts_agree_where_they_should() -> None:
    model = models.get("llama-3-8b")
    by = {name: flops.per_token(model, sequence=8192, convention=name) for name in flops.SHORTCUTS}
    assert by["PaLM"] - by["6N"] == 12 * model.layers * model.heads * model.head_dim * 8192
    norms = 6 * model.hidden * (2 * model.layers + 1)  # torchtitan counts norms as if they were multiplied
    assert by["torchtitan"] - by["every product"] == norms
    assert by["6N, no embeddings"] < by["6N"] < by["every product"] < by["PaLM"]


def test_closed_form_for_gpt_equals_the_list() -> None:
    gpt = Transformer("gpt", 4, 512, 8, 8, 64, 2048, 1000, 128, gated=False, norm="layernorm")
    account = flops.training(gpt, batch=3, sequence=128)
    assert flops.megatron_step(batch=3, sequence=128, layers=4, hidden=512, vocab=1000) == account.total


def test_utilization_and_time_are_inverse() -> None:
    seconds = flops.training_seconds(10**18, gpus=4, flop_per_s_per_gpu=10**14)
    assert flops.utilization(10**18, tokens_per_s=1 / seconds, gpus=4, peak_flop_per_s=10**14) == 1


def test_dispatched_counts_bytes_and_no_views() -> None:
    x = torch.empty(8, 4, device="meta")
    assert dispatched(lambda: x.T.exp()) == [("exp", 2 * 8 * 4 * 4)]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: flops.forward(SMALL_GPT, sequence=0), "sequence has to be greater than 0"),
        (lambda: flops.forward(SMALL_GPT, sequence=8, causal="some"), "causal can be full, half or exact"),
        (lambda: flops.per_token(SMALL_GPT, sequence=8, convention="7N"), "there is no convention '7N'"),
        (lambda: flops.training(SMALL_GPT, sequence=8, recomputation="all"), "recomputation can be"),
        (lambda: flops.utilization(1, tokens_per_s=0, gpus=1, peak_flop_per_s=1), "tokens_per_s has to be"),
        (lambda: flops.matmul(1, 2.5, 3), "k has to be a whole number"),
    ],
)
def test_nonsense_gets_a_sentence(call, words: str) -> None:
    with pytest.raises(InfrabookError, match=words):
        call()
