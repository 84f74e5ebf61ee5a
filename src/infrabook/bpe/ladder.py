"""The trainer again and again, each form leaving out work that the one before proved unnecessary.

``recount`` and ``word_table`` count every pair again for every merge, ``incremental`` corrects the counts, ``indexed``
looks only at words that hold the pair, ``buckets`` looks for the best pair among the most frequent ones, ``heap``
without looking at all. All six give the same merges, with the counts of what they did in ``Work``. The last two forms,
counting a file with several processes and a compiler, are ``pretokens.count_file`` and ``compiled``; what is used is
``merging``.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from ..units import Exact, exact, positive
from .merging import Merge
from .pretokens import pretokens

Word: TypeAlias = tuple[bytes, ...]
Pair: TypeAlias = tuple[bytes, bytes]


@dataclass
class Work:
    """What a trainer did: words looked at, pairs counted, candidates compared to find the most frequent pair."""

    words: int = 0
    pairs: int = 0
    compared: int = 0
    merges: list[Merge] = field(default_factory=list)


def joined(word: Word, pair: Pair) -> Word:
    """``word`` with each ``pair`` as one token, from the left.

    >>> joined((b"a", b"a", b"a"), (b"a", b"a"))
    (b'aa', b'a')
    """
    found: list[bytes] = []
    at = 0
    while at < len(word):
        if at + 1 < len(word) and (word[at], word[at + 1]) == pair:
            found.append(word[at] + word[at + 1])
            at += 2
        else:
            found.append(word[at])
            at += 1
    return tuple(found)


def best(pairs: Mapping[Pair, int], work: Work) -> Pair | None:
    """The most frequent pair, of several the greatest; None if none is left."""
    work.compared += len(pairs)
    found = max(pairs, key=lambda pair: (pairs[pair], pair), default=None)
    return found if found is not None and pairs[found] > 0 else None


def letters(word: str) -> Word:
    """The bytes of a word, one by one."""
    return tuple(bytes([byte]) for byte in word.encode())


# -- 1 -----------------------------------------------------------------------------------------------------------
def recount(texts: Iterable[str], merges: int) -> Work:
    """Every merge counts all pairs of the whole text."""
    words = [letters(word) for text in texts for word in pretokens(text)]
    work = Work()
    while len(work.merges) < merges:
        pairs: Counter[Pair] = Counter()
        for word in words:
            pairs.update(pairwise(word))
            work.words += 1
            work.pairs += len(word) - 1
        pair = best(pairs, work)
        if pair is None:
            break
        work.merges.append(pair)
        words = [joined(word, pair) for word in words]
    return work


# -- 2 -----------------------------------------------------------------------------------------------------------
def word_table(counts: Mapping[str, int], merges: int) -> Work:
    """A word that occurs a thousand times is counted once, times a thousand."""
    words = {letters(word): count for word, count in counts.items()}
    work = Work()
    while len(work.merges) < merges:
        pairs: Counter[Pair] = Counter()
        for word, count in words.items():
            work.words += 1
            work.pairs += len(word) - 1
            for pair in pairwise(word):
                pairs[pair] += count
        pair_or_none = best(pairs, work)
        if pair_or_none is None:
            break
        work.merges.append(pair_or_none)
        words = {joined(word, pair_or_none): count for word, count in words.items()}
    return work


# -- 3 -----------------------------------------------------------------------------------------------------------
def incremental(counts: Mapping[str, int], merges: int) -> Work:
    """Counts are kept, and corrected for words that hold the pair; every word is still asked whether it does."""
    words, times = [letters(word) for word in counts], list(counts.values())
    work = Work()
    pairs = _counted(words, times, work)
    while len(work.merges) < merges:
        pair = best(pairs, work)
        if pair is None:
            break
        work.merges.append(pair)
        for number, word in enumerate(words):
            work.words += 1
            if pair in pairwise(word):
                words[number] = _corrected(word, pair, times[number], pairs, work)
        del pairs[pair]
    return work


def _counted(words: Sequence[Word], times: Sequence[int], work: Work) -> Counter[Pair]:
    pairs: Counter[Pair] = Counter()
    for word, count in zip(words, times, strict=True):
        work.words += 1
        work.pairs += len(word) - 1
        for pair in pairwise(word):
            pairs[pair] += count
    return pairs


def _corrected(word: Word, pair: Pair, count: int, pairs: Counter[Pair], work: Work) -> Word:
    after = joined(word, pair)
    work.pairs += len(word) + len(after) - 2
    for one in pairwise(word):
        pairs[one] -= count
    for one in pairwise(after):
        pairs[one] += count
    return after


# -- 4 -----------------------------------------------------------------------------------------------------------
def indexed(counts: Mapping[str, int], merges: int) -> Work:
    """Each pair knows the words that may hold it, so no other is asked."""
    words, times = [letters(word) for word in counts], list(counts.values())
    work = Work()
    pairs = _counted(words, times, work)
    where = _index(words)
    while len(work.merges) < merges:
        pair = best(pairs, work)
        if pair is None:
            break
        work.merges.append(pair)
        _merge_where(pair, words, times, pairs, where, work)
        del pairs[pair]
    return work


def _index(words: Sequence[Word]) -> defaultdict[Pair, set[int]]:
    where: defaultdict[Pair, set[int]] = defaultdict(set)
    for number, word in enumerate(words):
        for pair in pairwise(word):
            where[pair].add(number)
    return where


def _merge_where(
    pair: Pair, words: list[Word], times: Sequence[int], pairs: Counter[Pair], where: defaultdict[Pair, set[int]],
    work: Work,
) -> set[Pair]:  # fmt: skip
    """Merge ``pair`` in the words that may hold it; the pairs that this made."""
    made: set[Pair] = set()
    token = pair[0] + pair[1]
    for number in where.pop(pair):
        work.words += 1
        if pair not in pairwise(words[number]):
            continue
        words[number] = _corrected(words[number], pair, times[number], pairs, work)
        for one in pairwise(words[number]):
            if token in one:
                where[one].add(number)
                made.add(one)
    return made


# -- 5 -----------------------------------------------------------------------------------------------------------
def buckets(counts: Mapping[str, int], merges: int) -> Work:
    """Pairs lie in buckets, each for counts twice as large as in the one below; the highest alone is looked through."""
    words, times = [letters(word) for word in counts], list(counts.values())
    work = Work()
    pairs = _counted(words, times, work)
    where = _index(words)
    bucket: defaultdict[int, set[Pair]] = defaultdict(set)
    for pair, count in pairs.items():
        bucket[count.bit_length()].add(pair)
    highest = max(bucket, default=0)
    while len(work.merges) < merges and highest:
        held = bucket[highest]
        for pair in [one for one in held if pairs[one].bit_length() < highest]:  # it has become rarer since
            held.discard(pair)
            bucket[pairs[pair].bit_length()].add(pair)
            work.compared += 1
        found = best({one: pairs[one] for one in held}, work)
        if found is None:
            highest -= 1
            continue
        work.merges.append(found)
        made = _merge_where(found, words, times, pairs, where, work)
        held.discard(found)
        for pair in made:
            bucket[pairs[pair].bit_length()].add(pair)
        del pairs[found]
    return work


# -- 6 -----------------------------------------------------------------------------------------------------------
class _Greatest:
    """A pair that sorts before those that are smaller, for a heap that gives the smallest."""

    __slots__ = ("pair",)

    def __init__(self, pair: Pair) -> None:
        self.pair = pair

    def __lt__(self, other: _Greatest) -> bool:
        return self.pair > other.pair


def heap(counts: Mapping[str, int], merges: int) -> Work:
    """The most frequent pair is at the top of a heap, or was: an entry that has become rarer is put back."""
    words, times = [letters(word) for word in counts], list(counts.values())
    work = Work()
    pairs = _counted(words, times, work)
    where = _index(words)
    waiting = [(-count, _Greatest(pair)) for pair, count in pairs.items()]
    heapq.heapify(waiting)
    while len(work.merges) < merges and waiting:
        negative, entry = heapq.heappop(waiting)
        work.compared += 1
        now = pairs.get(entry.pair, 0)
        if now != -negative:
            if now > 0:
                heapq.heappush(waiting, (-now, entry))
            continue
        if now <= 0:
            break
        work.merges.append(entry.pair)
        made = _merge_where(entry.pair, words, times, pairs, where, work)
        pairs.pop(entry.pair, None)
        for pair in made:
            heapq.heappush(waiting, (-pairs[pair], _Greatest(pair)))
    return work


# -- a prediction ------------------------------------------------------------------------------------------------
def predicted_pairs(*, total: int, distinct: int, merges: int, touched: Exact = 0) -> dict[str, Exact]:
    """Pairs that each trainer counts, about: ``total`` pairs in the text, ``distinct`` in its distinct words.

    Recounting costs its pairs for every merge; correcting costs them once, and then twice the pairs of the words that
    hold what is merged, ``touched`` of them a merge. Merges make words shorter, which this leaves out.

    >>> predicted_pairs(total=1000, distinct=100, merges=50, touched=4)["word_table"]
    5000
    """
    for name, value in (("total", total), ("distinct", distinct), ("merges", merges)):
        positive(name, value)
    later = exact(distinct + 2 * merges * touched)
    return {
        "recount": total * merges, "word_table": distinct * merges, "incremental": later, "indexed": later,
        "buckets": later, "heap": later,
    }  # fmt: skip
