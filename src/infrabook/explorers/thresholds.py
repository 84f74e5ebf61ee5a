"""A funnel's thresholds over the crawl of ``crawl``: what goes on, what is lost, which duplicates stay.

The texts' signals, the similarity of each pair and the minima on which signatures agree stand in ``data/funnel.toml``
(``tools/funnel_table.py`` writes it), so that nothing is hashed here.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from html import escape
from typing import NamedTuple

from .. import lookup
from ..dataset import candidate_probability, clusters
from ..errors import InfrabookError
from ..explore import Number, explore, number
from ..units import exact
from .views import plain

MINIMA = 128


class Text(NamedTuple):
    """A distinct text: ``origin`` is the number of the book's text that it copies, -1 for rubbish, -2 for others."""

    origin: int
    words: int
    function_words: int
    lettered: int
    repeated: int
    runs: int
    ok: int  # passes the rules that have no control
    tokens: tuple[int, ...]  # of each page that has it, the earliest first


class Pair(NamedTuple):
    """Two similar texts, i before j: how similar, and on which minima their signatures agree, a bit each."""

    i: int
    j: int
    similarity: Fraction
    agree: int


class Table(NamedTuple):
    """The crawl, as far as the funnel looks at it."""

    originals: int
    undecodable: int
    texts: tuple[Text, ...]
    pairs: tuple[Pair, ...]


@cache
def table() -> Table:
    """What ``tools/funnel_table.py`` wrote."""
    found = lookup.toml("funnel")
    texts = []
    for line in found["texts"].splitlines():
        origin, words, function_words, lettered, repeated, runs, ok, *tokens = map(int, line.split())
        texts.append(Text(origin, words, function_words, lettered, repeated, runs, ok, tuple(tokens)))
    pairs = []
    for line in found["pairs"].splitlines():
        i, j, shared, either, agree = line.split()
        pairs.append(Pair(int(i), int(j), Fraction(int(shared), int(either)), int(agree, 16)))
    return Table(found["originals"], found["undecodable"], tuple(texts), tuple(pairs))


@explore(
    function_words=Number(0, 60, 1, "% of words", label="English function words, at least"),
    words=Number(0, 200, 1, "words", label="length, at least"),
    lettered=Number(0, 100, 1, "% of words", label="words with a letter, at least"),
    repeated=Number(0, 100, 1, "% of runs", label="repeated runs of five words, at most"),
    threshold=Number(0.15, 1, 0.05, label="near-duplicates: similarity, at least"),
    bands=Number(1, 128, 1, label="bands b"),
    rows=Number(1, 32, 1, label="minima in a band r"),
)
def funnel(
    function_words: int = 20, words: int = 50, lettered: int = 80, repeated: int = 30, threshold: float = 0.4,
    bands: int = 32, rows: int = 4,
) -> str:  # fmt: skip
    """What a funnel keeps of a crawl, under other thresholds."""
    if bands * rows > MINIMA:
        raise InfrabookError(
            f"{bands} bands of {rows} need signatures of {bands * rows} minima, and these have {MINIMA}: take fewer"
        )
    data, least = table(), exact(threshold)
    texts = data.texts
    everything = list(range(len(texts)))
    english = [i for i in everything if 100 * texts[i].function_words >= function_words * max(1, texts[i].words)]
    good = [i for i in english if _good(texts[i], words, lettered, repeated)]
    alive = set(good)
    held = [pair for pair in data.pairs if pair.i in alive and pair.j in alive]
    proposed = [pair for pair in held if _candidate(pair.agree, bands, rows)]
    found = [pair for pair in proposed if pair.similarity >= least]
    similar = sum(pair.similarity >= least for pair in held)
    cluster = clusters(len(texts), [(pair.i, pair.j) for pair in found])
    kept = [i for i in good if cluster[i] == i]
    stages = [
        ("fetched", _pages(everything) + data.undecodable, _tokens(everything)),
        ("decoded", _pages(everything), _tokens(everything)),
        ("English", _pages(english), _tokens(english)),
        ("good enough", _pages(good), _tokens(good)),
        ("no exact duplicates", len(good), sum(texts[i].tokens[0] for i in good)),
        ("no near-duplicates", len(kept), sum(texts[i].tokens[0] for i in kept)),
    ]
    of_book = [texts[i].origin for i in kept if texts[i].origin >= 0]
    lost, copies = data.originals - len(set(of_book)), len(of_book) - len(set(of_book))
    rubbish = sum(texts[i].origin == -1 for i in kept)
    tokens = stages[-1][2]
    answer = (
        f"{number(f'{tokens:,} tokens', tokens)} in {len(kept)} documents come out. {copies} of them are copies of "
        f"another that is kept too, and {rubbish} rubbish. Of the book’s {data.originals} texts, {lost} are lost."
    )
    return (
        f'<p class="explorer-answer">{answer}</p>{_stages(stages)}'
        '<p class="explorer-note">Pairs of good documents, by their similarity:</p>'
        f"{_curve(held, proposed, bands, rows)}"
        f'<p class="explorer-note">Pairs of good documents with a similarity of {plain(threshold)} or more: {similar}. '
        f"MinHash finds {len(found)} of them. It also proposes {len(proposed) - len(found)} pairs with less, down to "
        "0.15, which are compared for nothing.</p>"
    )


def _good(text: Text, words: int, lettered: int, repeated: int) -> bool:
    return bool(
        text.ok
        and text.words >= words
        and 100 * text.lettered >= lettered * max(1, text.words)
        and 100 * text.repeated <= repeated * text.runs
    )


def _candidate(agree: int, bands: int, rows: int) -> bool:
    """Whether all minima of some band agree."""
    band = (1 << rows) - 1
    return any((agree >> place * rows) & band == band for place in range(bands))


def _pages(kept: list[int]) -> int:
    return sum(len(table().texts[i].tokens) for i in kept)


def _tokens(kept: list[int]) -> int:
    return sum(sum(table().texts[i].tokens) for i in kept)


def _stages(stages: list[tuple[str, int, int]]) -> str:
    most = max(1, stages[0][2])
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="bar"><i style="width:{100 * tokens / most:.2f}%"></i></td>'
        f'<td class="amount">{documents:,}</td><td class="amount">{tokens:,}</td></tr>'
        for name, documents, tokens in stages
    )
    return (
        '<table class="ledger shares"><caption>what is left after each step</caption><thead><tr>'
        '<th scope="col">left</th><th scope="col" class="bar">tokens</th><th scope="col" class="amount">documents</th>'
        f'<th scope="col" class="amount">tokens</th></tr></thead><tbody>{rows}</tbody></table>'
    )


def _curve(held: list[Pair], proposed: list[Pair], bands: int, rows: int) -> str:
    """Pairs by similarity: how many there are, how many the S-curve promises, how many were proposed."""
    lines = ""
    for tenth in range(2, 10):
        inside, found = (
            [pair for pair in pairs if min(9, int(10 * pair.similarity)) == tenth] for pairs in (held, proposed)
        )
        promised = sum(candidate_probability(pair.similarity, bands=bands, rows=rows) for pair in inside)
        lines += (
            f'<tr><th scope="row">{tenth / 10:.1f} to {tenth / 10 + 0.1:.1f}</th><td class="amount">{len(inside)}</td>'
            f'<td class="amount">{promised:.1f}</td><td class="amount">{len(found)}</td></tr>'
        )
    return (
        '<table class="ledger steps"><caption>pairs of documents by similarity</caption><thead><tr>'
        '<th scope="col">similarity</th><th scope="col" class="amount">pairs</th>'
        '<th scope="col" class="amount">S-curve</th><th scope="col" class="amount">proposed</th></tr></thead>'
        f"<tbody>{lines}</tbody></table>"
    )
