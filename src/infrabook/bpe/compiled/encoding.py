"""Encoding compiled: a word that was met before is copied from a table, and another one is merged and remembered.

Pieces with a byte beyond ASCII are encoded by the tokenizer in Python, and so is text with a very long word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numba import njit

from .words import _KINDS, _WIDE_SPACES, Array, Int, _bytes, _cut, _find, _hash, _longer, _more_rows, _more_slots

LONGEST = 512  # bytes of a word that is merged here
_NEVER = np.int64(1) << 62


class Encoder:
    """What a ``Tokenizer`` knows, as arrays: ``rank`` of two characters, what each rank makes, the characters' ids.

    ``piece`` encodes one piece in Python; ``limit`` is the number of distinct words remembered.
    """

    def __init__(
        self, rank: Mapping[str, int], rules: Sequence[str], ids: Sequence[int],
        piece: Callable[[str], Sequence[int]], limit: int,
    ) -> None:  # fmt: skip
        self.pairs = np.full((1 << (4 * len(rank) + 2).bit_length(), 2), -1, np.int64)
        both = np.fromiter(((ord(pair[0]) << 32) | ord(pair[1]) for pair in rank), np.int64, len(rank))
        made = np.fromiter(((one << 32) | ord(rules[one]) for one in rank.values()), np.int64, len(rank))
        _know(self.pairs, both, made)
        self.ids = np.array(ids, np.int64)
        self.piece, self.limit = piece, limit
        self.start = self.size = np.zeros(0, np.int64)
        self._forget()

    def _forget(self) -> None:
        self.slots = np.full(1 << 12, -1, np.int64)
        self.rows = np.zeros((1 << 11, 4), np.int64)  # a word's bytes: where they are and how many; its ids alike
        self.data, self.known = np.zeros(1 << 14, np.uint8), np.zeros(1 << 14, np.int64)
        self.used = np.zeros(3, np.int64)  # of rows, data and known

    def encode(self, text: str) -> list[int] | None:
        """The ids of ordinary text, cut by GPT-2's pattern; None if it has to be encoded in Python."""
        try:
            data = text.encode()
        except UnicodeEncodeError:
            return None
        if len(data) > len(self.start):
            self.start, self.size = np.zeros(len(data), np.int64), np.zeros(len(data), np.int64)
        array = _bytes(data)
        found, left = _cut(array, _NONE, _NONE, _KINDS, _WIDE_SPACES, self.start, self.size)
        if found and self.size[:found].max() > LONGEST:
            return None
        other: list[int] = []
        ends = []
        if left:
            back = slice(len(self.start) - left, None)
            for low, size in zip(self.start[back][::-1].tolist(), self.size[back][::-1].tolist(), strict=True):
                other += self.piece(data[low : low + size].decode())
                ends.append(len(other))
        if self.used[0] > self.limit:
            self._forget()
        self.slots, self.rows, self.data, self.known, out = _encode(
            array, self.start, self.size, found, np.array(other, np.int64), np.array(ends, np.int64),
            self.slots, self.rows, self.data, self.known, self.used, self.pairs, self.ids,
        )  # fmt: skip
        result: list[int] = out.tolist()
        return result


_NONE = np.zeros(0, np.int64)


@njit(cache=True)
def _pair_slot(pairs: Array, pair: Int) -> Int:
    mask = len(pairs) - 1
    at = np.int64((np.uint64(pair) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)) & mask
    while pairs[at, 0] != -1 and pairs[at, 0] != pair:
        at = (at + 1) & mask
    return at


@njit(cache=True)
def _know(pairs: Array, both: Array, made: Array) -> None:
    for i in range(len(both)):
        at = _pair_slot(pairs, both[i])
        pairs[at, 0], pairs[at, 1] = both[i], made[i]


@njit(cache=True)
def _rank(pairs: Array, first: Int, second: Int) -> Int:
    """Rank and result of a merge in one number, or one greater than any."""
    at = _pair_slot(pairs, (first << 32) | second)
    return pairs[at, 1] if pairs[at, 0] != -1 else _NEVER


@njit(cache=True)
def _encode(
    text: Array, start: Array, sizes: Array, found: Int, other: Array, ends: Array, slots: Array, rows: Array,
    data: Array, known: Array, used: Array, pairs: Array, ids: Array,
) -> Any:  # fmt: skip
    out, written = np.empty(len(text) + len(other), np.int64), 0
    tokens, ranks = np.empty(LONGEST, np.int64), np.empty(LONGEST, np.int64)
    number, end, last = used[0], used[1], used[2]
    mask = len(slots) - 1
    piece, copied = 0, 0
    for i in range(found + 1):
        low = start[i] if i < found else len(text)
        while piece < len(ends) and start[len(start) - 1 - piece] < low:
            while copied < ends[piece]:
                out[written] = other[copied]
                written += 1
                copied += 1
            piece += 1
        if i == found:
            break
        size = sizes[i]
        mixed = _hash(text, low, low + size)
        tag, at = mixed >> 32, mixed & mask
        at, row = _find(text, low, size, tag, at, slots, rows, data)
        if row >= 0:
            for k in range(rows[row, 2], rows[row, 2] + rows[row, 3]):
                out[written] = known[k]
                written += 1
            continue
        # a new word: again and again the merge that was learned first
        for k in range(size):
            tokens[k] = text[low + k]
        for k in range(size - 1):
            ranks[k] = _rank(pairs, tokens[k], tokens[k + 1])
        count = size
        while count > 1:
            least, best = ranks[0], 0
            for k in range(1, count - 1):
                if ranks[k] < least:
                    least, best = ranks[k], k
            if least == _NEVER:
                break
            tokens[best] = least & 0xFFFFFFFF
            count -= 1
            for k in range(best + 1, count):
                tokens[k] = tokens[k + 1]
                ranks[k - 1] = ranks[k]
            if best + 1 < count:
                ranks[best] = _rank(pairs, tokens[best], tokens[best + 1])
            if best:
                ranks[best - 1] = _rank(pairs, tokens[best - 1], tokens[best])
        if number >= len(rows):
            rows = _more_rows(rows, number)
        if end + size > len(data):
            data = _longer(data, end + size)
        if last + count > len(known):
            known = _longer(known, last + count)
        rows[number, 0], rows[number, 1], rows[number, 2], rows[number, 3] = end, size, last, count
        for k in range(size):
            data[end + k] = text[low + k]
        for k in range(count):
            known[last + k] = out[written] = ids[tokens[k]]
            written += 1
        slots[at] = (tag << 32) | number
        number, end, last = number + 1, end + size, last + count
        if 2 * number > len(slots):
            slots = _more_slots(slots, rows, data, number)
            mask = len(slots) - 1
    used[0], used[1], used[2] = number, end, last
    return slots, rows, data, known, out[:written]
