"""What the two ends of a model weigh, by vocabulary and width."""

from __future__ import annotations

from html import escape

from .. import embedding, parameters, recipes
from ..explore import Check, Choice, Number, explore, number
from ..ledger import Ledger, Row
from ..units import percent, scaled, show

RECIPES = [name for name in recipes.names() if not any(t.per != "parameter" for t in recipes.get(name).tensors)]


@explore(
    vocab=Number.among(
        [256, 2048, 8192, 32_000, 50_257, 100_277, 128_256, 151_936, 256_000], unit="tokens", label="vocabulary"
    ),
    width=Number.doubling(64, 16_384),
    layers=Number(1, 128),
    tied=Check(label="head tied to the embedding"),
    multiple=Number.among([1, 8, 64, 128, 512, 1024], unit="rows", label="padded to a multiple of"),
    recipe=Choice(RECIPES),
    tokens=Number.doubling(1, 1_048_576, unit="tokens", label="batch"),
)
def both_ends(
    vocab: int = 128_256, width: int = 2048, layers: int = 16, tied: bool = False, multiple: int = 64,
    recipe: str = "bf16-adamw", tokens: int = 4096,
) -> str:  # fmt: skip
    """Parameters and bytes of the embedding and the head, and their share of a model."""
    rows = parameters.padded_vocab(vocab, multiple)
    table = rows * width
    parts = [("embedding", table), ("head", 0 if tied else table), ("layers", 12 * layers * width * width)]
    account = Ledger("parameters", tuple(Row(name, size) for name, size in parts), "parameters")
    each = recipes.bytes_per_parameter(recipe)
    ends = account["embedding"] + account["head"]
    body = "".join(
        f'<tr><th scope="row">{escape(row.name)}{", the same matrix" if row.name == "head" and tied else ""}</th>'
        f'<td class="amount">{scaled(row.value, "")}</td><td class="share">{percent(row.value, account.total)}</td>'
        f'<td class="amount">{show(row.value * each)}</td></tr>'
        for row in account
    )
    total = (
        f'<tr class="total"><th scope="row">total</th><td class="amount">{scaled(account.total, "")}</td>'
        f'<td class="share">100.0%</td><td class="amount">{show(account.total * each)}</td></tr>'
    )
    head = (
        '<tr><th scope="col">part</th><th scope="col" class="amount">parameters</th>'
        '<th scope="col" class="share">share</th><th scope="col" class="amount">with states</th></tr>'
    )
    product = embedding.one_hot_flop(tokens, rows, width)
    moved, gathered = embedding.one_hot_product(tokens, rows, width), embedding.look_up(tokens, width)
    touched, padding = min(tokens, vocab), (rows - vocab) * width * (1 if tied else 2)
    return (
        f'<p class="explorer-answer">{number(percent(ends, account.total), ends)} of the parameters are in the two '
        f"ends{', one matrix' if tied else ''}: {scaled(ends, '')}, and {show(ends * each)} with gradients and "
        f"optimizer states.</p>"
        f'<table class="ledger"><caption>Parameters and bytes</caption><thead>{head}</thead><tbody>{body}</tbody>'
        f"<tfoot>{total}</tfoot></table>"
        f'<p class="explorer-note">For {_many(tokens, "token")} in BF16 the look-up moves '
        f"{scaled(gathered.total, 'B')} and computes nothing; as a product it would move {scaled(moved.total, 'B')} "
        f"and take {scaled(product, 'FLOP')}. At most {touched:,} of {rows:,} rows get a gradient from the look-up. "
        f"Padding adds {_many(rows - vocab, 'row')}, {scaled(padding, '')} parameters. The layers are counted as "
        f"12·L·h².</p>"
    )


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
