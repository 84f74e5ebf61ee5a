"""What a transformer is made of: the numbers that every account needs, and no weights.

``get`` reads a model of ``data/models.toml`` (each with its source); ``Transformer.from_hf_config`` reads a
Hugging Face ``config.json``. ``parameters`` counts what these numbers imply.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from .errors import InfrabookError
from .lookup import not_found, toml

Norm = Literal["layernorm", "rmsnorm"]
Positions = Literal["learned", "rope", "none"]
QKNorm = Literal["none", "head", "width"]


@dataclass(frozen=True)
class MoE:
    """Mixture of experts in place of the feed-forward layer: ``experts`` routed (``top_k`` of them a token)
    and ``shared`` for every token, each of width ``ffn``; the first ``dense_layers`` layers have none.

    >>> MoE(experts=8, top_k=9, ffn=14336)
    Traceback (most recent call last):
    infrabook.errors.InfrabookError: a token cannot go to 9 of 8 experts (top_k and experts)
    """

    experts: int
    top_k: int
    ffn: int
    shared: int = 0
    dense_layers: int = 0
    router_bias: bool = False  # one number an expert that is trained; DeepSeek-V3's is a buffer, so not one

    def __post_init__(self) -> None:
        for field in ("experts", "top_k", "ffn"):
            whole(f"moe.{field}", getattr(self, field))
        for field in ("shared", "dense_layers"):
            whole(f"moe.{field}", getattr(self, field), least=0)
        _flag("moe.router_bias", self.router_bias)
        if self.top_k > self.experts:
            raise InfrabookError(f"a token cannot go to {self.top_k} of {self.experts} experts (top_k and experts)")


@dataclass(frozen=True)
class MLA:
    """Multi-head latent attention (DeepSeek-V2): keys and values pass through a latent of ``kv_rank`` plus a
    shared rotary key of ``rope_dim``; queries through ``q_rank`` (0: a plain projection)."""

    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    def __post_init__(self) -> None:
        whole("mla.q_rank", self.q_rank, least=0)
        for field in ("kv_rank", "nope_dim", "rope_dim", "value_dim"):
            whole(f"mla.{field}", getattr(self, field))


@dataclass(frozen=True)
class Transformer:
    """A decoder-only transformer, by its dimensions.

    Symbols of the book: L ``layers``, h ``hidden``, a ``heads``, g ``kv_heads``, d ``head_dim``, f ``ffn``,
    V ``vocab``, s sequence, b batch. ``head_dim`` is a number of its own: a·d need not be h (Gemma, Qwen3).

    Raises ``InfrabookError`` for sizes that are not positive whole numbers or that contradict each other.

    >>> llama = get("llama-2-7b")
    >>> llama.layers, llama.hidden, llama.heads * llama.head_dim
    (32, 4096, 4096)
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int  # the longest sequence it was made for
    gated: bool = True  # SwiGLU/GeGLU: three matrices instead of two
    norm: Norm = "rmsnorm"  # layernorm: weight and bias (bias only if ``norm_bias``)
    norm_bias: bool = False
    norms_per_layer: int = 2
    positions: Positions = "rope"  # only learned positions are parameters; none: ALiBi, sinusoids
    tied: bool = False  # the head shares the embedding's matrix
    qkv_bias: bool = False
    out_bias: bool = False  # of attention's output projection
    ffn_bias: bool = False
    qk_norm: QKNorm = "none"  # Qwen3: one weight a head_dim; OLMo 2: the whole width
    window: int = 0  # sliding window in tokens; 0: none
    window_layers: int = 0  # how many layers have it
    moe: MoE | None = None
    mla: MLA | None = None
    source: str = ""
    head_bias: bool = False  # GPT-J, Phi
    embedding_norm: bool = False  # BLOOM: a norm right after the embedding

    def __post_init__(self) -> None:
        for field in ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "context"):
            whole(field, getattr(self, field))
        for field in ("norms_per_layer", "window", "window_layers"):
            whole(field, getattr(self, field), least=0)
        for field in _FLAGS:
            _flag(field, getattr(self, field))
        for field, kind in (("norm", Norm), ("positions", Positions), ("qk_norm", QKNorm)):
            if getattr(self, field) not in get_args(kind):
                raise InfrabookError(f"{field} is {getattr(self, field)!r}, and can be {' or '.join(get_args(kind))}")
        self._consistent()

    def _consistent(self) -> None:
        """Refuse numbers that are fine one by one and contradict each other."""
        if self.heads % self.kv_heads:
            raise InfrabookError(f"{self.kv_heads} key-value heads do not divide {self.heads} heads")
        if self.norm == "rmsnorm" and self.norm_bias:
            raise InfrabookError("an rmsnorm has no bias: norm_bias goes with layernorm")
        if self.window_layers > self.layers:
            raise InfrabookError(f"{self.window_layers} of {self.layers} layers cannot have a window")
        if bool(self.window) != bool(self.window_layers):
            raise InfrabookError(
                f"a window of {self.window} tokens in {self.window_layers} layers is half a statement: "
                "give both window and window_layers, or neither"
            )
        if self.moe and self.moe.dense_layers > self.layers:
            raise InfrabookError(f"{self.moe.dense_layers} of {self.layers} layers cannot be dense")
        if self.mla and self.qk_norm != "none":
            raise InfrabookError("multi-head latent attention norms its latents and has no qk_norm")

    @classmethod
    def from_hf_config(cls, source: dict[str, Any] | str | Path, *, name: str | None = None) -> Transformer:
        """The model that a Hugging Face ``config.json`` describes.

        ``source`` is the parsed dict, the JSON text itself, or a path to the file (or to its folder). Known
        ``model_type`` values are ``hf_config.ARCHITECTURES``; fields a config leaves out take the defaults
        that transformers has for the architecture. Raises ``InfrabookError`` for what it cannot count.

        >>> Transformer.from_hf_config('{"model_type": "gpt2", "n_layer": 12, "n_embd": 1000, "n_head": 12}')
        Traceback (most recent call last):
        infrabook.errors.InfrabookError: 12 heads do not divide a hidden size of 1000
        """
        from . import hf_config  # here, since it imports this module

        return hf_config.read(source, name=name)


_FLAGS = (
    "gated", "norm_bias", "tied", "qkv_bias", "out_bias", "ffn_bias", "head_bias", "embedding_norm",
)  # fmt: skip


def get(name: str) -> Transformer:
    """The model called ``name`` in ``data/models.toml``; raises ``InfrabookError`` with near matches.

    >>> get("llama-3.1-8b").vocab
    128256
    >>> get("lama-2-7b")
    Traceback (most recent call last):
    infrabook.errors.InfrabookError: no model is called 'lama-2-7b'; near: llama-2-7b, llama-2-70b, llama-7b
    """
    found = _table().get(name.strip().lower()) if isinstance(name, str) else None
    if found is None:
        raise not_found("model", name, names())
    return found


def names() -> tuple[str, ...]:
    """Names that ``get`` knows, in the table's order."""
    return tuple(_table())


@cache
def _table() -> dict[str, Transformer]:
    data = toml("models")
    families: dict[str, dict[str, Any]] = data["family"]
    return {
        name: _build(name, families[row["family"]] | {k: v for k, v in row.items() if k != "family"})
        for name, row in data["model"].items()
    }


def _build(name: str, row: dict[str, Any]) -> Transformer:
    parts: dict[str, type[MoE | MLA]] = {"moe": MoE, "mla": MLA}
    nested = {key: kind(**row[key]) for key, kind in parts.items() if key in row}
    heads, hidden = row["heads"], row["hidden"]
    return Transformer(**({"name": name, "kv_heads": heads, "head_dim": hidden // heads} | row | nested))


def whole(name: str, value: object, *, least: int = 1) -> int:
    """``value`` if it is an ``int`` of at least ``least``; otherwise ``InfrabookError`` naming the field.

    >>> whole("layers", 32), whole("shared", 0, least=0)
    (32, 0)
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InfrabookError(f"{name} has to be a whole number, and is {value!r}")
    if value < least:
        raise InfrabookError(f"{name} has to be at least {least}, and is {value}")
    return value


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InfrabookError(f"{name} has to be true or false, and is {value!r}")
