"""Parameters counted against modules that PyTorch builds, published totals, and the formulas that rows print."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from infrabook.errors import InfrabookError
from infrabook.models import MLA, MoE, Transformer, get, names
from infrabook.parameters import MODES, active, count, matrices, non_embedding, padded_vocab, per_layer

CONFIGS = Path(__file__).parent / "configs"

# Totals that the authors or the checkpoints publish (without buffers), where a source prints every digit:
# transformers 5's model classes instantiated from the published configs give these too.
PUBLISHED = {
    "gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080, "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616, "llama-2-13b": 13_015_864_320, "llama-2-70b": 68_976_648_192,
    "llama-33b": 32_528_943_616, "llama-65b": 65_285_660_672, "llama-3-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496, "llama-3.1-405b": 405_853_388_800, "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824, "mistral-7b": 7_241_732_096, "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-0.5b": 494_032_768, "qwen2.5-1.5b": 1_543_714_304, "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648, "qwen3-0.6b": 596_049_920, "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624, "gemma-2-2b": 2_614_341_888, "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320, "deepseek-v3": 671_026_404_352, "olmo-2-7b": 7_298_617_344,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_total(name):
    assert count(get(name)).total == PUBLISHED[name]


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_a_published_config_implies_the_published_total(path):
    assert count(Transformer.from_hf_config(path)).total == PUBLISHED[path.stem]


# -- witness: modules that PyTorch builds, on the meta device
class RMSNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))


class LlamaBlock(nn.Module):
    def __init__(self, hidden: int, heads: int, kv_heads: int, head_dim: int, ffn: int):
        super().__init__()
        self.query = nn.Linear(hidden, heads * head_dim, bias=False)
        self.key = nn.Linear(hidden, kv_heads * head_dim, bias=False)
        self.value = nn.Linear(hidden, kv_heads * head_dim, bias=False)
        self.output = nn.Linear(heads * head_dim, hidden, bias=False)
        self.gate = nn.Linear(hidden, ffn, bias=False)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)
        self.norm_1, self.norm_2 = RMSNorm(hidden), RMSNorm(hidden)


class Llama(nn.Module):
    def __init__(self, vocab: int, layers: int, hidden: int, *block: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.blocks = nn.ModuleList(LlamaBlock(hidden, *block) for _ in range(layers))
        self.final = RMSNorm(hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)


class GPT2Block(nn.Module):
    def __init__(self, hidden: int, heads: int):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attention = nn.MultiheadAttention(hidden, heads)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)


class GPT2(nn.Module):
    def __init__(self, vocab: int, context: int, layers: int, hidden: int, heads: int):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(vocab, hidden), nn.Embedding(context, hidden)
        self.blocks = nn.ModuleList(GPT2Block(hidden, heads) for _ in range(layers))
        self.final = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)
        self.head.weight = self.embedding.weight


def numel(model: nn.Module, pattern: str) -> int:
    return sum(p.numel() for name, p in model.named_parameters() if re.search(pattern, name))


@pytest.mark.parametrize("name", ["llama-2-7b", "llama-2-70b", "llama-3-8b"])
def test_llama_row_by_row_against_pytorch_modules(name):
    m = get(name)
    with torch.device("meta"):
        built = Llama(m.vocab, m.layers, m.hidden, m.heads, m.kv_heads, m.head_dim, m.ffn)
    rows = count(m)
    matched = {
        "embedding": r"^embedding", "head": r"^head", "final norm": r"^final", "layer norms": r"norm_[12]",
        **{f"attention {part}": rf"\.{part}\." for part in ("query", "key", "value", "output")},
        **{f"feed-forward {part}": rf"\.{part}\." for part in ("gate", "up", "down")},
    }  # fmt: skip
    assert {row.name: row.value for row in rows} == {row: numel(built, pattern) for row, pattern in matched.items()}
    assert rows.total == sum(p.numel() for p in built.parameters())
    assert per_layer(m).total == sum(p.numel() for p in built.blocks[0].parameters())


@pytest.mark.parametrize("name", ["gpt2", "gpt2-xl", "gpt3-175b"])
def test_gpt2_row_by_row_against_pytorch_modules(name):
    m = get(name)
    with torch.device("meta"):
        built = GPT2(m.vocab, m.context, m.layers, m.hidden, m.heads)
    rows = count(m)
    qkv, qkv_bias = ([f"attention {p}{b}" for p in ("query", "key", "value")] for b in ("", " bias"))
    for ours, pattern in [
        (["embedding"], "^embedding"), (["positions"], "^positions"), (["final norm"], "^final"),
        (["layer norms"], "norm_[12]"), (qkv, "in_proj_weight"), (qkv_bias, "in_proj_bias"),
        (["attention output"], "out_proj.weight"), (["attention output bias"], "out_proj.bias"),
        (["feed-forward up"], r"up\.weight"), (["feed-forward up bias"], r"up\.bias"),
        (["feed-forward down"], r"down\.weight"), (["feed-forward down bias"], r"down\.bias"),
    ]:  # fmt: skip
        assert sum(rows[row] for row in ours) == numel(built, pattern), ours
    assert rows.total == sum(p.numel() for p in built.parameters())  # named_parameters gives a tied matrix once
    assert "head" not in rows


# -- the formula beside a number gives the number
def symbols(m: Transformer) -> dict[str, int]:
    moe, mla = m.moe or MoE(1, 1, 1), m.mla or MLA(1, 1, 1, 1, 1)
    return {
        "L": m.layers, "h": m.hidden, "a": m.heads, "g": m.kv_heads, "d": m.head_dim, "f": m.ffn, "V": m.vocab,
        "s": m.context, "K": moe.dense_layers, "E": moe.experts, "k": moe.top_k, "S": moe.shared, "f_e": moe.ffn,
        "r_q": mla.q_rank, "r": mla.kv_rank, "d_n": mla.nope_dim, "d_r": mla.rope_dim, "d_v": mla.value_dim,
    }  # fmt: skip


BIASED = replace(
    get("deepseek-v3"), name="biased", qkv_bias=True, out_bias=True, ffn_bias=True, head_bias=True,
    embedding_norm=True, norm="layernorm", norm_bias=True, moe=MoE(8, 2, 64, 2, 3, router_bias=True),
)  # fmt: skip


@pytest.mark.parametrize("model", [*map(get, names()), BIASED], ids=lambda m: m.name)
@pytest.mark.parametrize("account", [count, active])
def test_every_formula_evaluates_to_its_row(model, account):
    for row in account(model):
        python = row.formula.replace("·", "*").replace("−", "-")
        assert eval(python, {}, symbols(model)) == row.value, row
        assert row.kind == "weights"


# -- conventions
def test_a_tied_head_costs_nothing_and_an_untied_one_a_second_table():
    llama = get("llama-3.2-1b")
    assert count(llama, tied=False).total - count(llama).total == llama.vocab * llama.hidden
    assert count(get("llama-2-7b"), tied=True).total == 6_738_415_616 - 32000 * 4096


def test_a_tied_head_keeps_its_bias():
    assert count(replace(get("gpt2"), head_bias=True)).total == 124_439_808 + 50257


def test_positions_and_the_final_norm_may_be_left_out():
    assert count(get("gpt2"), positions=False).total == 124_439_808 - 1024 * 768
    assert count(get("gpt2"), final_norm=False).total == 124_439_808 - 2 * 768
    assert count(replace(get("gpt2"), positions="none")).total == 124_439_808 - 1024 * 768


@pytest.mark.parametrize("name", names())
def test_layers_and_ends_make_the_whole(name):
    model = get(name)
    layers = sum(per_layer(model, layer=layer).total for layer in range(model.layers))
    rest = [row.value for row in count(model) if row.name in ("embedding", "positions", "head", "final norm")]
    assert layers + sum(rest) == count(model).total


def test_the_first_layers_of_deepseek_v3_are_dense():
    model = get("deepseek-v3")
    assert "router" not in per_layer(model, layer=2)
    assert per_layer(model, layer=3) == per_layer(model).named(f"{model.name}: parameters of layer 3")
    assert per_layer(model, layer=-61).total == per_layer(model, layer=0).total


@pytest.mark.parametrize("layer", [32, -33, 1.5, True])
def test_a_layer_that_is_not_there_is_refused(layer):
    with pytest.raises(InfrabookError, match="llama-2-7b has layers 0 to 31, and no layer"):
        per_layer(get("llama-2-7b"), layer=layer)


def test_active_parameters_of_a_dense_model_are_all_of_them():
    for name in ("gpt2", "llama-2-7b", "gemma-2-9b"):
        assert active(get(name)).total == count(get(name)).total


def test_deepseek_v3_activates_37_billion_of_671():
    model = get("deepseek-v3")
    assert active(model).total == 37_552_282_624
    assert active(model, embedding=False).total == 36_625_603_584
    assert active(model, embedding=False, head=False).total == 36_625_603_584 - 129280 * 7168
    assert active(model, embedding=False).title.endswith("a token, without embedding")


def test_a_tied_matrix_is_active_while_either_end_counts():
    model, table = get("qwen3-0.6b"), 151936 * 1024
    assert active(model, embedding=False).total == active(model, head=False).total == count(model).total
    assert active(model, embedding=False, head=False).total == count(model).total - table


def test_with_top_k_of_all_experts_everything_is_active():
    model = get("mixtral-8x7b")
    everything = replace(model, moe=replace(model.moe, top_k=8))
    assert active(everything).total == count(model).total


def test_non_embedding_names_its_mode():
    gpt2, pythia_like = get("gpt2"), get("llama-2-7b")
    assert non_embedding(gpt2).total == 12 * (12 * 768**2 + 13 * 768) + 2 * 768
    assert non_embedding(gpt2, "without positions").total == 123_653_376  # nanoGPT prints this one
    assert non_embedding(pythia_like).total == 6_738_415_616 - 2 * 32000 * 4096
    assert non_embedding(pythia_like, "without embedding").total == 6_738_415_616 - 32000 * 4096
    assert [non_embedding(gpt2, mode).title for mode in MODES] == [f"gpt2: parameters {mode}" for mode in MODES]
    with pytest.raises(InfrabookError, match="mode is 'kaplan', and can be 'without embedding and head'"):
        non_embedding(gpt2, "kaplan")


def test_matrices_are_what_a_token_is_multiplied_by():
    """2 FLOP a weight: the matrices of GPT-2 are Kaplan's 12·L·h² and the head."""
    gpt2 = get("gpt2")
    weights = {m.name: m.inputs * m.outputs * m.used for m in matrices(gpt2)}
    assert sum(weights.values()) - weights["head"] == 12 * gpt2.layers * gpt2.hidden**2
    assert weights["head"] == gpt2.vocab * gpt2.hidden  # tied, and multiplied all the same
    experts = {m.name: m for m in matrices(get("mixtral-8x7b"))}["experts up"]
    assert (experts.copies, experts.used) == (32 * 8, 32 * 2)


@pytest.mark.parametrize(
    ("vocab", "multiple", "tensor_parallel", "rows"),
    [(50257, 64, 1, 50304), (50257, 128, 1, 50304), (50257, 128, 8, 51200), (50304, 128, 1, 50304), (1, 128, 2, 256)],
)
def test_vocabularies_are_padded_up(vocab, multiple, tensor_parallel, rows):
    assert padded_vocab(vocab, multiple, tensor_parallel) == rows


@pytest.mark.parametrize("arguments", [(0, 64), (50257, 0), (50257, 64, -1), (50257.0, 64), ("50257", 64)])
def test_a_vocabulary_is_padded_by_positive_whole_numbers(arguments):
    with pytest.raises(InfrabookError, match="has to be"):
        padded_vocab(*arguments)


def test_a_count_is_quick():
    """Explorers recount on every move of a slider, in a browser's Python; the bound is generous."""
    text = json.dumps(json.loads((CONFIGS / "deepseek-v3.json").read_text()))
    best = {"table": 1.0, "text": 1.0}
    for _ in range(5):
        start = time.perf_counter()
        count(get("llama-2-7b"))
        middle = time.perf_counter()
        count(Transformer.from_hf_config(text))
        end = time.perf_counter()
        best = {"table": min(best["table"], middle - start), "text": min(best["text"], end - middle)}
    assert best["table"] < 0.02
    assert best["text"] < 0.02
