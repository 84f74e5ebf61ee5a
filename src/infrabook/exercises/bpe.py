"""Answers to the exercises of ``bpe``."""

from __future__ import annotations

from .. import models
from ..lab import exercise
from ..units import MIB


@exercise(
    "bpe/1",
    mistakes={
        "that stops after the first merge: two aa side by side join again.": lambda: 4,
        "that divides and rounds down: what is left over is tokens too.": lambda: 1,
    },
    tolerance=0,
)
def _tokens_of_seven() -> int:
    from ..bpe import Tokenizer
    from ..bpe.merging import vocabulary

    merges = [(b"a", b"a"), (b"aa", b"aa")]
    return len(Tokenizer(vocabulary(merges), merges).encode("a" * 7))


@exercise(
    "bpe/2",
    mistakes={
        "that is the other one: it wins among equals if ids decide.": lambda: "ab",
        "that is the right one as bytes; the answer is a text, without the b.": lambda: "b'zy'",
    },
)
def _first_merge() -> str:
    from ..bpe import train_counts

    first, second = train_counts({"ab": 3, "zy": 3, "zz": 2}, 1)[0]
    return (first + second).decode()


@exercise(
    "bpe/3",
    mistakes={
        "that is the embedding alone; the head is a second matrix.": lambda: _cost(1),
        "that is in MB.": lambda: _cost(2) * MIB / 1e6,
        "that is all of the larger vocabulary, not what it adds.": lambda: 2 * 2 * 128_256 * 4096 / MIB,
    },
)
def _larger_vocabulary() -> float:
    return _cost(2)


def _cost(matrices: int) -> float:
    old, new = models.get("llama-2-7b"), models.get("llama-3-8b")
    return matrices * 2 * (new.vocab - old.vocab) * new.hidden / MIB
