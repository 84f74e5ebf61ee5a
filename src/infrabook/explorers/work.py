"""Where the work of a forward pass goes, part by part, and how the parts trade places with length."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from html import escape

from .. import flops, models
from ..explore import Check, Choice, Number, Text, explore, number
from ..ledger import Row, ledger
from ..models import Transformer
from ..units import exact, percent, scaled
from .views import share_table

PARTS: dict[str, Callable[[str], bool]] = {
    "attention projections": lambda name: name.startswith("attention ") and name not in (flops.SCORES, flops.VALUES),
    "attention scores and values": lambda name: name in (flops.SCORES, flops.VALUES),
    "feed-forward": lambda name: name.startswith(("feed-forward", "experts", "shared experts", "router")),
    "head": lambda name: name == "head",
}


@explore(
    model=Choice(models.names()),
    sequence=Number.doubling(128, 131_072, unit="tokens"),
    causal=Choice({"all scores": "full", "the causal half": "half"}, label="scores counted"),
    head=Check(label="count the head"),
    config=Text(
        label="another model: paste its config.json", rows=7, placeholder='{"model_type": "gpt2", "n_embd": 1600, …'
    ),
)
def work_by_part(
    model: str = "gpt2-xl", sequence: int = 16384, causal: flops.Causal = "full", head: bool = True, config: str = ""
) -> str:
    """The work of a forward pass by part."""
    shape = Transformer.from_hf_config(config, name="the pasted model") if config else models.get(model)
    every = flops.forward(shape, sequence=sequence, causal=causal, head=head)
    sums = {
        part: sum((Fraction(row.value) for row in every if belongs(row.name)), Fraction())
        for part, belongs in PARTS.items()
    }
    rows = [Row(part, exact(value)) for part, value in sums.items()]
    account = ledger(f"{shape.name}: forward pass", rows, unit="FLOP")
    quadratic = account["attention scores and values"]
    crossing = flops.crossover(shape) * (2 if causal == "half" else 1)
    six_n = flops.per_token(shape, sequence=sequence, convention="6N")
    ratio = percent(six_n * sequence, 3 * every.total, 0)
    return (
        f'<p class="explorer-answer">{number(scaled(every.total, "FLOP"), every.total)} for {sequence:,} tokens of '
        f"{escape(shape.name)}, {percent(quadratic, every.total)} of them scores and values.</p>"
        + share_table(account)
        + f'<p class="explorer-note">Scores and values equal the rest of the layers at {round(crossing):,} tokens. '
        f"The shortcut 6N comes to {ratio} of three times this work.</p>"
    )
