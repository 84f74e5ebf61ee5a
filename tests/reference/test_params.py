"""The reference cases on parameters, each built from its own dimensions and counted by the library."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from infrabook.models import MLA, MoE, Transformer
from infrabook.parameters import active, count, matrices, non_embedding, padded_vocab, per_layer
from infrabook.units import MIB

from .cases import Case, cases, passes

CASES = cases("params") | cases("embeddings")

EXCUSED_QUANTITIES = {
    ("layers-misc", "Conv2d(3,64,7)"): "A Transformer has no convolution.",
    ("layers-misc", "Bilinear(20,30,40)"): "A Transformer has no bilinear layer.",
}

GPT = {
    "gated": False, "norm": "layernorm", "norm_bias": True, "positions": "learned", "qkv_bias": True,
    "out_bias": True, "ffn_bias": True,
}  # fmt: skip
# What the architecture's name says and the inputs do not, by how its name begins; the first match holds.
STYLES: dict[str, dict[str, Any]] = {
    "nanoGPT bias=False": GPT | {"norm_bias": False, "qkv_bias": False, "out_bias": False, "ffn_bias": False,
                                 "tied": True},
    "GPT-2": GPT | {"tied": True},
    "GPT-3": GPT | {"tied": True},
    "Megatron GPT": GPT | {"tied": True},
    "GPT-NeoX": GPT | {"positions": "rope"},
    "BERT": GPT | {"tied": True, "embedding_norm": True},
    "Qwen3": {"qk_norm": "head"},
    # attention and feed-forward side by side behind one norm (arXiv:2204.02311, section 2, "Parallel Layers")
    "PaLM": {"tied": True, "norms_per_layer": 1},
    "Gemma (GeGLU 3 matrices, tied embeddings, RMSNorm x4": {"norms_per_layer": 4},
    "Llama": {}, "Mistral": {}, "Mixtral": {}, "Qwen2": {}, "Gemma": {}, "CS336": {}, "DeepSeek-V3": {},
}  # fmt: skip


def model_of(case: Case) -> Transformer:
    """The case's dimensions, whatever each source calls them, as a ``Transformer``."""
    given = case["inputs"]
    style = next((s for start, s in STYLES.items() if given.get("arch", "GPT-2").startswith(start)), None)
    assert style is not None, f"no style for {given['arch']!r}"
    hidden = given["d_model"]
    heads = given.get("n_head", 1)  # where a source leaves heads out, a·d = h and their number does not count
    wide = given.get("d_ff") or given.get("d_ff_dense") or given.get("moe_d_ff") or 4 * hidden
    moe = mla = None
    if "n_experts" in given:
        moe = MoE(given["n_experts"], given["top_k"], given.get("moe_d_ff", wide))
    if "kv_lora_rank" in given:
        rotary, plain = given["qk_rope"], given["qk_nope"]
        mla = MLA(given["q_lora_rank"], given["kv_lora_rank"], plain, rotary, given["v_head"])
        moe = MoE(
            given["n_routed"], given["top_k"], given["moe_d_ff"], given["n_shared"], given["n_dense_layer"],
            given["router_bias_is_parameter"],
        )  # fmt: skip
    tied = given.get("tied_embeddings", given.get("tied", style.get("tied", False)))
    rest = {k: v for k, v in style.items() if k != "tied"} | {"qkv_bias": style.get("qkv_bias", "qkv_bias" in given)}
    return Transformer(
        name=case["id"],
        layers=given["n_layer"],
        hidden=hidden,
        heads=heads,
        kv_heads=given.get("n_kv_head", heads),
        head_dim=given.get("head_dim") or given.get("d_head") or hidden // heads,
        ffn=wide,
        vocab=given.get("vocab") or given["vocab_padded"],
        context=given.get("n_ctx") or given.get("seq") or given.get("n_pos") or 512,
        tied=tied,
        moe=moe,
        mla=mla,
        **rest,
    )


def plain(case: Case) -> dict[str, Any]:
    """Answers by what the quantity's name asks for."""
    model = model_of(case)
    total = count(model).total
    answers: dict[str, Any] = {}
    for expected in case["expected"]:
        asked = expected["quantity"]
        if asked.startswith("active"):
            answers[asked] = active(model, embedding="head only" not in asked).total
        elif "non-embedding" in asked:
            answers[asked] = non_embedding(model).total
        elif asked == "if counted untied":
            answers[asked] = count(model, tied=False).total
        elif asked == "block parameters":
            answers[asked] = per_layer(model).total
        elif asked == "fp32 size":
            answers[asked] = 4 * total
        else:
            known = ("total", "parameters", "trainable", "main model", "Table D.1", "Qwen3-Embedding")
            assert asked.startswith(known), asked
            padding = case["inputs"].get("vocab") if asked.startswith("Qwen3-Embedding") else None
            answers[asked] = count(replace(model, vocab=151_669)).total if padding else total
    return answers


def megatron(case: Case) -> dict[str, Any]:
    """Narayanan et al. 2021, equation 2: every row but the final norm."""
    return {"parameters": count(model_of(case), final_norm=False).total}


def megatron_with_and_without(case: Case) -> dict[str, Any]:
    model = model_of(case)
    weights = sum(m.inputs * m.outputs * m.copies for m in matrices(model) if m.name != "head")
    return {"with embeddings": count(model, final_norm=False).total, "12 l h^2 only": weights}


def vocabulary(case: Case) -> dict[str, Any]:
    vocab = case["inputs"]["vocab"]
    one, eight = case["inputs"]["tp"]
    return {
        "padded to multiple of 64 (nanoGPT)": padded_vocab(vocab, 64),
        "padded to multiple of 128 (Megatron TP=1)": padded_vocab(vocab, 128, one),
        "padded to multiple of 128*8 (Megatron TP=8)": padded_vocab(vocab, 128, eight),
    }


def gemma_3(case: Case) -> dict[str, Any]:
    """Only the embedding differs, so any model of this width and a tied head has the same difference."""
    few, many = case["inputs"]["vocab_rows"]
    style = {"arch": "Gemma", "n_layer": 1, "d_model": case["inputs"]["d_model"], "tied_embeddings": True}
    totals = [count(model_of({"id": "gemma-3", "inputs": style | {"vocab": v}})).total for v in (few, many)]
    return {"difference HF (262,208 rows) - Keras (262,144 rows)": totals[1] - totals[0]}


def usp(case: Case) -> dict[str, Any]:
    given = case["inputs"]
    sizes = {"arch": "GPT-2", "n_layer": given["L"], "d_model": given["h"], "vocab": given["v"], "n_ctx": 1024}
    model = model_of({"id": case["id"], "inputs": sizes})
    return {
        "N (no position embedding)": count(model, positions=False).total,
        "plus 1024 x 768 positions": count(model).total,
    }


def bert(case: Case) -> dict[str, Any]:
    """An encoder's layers are GPT-2's with the norms elsewhere; token types and the pooler are added by hand."""
    given = {"n_pos": 512, "type_vocab": 2} | case["inputs"]
    h = given["d_model"]
    model = model_of(case | {"inputs": given})
    total = count(model, final_norm=False).total + given["type_vocab"] * h + (h * h + h)
    return {
        "total parameters (BertModel with pooler)": total,
        "total parameters": total,
        "fp32 size": 4 * total / MIB,
    }


def layers_of(hidden: int, ffn: int, **style: Any) -> tuple[int, int]:
    """Parameters of an encoder layer, and of a decoder layer: one more attention and one more norm."""
    sizes = {"arch": "GPT-2", "n_layer": 1, "d_model": hidden, "d_ff": ffn, "vocab": 1}
    layer = per_layer(replace(model_of({"id": "layer", "inputs": sizes}), **style))
    attention = sum(row.value for row in layer if row.name.startswith("attention"))
    return int(layer.total), int(layer.total + attention + layer["layer norms"] // 2)


def transformer_2017(case: Case) -> dict[str, Any]:
    encoder, decoder = layers_of(512, 2048)
    return {"encoder+decoder parameters": 6 * encoder + 6 * decoder + 2 * (2 * 512)}


def t5(case: Case) -> dict[str, Any]:
    """No biases, RMS norms; added by hand: the two final norms and 32 buckets of relative positions a stack."""
    given = case["inputs"]
    assert given["n_head"] * given["d_kv"] == given["d_model"]
    bare = {"norm": "rmsnorm", "norm_bias": False, "qkv_bias": False, "out_bias": False, "ffn_bias": False}
    encoder, decoder = layers_of(given["d_model"], given["d_ff"], **bare)
    table = given["vocab"] * given["d_model"]
    per_stack = given["d_model"] + 32 * given["n_head"]
    return {
        "total parameters": table + 24 * (encoder + decoder) + 2 * per_stack,
        "largest single layer (embedding 32128x1024)": table,
    }


def single_layers(case: Case) -> dict[str, Any]:
    encoder, decoder = layers_of(512, 2048)
    sizes = {"arch": "GPT-2", "n_layer": 1, "d_model": 768, "vocab": 50257, "n_ctx": 1024}
    gpt2 = model_of({"id": "gpt2", "inputs": sizes})
    return {
        "MultiheadAttention(512,8)": decoder - encoder - 2 * 512,
        "TransformerEncoderLayer(512,8,2048)": encoder,
        "TransformerDecoderLayer(512,8,2048)": decoder,
        "Embedding(50257,768)": count(gpt2)["embedding"],
    }


ANSWERS = {
    **{name: megatron for name in CASES if name.startswith("params-megatron-t1")},
    "params-megatron-161-vs-162": megatron_with_and_without,
    "params-vocab-padding-gpt2": vocabulary,
    "params-gemma3-4b-padding": gemma_3,
    "params-usp-formula-gpt2": usp,
    "params-bert-base": bert,
    "params-bert-large": bert,
    "params-bert-base-cased": bert,
    "params-transformer-base-2017": transformer_2017,
    "params-t5-large": t5,
    "layers-misc": single_layers,
}


@pytest.mark.parametrize("name", CASES)
def test_case(name):
    case = CASES[name]
    got = ANSWERS.get(name, plain)(case)
    for expected in case["expected"]:
        if (name, expected["quantity"]) not in EXCUSED_QUANTITIES:
            value = got[expected["quantity"]]
            assert passes(expected, value), f"{expected['quantity']}: {value} is not {expected['value']}"


def test_excuses_are_for_quantities_that_cases_ask_for():
    asked = {(name, expected["quantity"]) for name, case in CASES.items() for expected in case["expected"]}
    assert set(EXCUSED_QUANTITIES) <= asked
