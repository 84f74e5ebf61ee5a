"""Answers to the exercises of ``dataset``."""

from __future__ import annotations

from .. import dataset
from ..lab import exercise


@exercise(
    "dataset/1",
    mistakes={
        "that is about where the curve is steepest; the chance there is more than a half.": lambda: dataset.steepest(
            bands=14, rows=8
        ),
        "that has 8 bands of 14.": lambda: (1 - 0.5 ** (1 / 8)) ** (1 / 14),
        "that is for all bands to agree; one is enough.": lambda: (0.5 ** (1 / 14)) ** (1 / 8),
    },
    tolerance=0.002,
)
def _even_chance() -> float:
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        below = dataset.candidate_probability(middle, bands=14, rows=8) < 0.5
        low, high = (middle, high) if below else (low, middle)
    return low


@exercise(
    "dataset/2",
    mistakes={
        "the two pages share words; what is compared are shingles.": lambda: 80 / 104,
        "a union counts what they share once.": lambda: 78 / (78 + 102),
        "a page of n words has fewer than n runs of three.": lambda: 80 / 102,
        "that is in percent; a similarity is from 0 to 1.": lambda: 100 * 78 / 102,
        "that is the share of the original: all of it is in the copy.": lambda: 1.0,
    },
    tolerance=0.002,
)
def _framed() -> float:
    page, head, foot = ([f"{part}{i}" for i in range(count)] for part, count in (("p", 80), ("h", 14), ("f", 10)))
    return float(dataset.jaccard(dataset.shingles(" ".join(page)), dataset.shingles(" ".join(head + page + foot))))


@exercise(
    "dataset/3",
    mistakes={
        "that is what was measured, over twins and new texts together.": lambda: 18,
        "twins are not all right: a twentieth of them is wrong.": lambda: 18 / 0.7,
        "that weights the twins as if they were the new texts.": lambda: (18 - 0.7 * 5) / 0.3,
        "that is a fraction; the question is in percent.": lambda: (18 - 0.3 * 5) / 70,
    },
    tolerance=0.005,
)
def _on_new_texts() -> float:
    return (18 - 0.3 * 5) / 0.7
