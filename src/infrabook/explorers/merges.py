"""A text and its merges, one at a time: what the tokenizer learns from it, and what the text is then made of."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from html import escape
from itertools import pairwise
from typing import TypeAlias

from ..errors import InfrabookError
from ..explore import Choice, Number, Text, explore, number

EXAMPLE = "low low low low low lower lower widest widest widest newest newest newest newest newest newest"
LONGEST = 2000
Word: TypeAlias = tuple[bytes, ...]
Pair: TypeAlias = tuple[bytes, bytes]


def merged(word: Word, pair: Pair) -> Word:
    """``word`` with each ``pair`` as one token, from the left."""
    found: list[bytes] = []
    at = 0
    while at < len(word):
        two = word[at : at + 2] == pair
        found.append(word[at] + word[at + 1] if two else word[at])
        at += 1 + two
    return tuple(found)


# GPT-2's pattern (``bpe.pretokens.PATTERNS``) for ASCII, which is what ``_like`` leaves of a text.
_PATTERN = re.compile(r"'(?:[sdmt]|ll|ve|re)| ?[a-zA-Z]+| ?[0-9]+| ?[^\sa-zA-Z0-9]+|\s+(?!\S)|\s+", re.ASCII)


def cut(text: str) -> list[str]:
    """The pieces that GPT-2's pattern cuts ``text`` into; merges never cross a cut.

    The pattern asks whether a character is a letter, a number or white space, which ``re`` cannot say and
    ``unicodedata`` can. So each character is shown to it as an ASCII one of its kind.

    >>> cut("dog. isn't 42")
    ['dog', '.', ' isn', "'t", ' 42']
    """
    return [text[found.start() : found.end()] for found in _PATTERN.finditer("".join(map(_like, text)))]


def _like(character: str) -> str:
    if character.isascii():
        return "\0" if character in "\x1c\x1d\x1e\x1f" else character  # white space to Python alone
    kind = unicodedata.category(character)[0]
    if character.isspace():
        return "\t"
    return {"L": "a", "N": "0"}.get(kind, "#")


def learn(
    words: Counter[Word], steps: int, greatest: bool
) -> tuple[Counter[Word], list[tuple[tuple[bytes, bytes], int]]]:
    """The words after ``steps`` merges, and each merge with its count."""
    merges = []
    for _ in range(steps):
        pairs: Counter[Pair] = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        if not pairs:
            break
        most = max(pairs.values())
        best = (max if greatest else min)(pair for pair, count in pairs.items() if count == most)
        merges.append((best, most))
        after: Counter[Word] = Counter()
        for word, count in words.items():
            after[merged(word, best)] += count
        words = after
    return words, merges


@explore(
    text=Text(label="text", rows=3, placeholder=EXAMPLE),
    step=Number(0, 60, label="merges"),
    ties=Choice({"to the greatest pair": "greatest", "to the smallest pair": "least"}, label="equal counts go"),
)
def merge_by_merge(text: str = "", step: int = 6, ties: str = "greatest") -> str:
    """Byte-pair encoding learned from a text, merge by merge."""
    given = text or EXAMPLE
    if len(given) > LONGEST:
        raise InfrabookError(f"the text has {len(given):,} characters; {LONGEST:,} are the most here")
    start: Counter[Word] = Counter(tuple(bytes([b]) for b in word.encode("utf-8", "replace")) for word in cut(given))
    words, merges = learn(start, step, ties == "greatest")
    total = sum(len(word) * count for word, count in words.items())
    size = sum(len(word) * count for word, count in start.items())
    if not merges:
        said = "No merge yet: every byte is a token."
    elif len(merges) < step:
        said = f"No pair is left after {len(merges)} merges."
    else:
        (first, second), times = merges[-1]
        said = f"The last: {_shown(first)} and {_shown(second)}, {times} times."
    rows = "".join(
        f'<tr><th scope="row">{_tokens(word)}</th><td class="amount">{count}</td>'
        f'<td class="amount">{len(word)}</td></tr>'
        for word, count in words.most_common(8)
    )
    learned = " ".join(_shown(first + second) for (first, second), _ in reversed(merges))
    return (
        f'<p class="explorer-answer">{number(f"{total:,} tokens", total)} for {size:,} bytes.</p>'
        f'<p class="explorer-note one-line">{said}</p>'
        f'<table class="ledger merges"><thead><tr><th scope="col">piece</th><th scope="col" class="amount">times</th>'
        f'<th scope="col" class="amount">tokens</th></tr></thead><tbody>{rows}</tbody></table>'
        f'<p class="explorer-note one-line">Learned, the last first: {learned or "nothing"}</p>'
    )


def _shown(token: bytes) -> str:
    return f"<code>{escape(token.decode('utf-8', 'backslashreplace').replace(' ', '␣').replace(chr(10), '⏎'))}</code>"


def _tokens(word: Word) -> str:
    return " ".join(map(_shown, word))
