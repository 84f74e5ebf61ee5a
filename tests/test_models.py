"""Models by name, and config.json texts as people paste them: read exactly, or refused in a sentence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from infrabook.errors import InfrabookError
from infrabook.hf_config import ARCHITECTURES
from infrabook.models import MLA, MoE, Transformer, get, names

CONFIGS = sorted((Path(__file__).parent / "configs").glob("*.json"))
LLAMA = json.loads((Path(__file__).parent / "configs" / "llama-2-7b.json").read_text())


def config(name: str) -> dict:
    return json.loads((Path(__file__).parent / "configs" / f"{name}.json").read_text())


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_table_and_published_config_describe_the_same_model(path):
    """Two roads to one model: our table, and the config.json that its authors published."""
    read = Transformer.from_hf_config(path, name=path.stem)
    assert replace(read, source="") == replace(get(path.stem), source="")


def test_every_architecture_has_a_published_config_among_the_fixtures():
    assert {json.loads(path.read_text())["model_type"] for path in CONFIGS} == set(ARCHITECTURES)


def test_text_dict_path_and_folder_are_read_alike(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    texts = [json.dumps(LLAMA), "\n\ufeff" + json.dumps(LLAMA, indent=4), LLAMA]
    for source in [*texts, tmp_path / "config.json", str(tmp_path / "config.json"), tmp_path]:
        assert Transformer.from_hf_config(source).layers == 32


def test_reading_leaves_the_dict_alone():
    before = {"model_type": "gpt2", "hidden_size": 96, "n_layer": 2, "n_head": 6, "vocab_size": 10}
    given = dict(before)
    Transformer.from_hf_config(given)
    assert given == before


def test_every_model_of_the_table_has_a_source_and_its_own_name():
    assert len(names()) == len(set(names())) >= 33
    for name in names():
        assert get(name).name == name
        assert get(name).source


def test_names_forgive_case():
    assert get(" Llama-2-7B ") == get("llama-2-7b")


@pytest.mark.parametrize("name", ["lama-2-7b", "", None, 7])
def test_an_unknown_name_is_answered_with_near_matches(name):
    with pytest.raises(InfrabookError, match=r"no model is called .*; near: .*llama-2-7b"):
        get(name)


# -- defaults, as transformers has them
def without(source: dict, *fields: str, **changes) -> Transformer:
    return Transformer.from_hf_config({k: v for k, v in source.items() if k not in fields} | changes)


def test_absent_fields_take_the_defaults_of_their_architecture():
    assert without(LLAMA, "num_key_value_heads").kv_heads == 32  # Llama 1 has no such field
    assert without(LLAMA, "tie_word_embeddings").tied is False
    assert without(LLAMA, "max_position_embeddings").context == 2048
    assert without(config("gpt2"), "n_positions").context == 1024
    assert Transformer.from_hf_config(config("gpt2")).tied is True
    assert Transformer.from_hf_config(config("gemma-2-9b")).tied is True  # its config does not say
    assert without(config("gemma-2-9b"), "head_dim").head_dim == 256
    assert without(config("qwen3-0.6b"), "head_dim").head_dim == 128
    assert without(config("qwen3-30b-a3b"), "head_dim").head_dim == 64  # hidden/heads, unlike the dense Qwen3
    assert without(config("mistral-7b"), "num_key_value_heads").kv_heads == 8
    assert without(config("mixtral-8x7b"), num_key_value_heads=None).kv_heads == 32


def test_gpt2_inner_width_is_four_times_hidden_unless_given():
    assert Transformer.from_hf_config(config("gpt2")).ffn == 3072
    assert without(config("gpt2"), n_inner=1000).ffn == 1000


def test_biases_follow_the_architecture():
    qwen = Transformer.from_hf_config(config("qwen2.5-7b"))
    assert (qwen.qkv_bias, qwen.out_bias) == (True, False)
    llama = without(LLAMA, attention_bias=True, mlp_bias=True)
    assert (llama.qkv_bias, llama.out_bias, llama.ffn_bias) == (True, True, True)


def test_sliding_windows():
    assert without(config("mistral-7b"), "sliding_window").window == 4096
    assert without(config("mistral-7b"), sliding_window=None).window == 0
    assert Transformer.from_hf_config(config("qwen2.5-7b")).window == 0  # sliding_window without use_sliding_window
    qwen = without(config("qwen2.5-7b"), use_sliding_window=True, max_window_layers=21)
    assert (qwen.window, qwen.window_layers) == (131072, 7)
    gemma = without(config("gemma-2-9b"), num_hidden_layers=5)
    assert (gemma.window, gemma.window_layers) == (4096, 3)
    kinds = ["full_attention"] * 4 + ["sliding_attention"]
    assert without(config("gemma-2-9b"), num_hidden_layers=5, layer_types=kinds).window_layers == 1


def test_a_plain_query_projection_in_latent_attention():
    assert without(config("deepseek-v3"), q_lora_rank=None).mla.q_rank == 0


def test_the_first_layers_of_a_mixture_may_be_dense():
    assert without(config("qwen3-30b-a3b"), mlp_only_layers=[1, 0]).moe.dense_layers == 2


# -- refusals
REFUSED = [
    (LLAMA, {"num_attention_heads": 12, "hidden_size": 1000}, "12 heads do not divide a hidden size of 1000"),
    (LLAMA, {"num_key_value_heads": 5}, "5 key-value heads do not divide 32 heads"),
    (LLAMA, {"hidden_size": None}, "hidden_size is missing"),
    (LLAMA, {"vocab_size": None}, "vocab_size is missing"),
    (LLAMA, {"num_hidden_layers": -1}, "num_hidden_layers has to be at least 1, and is -1"),
    (LLAMA, {"intermediate_size": 0}, "intermediate_size has to be at least 1, and is 0"),
    (LLAMA, {"hidden_size": "4096"}, "hidden_size has to be a whole number, and is '4096'"),
    (LLAMA, {"hidden_size": 4096.5}, "hidden_size has to be a whole number, and is 4096.5"),
    (LLAMA, {"num_hidden_layers": True}, "num_hidden_layers has to be a whole number, and is True"),
    (LLAMA, {"vocab_size": [32000]}, r"vocab_size has to be a whole number, and is \[32000\]"),
    (LLAMA, {"tie_word_embeddings": "false"}, "tie_word_embeddings has to be true or false, and is 'false'"),
    (LLAMA, {"attention_bias": 1}, "attention_bias has to be true or false, and is 1"),
    (LLAMA, {"head_dim": 0}, "head_dim has to be at least 1, and is 0"),
    (LLAMA, {"model_type": None}, "model_type is missing; known here are gpt2, llama"),
    (LLAMA, {"model_type": "mamba2"}, "model_type is 'mamba2'; known here are"),
    (LLAMA, {"model_type": ["llama"]}, "model_type is"),
    (LLAMA, {"vision_config": {"hidden_size": 1024}}, "vision_config is given"),
    (LLAMA, {"architectures": ["LlamaForSequenceClassification"]}, "architectures is .*ForSequenceClassification"),
    (LLAMA, {"is_encoder_decoder": True}, "is_encoder_decoder is True"),
    (LLAMA, {"pruned_heads": {"0": [1]}}, "pruned_heads is"),
    (LLAMA, {"num_local_experts": 8}, "num_local_experts is 8: what it adds to the count of a llama"),
    (LLAMA, {"use_qk_norm": True}, "use_qk_norm is True"),
    (LLAMA, {"kv_lora_rank": 512}, "kv_lora_rank is 512"),
    (config("mistral-7b"), {"attention_bias": True}, "attention_bias is True"),
    (config("qwen2.5-7b"), {"attention_bias": True}, "attention_bias is True"),
    (config("gpt2"), {"add_cross_attention": True}, "add_cross_attention is True"),
    (config("gpt2"), {"hidden_size": 1024}, "n_embd is 768 and hidden_size is 1024, but they are one field"),
    (config("mixtral-8x7b"), {"num_experts_per_tok": 9}, "a token cannot go to 9 of 8 experts"),
    (config("mixtral-8x7b"), {"num_local_experts": 0}, "num_local_experts has to be at least 1, and is 0"),
    (config("qwen3-30b-a3b"), {"decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
    (config("qwen3-30b-a3b"), {"mlp_only_layers": [5]}, r"mlp_only_layers is \[5\]"),
    (config("qwen3-30b-a3b"), {"mlp_only_layers": "0"}, "mlp_only_layers has to be a list"),
    (config("deepseek-v3"), {"first_k_dense_replace": 62}, "62 of 61 layers cannot be dense"),
    (config("deepseek-v3"), {"moe_layer_freq": 2}, "moe_layer_freq is 2"),
    (config("deepseek-v3"), {"n_shared_experts": -1}, "n_shared_experts has to be at least 0, and is -1"),
    (config("gemma-2-9b"), {"layer_types": ["full_attention"]}, "layer_types names 1 layers of 42"),
    (config("gemma-2-9b"), {"layer_types": ["chunked_attention"] * 42}, "layer_types is"),
    (config("gemma-2-9b"), {"sliding_window": -1}, "sliding_window has to be at least 1, and is -1"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "change", "words"), REFUSED, ids=[words[:50] for *_, words in REFUSED])
def test_what_cannot_be_counted_is_refused_in_a_sentence(source, change, words):
    Transformer.from_hf_config(source)  # the change alone is at fault
    with pytest.raises(InfrabookError, match=words):
        Transformer.from_hf_config(source | change)


def test_a_config_that_needs_a_field_and_has_no_sane_default_says_so():
    small = {"num_attention_heads": 6, "hidden_size": 96, "head_dim": 16}
    with pytest.raises(InfrabookError, match="num_key_value_heads is missing"):
        without(config("mistral-7b"), "num_key_value_heads", **small)


@pytest.mark.parametrize(
    "extra",
    [
        {"quantization_config": {"quant_method": "fp8"}},
        {"_name_or_path": "here", "unsloth_fixed": True, "dtype": "bfloat16"},
        {"num_beams": 4, "num_return_sequences": 1, "no_repeat_ngram_size": 3, "num_labels": 2},
        {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}},
        {"vision_config": None, "is_encoder_decoder": False, "pruned_heads": {}, "n_special": 0},
    ],
)
def test_fields_that_do_not_change_the_count_are_let_through(extra):
    assert Transformer.from_hf_config(LLAMA | extra).hidden == 4096


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (json.dumps(LLAMA)[:-40], "not complete JSON: .* at line 1, column"),
        ("{'model_type': 'llama'}", "not complete JSON: Expecting property name"),
        ("[1, 2]", "a config.json is an object of fields, and this is a list"),
        ("{}", "model_type is missing"),
        ("", "is neither JSON text nor a file|model_type"),
        ("meta-llama/Llama-2-7b-hf", "'meta-llama/Llama-2-7b-hf' is neither JSON text nor a file to read"),
        ("no\0file", "cannot be read"),
        ('{"a":' * 100_000, "nested too deeply|not complete JSON"),
        ('{"model_type": "llama", "vocab_size": 1' + "0" * 5000 + "}", "cannot be read"),
    ],
)
def test_text_that_is_no_config_is_refused(text, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InfrabookError, match=words):
        Transformer.from_hf_config(text)


def test_a_file_that_is_no_text_and_a_source_of_another_kind_are_refused(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(InfrabookError, match="cannot be read"):
        Transformer.from_hf_config(tmp_path / "model.safetensors")
    with pytest.raises(InfrabookError, match="and not int"):
        Transformer.from_hf_config(7)


# -- the dataclasses themselves
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"heads": 0}, "heads has to be at least 1, and is 0"),
        ({"layers": 2.0}, "layers has to be a whole number, and is 2.0"),
        ({"kv_heads": 3}, "3 key-value heads do not divide 32 heads"),
        ({"norm": "batchnorm"}, "norm is 'batchnorm', and can be layernorm or rmsnorm"),
        ({"positions": "alibi"}, "positions is 'alibi', and can be learned or rope or none"),
        ({"norm_bias": True}, "an rmsnorm has no bias"),
        ({"tied": 1}, "tied has to be true or false, and is 1"),
        ({"window": 4096}, "give both window and window_layers"),
        ({"window": 4096, "window_layers": 33}, "33 of 32 layers cannot have a window"),
        ({"qk_norm": "head", "mla": MLA(0, 512, 128, 64, 128)}, "has no qk_norm"),
        ({"moe": MoE(8, 2, 64, dense_layers=33)}, "33 of 32 layers cannot be dense"),
    ],
)
def test_a_transformer_with_contradictory_numbers_cannot_be_made(change, words):
    with pytest.raises(InfrabookError, match=words):
        replace(get("llama-2-7b"), **change)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MoE(8, 9, 64), "a token cannot go to 9 of 8 experts"),
        (lambda: MoE(8, 0, 64), "moe.top_k has to be at least 1"),
        (lambda: MoE(8, 2, 64, shared=-1), "moe.shared has to be at least 0"),
        (lambda: MLA(-1, 512, 128, 64, 128), "mla.q_rank has to be at least 0"),
        (lambda: MLA(0, 0, 128, 64, 128), "mla.kv_rank has to be at least 1"),
    ],
)
def test_experts_and_latents_are_checked_too(make, words):
    with pytest.raises(InfrabookError, match=words):
        make()
