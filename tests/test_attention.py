"""Heads are a way to cut a width; random scores freeze where predicted; lengths and bytes are PyTorch's."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from fractions import Fraction

import pytest

from infrabook import attention, flops, kv_cache, models, parameters
from infrabook.errors import InfrabookError
from infrabook.explorers import cut_into_heads

LLAMA = models.get("llama-2-7b")


@pytest.mark.parametrize("heads", [1, 2, 8, 32, 128, 4096])
def test_the_number_of_heads_changes_no_count_but_the_scores(heads: int) -> None:
    cut = attention.same_shape(LLAMA, heads=heads)
    assert cut.heads * cut.head_dim == LLAMA.heads * LLAMA.head_dim
    assert parameters.count(cut).total == parameters.count(LLAMA).total == 6_738_415_616
    assert flops.forward(cut, sequence=4096).total == flops.forward(LLAMA, sequence=4096).total
    assert kv_cache.bytes_per_token(cut) == kv_cache.bytes_per_token(LLAMA)
    assert attention.score_bytes(heads=heads, sequence=4096) == heads * 2 * 4096**2


def test_fewer_key_heads_save_cache_and_parameters_and_no_score() -> None:
    """Llama-2-70B's ratio, eight queries' heads to one."""
    grouped = attention.same_shape(LLAMA, heads=32, kv_heads=4)
    assert kv_cache.bytes_per_token(grouped) * 8 == kv_cache.bytes_per_token(LLAMA)
    saved = parameters.count(LLAMA).total - parameters.count(grouped).total
    assert saved == 32 * 2 * 4096 * 28 * 128
    ours, theirs = (flops.forward(model, sequence=512) for model in (grouped, LLAMA))
    assert ours[flops.SCORES] == theirs[flops.SCORES]
    assert ours[flops.VALUES] == theirs[flops.VALUES]


@pytest.mark.parametrize("name", ["llama-2-7b", "gpt2", "llama-3-8b", "gemma-2-9b"])
def test_where_scores_overtake_the_feed_forward_layer(name: str) -> None:
    model = replace(models.get(name), window=0, window_layers=0)
    length = attention.overtakes_feed_forward(model)
    matrices = 3 if model.gated else 2
    assert length == Fraction(matrices * model.hidden * model.ffn, 2 * model.heads * model.head_dim)
    if length.denominator == 1:
        work = flops.forward(model, sequence=int(length))
        feed_forward = sum(row.value for row in work if row.name.startswith("feed-forward"))
        assert work[flops.SCORES] + work[flops.VALUES] == feed_forward


@pytest.mark.parametrize("length", [3 * 88 // 2, 3 * 88])
def test_pytorch_counts_the_same_crossing(length: int) -> None:
    torch = pytest.importorskip("torch")
    from infrabook.measure.work import counted
    from infrabook.nn.transformer import LlamaBlock, rotary_tables

    small = models.Transformer("small", 1, 32, 4, 4, 8, 88, 10, 512)
    block = LlamaBlock(small).to("meta")
    tables = rotary_tables(length, 8, torch.float32, device="meta")
    found = counted(lambda: block(torch.empty(1, length, 32, device="meta"), *tables))
    inner = found["attention"]
    feed_forward = sum(value for path, value in found.items() if path.startswith("ffn"))
    assert attention.overtakes_feed_forward(small) == 3 * 88 // 2
    assert Fraction(inner, feed_forward) == Fraction(2 * length, 3 * 88)


@pytest.mark.parametrize("variance", [0.25, 1.0, 4.0])
def test_random_scores_look_at_as_many_keys_as_predicted(variance: float) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    p = (math.sqrt(variance) * torch.randn(300, 4096, dtype=torch.float64)).softmax(-1)
    entropy = torch.special.entr(p).sum(-1).mean()
    assert entropy == pytest.approx(math.log(attention.keys_seen(4096, variance)), rel=0.01)


def test_frozen_scores_follow_the_random_energy_model_within_a_tenth() -> None:
    """For infinitely many keys; 4,096 are a tenth away."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    for variance in (64.0, 128.0, 256.0):
        p = (math.sqrt(variance) * torch.randn(1000, 4096, dtype=torch.float64)).softmax(-1)
        assert p.square().sum(-1).mean() == pytest.approx(attention.frozen_share(4096, variance), abs=0.1)


def test_the_two_formulas_meet_where_scores_freeze() -> None:
    for keys in (16, 4096, 10**6):
        at = attention.freezing(keys)
        assert attention.keys_seen(keys, at) == pytest.approx(1)
        assert attention.frozen_share(keys, at) == pytest.approx(0)
        assert attention.keys_seen(keys, 4 * at) == 1
        assert attention.frozen_share(keys, 4 * at) == pytest.approx(0.5)


def test_nonsense_is_refused() -> None:
    with pytest.raises(InfrabookError, match="3 heads do not divide a width of 4,096"):
        attention.same_shape(LLAMA, heads=3)
    with pytest.raises(InfrabookError, match="3 key-value heads do not divide 8 heads"):
        attention.same_shape(LLAMA, heads=8, kv_heads=3)
    with pytest.raises(InfrabookError, match="mixtral-8x7b has experts"):
        attention.overtakes_feed_forward(models.get("mixtral-8x7b"))
    with pytest.raises(InfrabookError, match="variance has to be"):
        attention.keys_seen(16, -1)
    with pytest.raises(InfrabookError, match="sequence has to be"):
        attention.score_bytes(heads=1, sequence=0)


# -- the explorer ----------------------------------------------------------------------------------------------
def cells(view: str) -> dict[str, tuple[str, str]]:
    found = re.findall(
        r'<th scope="row">([^<]+)</th><td class="amount">([^<]+)</td><td class="amount">([^<]+)</td>', view
    )
    return {name: (here, wide) for name, here, wide in found}


def test_the_explorer_starts_where_only_the_scores_differ() -> None:
    table = cells(cut_into_heads())
    differ = {name for name, (here, wide) in table.items() if here != wide}
    assert differ == {"bytes of scores", "softmaxes a token"}
    assert table["bytes of scores"] == ("1,024.00 MiB", "32.00 MiB")
    assert table["parameters of attention"][0] == "67,108,864"


def test_every_cost_in_the_explorer_moves() -> None:
    moves = {
        "parameters of attention": {"kv_heads": 8}, "projections": {"hidden": 512},
        "scores and values": {"causal": "half"}, "bytes of scores": {"heads": 64}, "KV cache": {"kv_heads": 1},
        "softmaxes a token": {"heads": 64},
    }  # fmt: skip
    at_first = cells(cut_into_heads())
    assert moves.keys() == at_first.keys()
    for name, change in moves.items():
        assert cells(cut_into_heads(**change))[name][0] != at_first[name][0], name  # type: ignore[arg-type]
    assert "25.0% of" in cut_into_heads(kv_heads=8)
    assert "2,480 of 4,096 keys" in cut_into_heads()
    assert "one or a few of" in cut_into_heads(divisor=0.0)
    assert "33,024 tokens" in cut_into_heads(causal="half")
    assert "16,512 tokens" in cut_into_heads()


@pytest.mark.parametrize("change", [{"heads": 30}, {"heads": 8, "kv_heads": 16}])
def test_the_explorer_refuses_heads_that_do_not_group(change: dict[str, int]) -> None:
    with pytest.raises(InfrabookError, match=r"\d+ key-value heads do not divide \d+ heads"):
        cut_into_heads(**({"kv_heads": 8} | change))  # type: ignore[arg-type]
