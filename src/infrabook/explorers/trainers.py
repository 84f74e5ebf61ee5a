"""What each form of the trainer has to do, predicted from a corpus's size."""

from __future__ import annotations

import math

from ..errors import InfrabookError
from ..explore import Choice, Number, explore, number
from ..units import scaled
from .views import plain

FORMS = {
    "recount": "all pairs, again for every merge",
    "word table": "the pairs of distinct words, for every merge",
    "incremental": "those once, then what a merge changes",
    "heap": "the same, without looking for the best pair",
}


def work(total: float, distinct: float, length: float, merges: int, pairs: float) -> dict[str, float]:
    """Elementary operations of each form, about: pairs counted, words asked, candidates compared.

    ``total`` and ``distinct`` words of ``length`` bytes, ``pairs`` different pairs. A merge touches the words that
    hold its pair, which by Zipf's law are about a ``1 / k``-th at the k-th merge: the harmonic number over all. The
    twelfth is a fit to the counts of the chapter's lab, which holds the prediction against three of them.
    """
    touched = distinct * (0.5772 + math.log(merges)) * length / 12
    once = distinct * length
    return {
        "recount": merges * (total * length + pairs),
        "word table": merges * (once + pairs),
        "incremental": once + merges * (distinct + pairs) + 2 * length * touched,
        "heap": once + 2 * length * touched + merges * math.log(max(2.0, pairs)),
    }


@explore(
    words=Number.among([10**k * step for k in range(4, 10) for step in (1, 2, 5)], label="words in the corpus"),
    distinct=Number.among([10**k * step for k in range(3, 7) for step in (1, 2, 5)], label="distinct among them"),
    length=Number(2, 16, 0.5, unit="bytes", label="length of a word"),
    merges=Number.among([100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 32_000, 50_000, 100_000]),
    rate=Choice({"Python, ten million a second": 1e7, "compiled, three hundred million": 3e8}, label="operations"),
)
def trainer_work(
    words: int = 500_000_000, distinct: int = 50_000, length: float = 5.0, merges: int = 10_000, rate: float = 1e7
) -> str:
    """The work of each trainer."""
    if distinct > words:
        raise InfrabookError(f"{distinct:,} distinct words cannot be among {words:,}")
    found = work(words, distinct, length, merges, min(60_000.0, 8.0 * distinct**0.7))
    longest = max(found.values())
    rows = "".join(
        f'<tr><th scope="row">{name}<br/><small>{FORMS[name]}</small></th>'
        f'<td class="amount">{scaled(round(value), "")}</td><td class="amount">{_time(value / rate)}</td>'
        f'<td class="amount">{plain(longest / value, 2)}</td></tr>'
        for name, value in found.items()
    )
    factor = longest / found["heap"]
    less = number(f"{plain(factor, 2)} times", float(f"{factor:.9g}"))
    return (
        f'<p class="explorer-answer">{less} less work from the first form to the last.</p>'
        '<table class="ledger"><thead><tr><th scope="col">trainer</th><th scope="col" class="amount">operations</th>'
        '<th scope="col" class="amount">about</th><th scope="col" class="amount">of the first</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
        '<p class="explorer-note">Orders of magnitude: merges make words shorter, and how many words a merge touches '
        "depends on the text.</p>"
    )


def _time(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{plain(seconds / size, 2)} {unit}"
    return f"{plain(seconds, 2)} s"
