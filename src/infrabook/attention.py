"""How many keys a query looks at before anything is learned, and from which length on scores cost more than the rest.

``same_shape`` changes only how attention's width is cut into heads. What the products inside move is
``attention_io``'s question, what autograd keeps of them ``activations``', and the cache is ``kv_cache``'s.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

from . import flops
from .errors import InfrabookError
from .models import Transformer
from .recipes import bytes_of
from .units import Exact, exact, positive


def same_shape(model: Transformer, *, heads: int, kv_heads: int | None = None) -> Transformer:
    """``model`` with its a·d queries cut into ``heads`` heads; each has keys and values unless ``kv_heads`` says less.

    >>> from infrabook.models import get
    >>> same_shape(get("llama-2-7b"), heads=1).head_dim
    4096
    """
    positive("heads", heads)
    width = model.heads * model.head_dim
    if width % heads:
        raise InfrabookError(f"{heads} heads do not divide a width of {width:,}")
    groups = heads if kv_heads is None else kv_heads
    return replace(model, heads=heads, kv_heads=groups, head_dim=width // heads)


def score_bytes(*, heads: int, sequence: int, batch: int = 1, dtype: str | int = "bf16") -> Exact:
    """Bytes of one layer's scores where they are written out, b·a·s² elements; the softmax makes as many again.

    >>> score_bytes(heads=32, sequence=4096) == 2**30
    True
    """
    for name, value in (("heads", heads), ("sequence", sequence), ("batch", batch)):
        positive(name, value)
    return exact(batch * heads * sequence**2 * bytes_of(dtype))


def overtakes_feed_forward(model: Transformer) -> Fraction:
    """The length at which attention's s² products, counted in full, equal the feed-forward layer's.

    Counted by half, for the causal mask's sake, they get there at twice the length.

    >>> from infrabook.models import get
    >>> overtakes_feed_forward(get("llama-2-7b"))
    Fraction(16512, 1)
    """
    if model.moe:
        raise InfrabookError(f"{model.name} has experts, of which a token sees a few: take a dense model")
    one = flops.forward(replace(model, window=0, window_layers=0), sequence=1, head=False)
    feed_forward = sum(Fraction(row.value) for row in one if row.name.startswith("feed-forward"))
    return feed_forward / (Fraction(one[flops.SCORES]) + one[flops.VALUES])


# -- random scores ---------------------------------------------------------------------------------------------
def keys_seen(keys: int, variance: float) -> float:
    """exp of the entropy, in nats, of a softmax over ``keys`` independent normal scores: how many a query looks at.

    ln(keys) − variance/2 is the entropy while the variance is below ``freezing``; from there on it is a few keys,
    here 1. For infinitely many keys (Derrida's random energy model, Phys. Rev. B 24, 2613, 1981).

    >>> keys_seen(4096, 0), round(keys_seen(4096, 1)), keys_seen(4096, 128)
    (4096.0, 2484, 1.0)
    """
    positive("keys", keys)
    positive("variance", variance, whole=False, zero=True)
    return max(1.0, keys * math.exp(-variance / 2))


def freezing(keys: int) -> float:
    """The variance of scores above which a few keys get everything, however many there are: 2·ln(keys).

    >>> round(freezing(4096), 2)
    16.64
    """
    positive("keys", keys)
    return 2 * math.log(keys)


def frozen_share(keys: int, variance: float) -> float:
    """The sum of squared probabilities above ``freezing``, 1 − √(freezing/variance); below it vanishes with the keys.

    >>> round(frozen_share(4096, 128), 2), frozen_share(4096, 1)
    (0.64, 0.0)
    """
    positive("variance", variance, whole=False)
    return max(0.0, 1 - math.sqrt(freezing(keys) / variance))
