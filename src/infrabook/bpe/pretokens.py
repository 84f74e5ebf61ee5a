"""Text into pre-tokens, the pieces that no merge ever crosses, and how often each occurs in a file of any size.

For GPT-2's pattern the count goes in two levels: text is cut before every run of white space, which ``str.split`` does
at C's speed, and the pattern is applied once to each distinct piece. That is exact, since the pattern never joins a
character to white space after it. ``merging`` needs nothing but the counts.
"""

from __future__ import annotations

import mmap
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import regex

from .. import processes
from ..errors import InfrabookError
from ..units import positive

Counts: TypeAlias = dict[str, int]
Progress: TypeAlias = Callable[[int], object]

PATTERNS: dict[str, str] = {
    # Radford et al. 2019, openai/gpt-2, encoder.py
    "gpt2": r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""",
    # openai/tiktoken, tiktoken_ext/openai_public.py, cl100k_base
    "gpt4": (
        r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|"""
        r"""\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
    ),
}
"""Patterns by name; any other pattern may be given as itself."""

BLOCK = 1 << 16  # bytes read at once: larger blocks leave the processor's caches and halve the speed
SMALL = 1 << 24  # a process is worth starting for this many bytes or more
_MARK = "\0"  # put before white space to cut there; text that has it goes another way
_SPACES = [chr(code) for code in range(0x3001) if regex.match(r"\s", chr(code))]
_OTHERS = [space for space in _SPACES if space not in " \n"]
_LETTERS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


@cache
def compiled(pattern: str) -> Any:
    """The pattern of that name, or ``pattern`` itself, ready to use."""
    try:
        found = regex.compile(PATTERNS.get(pattern, pattern))
    except (regex.error, TypeError) as error:
        raise InfrabookError(
            f"{pattern!r} is neither a pattern's name ({', '.join(PATTERNS)}) nor one: {error}"
        ) from error
    if found.groups or not found.search("a 1\n"):
        raise InfrabookError(
            f"{pattern!r} cannot cut text: it has groups, or finds nothing; named patterns are {', '.join(PATTERNS)}"
        )
    return found


def pieces(text: str) -> list[str]:
    """``text`` cut before every run of white space that follows something else; the first piece may be empty.

    >>> pieces("low  lower\\nwidest")
    ['low', '  lower', '\\nwidest']
    """
    if _MARK in text:
        found: list[str] = regex.findall(r"\s*+\S++|\s++", text)
        return found
    cut = text.replace(" ", _MARK + " ").replace("\n", _MARK + "\n")
    cut = cut.replace(" " + _MARK, " ").replace("\n" + _MARK, "\n")
    for space in _OTHERS:
        if space in cut:
            cut = cut.replace(space + _MARK, space)
    return cut.split(_MARK)


def pretokens(text: str, pattern: str = "gpt2") -> list[str]:
    """The pre-tokens of ``text``, in order.

    >>> pretokens("some text that i'll pre-tokenize")
    ['some', ' text', ' that', ' i', "'ll", ' pre', '-', 'tokenize']
    """
    found: list[str] = compiled(pattern).findall(text)
    return found


def refine(coarse: Mapping[str, int], pattern: str = "gpt2") -> Counts:
    """Counts of pre-tokens from counts of ``pieces``: the pattern once for each distinct piece.

    A piece of letters, with or without a space before it, is one for GPT-2's pattern, and is not shown to it.
    """
    fine: Counts = {}
    others = coarse
    if pattern == "gpt2":
        fine = {
            one: count for one, count in coarse.items() if one[1:].isalpha() and (one[0] == " " or one[0].isalpha())
        }
        others = {one: count for one, count in coarse.items() if one not in fine}
    get = fine.get
    for count, found in zip(others.values(), map(compiled(pattern).findall, others), strict=True):
        for one in found:
            fine[one] = get(one, 0) + count
    return fine


def split_special(text: str, special_tokens: Sequence[str]) -> list[str]:
    """What stands between special tokens; of two that begin together the longer one counts."""
    if not special_tokens:
        return [text]
    if len(special_tokens) == 1:
        return text.split(special_tokens[0])
    parts: list[str] = special_pattern(tuple(special_tokens)).split(text)
    return parts


@cache
def special_pattern(special_tokens: tuple[str, ...]) -> Any:
    """Any of them, the longest first."""
    return regex.compile("|".join(map(regex.escape, sorted(special_tokens, key=len, reverse=True))))


def count_text(text: str, special_tokens: Sequence[str] = (), *, pattern: str = "gpt2") -> Counts:
    """How often each pre-token occurs in ``text``, special tokens left out.

    >>> count_text("low low lower")
    {'low': 1, ' low': 1, ' lower': 1}
    """
    return _refined(_coarse(split_special(text, special_tokens), pattern, Counter()), pattern)


def _coarse(parts: Iterable[str], pattern: str, into: Counter[str]) -> Counter[str]:
    for part in parts:
        if part:
            into.update(pieces(part) if pattern == "gpt2" else pretokens(part, pattern))
    return into


def _refined(coarse: Counter[str], pattern: str) -> Counts:
    return refine(coarse, pattern) if pattern == "gpt2" else dict(coarse)


def corpus() -> Path:
    """A text to train on: the prose of this book's chapters about one GPU, as it stood when this was written.

    Eleven documents of English with numbers in them, 92 KB, separated by ``<|endoftext|>``; under the text's licence.
    """
    return Path(str(resources.files("infrabook") / "data" / "corpus.txt"))


# -- files -------------------------------------------------------------------------------------------------------
class Stretch(NamedTuple):
    """A part of a file that one process counts: from byte ``start`` to ``end``."""

    path: str
    start: int
    end: int
    special_tokens: tuple[str, ...]
    pattern: str


def safe_cut(data: bytes | mmap.mmap, special_tokens: Sequence[bytes], *, low: int, high: int, last: bool) -> int:
    """A place between ``low`` and ``high`` where text can be cut without changing a pre-token, or -1.

    Before a single space between a character that is none and an ASCII letter, and not within a special token. The
    ``last`` such place or the first.
    """
    longest = max(map(len, special_tokens), default=1) - 1
    at = data.rfind(b" ", low, high) if last else data.find(b" ", low, high)
    while at > 0:
        if at + 1 < len(data) and data[at + 1] in _LETTERS and 32 < data[at - 1] < 128:
            begin = max(0, at - longest)
            window = bytes(data[begin : at + longest])
            if not any(_spans(window, special, at - begin) for special in special_tokens):
                return at
        at = data.rfind(b" ", low, at) if last else data.find(b" ", at + 1, high)
    return -1


def _spans(window: bytes, special: bytes, at: int) -> bool:
    place = window.find(special)
    while place >= 0:
        if place < at < place + len(special):
            return True
        place = window.find(special, place + 1)
    return False


def blocks(stretch: Stretch, size: int) -> Iterator[bytes]:
    """The bytes of a stretch, about ``size`` at a time, cut at safe places."""
    special = [token.encode() for token in stretch.special_tokens]
    ahead = max(map(len, special), default=1)  # a special token may have begun before a cut and end beyond it
    rest = b""
    with open(stretch.path, "rb") as file:
        file.seek(stretch.start)
        at = stretch.start
        while at < stretch.end:
            block = file.read(min(size, stretch.end - at))
            if not block:
                raise InfrabookError(f"{stretch.path} has become shorter while it was read")
            at += len(block)
            data = rest + block
            rest = b""
            if at < stretch.end:
                low = len(data) - min(len(block), 16 * BLOCK) - ahead
                cut = safe_cut(data, special, low=max(0, low), high=len(data) - ahead, last=True)
                if cut < 0:
                    rest = data
                    continue
                data, rest = data[:cut], data[cut:]
            yield data
    if rest:
        yield rest


def count_stretch(stretch: Stretch, told: Progress | None = None) -> Counts:
    """The counts of one stretch, read in blocks: memory holds a block and the distinct pieces."""
    coarse: Counter[str] = Counter()
    for data in blocks(stretch, BLOCK):
        _coarse(split_special(data.decode("utf-8", "replace"), stretch.special_tokens), stretch.pattern, coarse)
        if told is not None:
            told(len(data))
    return _refined(coarse, stretch.pattern)


def stretches(
    path: str | os.PathLike[str], number: int, special_tokens: Sequence[str] = (), pattern: str = "gpt2"
) -> list[Stretch]:
    """At most ``number`` stretches of about equal length, cut at safe places."""
    name, tokens = os.fspath(path), tuple(special_tokens)
    size = os.path.getsize(name)
    cuts = [0]
    if number > 1 and size:
        special = [token.encode() for token in tokens]
        with open(name, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for i in range(1, number):
                low = max(cuts[-1] + 1, size * i // number)
                cut = safe_cut(data, special, low=low, high=min(size, low + (1 << 20)), last=False)
                if cut > cuts[-1]:
                    cuts.append(cut)
    return [Stretch(name, a, b, tokens, pattern) for a, b in zip(cuts, [*cuts[1:], size], strict=True) if b > a]


def count_file(
    path: str | os.PathLike[str], special_tokens: Sequence[str] = (), *, pattern: str = "gpt2", workers: int = 0,
    progress: bool = False, counter: Callable[[Stretch], Counts] = count_stretch,
) -> Counts:  # fmt: skip
    """How often each pre-token occurs in a UTF-8 file, counted by ``workers`` processes (0: one a core).

    Bytes that are no UTF-8 become U+FFFD, and newlines stay as they are. The file's length is read once, at the start.
    ``counter`` counts one stretch, a function of a module. An interrupt ends every process. Raises ``InfrabookError``
    if the file cannot be read.
    """
    compiled(pattern)
    size, count = readable(path, special_tokens, workers)
    parts = stretches(path, 1 if count == 1 else 2 * count, special_tokens, pattern)
    with bar(size, progress) as told:
        if count == 1 or len(parts) == 1:
            if counter is count_stretch:
                return _sum(count_stretch(part, told) for part in parts)
            return _sum(_told(counter(part), part, told) for part in parts)
        with processes.pool(count, preload=[__name__, counter.__module__]) as pool:
            jobs = [(counter, part) for part in parts]
            return _sum(_told(counts, part, told) for counts, part in pool.imap_unordered(_job, jobs))


def readable(path: str | os.PathLike[str], special_tokens: Sequence[str], workers: int) -> tuple[int, int]:
    """The size of a file and the number of workers it is worth, before any work is lost."""
    positive("workers", workers, zero=True)
    checked(special_tokens)
    try:
        size = os.path.getsize(path)
        with open(path, "rb"):
            pass
    except OSError as error:
        raise InfrabookError(f"{os.fspath(path)} cannot be read: {error.strerror}") from error
    return size, min(workers or os.cpu_count() or 1, max(1, size // SMALL))


def _job(work: tuple[Callable[[Stretch], Counts], Stretch]) -> tuple[Counts, Stretch]:
    return work[0](work[1]), work[1]


def _told(counts: Counts, part: Stretch, told: Progress) -> Counts:
    told(part.end - part.start)
    return counts


def _sum(found: Iterable[Counts]) -> Counts:
    total: Counts = {}
    get = total.get
    for counts in found:
        if not total:
            total = counts
            get = total.get
            continue
        for word, count in counts.items():
            total[word] = get(word, 0) + count
    return total


class bar:
    """Tells how many bytes have been counted, if that is wanted."""

    def __init__(self, size: int, wanted: bool) -> None:
        self.size, self.wanted, self.bar = size, wanted, None

    def __enter__(self) -> Progress:
        if not self.wanted:
            return lambda done: None
        from tqdm.auto import tqdm

        self.bar = tqdm(total=self.size, unit="B", unit_scale=True, desc="counting", leave=False)
        return self.bar.update  # type: ignore[no-any-return, attr-defined]

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.close()


def checked(special_tokens: Sequence[str]) -> None:
    """Refuse special tokens that are no list of words."""
    if isinstance(special_tokens, str) or not all(isinstance(token, str) and token for token in special_tokens):
        raise InfrabookError(f"special_tokens has to be a list of words that are not empty, and is {special_tokens!r}")
    if len(set(special_tokens)) != len(special_tokens):
        raise InfrabookError(f"special_tokens has a word twice: {list(special_tokens)}")


def documents(path: str | os.PathLike[str], separator: str = "<|endoftext|>") -> Iterator[str]:
    """The documents of a file, one after another, without holding more than one and a block."""
    rest = b""
    mark = separator.encode()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            *whole, rest = (rest + block).split(mark)
            for one in whole:
                yield one.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")
