"""What a transformer is made of: the numbers that every account needs, and no weights.

``get`` reads a model of ``data/models.toml`` (each with its source); ``Transformer.from_hf_config`` reads a
Hugging Face ``config.json``. ``parameters`` counts what these numbers imply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class MoE:
    """Mixture of experts in place of the feed-forward layer: ``experts`` routed (``top_k`` of them a token) and
    ``shared`` for every token, each of width ``ffn``; the first ``dense_layers`` layers have none."""

    experts: int
    top_k: int
    ffn: int
    shared: int = 0
    dense_layers: int = 0
    router_bias: bool = False


@dataclass(frozen=True)
class MLA:
    """Multi-head latent attention (DeepSeek-V2): keys and values pass through a latent of ``kv_rank`` plus a shared
    rotary key of ``rope_dim``; queries through ``q_rank`` (0: a plain projection)."""

    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True)
class Transformer:
    """A decoder-only transformer, by its dimensions.

    Symbols of the book: L ``layers``, h ``hidden``, a ``heads``, g ``kv_heads``, d ``head_dim``, f ``ffn``,
    V ``vocab``, s sequence, b batch.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int                                        # the longest sequence it was made for
    gated: bool = True                                  # SwiGLU/GeGLU: three matrices instead of two
    norm: Literal["layernorm", "rmsnorm"] = "rmsnorm"   # layernorm: weight and bias (bias only if ``norm_bias``)
    norm_bias: bool = False
    norms_per_layer: int = 2
    positions: Literal["learned", "rope"] = "rope"
    tied: bool = False                                  # the head shares the embedding's matrix
    qkv_bias: bool = False
    out_bias: bool = False                              # of attention's output projection
    ffn_bias: bool = False
    qk_norm: Literal["none", "head", "width"] = "none"  # Qwen3: one weight a head_dim; OLMo 2: the whole width
    window: int = 0                                     # sliding window in tokens; 0: none
    window_layers: int = 0                              # how many layers have it
    moe: MoE | None = None
    mla: MLA | None = None
    source: str = ""
