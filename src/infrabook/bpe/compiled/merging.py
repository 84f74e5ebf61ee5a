"""The loop of merges compiled.

A word's frequency, length and tokens lie side by side, so that a visit is one look into memory and not four. Tokens are
numbers, and a pair is two of them in 64 bits. A merge gathers what it changes by neighbour and looks each
pair up once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np
from numba import njit

from ...errors import InfrabookError
from .words import Array, Int, Words, _array, _longer, _more_rows


def merge_counts(
    counts: Words | Mapping[str, int] | Mapping[bytes, int], merges: int, *, order: Sequence[int], by_bytes: bool,
    told: Callable[[int], object] = lambda done: None,
) -> list[tuple[bytes, bytes]]:  # fmt: skip
    """See ``merging.train_counts``; ``order`` lists the bytes by their ids, ``told`` hears of merges done."""
    words = counts if isinstance(counts, Words) else _array(counts)
    if not len(words.start) or merges == 0:
        return []
    if len(words.data) + 3 * len(words.start) >= 2**31:
        raise InfrabookError("there are 2 GiB or more of distinct words: train without compiled=True")
    tokens = [bytes([byte]) for byte in order]
    result = []
    for first, second, new in _watched(words, merges, order, by_bytes, told).tolist():
        result.append((tokens[first], tokens[second]))
        if new == len(tokens):
            tokens.append(tokens[first] + tokens[second])
    return result


def _watched(words: Words, merges: int, order: Sequence[int], by_bytes: bool, told: Callable[[int], object]) -> Array:
    """The loop in a thread, so that it can be heard of and interrupted."""
    state, seen = np.zeros(2, np.int64), 0
    with ThreadPoolExecutor(1) as thread:
        job = thread.submit(_merge_loop, *words, merges, np.array(order, np.uint8), by_bytes, state)
        try:
            while wait([job], timeout=0.1).not_done:
                done = int(state[0])
                told(done - seen)
                seen = done
        except BaseException:
            state[1] = 1
            raise
    told(int(state[0]) - seen)
    return job.result()


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
def _rise(heap: Array, at: Int, count: Int, pair: Int, start: Array, size: Array, data: Array, by_bytes: bool) -> None:
    """Put an entry into the heap, whose last place is ``at``."""
    while at > 0:
        above = (at - 1) >> 1
        if not _before(count, pair, heap[above, 0], heap[above, 1], start, size, data, by_bytes):
            break
        heap[at, 0], heap[at, 1] = heap[above, 0], heap[above, 1]
        at = above
    heap[at, 0], heap[at, 1] = count, pair


@njit(cache=True)
def _sink(
    heap: Array, held: Int, count: Int, pair: Int, start: Array, size: Array, data: Array, by_bytes: bool
) -> None:
    """Put an entry in place of the heap's first."""
    at = 0
    while True:
        below = 2 * at + 1
        if below >= held:
            break
        if below + 1 < held and _before(
            heap[below + 1, 0], heap[below + 1, 1], heap[below, 0], heap[below, 1], start, size, data, by_bytes
        ):
            below += 1
        if not _before(heap[below, 0], heap[below, 1], count, pair, start, size, data, by_bytes):
            break
        heap[at, 0], heap[at, 1] = heap[below, 0], heap[below, 1]
        at = below
    heap[at, 0], heap[at, 1] = count, pair


_PAIR, _COUNT, _FROM, _HELD = range(4)  # a row of the table of pairs: its words are _HELD numbers from _FROM


@njit(cache=True)
def _slot(pairs: Array, pair: Int) -> Int:
    """The row of ``pair``, or the one that it would have."""
    mask = len(pairs) - 1
    at = np.int64((np.uint64(pair) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)) & mask
    while pairs[at, _PAIR] != -1 and pairs[at, _PAIR] != pair:
        at = (at + 1) & mask
    return at


@njit(cache=True)
def _more_pairs(pairs: Array) -> Array:
    new = np.full((2 * len(pairs), 4), -1, np.int64)
    for at in range(len(pairs)):
        if pairs[at, _PAIR] != -1:
            new[_slot(new, pairs[at, _PAIR])] = pairs[at]
    return new


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


@njit(cache=True, nogil=True)
def _merge_loop(
    text: Array, word_start: Array, word_size: Array, word_count: Array, merges: Int, order: Array, by_bytes: bool,
    state: Array,
) -> Array:  # fmt: skip
    """(first, second, result) of each merge, as numbers; ``state`` says how many there are, and is told to stop."""
    place = np.zeros(256, np.int32)
    for k in range(256):
        place[order[k]] = k
    # a word: its frequency in two halves, its length, its tokens
    cells = np.empty(len(text) + 3 * len(word_start), np.int32)
    pair_count, pair_held = np.zeros(1 << 16, np.int64), np.zeros(1 << 16, np.int64)  # of two bytes: no hash yet
    end = 0
    for word in range(len(word_start)):
        size, times = word_size[word], word_count[word]
        if size < 2:
            continue
        cells[end], cells[end + 1], cells[end + 2] = times >> 32, times & 0xFFFFFFFF, size
        for k in range(size):
            cells[end + 3 + k] = place[text[word_start[word] + k]]
            if k:
                pair = (cells[end + 2 + k] << 8) | cells[end + 3 + k]
                pair_count[pair] += times
                pair_held[pair] += 1
        end += 3 + size
    # pairs: a hash table, and for each a list of the words that may hold it
    pairs, used = np.full((1 << 12, 4), -1, np.int64), 0
    posts = np.empty(3 * pair_held.sum() + 16, np.int32)
    posted = 0
    heap, held = np.empty((1 << 12, 2), np.int64), 0
    token_start, token_size = np.arange(256 + merges), np.ones(256 + merges, np.int64)
    data = np.zeros(4096, np.uint8)  # the tokens' bytes, one after another
    data[:256] = order
    tokens, data_used = 256, 256
    for pair in range(1 << 16):
        if pair_held[pair]:
            if 2 * used > len(pairs):
                pairs = _more_pairs(pairs)
            both = (np.int64(pair >> 8) << 32) | (pair & 255)
            at = _slot(pairs, both)
            pairs[at, _PAIR], pairs[at, _COUNT] = both, pair_count[pair]
            pairs[at, _FROM], pairs[at, _HELD] = posted, pair_held[pair]
            posted += pair_held[pair]
            used += 1
            if held >= len(heap):
                heap = _more_rows(heap, held)
            _rise(heap, held, pair_count[pair], both, token_start, token_size, data, by_bytes)
            held += 1
            pair_held[pair] = posted - pair_held[pair]  # from now on: where its next word goes
    at = 0
    while at < end:
        for k in range(at + 3, at + 2 + cells[at + 2]):
            pair = (cells[k] << 8) | cells[k + 1]
            posts[pair_held[pair]] = at
            pair_held[pair] += 1
        at += 3 + cells[at + 2]
    by_hash, made = np.full(1 << 17, -1, np.int64), 0  # tokens by a hash of their bytes, to know those made before
    result, done = np.empty((merges, 3), np.int32), 0
    # of one merge, on either side: the neighbours, how often each stands there, the words in which it does
    gain, number = np.zeros((2, 256 + merges), np.int64), np.zeros((2, 256 + merges), np.int64)
    touched, touches = np.empty((2, 256 + merges), np.int32), np.zeros(2, np.int64)
    seen, seen_word, sees = np.empty(4096, np.int64), np.empty(4096, np.int32), 0
    while done < merges and held > 0 and not state[1]:
        count, pair = heap[0, 0], heap[0, 1]
        at = _slot(pairs, pair)
        current = pairs[at, _COUNT]
        if current == count and current > 0:
            held -= 1
            if held > 0:
                _sink(heap, held, heap[held, 0], heap[held, 1], token_start, token_size, data, by_bytes)
        elif current > 0:  # it has become rarer since: put it where it belongs
            _sink(heap, held, current, pair, token_start, token_size, data, by_bytes)
            continue
        else:
            held -= 1
            if held > 0:
                _sink(heap, held, heap[held, 0], heap[held, 1], token_start, token_size, data, by_bytes)
            continue
        first, second = np.int32(pair >> 32), np.int32(pair & 0xFFFFFFFF)
        # the token that results
        size = token_size[first] + token_size[second]
        if data_used + size > len(data):
            data = _longer(data, data_used + size)
        for k in range(token_size[first]):
            data[data_used + k] = data[token_start[first] + k]
        for k in range(token_size[second]):
            data[data_used + token_size[first] + k] = data[token_start[second] + k]
        token_start[tokens], token_size[tokens] = data_used, size
        if 2 * made > len(by_hash):
            by_hash = np.full(2 * len(by_hash), -1, np.int64)
            for one in range(256, tokens):
                by_hash[_token_slot(by_hash, one, token_start, token_size, data)] = one
        at_token = _token_slot(by_hash, tokens, token_start, token_size, data)
        if by_hash[at_token] >= 0:
            new = np.int32(by_hash[at_token])
        else:
            by_hash[at_token] = tokens
            new = np.int32(tokens)
            tokens += 1
            data_used += size
            made += 1
        result[done, 0], result[done, 1], result[done, 2] = first, second, new
        done += 1
        state[0] = done
        # every word that may hold the pair
        sees, previous = 0, -1
        for k in range(pairs[at, _FROM], pairs[at, _FROM] + pairs[at, _HELD]):
            word = posts[k]
            if word == previous:  # listed as often as it had the pair
                continue
            previous = word
            low = word + 3
            high = low + cells[word + 2]
            read = low
            while read + 1 < high and not (cells[read] == first and cells[read + 1] == second):
                read += 1
            if read + 1 >= high:
                continue  # it was there once
            write = read
            times = (np.int64(cells[word]) << 32) | (np.int64(cells[word + 1]) & 0xFFFFFFFF)
            while read < high:
                if read + 1 < high and cells[read] == first and cells[read + 1] == second:
                    for side in range(2):
                        if side == 0:
                            if write == low:
                                continue
                            other = cells[write - 1]
                        else:
                            if read + 2 >= high:
                                continue
                            other = cells[read + 2]
                        if number[side, other] == 0:
                            touched[side, touches[side]] = other
                            touches[side] += 1
                        gain[side, other] += times
                        number[side, other] += 1
                        if sees >= len(seen):
                            seen, seen_word = _longer(seen, 0), _longer(seen_word, 0)
                        seen[sees], seen_word[sees] = 2 * np.int64(other) + side, word
                        sees += 1
                    cells[write] = new
                    read += 2
                else:
                    cells[write] = cells[read]
                    read += 1
                write += 1
            cells[word + 2] = write - low
        # what it changes in the counts, neighbour by neighbour; what stands after first, so that a pair made is there
        if posted + 2 * sees > len(posts):
            posts = _longer(posts, posted + 2 * sees)
        for side in range(1, -1, -1):
            for k in range(touches[side]):
                other = np.int64(touched[side, k])
                if side == 0:
                    old, born = (other << 32) | first, (other << 32) | new
                else:
                    old, born = (np.int64(second) << 32) | other, (np.int64(new) << 32) | other
                if 2 * used > len(pairs):
                    pairs = _more_pairs(pairs)
                at = _slot(pairs, born)
                if pairs[at, _PAIR] == -1:
                    pairs[at, _PAIR], pairs[at, _COUNT], pairs[at, _HELD] = born, 0, 0
                    used += 1
                pairs[at, _COUNT] += gain[side, other]
                have, there = pairs[at, _HELD], pairs[at, _FROM]
                if posted + have + number[side, other] + sees > len(posts):
                    posts = _longer(posts, posted + have + number[side, other] + sees)
                pairs[at, _FROM], pairs[at, _HELD] = posted, have + number[side, other]
                posts[posted : posted + have] = posts[there : there + have]
                number[side, other], posted = posted + have, posted + have + number[side, other]
                at = _slot(pairs, old)
                if pairs[at, _PAIR] != -1:
                    pairs[at, _COUNT] -= gain[side, other]
            for k in range(sees):
                if seen[k] & 1 == side:
                    other = seen[k] >> 1
                    posts[number[side, other]] = seen_word[k]
                    number[side, other] += 1
        pairs[_slot(pairs, pair), _COUNT] = 0
        for side in range(2):
            for k in range(touches[side]):
                other = np.int64(touched[side, k])
                gain[side, other] = number[side, other] = 0
                born = (other << 32) | new if side == 0 else (np.int64(new) << 32) | other
                current = pairs[_slot(pairs, born), _COUNT]
                if current > 0:
                    if held >= len(heap):
                        heap = _more_rows(heap, held)
                    _rise(heap, held, current, born, token_start, token_size, data, by_bytes)
                    held += 1
            touches[side] = 0
    return result[:done]
