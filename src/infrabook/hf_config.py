"""Reads a Hugging Face ``config.json`` into a ``Transformer``, and refuses what it could only guess at.

Defaults for absent fields are those of transformers 5 (``models/*/configuration_*.py``); the sizes that make
a model what it is have to be there. ``models.Transformer.from_hf_config`` is the way in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import InfrabookError
from .models import MLA, MoE, Transformer, whole

Config = dict[str, Any]
_REQUIRED = object()
_BLANK = "\ufeff \t\r\n"  # what may stand before a pasted text: blanks and a byte order mark

# Names under which transformers accepts the same field (each configuration's attribute_map).
_ALIASES: dict[str, dict[str, str]] = {
    "gpt2": {
        "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
    },
    "mixtral": {"num_experts": "num_local_experts"},
    "qwen3_moe": {"num_local_experts": "num_experts"},
    "deepseek_v3": {"num_local_experts": "n_routed_experts"},
}  # fmt: skip

# A field that no reader below understands and whose name speaks of sizes may change the count: better no
# answer than a wrong one. These look like such fields and are none (generation settings, training, routing,
# extra prediction modules that the published counts leave out).
_SIZE_WORDS = re.compile(
    r"(^|_)(n|num|size|dim|rank|width|layers?|heads?|experts?|lora|bias|vision|audio|text|encoder|mtp|ssm|mamba"
    r"|conv|altup|laurel|adapter|norm|layernorm|cross)(_|$)"
)
_HARMLESS = frozenset({
    "add_cross_attention", "attention_bias", "chunk_size_feed_forward", "cross_attention_hidden_size",
    "decoder_sparse_step", "encoder_no_repeat_ngram_size", "ep_size", "first_k_dense_replace",
    "head_dim", "hidden_size", "initializer_range", "intermediate_size", "is_encoder_decoder",
    "kv_lora_rank", "layer_norm_eps", "layer_norm_epsilon", "layer_types", "max_window_layers",
    "mlp_bias", "mlp_only_layers", "moe_intermediate_size", "moe_layer_freq", "n_ctx", "n_embd",
    "n_group", "n_head", "n_inner", "n_layer", "n_positions", "n_routed_experts", "n_shared_experts",
    "no_repeat_ngram_size", "norm_topk_prob", "num_attention_heads", "num_beam_groups", "num_beams",
    "num_experts", "num_experts_per_tok", "num_hidden_layers", "num_key_value_heads", "num_labels",
    "num_local_experts", "num_mtp_layers", "num_nextn_predict_layers", "num_return_sequences",
    "pruned_heads", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim",
    "rms_norm_eps", "router_aux_loss_coef", "scale_attn_by_inverse_layer_idx", "tie_encoder_decoder",
    "tie_word_embeddings", "v_head_dim", "vocab_size", "sliding_window_size",
})  # fmt: skip
# Understood by one architecture; in another's config the same field would be a change of the model.
_ONLY_IN: dict[str, frozenset[str]] = {
    "n_inner": frozenset({"gpt2"}),
    "mlp_bias": frozenset({"llama"}),
    "attention_bias": frozenset({"llama", "qwen3", "qwen3_moe", "gemma2", "deepseek_v3", "olmo2"}),
    "num_local_experts": frozenset({"mixtral", "qwen3_moe", "deepseek_v3"}),
    "num_experts": frozenset({"mixtral", "qwen3_moe"}),
    "moe_intermediate_size": frozenset({"qwen3_moe", "deepseek_v3"}),
    **{
        field: frozenset({"deepseek_v3"})
        for field in ("n_routed_experts", "n_shared_experts", "kv_lora_rank", "q_lora_rank")
    },
}


def read(source: Config | str | Path, *, name: str | None = None) -> Transformer:
    """The ``Transformer`` that ``source`` (a dict, JSON text, or a path) describes, called ``name``."""
    config = _load(source)
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        what = "is missing" if kind is None else f"is {kind!r}"
        raise InfrabookError(f"model_type {what}; known here are {known}")
    config = _one_name_a_field(config, _ALIASES.get(kind, {}))
    _refuse_unknown(config, kind)
    origin = config.get("_name_or_path")
    origin = origin if isinstance(origin, str) and origin else kind
    parts: Config = {"name": name or origin, "source": f"config.json of {name or origin}"}
    return Transformer(**(parts | _common(config, kind) | ARCHITECTURES[kind](config)))


# -- getting at the fields ----------------------------------------------------------------------------------
def _load(source: Config | str | Path) -> Config:
    if isinstance(source, dict):
        return {str(field): value for field, value in source.items()}
    if not isinstance(source, str | Path):
        raise InfrabookError(f"a config is a dict, JSON text or a path, and not {type(source).__name__}")
    pasted = isinstance(source, str) and source.lstrip(_BLANK).startswith(("{", "["))
    text = str(source) if pasted else None
    try:
        if text is None:
            path = Path(source)
            text = (path / "config.json" if path.is_dir() else path).read_text("utf-8")
        config = json.loads(text.lstrip(_BLANK))
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InfrabookError(f"the config is not complete JSON: {error.msg} at {where}") from None
    except RecursionError:
        raise InfrabookError("the config is nested too deeply to be a config.json") from None
    except OSError as error:
        shown = str(source) if len(str(source)) <= 80 else str(source)[:77] + "..."
        why = error.strerror or "unreadable"
        raise InfrabookError(f"{shown!r} is neither JSON text nor a file to read: {why}") from None
    except ValueError as error:  # not UTF-8, a NUL in the path, a number of thousands of digits
        raise InfrabookError(f"the config cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise InfrabookError(f"a config.json is an object of fields, and this is a {type(config).__name__}")
    return config


def _one_name_a_field(config: Config, aliases: dict[str, str]) -> Config:
    """``config`` with each alias under its main name; two names with two values contradict each other."""
    config = dict(config)
    for alias, main in aliases.items():
        if alias in config:
            value = config.pop(alias)
            if main in config and config[main] != value:
                raise InfrabookError(f"{main} is {config[main]!r} and {alias} is {value!r}, but they are one field")
            config[main] = value
    return config


def _refuse_unknown(config: Config, kind: str) -> None:
    for field in ("is_encoder_decoder", "add_cross_attention"):
        if config.get(field):
            raise InfrabookError(f"{field} is {config[field]!r}; only decoders without cross-attention count here")
    if config.get("pruned_heads"):
        raise InfrabookError(f"pruned_heads is {config['pruned_heads']!r}; the count is known for whole layers only")
    heads = config.get("architectures")
    names = heads if isinstance(heads, list) else []
    if names and not any(str(n).endswith(("ForCausalLM", "LMHeadModel")) for n in names):
        raise InfrabookError(f"architectures is {names!r}; only language models (ForCausalLM) count here")
    for field, value in config.items():
        if value in (None, False, 0, "", [], {}) or field.startswith("_"):
            continue
        foreign = kind not in _ONLY_IN.get(field, {kind})
        sized = isinstance(value, bool | int | dict) and _SIZE_WORDS.search(field)
        if foreign or (sized and field not in _HARMLESS):
            shown = "given" if isinstance(value, dict) else repr(value)
            raise InfrabookError(f"{field} is {shown}: what it adds to the count of a {kind} is not known here")


def _int(config: Config, field: str, default: Any = _REQUIRED, *, least: int = 1) -> int:
    """The whole number in ``field``; a field that is absent or null takes ``default``."""
    value = config.get(field)
    if value is None:
        if default is _REQUIRED:
            raise InfrabookError(f"{field} is missing from the config")
        value = default
    return whole(field, value, least=least)


def _bool(config: Config, field: str, default: bool) -> bool:
    value = config.get(field)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InfrabookError(f"{field} has to be true or false, and is {value!r}")
    return value


# -- what the architectures share ---------------------------------------------------------------------------
# kv_heads: transformers' default where num_key_value_heads is absent (where it is null: heads).
_KV_HEADS = {
    "mistral": 8,
    "mixtral": 8,
    "qwen2": 32,
    "qwen3": 32,
    "qwen3_moe": 4,
    "gemma2": 4,
    "deepseek_v3": 128,
}
_HEAD_DIM = {"qwen3": 128, "gemma2": 256}
_CONTEXT = {
    "llama": 2048, "mistral": 131072, "mixtral": 131072, "qwen2": 32768, "qwen3": 32768, "qwen3_moe": 32768,
    "gemma2": 8192, "deepseek_v3": 4096, "olmo2": 2048,
}  # fmt: skip


def _common(config: Config, kind: str) -> Config:
    if kind == "gpt2":
        return {}
    hidden, heads = _int(config, "hidden_size"), _int(config, "num_attention_heads")
    absent = _KV_HEADS.get(kind, heads) if "num_key_value_heads" not in config else heads
    common = {
        "layers": _int(config, "num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": _int(config, "num_key_value_heads", _REQUIRED if heads % absent else absent),
        "ffn": _int(config, "intermediate_size"),
        "vocab": _int(config, "vocab_size"),
        "context": _int(config, "max_position_embeddings", _CONTEXT[kind]),
        "tied": _bool(config, "tie_word_embeddings", kind == "gemma2"),
    }
    if kind != "deepseek_v3":
        given = config.get("head_dim", _HEAD_DIM.get(kind))
        common["head_dim"] = _split(hidden, heads) if given is None else whole("head_dim", given)
    return common


def _split(hidden: int, heads: int) -> int:
    if hidden % heads:
        raise InfrabookError(f"{heads} heads do not divide a hidden size of {hidden}")
    return hidden // heads


def _attention_bias(config: Config) -> Config:
    bias = _bool(config, "attention_bias", False)
    return {"qkv_bias": bias, "out_bias": bias}


def _window(config: Config, layers: int, *, default: int | None = None) -> Config:
    """A window of ``sliding_window`` tokens in ``layers`` layers; null means none, absent ``default``."""
    size = config.get("sliding_window", default)
    if size is None or layers == 0:
        return {}
    return {"window": whole("sliding_window", size), "window_layers": layers}


def _layer_types(config: Config) -> int | None:
    """How many layers the field ``layer_types`` gives a sliding window; ``None`` without such a field."""
    kinds = config.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or set(kinds) - {"sliding_attention", "full_attention"}:
        raise InfrabookError(f"layer_types is {kinds!r}; known are sliding_attention and full_attention")
    if len(kinds) != _int(config, "num_hidden_layers"):
        raise InfrabookError(f"layer_types names {len(kinds)} layers of {config['num_hidden_layers']}")
    return kinds.count("sliding_attention")


# -- one function an architecture ---------------------------------------------------------------------------
def _gpt2(config: Config) -> Config:
    hidden, heads = _int(config, "n_embd"), _int(config, "n_head")
    return {
        "head_dim": _split(hidden, heads),
        "layers": _int(config, "n_layer"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads,
        "ffn": _int(config, "n_inner", 4 * hidden),
        "vocab": _int(config, "vocab_size"),
        "context": _int(config, "n_positions", 1024),
        "tied": _bool(config, "tie_word_embeddings", True),
        "gated": False,
        "norm": "layernorm",
        "norm_bias": True,
        "positions": "learned",
        "qkv_bias": True,
        "out_bias": True,
        "ffn_bias": True,
    }


def _llama(config: Config) -> Config:
    return _attention_bias(config) | {"ffn_bias": _bool(config, "mlp_bias", False)}


def _mistral(config: Config) -> Config:
    return _window(config, _int(config, "num_hidden_layers"), default=4096)


def _mixtral(config: Config) -> Config:
    experts = _int(config, "num_local_experts", 8)
    moe = MoE(experts, _int(config, "num_experts_per_tok", 2), _int(config, "intermediate_size"))
    return {"moe": moe} | _window(config, _int(config, "num_hidden_layers"))


def _qwen_window(config: Config) -> Config:
    if not _bool(config, "use_sliding_window", False):
        return {}
    layers = _int(config, "num_hidden_layers")
    listed = _layer_types(config)
    full = _int(config, "max_window_layers", 28, least=0)
    return _window(config, max(layers - full, 0) if listed is None else listed, default=4096)


def _qwen2(config: Config) -> Config:
    return {"qkv_bias": True} | _qwen_window(config)


def _qwen3(config: Config) -> Config:
    return {"qk_norm": "head"} | _attention_bias(config) | _qwen_window(config)


def _qwen3_moe(config: Config) -> Config:
    layers = _int(config, "num_hidden_layers")
    only = config.get("mlp_only_layers") or []
    if not isinstance(only, list):
        raise InfrabookError(f"mlp_only_layers has to be a list of layers, and is {only!r}")
    dense = sorted({whole("mlp_only_layers", layer, least=0) for layer in only})
    step = _int(config, "decoder_sparse_step", 1)
    if step != 1 or dense != list(range(len(dense))):
        raise InfrabookError(
            f"decoder_sparse_step is {step} and mlp_only_layers is {dense}; here the layers without experts "
            "have to be the first ones"
        )
    moe = MoE(
        _int(config, "num_experts", 128),
        _int(config, "num_experts_per_tok", 8),
        _int(config, "moe_intermediate_size", 768),
        dense_layers=len(dense),
    )
    windowed = layers if _bool(config, "use_sliding_window", False) else 0
    return {"qk_norm": "head", "moe": moe} | _attention_bias(config) | _window(config, windowed, default=4096)


def _gemma2(config: Config) -> Config:
    listed = _layer_types(config)
    every_other = (_int(config, "num_hidden_layers") + 1) // 2
    window = _window(config, every_other if listed is None else listed, default=4096)
    return {"norms_per_layer": 4} | _attention_bias(config) | window


def _deepseek_v3(config: Config) -> Config:
    nope, rope = _int(config, "qk_nope_head_dim", 128), _int(config, "qk_rope_head_dim", 64)
    q_rank = 0 if config.get("q_lora_rank", 1536) is None else _int(config, "q_lora_rank", 1536)
    mla = MLA(q_rank, _int(config, "kv_lora_rank", 512), nope, rope, _int(config, "v_head_dim", 128))
    if (every := _int(config, "moe_layer_freq", 1)) != 1:
        raise InfrabookError(f"moe_layer_freq is {every}; here every layer after the dense ones has experts")
    moe = MoE(
        _int(config, "n_routed_experts", 256),
        _int(config, "num_experts_per_tok", 8),
        _int(config, "moe_intermediate_size", 2048),
        shared=_int(config, "n_shared_experts", 1, least=0),
        dense_layers=_int(config, "first_k_dense_replace", 3, least=0),
    )
    return {"head_dim": nope + rope, "mla": mla, "moe": moe} | _attention_bias(config)


def _olmo2(config: Config) -> Config:
    return {"qk_norm": "width"} | _attention_bias(config)


ARCHITECTURES: dict[str, Callable[[Config], Config]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gemma2": _gemma2,
    "deepseek_v3": _deepseek_v3,
    "olmo2": _olmo2,
}
