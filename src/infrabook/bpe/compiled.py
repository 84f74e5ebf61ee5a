"""The trainer's loop of merges compiled by numba. The same results as without.

Tokens are numbers, a pair is two of them in 64 bits, and everything is an array: a hash table of pairs with their
counts, for each pair a chain of the words that may hold it, and a heap. The first use compiles and says how long it
took; numba keeps the result beside this file, so that the next process starts in less than a second.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numba import njit

from ..errors import InfrabookError

Array = Any  # numba has no types for annotations
Int = Any


def warm_up(*, quiet: bool = False) -> float:
    """Compile, or load what was compiled before; the seconds it took, which are said if they are many."""
    before = time.perf_counter()
    _merge_loop(
        np.zeros(2, np.int32), np.zeros(1, np.int64), np.full(1, 2, np.int64), np.ones(1, np.int64), 1,
        np.arange(256, dtype=np.uint8), True,
    )  # fmt: skip
    seconds = time.perf_counter() - before
    if seconds > 2 and not quiet:
        print(f"numba compiled the trainer in {seconds:.0f} s; the next process will not have to", file=sys.stderr)
    return seconds


# -- merging -----------------------------------------------------------------------------------------------------
def merge_counts(
    counts: Mapping[str, int] | Mapping[bytes, int], merges: int, *, order: Sequence[int], by_bytes: bool
) -> list[tuple[bytes, bytes]]:
    """See ``merging.train_counts``; ``order`` lists the bytes by their ids."""
    from .merging import _words

    words = _words(counts, order)
    if not words or merges == 0:
        return []
    if sum(map(len, words)) >= 2**31:
        raise InfrabookError("there are 2 GiB or more of distinct words: train without compiled=True")
    length = np.fromiter(map(len, words), np.int64, len(words))
    start = np.zeros(len(words), np.int64)
    start[1:] = np.cumsum(length)[:-1]
    flat = np.frombuffer("".join(words).encode("latin-1"), np.uint8).astype(np.int32)
    frequency = np.fromiter(words.values(), np.int64, len(words))
    warm_up()
    found = _merge_loop(flat, start, length, frequency, merges, np.array(order, np.uint8), by_bytes)
    tokens = [bytes([byte]) for byte in order]
    result = []
    for first, second, new in found.tolist():
        result.append((tokens[first], tokens[second]))
        if new == len(tokens):
            tokens.append(tokens[first] + tokens[second])
    return result


@njit(cache=True)
def _compare(i: Int, j: Int, start: Array, size: Array, data: Array) -> Int:
    """-1, 0 or 1 as the bytes of token i are less than, equal to or greater than those of j."""
    for k in range(min(size[i], size[j])):
        x, y = data[start[i] + k], data[start[j] + k]
        if x != y:
            return -1 if x < y else 1
    if size[i] == size[j]:
        return 0
    return -1 if size[i] < size[j] else 1


@njit(cache=True)
def _before(
    count: Int, pair: Int, count2: Int, pair2: Int, start: Array, size: Array, data: Array, by_bytes: bool
) -> Any:
    """Whether the first is to be merged before the second."""
    if count != count2:
        return count > count2
    if not by_bytes:
        return pair < pair2
    order = _compare(pair >> 32, pair2 >> 32, start, size, data)
    if order == 0:
        order = _compare(pair & 0xFFFFFFFF, pair2 & 0xFFFFFFFF, start, size, data)
    return order > 0


@njit(cache=True)
def _rise(
    counts: Array, pairs: Array, at: Int, count: Int, pair: Int, start: Array, size: Array, data: Array, by_bytes: bool
) -> None:
    """Put an entry into the heap, whose last place is ``at``."""
    while at > 0:
        above = (at - 1) >> 1
        if not _before(count, pair, counts[above], pairs[above], start, size, data, by_bytes):
            break
        counts[at], pairs[at] = counts[above], pairs[above]
        at = above
    counts[at], pairs[at] = count, pair


@njit(cache=True)
def _sink(
    counts: Array, pairs: Array, held: Int, count: Int, pair: Int, start: Array, size: Array, data: Array,
    by_bytes: bool,
) -> None:  # fmt: skip
    """Put an entry in place of the heap's first."""
    at = 0
    while True:
        below = 2 * at + 1
        if below >= held:
            break
        if below + 1 < held and _before(
            counts[below + 1], pairs[below + 1], counts[below], pairs[below], start, size, data, by_bytes
        ):
            below += 1
        if not _before(counts[below], pairs[below], count, pair, start, size, data, by_bytes):
            break
        counts[at], pairs[at] = counts[below], pairs[below]
        at = below
    counts[at], pairs[at] = count, pair


@njit(cache=True)
def _slot(keys: Array, key: Int) -> Int:
    """Where ``key`` stands in the table, or would."""
    mask = len(keys) - 1
    at = np.int64((np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)) & mask
    while keys[at] != -1 and keys[at] != key:
        at = (at + 1) & mask
    return at


@njit(cache=True)
def _longer(old: Array, least: Int) -> Array:
    new = np.full(max(2 * len(old), least), -1, old.dtype)
    new[: len(old)] = old
    return new


@njit(cache=True)
def _merge_loop(
    flat: Array, start: Array, length: Array, frequency: Array, merges: Int, order: Array, by_bytes: bool
) -> Array:
    """(first, second, result) of each merge, as numbers; ``flat`` holds all words' tokens and is used up."""
    # tokens: their bytes, one after another
    token_start, token_size = np.arange(256 + merges), np.ones(256 + merges, np.int64)
    data = np.zeros(4096, np.uint8)
    data[:256] = order
    tokens, data_used = 256, 256
    # pairs: a hash table, and for each a chain of words
    keys, counts, chain = np.full(1 << 16, -1, np.int64), np.zeros(1 << 16, np.int64), np.full(1 << 16, -1, np.int64)
    used = 0
    link_word, link_next = np.full(max(16, len(flat)), -1, np.int32), np.full(max(16, len(flat)), -1, np.int64)
    links = 0
    for word in range(len(start)):
        for k in range(start[word], start[word] + length[word] - 1):
            if used * 2 > len(keys):
                keys, counts, chain = _rehash(keys, counts, chain)
            pair = (np.int64(flat[k]) << 32) | flat[k + 1]
            at = _slot(keys, pair)
            if keys[at] == -1:
                keys[at] = pair
                used += 1
            counts[at] += frequency[word]
            if chain[at] < 0 or link_word[chain[at]] != word:
                link_word[links], link_next[links] = word, chain[at]
                chain[at] = links
                links += 1
    heap_count, heap_pair = np.empty(2 * used + 1024, np.int64), np.empty(2 * used + 1024, np.int64)
    held = 0
    for at in range(len(keys)):
        if keys[at] != -1:
            _rise(heap_count, heap_pair, held, counts[at], keys[at], token_start, token_size, data, by_bytes)
            held += 1
    by_hash, made = np.full(1 << 17, -1, np.int64), 0  # tokens by a hash of their bytes, to know those made before
    result = np.empty((merges, 3), np.int32)
    fresh = np.empty(1024, np.int64)
    done = 0
    while done < merges and held > 0:
        count, pair = heap_count[0], heap_pair[0]
        at = _slot(keys, pair)
        current = counts[at]
        if current != count or current <= 0:  # it has become rarer since: put it where it belongs
            if current > 0:
                _sink(heap_count, heap_pair, held, current, pair, token_start, token_size, data, by_bytes)
            else:
                held -= 1
                if held > 0:
                    _sink(
                        heap_count,
                        heap_pair,
                        held,
                        heap_count[held],
                        heap_pair[held],
                        token_start,
                        token_size,
                        data,
                        by_bytes,
                    )
            continue
        held -= 1
        if held > 0:
            _sink(
                heap_count, heap_pair, held, heap_count[held], heap_pair[held], token_start, token_size, data, by_bytes
            )
        first, second = np.int32(pair >> 32), np.int32(pair & 0xFFFFFFFF)
        # the token that results
        size = token_size[first] + token_size[second]
        if data_used + size > len(data):
            longer = np.zeros(2 * len(data) + size, np.uint8)
            longer[:data_used] = data[:data_used]
            data = longer
        for k in range(token_size[first]):
            data[data_used + k] = data[token_start[first] + k]
        for k in range(token_size[second]):
            data[data_used + token_size[first] + k] = data[token_start[second] + k]
        token_start[tokens], token_size[tokens] = data_used, size
        if 2 * made > len(by_hash):
            by_hash = np.full(2 * len(by_hash), -1, np.int64)
            for one in range(256, tokens):
                by_hash[_token_slot(by_hash, one, token_start, token_size, data)] = one
        place = _token_slot(by_hash, tokens, token_start, token_size, data)
        if by_hash[place] >= 0:
            new = np.int32(by_hash[place])
        else:
            by_hash[place] = tokens
            new = np.int32(tokens)
            tokens += 1
            data_used += size
            made += 1
        result[done, 0], result[done, 1], result[done, 2] = first, second, new
        done += 1
        # every word that may hold the pair
        link = chain[at]
        chain[at] = -1
        gained = 0
        while link >= 0:
            word = link_word[link]
            link = link_next[link]
            low, high = start[word], start[word] + length[word]
            write = read = low
            times = frequency[word]
            while read < high:
                if read + 1 < high and flat[read] == first and flat[read + 1] == second:
                    for side in range(2):
                        if side == 0:
                            if write == low:
                                continue
                            old = (np.int64(flat[write - 1]) << 32) | first
                            born = (np.int64(flat[write - 1]) << 32) | new
                        else:
                            if read + 2 >= high:
                                continue
                            old = (np.int64(second) << 32) | flat[read + 2]
                            born = (np.int64(new) << 32) | flat[read + 2]
                        spot = _slot(keys, old)
                        if keys[spot] != -1:
                            counts[spot] -= times
                        if used * 2 > len(keys):
                            keys, counts, chain = _rehash(keys, counts, chain)
                        spot = _slot(keys, born)
                        if keys[spot] == -1:
                            keys[spot] = born
                            used += 1
                        if gained >= len(fresh):
                            fresh = _longer(fresh, gained + 1)
                        if gained == 0 or fresh[gained - 1] != born:
                            fresh[gained] = born
                            gained += 1
                        counts[spot] += times
                        if chain[spot] < 0 or link_word[chain[spot]] != word:
                            if links >= len(link_word):
                                link_word, link_next = _longer(link_word, links + 1), _longer(link_next, links + 1)
                            link_word[links], link_next[links] = word, chain[spot]
                            chain[spot] = links
                            links += 1
                    flat[write] = new
                    write += 1
                    read += 2
                else:
                    flat[write] = flat[read]
                    write += 1
                    read += 1
            length[word] = write - low
        counts[_slot(keys, pair)] = 0
        fresh[:gained].sort()
        for k in range(gained):
            if k and fresh[k] == fresh[k - 1]:
                continue
            spot = _slot(keys, fresh[k])
            if counts[spot] > 0:
                if held >= len(heap_count):
                    heap_count, heap_pair = _longer(heap_count, held + 1), _longer(heap_pair, held + 1)
                _rise(heap_count, heap_pair, held, counts[spot], fresh[k], token_start, token_size, data, by_bytes)
                held += 1
    return result[:done]


@njit(cache=True)
def _rehash(keys: Array, counts: Array, chain: Array) -> tuple[Array, Array, Array]:
    new_keys = np.full(2 * len(keys), -1, np.int64)
    new_counts, new_chain = np.zeros(2 * len(keys), np.int64), np.full(2 * len(keys), -1, np.int64)
    for at in range(len(keys)):
        if keys[at] != -1:
            spot = _slot(new_keys, keys[at])
            new_keys[spot], new_counts[spot], new_chain[spot] = keys[at], counts[at], chain[at]
    return new_keys, new_counts, new_chain


@njit(cache=True)
def _token_slot(table: Array, token: Int, start: Array, size: Array, data: Array) -> Int:
    """Where a token with these bytes stands in the table, or would."""
    mask = len(table) - 1
    mixed = np.uint64(1469598103934665603)
    for k in range(size[token]):
        mixed = (mixed ^ np.uint64(data[start[token] + k])) * np.uint64(1099511628211)
    at = np.int64((mixed ^ (mixed >> np.uint64(29))) & np.uint64(mask))
    while table[at] >= 0 and _compare(table[at], token, start, size, data) != 0:
        at = (at + 1) & mask
    return at
