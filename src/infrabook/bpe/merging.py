"""Merges from counts of pre-tokens: the trainer that is used. ``ladder`` arrives at it step by step.

A word is a string with one code point a token, so that joining a pair is ``str.replace`` and finding it is
``str.partition``, both at C's speed. Each pair knows the words that may hold it, and a heap knows the most frequent
pair: what a merge makes can only become rarer afterwards, so an entry is corrected when it comes to the top.
"""

from __future__ import annotations

import gc
import heapq
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ..errors import InfrabookError
from ..units import positive
from . import pretokens

if TYPE_CHECKING:
    from .compiled import Words

Merge: TypeAlias = tuple[bytes, bytes]
Vocabulary: TypeAlias = dict[int, bytes]
Ties: TypeAlias = Literal["bytes", "huggingface", "rustbpe"]

_INVERTED = bytes(255 - i for i in range(256))
# Bytes in the order of the characters that GPT-2 writes them as: printable ones stand for themselves.
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTE_LEVEL_ORDER = _PRINTABLE + [byte for byte in range(256) if byte not in _PRINTABLE]


def train(
    source: str | os.PathLike[str] | Iterable[str], vocab_size: int, special_tokens: Sequence[str] = ("<|endoftext|>",),
    *, pattern: str = "gpt2", workers: int = 0, ties: Ties = "bytes", compiled: bool = False,
    progress: bool = False,
) -> tuple[Vocabulary, list[Merge]]:  # fmt: skip
    """A vocabulary of ``vocab_size`` tokens, id -> bytes, and the merges in the order in which they were learned.

    ``source`` is the path of a UTF-8 file, or texts. Ids are special tokens first, then the 256 bytes, then one for
    each merge. If the text is exhausted there are fewer; the special tokens and the bytes are always there.

    ``pattern``: "gpt2", "gpt4", or a pattern of one's own for ``regex``. ``workers`` count a file (0: one a core).
    ``ties``: of pairs that are equally frequent, "bytes" takes the lexicographically greatest pair of byte strings
    (the rule of Stanford's CS336), "huggingface" and "rustbpe" the smallest pair of ids as these libraries number
    bytes. ``compiled`` counts (for GPT-2's pattern) and merges with numba, with the same result.

    >>> train(["low low low low low lower lower widest widest widest" + " newest" * 6], 260, [])[1]
    [(b's', b't'), (b'e', b'st'), (b'o', b'w'), (b'l', b'ow')]
    """
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, int) or vocab_size < 1:
        raise InfrabookError(f"vocab_size has to be a whole number greater than 0, and is {vocab_size!r}")
    pretokens.checked(special_tokens)
    if isinstance(source, bytes) or not isinstance(source, str | os.PathLike | Iterable):
        raise InfrabookError(f"source has to be the path of a file or texts, and is a {type(source).__name__}")
    counts: Words | pretokens.Counts = {}
    if isinstance(source, str | os.PathLike):
        if compiled and pattern == "gpt2":
            counts = _fast().count_file(source, special_tokens, workers=workers, progress=progress)
        else:
            counts = pretokens.count_file(source, special_tokens, pattern=pattern, workers=workers, progress=progress)
    else:
        counts = {}
        for text in source:
            if not isinstance(text, str):
                raise InfrabookError(
                    f"source has to be the path of a file or texts, and has a {type(text).__name__} in it"
                )
            for word, count in pretokens.count_text(text, special_tokens, pattern=pattern).items():
                counts[word] = counts.get(word, 0) + count
    room = max(0, vocab_size - 256 - len(special_tokens))
    merges = train_counts(counts, room, ties=ties, compiled=compiled, progress=progress)
    return vocabulary(merges, special_tokens), merges


def vocabulary(merges: Sequence[Merge], special_tokens: Sequence[str] = ()) -> Vocabulary:
    """Special tokens, bytes and merges with their ids."""
    tokens = [token.encode() for token in special_tokens] + [bytes([byte]) for byte in range(256)]
    return dict(enumerate(tokens + [first + second for first, second in merges]))


def train_counts(
    counts: Mapping[str, int] | Mapping[bytes, int] | Words, merges: int, *, ties: Ties = "bytes",
    compiled: bool = False, progress: bool = False,
) -> list[Merge]:  # fmt: skip
    """At most ``merges`` merges from pre-tokens and how often each occurs.

    >>> train_counts({"low": 5, "lower": 2, "widest": 3, "newest": 6}, 6)[3:]
    [(b'l', b'ow'), (b'w', b'est'), (b'n', b'e')]
    """
    positive("merges", merges, zero=True)
    if ties not in ("bytes", "huggingface", "rustbpe"):
        raise InfrabookError(f"ties can be bytes, huggingface or rustbpe, and is {ties!r}")
    with _told(merges, progress) as told:
        if compiled or not isinstance(counts, Mapping):
            found: list[Merge] = _fast().merge_counts(
                counts, merges, order=_order(ties), by_bytes=ties == "bytes", told=told
            )
            return found
        with _no_garbage_collection():
            return _merge(_words(counts, _order(ties)), merges, _order(ties), ties == "bytes", told)


def _fast() -> Any:
    """What numba compiles, ready to run."""
    try:
        from . import compiled
    except ImportError as error:
        raise InfrabookError("compiled=True needs numba: pip install numba") from error
    compiled.warm_up()
    return compiled


def _order(ties: Ties) -> list[int]:
    """The bytes in the order of their ids."""
    return BYTE_LEVEL_ORDER if ties == "huggingface" else list(range(256))


def _words(counts: Mapping[str, int] | Mapping[bytes, int], order: Sequence[int]) -> dict[str, int]:
    """Words of two bytes or more, each byte as the code point of its place in ``order``."""
    place = bytearray(256)
    for code, byte in enumerate(order):
        place[byte] = code
    plain = order == list(range(256))
    words: dict[str, int] = {}
    for word, count in counts.items():
        data = word if isinstance(word, bytes) else word.encode("utf-8", "surrogatepass")
        if len(data) > 1:
            text = (data if plain else data.translate(place)).decode("latin-1")
            words[text] = words.get(text, 0) + count
    return words


def _merge(
    counted: dict[str, int], merges: int, order: Sequence[int], by_bytes: bool, told: Callable[[int], object]
) -> list[Merge]:
    words, frequency = list(counted), list(counted.values()).__getitem__
    counted.clear()
    tokens = [bytes([byte]) for byte in order]
    codes = {token: chr(code) for code, token in enumerate(tokens)}
    # a heap is smallest first: counts are negative, and keys invert the order of bytes; "\u0100" ends a token
    keys = [token.translate(_INVERTED).decode("latin-1") + "\u0100" for token in tokens] if by_bytes else []
    joined = str.__add__

    def entry(pair: str) -> tuple[int, str, str]:
        return -pairs[pair], keys[ord(pair[0])] + keys[ord(pair[1])] if by_bytes else pair, pair

    where: defaultdict[str, list[int]] = defaultdict(list)  # pair -> words that may hold it, as often as they do
    for number, word in enumerate(words):
        for pair in map(joined, word, word[1:]):
            where[pair].append(number)
    pairs = {pair: sum(map(frequency, numbers)) for pair, numbers in where.items()}
    heap = [entry(pair) for pair in pairs]
    heapq.heapify(heap)
    found: list[Merge] = []
    while len(found) < merges and heap:
        negative, key, pair = heap[0]
        count = pairs.get(pair, 0)
        if count != -negative:  # it has become rarer since: put it where it belongs
            if count > 0:
                heapq.heapreplace(heap, (-count, key, pair))
            else:
                heapq.heappop(heap)
            continue
        heapq.heappop(heap)
        first, second = pair[0], pair[1]
        token = tokens[ord(first)] + tokens[ord(second)]
        found.append((tokens[ord(first)], tokens[ord(second)]))
        told(1)
        new = codes.get(token)
        if new is None:
            new = codes[token] = chr(len(tokens))
            tokens.append(token)
            if by_bytes:
                keys.append(token.translate(_INVERTED).decode("latin-1") + "\u0100")
        before: defaultdict[str, list[int]] = defaultdict(list)
        after: defaultdict[str, list[int]] = defaultdict(list)
        made: set[str] = set()
        previous = -1
        for number in where.pop(pair):
            if number == previous:  # a word is in the list as often as it had the pair
                continue
            previous = number
            word = words[number]
            head, held, tail = word.partition(pair)
            if not held:
                continue  # it was there once, or this word has had its turn
            if pair in tail:
                words[number] = word.replace(pair, new)
                _count_again(word.split(pair), pair, new, number, frequency(number), pairs, where, made)
            else:
                words[number] = head + new + tail
                if head:
                    before[head[-1]].append(number)
                if tail:
                    after[tail[0]].append(number)
        for neighbour, numbers in before.items():
            total = sum(map(frequency, numbers))
            pairs[neighbour + first] -= total
            _gained(neighbour + new, total, numbers, pairs, where, made)
        for neighbour, numbers in after.items():
            total = sum(map(frequency, numbers))
            pairs[second + neighbour] -= total
            _gained(new + neighbour, total, numbers, pairs, where, made)
        del pairs[pair]
        for one in made:
            heapq.heappush(heap, entry(one))
    return found


def _gained(
    pair: str, count: int, numbers: list[int], pairs: dict[str, int], where: dict[str, list[int]], made: set[str]
) -> None:
    pairs[pair] = pairs.get(pair, 0) + count
    made.add(pair)
    if pair in where:
        where[pair] += numbers
    else:
        where[pair] = numbers


def _count_again(
    parts: list[str], pair: str, new: str, number: int, count: int, pairs: dict[str, int],
    where: dict[str, list[int]], made: set[str],
) -> None:  # fmt: skip
    """A word that holds ``pair`` several times, cut at it: its neighbours' pairs change, and nothing else."""
    first, second = pair[0], pair[1]
    last = len(parts) - 1
    for place, part in enumerate(parts):
        if part:
            if place:  # a pair ends here
                pairs[second + part[0]] -= count
                _gained(new + part[0], count, [number], pairs, where, made)
            if place < last:  # a pair begins here
                pairs[part[-1] + first] -= count
                _gained(part[-1] + new, count, [number], pairs, where, made)
        elif 0 < place < last:  # two pairs side by side
            pairs[second + first] -= count
            _gained(new + new, count, [number], pairs, where, made)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Millions of small objects live to the end: looking for cycles among them costs a third of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def _told(total: int, wanted: bool) -> Iterator[Callable[[int], object]]:
    if not wanted:
        yield lambda done: None
        return
    from tqdm.auto import tqdm

    with tqdm(total=total, unit="merge", desc="merging", leave=False) as bar:
        yield bar.update
