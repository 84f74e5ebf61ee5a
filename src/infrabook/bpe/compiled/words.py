"""Pre-tokens of GPT-2's pattern cut and counted by compiled code, which threads share: it needs no interpreter's lock.

Bytes beyond ASCII are left to the pattern: their pieces, from white space to white space, are kept apart.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from .. import pretokens
from ..pretokens import Progress, Stretch

Array = Any  # numba has no types for annotations
Int = Any
_BLOCK = 1 << 18
_LETTER, _DIGIT, _OTHER, _SPACE, _BEYOND = range(5)
_KINDS = np.full(256, _OTHER, np.uint8)  # of each byte, as GPT-2's pattern has it
_KINDS[list(pretokens._LETTERS)] = _LETTER
_KINDS[ord("0") : ord("9") + 1] = _DIGIT
_KINDS[[ord(space) for space in pretokens._SPACES if space.isascii()]] = _SPACE
_KINDS[128:] = _BEYOND
# white space beyond ASCII: its bytes, two or three, as one number
_WIDE_SPACES = np.array(
    [int.from_bytes(space.encode(), "big") for space in pretokens._SPACES if not space.isascii()], np.int64
)


class Words(NamedTuple):
    """Distinct words and how often each occurs: word i is ``data[start[i] : start[i] + size[i]]``."""

    data: Array
    start: Array
    size: Array
    count: Array


def count_file(
    path: str | os.PathLike[str], special_tokens: Sequence[str] = (), *, workers: int = 0, progress: bool = False
) -> Words:
    """``pretokens.count_file`` for GPT-2's pattern, by ``workers`` threads."""
    size, count = pretokens.readable(path, special_tokens, workers)
    total, beyond, stop = _Table(), _Table(), threading.Event()
    with pretokens.bar(size, progress) as told, ThreadPoolExecutor(count) as threads:
        parts = pretokens.stretches(path, count, special_tokens, "gpt2")
        jobs = [threads.submit(_count_stretch, part, told, stop) for part in parts]
        try:
            for job in jobs:
                plain, other = job.result()
                total.add(plain)
                beyond.add(other)
        except BaseException:
            stop.set()
            raise
    total.add(_array(pretokens.refine(_dictionary(beyond.words()))))
    return total.words()


def _count_stretch(stretch: Stretch, told: Progress, stop: threading.Event) -> tuple[Words, Words]:
    """The words of one stretch, and its pieces that the pattern has yet to cut."""
    special = [token.encode() for token in sorted(stretch.special_tokens, key=len, reverse=True)]
    marks = np.array(list(b"".join(special)), np.int64)
    ends = np.cumsum([len(token) for token in special], dtype=np.int64)
    plain, beyond = _Table(), _Table()
    start = size = np.zeros(0, np.int64)
    once = start
    for block in pretokens.blocks(stretch, _BLOCK):
        text = _bytes(block)
        if len(text) > len(start):
            start, size, once = np.ones((3, len(text)), np.int64)
        found, left = _cut(text, marks, ends, _KINDS, _WIDE_SPACES, start, size)
        plain.add(Words(text, start[:found], size[:found], once[:found]))
        if left:
            plain_from = len(start) - left
            beyond.add(Words(text, start[plain_from:], size[plain_from:], once[:left]))
        told(len(block))
        if stop.is_set():
            break
    return plain.words(), beyond.words()


def _dictionary(words: Words) -> dict[str, int]:
    """Words as text: bytes that are no UTF-8 become U+FFFD."""
    found: dict[str, int] = {}
    data = words.data.tobytes()
    for start, size, count in zip(words.start.tolist(), words.size.tolist(), words.count.tolist(), strict=True):
        text = data[start : start + size].decode("utf-8", "replace")
        found[text] = found.get(text, 0) + count
    return found


def _array(counts: Mapping[str, int] | Mapping[bytes, int]) -> Words:
    words = [word if isinstance(word, bytes) else word.encode("utf-8", "surrogatepass") for word in counts]
    size = np.fromiter(map(len, words), np.int64, len(words))
    count = np.fromiter(counts.values(), np.int64, len(words))
    return Words(_bytes(b"".join(words)), np.cumsum(size) - size, size, count)


class _Table:
    """A hash table of words with their counts, as arrays for compiled code."""

    def __init__(self) -> None:
        self.slots = np.full(1 << 12, -1, np.int64)  # 31 bits of a word's hash, and its number
        self.rows = np.zeros((1 << 11, 3), np.int64)  # where the word's bytes are, how many, how often it occurs
        self.data = np.zeros(1 << 14, np.uint8)
        self.used = np.zeros(2, np.int64)  # rows and bytes

    def add(self, words: Words) -> None:
        self.slots, self.rows, self.data = _add_words(*words, self.slots, self.rows, self.data, self.used)

    def words(self) -> Words:
        start, size, count = (np.array(column) for column in self.rows[: self.used[0]].T)
        return Words(self.data[: self.used[1]], start, size, count)


def _bytes(data: bytes) -> Array:
    return np.array(np.frombuffer(data, np.uint8))


@njit(cache=True, nogil=True)
def _hash(data: Array, low: Int, high: Int) -> Int:
    mixed = np.uint64(1469598103934665603)
    for k in range(low, high):
        mixed = (mixed ^ np.uint64(data[k])) * np.uint64(1099511628211)
    return np.int64((mixed ^ (mixed >> np.uint64(32))) & np.uint64(0x7FFFFFFFFFFFFFFF))


@njit(cache=True, nogil=True)
def _find(
    text: Array, low: Int, size: Int, tag: Int, at: Int, slots: Array, rows: Array, data: Array
) -> tuple[Int, Int]:
    """The slot and the row of a word, searched from slot ``at`` on; the slot that it would have, and -1."""
    mask = len(slots) - 1
    while slots[at] >= 0:
        row = slots[at] & 0xFFFFFFFF
        if slots[at] >> 32 == tag and rows[row, 1] == size:
            begin, k = rows[row, 0], 0
            while k < size and data[begin + k] == text[low + k]:
                k += 1
            if k == size:
                return at, row
        at = (at + 1) & mask
    return at, -1


@njit(cache=True, nogil=True)
def _add_words(
    text: Array, start: Array, sizes: Array, count: Array, slots: Array, rows: Array, data: Array, used: Array
) -> tuple[Array, Array, Array]:
    mask = len(slots) - 1
    number, end = used[0], used[1]
    for i in range(len(start)):
        low, size = start[i], sizes[i]
        mixed = _hash(text, low, low + size)
        tag, at = mixed >> 32, mixed & mask
        at, row = _find(text, low, size, tag, at, slots, rows, data)
        if row >= 0:
            rows[row, 2] += count[i]
            continue
        if number >= len(rows):
            rows = _more_rows(rows, len(rows))
        if end + size > len(data):
            data = _longer(data, end + size)
        for k in range(size):
            data[end + k] = text[low + k]
        rows[number, 0], rows[number, 1], rows[number, 2] = end, size, count[i]
        slots[at] = (tag << 32) | number
        number += 1
        end += size
        if 2 * number > len(slots):
            slots = _more_slots(slots, rows, data, number)
            mask = len(slots) - 1
    used[0], used[1] = number, end
    return slots, rows, data


@njit(cache=True, nogil=True)
def _more_slots(old: Array, rows: Array, data: Array, number: Int) -> Array:
    """Twice as many slots, with the first ``number`` rows' words in their places."""
    slots = np.full(2 * len(old), -1, np.int64)
    mask = len(slots) - 1
    for row in range(number):
        mixed = _hash(data, rows[row, 0], rows[row, 0] + rows[row, 1])
        at = mixed & mask
        while slots[at] >= 0:
            at = (at + 1) & mask
        slots[at] = ((mixed >> 32) << 32) | row
    return slots


@njit(cache=True, nogil=True)
def _longer(old: Array, least: Int) -> Array:
    new = np.empty(max(2 * len(old), least), old.dtype)
    new[: len(old)] = old
    return new


@njit(cache=True, nogil=True)
def _more_rows(old: Array, used: Int) -> Array:
    new = np.empty((2 * len(old), old.shape[1]), old.dtype)
    new[:used] = old[:used]
    return new


@njit(cache=True, nogil=True)
def _mark(text: Array, at: Int, marks: Array, ends: Array) -> Int:
    """The length of the special token that begins here, or 0."""
    begin = 0
    for i in range(len(ends)):
        size = ends[i] - begin
        if at + size <= len(text):
            k = 0
            while k < size and text[at + k] == marks[begin + k]:
                k += 1
            if k == size:
                return size
        begin = ends[i]
    return 0


@njit(cache=True, nogil=True)
def _after_space(text: Array, at: Int, low: Int, kinds: Array, wide: Array) -> bool:
    """Whether the character before this place is white space."""
    if at == low:
        return False
    if kinds[text[at - 1]] != _BEYOND:
        return kinds[text[at - 1]] == _SPACE  # type: ignore[no-any-return]
    two = np.int64(text[at - 1])
    if at - 2 >= low:
        two |= np.int64(text[at - 2]) << 8
    three = two
    if at - 3 >= low:
        three |= np.int64(text[at - 3]) << 16
    found = False
    for one in wide:
        found |= one == (two if one < 65536 else three)
    return found


@njit(cache=True, nogil=True)
def _cut(text: Array, marks: Array, ends: Array, kinds: Array, wide: Array, start: Array, size: Array) -> Any:
    """Write the pre-tokens' places from the front, and from the back pieces that have a byte beyond ASCII.

    The numbers of both.
    """
    begins = np.zeros(256, np.bool_)
    before = 0
    for i in range(len(ends)):
        begins[marks[before]] = True
        before = ends[i]
    found, beyond = 0, len(start)
    low, end = 0, len(text)
    while low < end:
        # a piece: white space and what follows, up to the next white space or special token
        body, mark = low, 0
        while body < end and kinds[text[body]] == _SPACE:
            if begins[text[body]]:
                mark = _mark(text, body, marks, ends)
                if mark:
                    break
            body += 1
        high, plain = body, True
        while high < end and not mark:
            if begins[text[high]]:
                mark = _mark(text, high, marks, ends)
                if mark:
                    break
            kind = kinds[text[high]]
            if kind == _BEYOND:
                plain = False
            elif kind == _SPACE and not _after_space(text, high, low, kinds, wide):
                break
            high += 1
        if not plain:
            beyond -= 1
            start[beyond], size[beyond] = low, high - low
            low = high
        elif body == high:
            if low < high:  # white space alone is one
                start[found], size[found] = low, high - low
                found += 1
            low = high
        elif body - low > 1:
            start[found], size[found] = low, body - 1 - low
            found += 1
            low = body - 1
        while low < high:
            at = low
            if kinds[text[low]] == _SPACE and text[low] != 32:
                at = low + 1
            elif text[low] == 39 and low + 1 < high:  # 's 'd 'm 't 'll 've 're
                next = text[low + 1]
                if next == 115 or next == 100 or next == 109 or next == 116:
                    at = low + 2
                elif low + 2 < high:
                    last = text[low + 2]
                    if (next == 108 and last == 108) or ((next == 118 or next == 114) and last == 101):
                        at = low + 3
            if at == low:
                if text[at] == 32:
                    at += 1
                kind = kinds[text[at]]
                while at < high and kinds[text[at]] == kind:
                    at += 1
            start[found], size[found] = low, at - low
            found += 1
            low = at
        low = high + mark
    return found, len(start) - beyond
