"""Attention's width cut into heads: what changes with their number, and what does not."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from .. import attention, flops, kv_cache, models, parameters
from ..explore import Choice, Number, explore, number
from ..models import Transformer
from ..units import exact, percent, scaled, show
from .views import plain

LAYER = replace(models.get("llama-2-7b"), name="one layer", layers=1, context=131_072)
DIVISORS = {"√d": 0.5, "nothing": 0.0, "d": 1.0}


@explore(
    hidden=Number.doubling(64, 16_384, label="hidden size"),
    heads=Number.doubling(1, 128),
    kv_heads=Number.doubling(1, 128, label="key and value heads"),
    head_dim=Number.doubling(8, 8192, label="width of a head"),
    sequence=Number.doubling(16, 131_072, unit="tokens"),
    ffn=Number.doubling(64, 65_536, label="width of the feed-forward layer"),
    causal=Choice({"all of them": "full", "the causal half": "half"}, label="scores counted"),
    divisor=Choice(DIVISORS, label="scores are divided by"),
)
def cut_into_heads(
    hidden: int = 4096, heads: int = 32, kv_heads: int = 32, head_dim: int = 128, sequence: int = 4096,
    ffn: int = 11_008, causal: flops.Causal = "full", divisor: float = 0.5,
) -> str:  # fmt: skip
    """One layer's attention, beside one head that is as wide as all of them."""
    here = replace(LAYER, hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim, ffn=ffn)
    wide = attention.same_shape(here, heads=1)
    columns = [_costs(model, sequence, causal) for model in (here, wide)]
    rows = "".join(
        f'<tr><th scope="row">{name}</th>' + "".join(f'<td class="amount">{costs[name]}</td>' for costs in columns)
        + "</tr>"
        for name in columns[0]
    )  # fmt: skip
    cached = kv_cache.cache(here, context=sequence).total
    crossing = attention.overtakes_feed_forward(here) * (2 if causal == "half" else 1)
    variance = head_dim / head_dim ** (2 * divisor)
    seen = attention.keys_seen(sequence, variance)
    looks = f"about {plain(seen)} of {sequence:,} keys" if seen > 1 else f"one or a few of {sequence:,} keys"
    scores = attention.score_bytes(heads=heads, sequence=sequence)
    times = "as much as one wide head" if heads == 1 else f"{heads:,} times one wide head's"
    return (
        f'<p class="explorer-answer">{number(show(scores, "MiB"), scores)} of scores a layer, {times}. '
        f"Keys and values are {show(cached, 'MiB')}, {percent(Fraction(kv_heads, heads), 1)} of what they would be "
        f"with {'one pair' if heads == 1 else 'a pair'} for each head.</p>"
        '<table class="ledger"><thead><tr><th scope="col">one layer</th>'
        f'<th scope="col" class="amount">{heads:,} × {head_dim:,}</th>'
        f'<th scope="col" class="amount">1 × {heads * head_dim:,}</th></tr></thead><tbody>{rows}</tbody></table>'
        f'<p class="explorer-note">Scores and values cost as much as the feed-forward layer at {round(crossing):,} '
        f"tokens. With queries and keys of unit variance scores have a variance of {plain(variance)}, and a query "
        f"looks at {looks}. Bytes are of BF16; scores only where they are written out.</p>"
    )


def _costs(model: Transformer, sequence: int, causal: flops.Causal) -> dict[str, str]:
    """What the table says of one way to cut, a row each."""
    held = sum(row.value for row in parameters.per_layer(model) if row.name.startswith("attention "))
    work = flops.forward(model, sequence=sequence, causal=causal, head=False)
    inner = Fraction(work[flops.SCORES]) + work[flops.VALUES]
    products = sum(Fraction(row.value) for row in work if row.name.startswith("attention ")) - inner
    return {
        "parameters of attention": f"{held:,}",
        "projections": scaled(exact(products), "FLOP"),
        "scores and values": scaled(exact(inner), "FLOP"),
        "bytes of scores": show(attention.score_bytes(heads=model.heads, sequence=sequence), "MiB"),
        "KV cache": show(kv_cache.cache(model, context=sequence).total, "MiB"),
        "softmaxes a token": f"{model.heads:,}",
    }
