"""Answers to the exercises of ``bpe-training``."""

from __future__ import annotations

from ..lab import exercise


@exercise(
    "bpe-training/1",
    mistakes={
        "that leaves out the pair itself, whose count becomes zero.": lambda: 2,
        "that counts each word's pairs for themselves; both words change the same ones.": lambda: 6,
    },
    tolerance=0,
)
def _changed_counts() -> int:
    """Different pairs whose count changes when (s, t) is merged in widest and newest."""
    from itertools import pairwise

    from ..bpe.ladder import joined, letters

    changed = set()
    for word in map(letters, ("widest", "newest", "lower")):
        after = joined(word, (b"s", b"t"))
        if after != word:
            changed |= set(pairwise(word)) ^ set(pairwise(after))
    return len(changed)


@exercise(
    "bpe-training/2",
    mistakes={
        "that is with merging made four times faster as well; only counting is shared out.": lambda: 4.0,
        "that is how much less time there is, as a share.": lambda: 1 - (0.2 + 0.8 / 4),
    },
)
def _amdahl() -> float:
    return 1 / (0.2 + 0.8 / 4)


@exercise(
    "bpe-training/3",
    mistakes={
        "the pair would never be merged, however frequent it is later.": lambda: "drop it",
        "it would come up again at once, for ever.": lambda: "leave it",
    },
)
def _stale() -> str:
    return "put it back"
