"""What attention keeps of every token it has seen, so that the next one need not be recomputed.

``memory.inference`` adds the weights. The cache grows with batch and context; the weights do not.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from .errors import InfrabookError
from .ledger import Ledger, Row, ledger
from .models import Transformer
from .recipes import bytes_of
from .units import Exact, exact, positive

Latent: TypeAlias = Literal["latent", "expanded"]


def elements_per_token(model: Transformer, *, mla: Latent = "latent") -> int:
    """Elements that one layer keeps of one token.

    2·g·d for g key-value heads of d (multi-head attention has g = a, multi-query g = 1); with latent
    attention the latent and the shared rotary key, ``kv_rank + rope_dim``, unless ``mla="expanded"`` keeps
    a·(nope + rope) keys and a·value values as multi-head attention would (DeepSeek-V2, arXiv 2405.04434,
    section 2.1).
    """
    if model.mla is None:
        return 2 * model.kv_heads * model.head_dim
    if mla == "latent":
        return model.mla.kv_rank + model.mla.rope_dim
    if mla == "expanded":
        return model.heads * (model.mla.nope_dim + model.mla.rope_dim + model.mla.value_dim)
    raise InfrabookError(f"latent attention is cached 'latent' or 'expanded', and not {mla!r}")


def bytes_per_token(model: Transformer, dtype: str | int = "bf16", *, mla: Latent = "latent") -> Exact:
    """Bytes that all layers keep of one token: 2·L·g·d·bytes, windows left out of account.

    ``dtype`` is a name or a number of bits.

    >>> from infrabook import models
    >>> llama = models.get("llama-2-7b")
    >>> bytes_per_token(llama), bytes_per_token(llama, "fp8")
    (524288, 262144)
    """
    return exact(model.layers * elements_per_token(model, mla=mla) * bytes_of(dtype))


def cache(
    model: Transformer,
    *,
    batch: int = 1,
    context: int,
    dtype: str | int = "bf16",
    scales: tuple[tuple[str, int], ...] = (),
    mla: Latent = "latent",
    windows: bool = True,
    tensor_parallel: int = 1,
) -> Ledger:
    """The cache of ``batch`` sequences of ``context`` tokens each, on one of ``tensor_parallel`` ranks.

    Layers with a sliding window keep its last ``model.window`` tokens and no more, unless ``windows`` is
    False (an engine with one pool for all layers keeps everything). ``scales`` as in ``recipes.bytes_of``.
    A rank holds whole heads: with more ranks than key-value heads each still holds one, and a latent is kept
    by every rank.

    >>> from infrabook import models
    >>> llama = models.get("llama-2-7b")
    >>> cache(llama, context=4096).total == 2 * 2**30
    True
    """
    positive("batch", batch)
    positive("context", context)
    each = elements_per_token(model, mla=mla)
    if tensor_parallel != 1:
        each = _share(model, mla, tensor_parallel)
    size = each * bytes_of(dtype, scales)
    sliding = model.window_layers if model.window else 0
    symbols = "(r + r_rope)" if model.mla and mla == "latent" else "2·g·d" if not model.mla else "a·(d_k + d_v)"
    kept = min(context, model.window) if windows else context
    return ledger(
        f"{model.name}: KV cache of {batch} × {context:,} tokens",
        (
            Row("keys and values, full attention", exact((model.layers - sliding) * size * batch * context),
                "kv_cache", f"{symbols}·b·s × {model.layers - sliding} layers"),
            Row("keys and values, sliding window", exact(sliding * size * batch * kept),
                "kv_cache", f"{symbols}·b·min(s, {model.window:,}) × {sliding} layers"),
        ),
    )  # fmt: skip


def max_context(
    model: Transformer,
    memory_bytes: Exact,
    *,
    batch: int = 1,
    dtype: str | int = "bf16",
    mla: Latent = "latent",
) -> int:
    """The longest context whose cache fits ``memory_bytes``, windows left out of account; 0 if no token fits.

    >>> from infrabook import models
    >>> llama = models.get("llama-2-7b")
    >>> max_context(llama, 2 * 2**30)
    4096
    """
    positive("batch", batch)
    positive("memory_bytes", memory_bytes, whole=False, zero=True)
    return int(memory_bytes // (batch * bytes_per_token(model, dtype, mla=mla)))


def max_batch(
    model: Transformer,
    memory_bytes: Exact,
    *,
    context: int,
    dtype: str | int = "bf16",
    mla: Latent = "latent",
) -> int:
    """How many sequences of ``context`` tokens have room for their cache in ``memory_bytes``.

    >>> from infrabook import models
    >>> llama = models.get("llama-2-7b")
    >>> max_batch(llama, 60 * 10**9, context=4096)
    27
    """
    positive("memory_bytes", memory_bytes, whole=False, zero=True)
    return int(memory_bytes // cache(model, context=context, dtype=dtype, mla=mla).total)


def _share(model: Transformer, mla: Latent, tensor_parallel: int) -> int:
    positive("tensor_parallel", tensor_parallel)
    if model.heads % tensor_parallel:
        raise InfrabookError(f"{tensor_parallel} tensor-parallel ranks do not divide {model.heads} heads")
    whole = elements_per_token(model, mla=mla)
    if model.mla is None:
        return whole // model.kv_heads * -(-model.kv_heads // tensor_parallel)
    return whole if mla == "latent" else whole // tensor_parallel
