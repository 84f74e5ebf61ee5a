"""From pages to a dataset: small steps that each keep or drop documents, and an account of what went where.

``crawl`` has pages to try it on. Near-duplicates are found exactly here, by comparing sets; a lab finds them with
MinHash and compares. ``bpe`` makes tokens of what is left.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from .errors import InfrabookError
from .ledger import Ledger, Row, ledger
from .units import exact, positive

# The words that an English text cannot do without.
FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        "the of and a an to in is are was were be it its that this as for with on by at from or not no they their than "
        "which who what when where there has have had can will would but if so one all each more only then",
    )
)
GOPHER_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))


# -- documents and where they go -------------------------------------------------------------------------------
@dataclass(frozen=True)
class Document:
    """A text with its address, the day it was fetched, its size as fetched in bytes, and its length in tokens."""

    id: str
    day: int
    size: int
    text: str = ""
    tokens: int = 0


@dataclass(frozen=True)
class Funnel:
    """What is still there, and what each step took away.

    >>> raw = Funnel((Document("a", 0, 10, "long"), Document("b", 0, 5, "")))
    >>> print(raw.drop("not decoded", lambda one: one.text == "").ledger())
    where the documents went
    -----------------------
    not decoded    1  50.0%
    kept           1  50.0%
    -----------------------
    total          2
    """

    kept: tuple[Document, ...]
    dropped: tuple[tuple[str, tuple[Document, ...]], ...] = ()

    def drop(self, name: str, bad: Callable[[Document], bool]) -> Funnel:
        """The next step: documents that are ``bad`` go no further, and ``name`` says what they were."""
        return self._parted(name, [not bad(one) for one in self.kept])

    def first_of(self, name: str, key: Callable[[Document], object]) -> Funnel:
        """The next step: of documents with the same ``key`` only the earliest stays, by day and then by id."""
        first: dict[object, int] = {}  # a place and not an id: an address may have been fetched on two days
        for at, one in sorted(enumerate(self.kept), key=lambda pair: (pair[1].day, pair[1].id)):
            first.setdefault(key(one), at)
        stay = set(first.values())
        return self._parted(name, [at in stay for at in range(len(self.kept))])

    def _parted(self, name: str, stay: Sequence[bool]) -> Funnel:
        if name == "kept" or any(name == other for other, _ in self.dropped):
            raise InfrabookError(f"the funnel has a row {name!r} already")
        parts: tuple[list[Document], list[Document]] = [], []
        for one, good in zip(self.kept, stay, strict=True):
            parts[good].append(one)
        return Funnel(tuple(parts[True]), (*self.dropped, (name, tuple(parts[False]))))

    def stages(self) -> list[tuple[str, int, int, int]]:
        """(what a step dropped, documents, bytes, tokens left after it); the first line is what came in."""
        held = [*self.kept]
        lines = []
        for name, lost in reversed(self.dropped):
            lines.append((name, *_amounts(held)))
            held += lost
        return [("fetched", *_amounts(held)), *reversed(lines)]

    def ledger(self, unit: str = "documents") -> Ledger:
        """Where everything that came in went, in ``"documents"``, ``"bytes"`` as fetched, or ``"tokens"``."""
        units = ("documents", "bytes", "tokens")
        if unit not in units:
            raise InfrabookError(f"a funnel counts documents, bytes or tokens, and not {unit!r}")
        at = units.index(unit)
        rows = [Row(name, _amounts(lost)[at]) for name, lost in self.dropped]
        return ledger(f"where the {unit} went", [*rows, Row("kept", _amounts(self.kept)[at])], unit=unit)


def _amounts(documents: Collection[Document]) -> tuple[int, int, int]:
    return len(documents), sum(one.size for one in documents), sum(one.tokens for one in documents)


# -- bytes to text ---------------------------------------------------------------------------------------------
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")


def decode(raw: bytes) -> str:
    """The text of ``raw``, or "" where none is found: UTF-16 by its mark, UTF-8 if valid, else Windows-1252.

    UTF-8 that somebody had read as Windows-1252 is turned back. What has control characters in it is given up, as
    UTF-16 without its mark is.

    >>> decode("don’t".encode()), decode("don’t".encode("cp1252")), decode("donâ€™t".encode()), decode(b"a\\0b")
    ('don’t', 'don’t', 'don’t', '')
    """
    if not isinstance(raw, bytes | bytearray):
        raise InfrabookError(f"what is decoded are bytes, and not {raw!r}")
    codecs = ("utf-16",) if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else ("utf-8-sig", "cp1252")
    for codec in codecs:
        try:
            text = raw.decode(codec)
        except UnicodeDecodeError:
            continue
        text = _repaired(text) if codec == "utf-8-sig" else text
        return "" if _CONTROL.search(text) else text
    return ""


def _repaired(text: str) -> str:
    """``text`` without mojibake, if that is what it has: only then does the way back succeed and shorten it."""
    try:
        return text.encode("cp1252").decode("utf-8")
    except (UnicodeEncodeError, UnicodeDecodeError):
        return text


def normalized(text: str) -> str:
    """``text`` in Unicode's composed form, every run of white space one blank: what exact duplicates share.

    >>> normalized(" two\\r\\n\\r\\nlines ")
    'two lines'
    """
    return " ".join(unicodedata.normalize("NFC", text).split())


# -- language and quality --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Signals:
    """What the filters look at. ``words`` are separated by white space, and shares are of them.

    ``function_words``: share that are English function words. ``lettered``: share with a letter in it. ``repeated``:
    share of the runs of five words that occurred before on the page. ``mean_length``: of a word, in characters.
    ``gopher_words``: how many of Gopher's eight words occur.
    """

    words: int
    function_words: Fraction
    lettered: Fraction
    repeated: Fraction
    mean_length: Fraction
    gopher_words: int


def signals(text: str) -> Signals:
    """The signals of ``text``; shares of nothing are 0.

    >>> found = signals("the end of the line 1984")
    >>> found.words, str(found.function_words), str(found.lettered)
    (6, '1/2', '5/6')
    """
    words = text.split()
    bare = [re.sub(r"^\W+|\W+$", "", word).lower() for word in words]
    runs = Counter(tuple(bare[i : i + 5]) for i in range(len(bare) - 4))
    count = max(1, len(words))
    return Signals(
        words=len(words),
        function_words=Fraction(sum(word in FUNCTION_WORDS for word in bare), count),
        lettered=Fraction(sum(any(letter.isalpha() for letter in word) for word in words), count),
        repeated=Fraction(runs.total() - len(runs), max(1, runs.total())),
        mean_length=Fraction(sum(map(len, words)), count),
        gopher_words=len(GOPHER_WORDS.intersection(bare)),
    )


@dataclass(frozen=True)
class Limits:
    """What a page has to reach. The quality rules are five of Gopher's; the numbers are its, except ``repeated``.

    Source: Rae et al. 2021, Scaling Language Models: Methods, Analysis & Insights from Training Gopher, appendix A.
    """

    function_words: float = 0.2
    words: int = 50
    lettered: float = 0.8
    repeated: float = 0.3
    shortest_mean: float = 3
    longest_mean: float = 10
    gopher_words: int = 2


def english(found: Signals, limits: Limits = Limits()) -> bool:
    """Whether enough of the words are English function words."""
    return found.function_words >= limits.function_words


def good(found: Signals, limits: Limits = Limits()) -> bool:
    """Whether a page passes every rule of quality."""
    return (
        found.words >= limits.words
        and found.lettered >= limits.lettered
        and found.repeated <= limits.repeated
        and limits.shortest_mean <= found.mean_length <= limits.longest_mean
        and found.gopher_words >= limits.gopher_words
    )


# -- duplicates ------------------------------------------------------------------------------------------------
def shingles(text: str, size: int = 3) -> frozenset[str]:
    """All runs of ``size`` words, lower case, without punctuation at their ends; a shorter text is one shingle.

    >>> sorted(shingles("To be, or not to be.", 3))
    ['be or not', 'not to be', 'or not to', 'to be or']
    """
    positive("the size of a shingle", size)
    if not isinstance(text, str):
        raise InfrabookError(f"shingles are runs of words of a text, and not of {text!r}")
    words = [bare for word in text.lower().split() if (bare := re.sub(r"^\W+|\W+$", "", word))]
    return frozenset(" ".join(words[i : i + size]) for i in range(max(1, len(words) - size + 1)))


def jaccard(a: Collection[str], b: Collection[str]) -> Fraction:
    """What two sets share over what either has, ``len(a & b) / len(a | b)``; two empty sets are equal.

    >>> jaccard({"a", "b"}, {"b", "c"})
    Fraction(1, 3)
    """
    if a is None or b is None:
        raise InfrabookError("two sets are compared, and one of them is None")
    a, b = frozenset(a), frozenset(b)
    return Fraction(len(a & b), len(a | b)) if a or b else Fraction(1)


def similar_pairs(sets: Sequence[Collection[str]], least: Fraction | float) -> dict[tuple[int, int], Fraction]:
    """Every pair (i, j), i < j, whose Jaccard similarity is at least ``least``, exactly, with that similarity.

    Pairs that share no element are never looked at, so ``least`` has to be more than 0. A float counts as written:
    0.4 is two fifths.

    >>> similar_pairs([{"a", "b"}, {"c"}, {"b", "a"}], 0.5)
    {(0, 2): Fraction(1, 1)}
    """
    if not _number(least) or not 0 < least <= 1:
        raise InfrabookError(f"the least similarity has to be more than 0 and at most 1, and is {least!r}")
    least = exact(least)
    holders: dict[str, list[int]] = {}
    found = {}
    for j, elements in enumerate(sets):
        common: Counter[int] = Counter()
        for element in elements:
            before = holders.setdefault(element, [])
            common.update(before)
            before.append(j)
        for i, shared in sorted(common.items()):
            similarity = Fraction(shared, len(sets[i]) + len(elements) - shared)
            if similarity >= least:
                found[i, j] = similarity
    return found


def clusters(count: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """For each of ``count`` items the smallest index that a chain of ``pairs`` leads to: its cluster.

    >>> clusters(5, [(0, 3), (3, 4)])
    [0, 1, 2, 0, 0]
    """
    positive("the number of items", count, zero=True)
    parent = list(range(count))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for i, j in pairs:
        if not (0 <= i < count and 0 <= j < count):
            raise InfrabookError(f"there are {count} items, counted from 0, and no pair ({i}, {j}) of them")
        a, b = root(i), root(j)
        parent[max(a, b)] = min(a, b)
    return [root(i) for i in range(count)]


def candidate_probability(similarity: Fraction | float, *, bands: int, rows: int) -> float:
    """The S-curve 1 - (1 - s^r)^b: the chance that MinHash finds a pair of Jaccard similarity s.

    A signature of b · r minima is cut into b bands of r; a pair is a candidate if all of one band agrees.
    Source: Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, section 3.4.

    >>> [round(candidate_probability(s / 10, bands=20, rows=5), 3) for s in (2, 4, 6, 8)]
    [0.006, 0.186, 0.802, 1.0]
    """
    positive("bands", bands)
    positive("rows", rows)
    if not _number(similarity) or not 0 <= similarity <= 1:
        raise InfrabookError(f"a similarity is a number from 0 to 1, and not {similarity!r}")
    return float(1 - (1 - float(similarity) ** rows) ** bands)


def _number(value: object) -> bool:
    return isinstance(value, int | float | Fraction) and not isinstance(value, bool)


def steepest(*, bands: int, rows: int) -> float:
    """About where the S-curve is steepest, (1/b)^(1/r): what these bands and rows take for the threshold.

    >>> round(steepest(bands=20, rows=5), 2)
    0.55
    """
    positive("bands", bands)
    positive("rows", rows)
    return float((1 / bands) ** (1 / rows))


# -- splitting, order, packing -----------------------------------------------------------------------------------
def place(key: str, seed: str = "") -> Fraction:
    """A number from 0 to 1 that depends on ``key`` and ``seed`` alone: more documents move no other.

    >>> 0 <= place("a") < 1, place("a") == place("a"), place("a") == place("a", "other")
    (True, True, False)
    """
    return Fraction(int.from_bytes(hashlib.sha256(f"{seed}\0{key}".encode()).digest()[:8], "big"), 1 << 64)


def shuffled(documents: Iterable[Document], seed: str = "") -> list[Document]:
    """The documents in an order that looks random and is the same wherever they come from."""
    return sorted(documents, key=lambda one: (place(one.id, seed), one.id, one.day, one.text))


def pack(sequences: Iterable[Sequence[int]], length: int, *, separator: int) -> tuple[list[list[int]], int]:
    """Rows of ``length`` ids, the sequences end to end with ``separator`` after each; and how many ids are left over.

    >>> pack([[1, 2, 3], [4]], 2, separator=0)
    ([[1, 2], [3, 0], [4, 0]], 0)
    """
    positive("the length of a row", length)
    stream: list[int] = []
    for number, sequence in enumerate(sequences):
        if not isinstance(sequence, Sequence) or isinstance(sequence, str):
            raise InfrabookError(f"each sequence is a list of ids, and number {number} is {sequence!r}")
        stream += [*sequence, separator]
    whole = len(stream) // length
    return [stream[i * length : (i + 1) * length] for i in range(whole)], len(stream) - whole * length


# -- the card ----------------------------------------------------------------------------------------------------
def canonical(parts: Mapping[str, Iterable[Document]]) -> bytes:
    """The dataset as bytes that depend on its content alone: one line of JSON a document, by part, id and text."""
    lines = []
    for name in sorted(parts):
        documents = list(parts[name])
        wrong = next((one for one in documents if not isinstance(one, Document)), None)
        if wrong is not None:
            raise InfrabookError(f"the part {name!r} holds documents, and {wrong!r} is none")
        for one in sorted(documents, key=lambda one: (one.id, one.text)):
            lines.append(json.dumps([name, one.id, one.text], ensure_ascii=True, separators=(",", ":")))
    return ("\n".join(lines) + "\n").encode("ascii")


def content_hash(parts: Mapping[str, Iterable[Document]]) -> str:
    """SHA-256 of the canonical bytes, in hexadecimal.

    >>> one, two = Document("a", 0, 4, "text"), Document("b", 3, 4, "text")
    >>> content_hash({"train": [one, two]}) == content_hash({"train": [two, one]})
    True
    """
    return hashlib.sha256(canonical(parts)).hexdigest()


def card(name: str, funnel: Funnel, parts: Mapping[str, Sequence[Document]], settings: Mapping[str, Any]) -> str:
    """A dataset card as JSON: how it was made, what was left after each step, what is in each part, and its hash."""
    content = {
        "name": name,
        "settings": dict(settings),
        "left after each step": {
            step: {"documents": documents, "bytes": size, "tokens": tokens}
            for step, documents, size, tokens in funnel.stages()
        },
        "parts": {
            part: {"documents": len(held), "tokens": sum(one.tokens for one in held)} for part, held in parts.items()
        },
        "sha256": content_hash(parts),
    }
    return json.dumps(content, indent=2, ensure_ascii=False)
