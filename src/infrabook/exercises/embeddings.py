"""Answers to the exercises of ``embeddings``."""

from __future__ import annotations

import math
from dataclasses import replace

from .. import embedding, models, parameters
from ..lab import exercise


@exercise(
    "embeddings/1",
    mistakes={
        "there are two ends, and this head is not tied.": lambda: 96_256 * 4096,
        "that is what is left at both ends.": lambda: 2 * 32_000 * 4096,
        "that is what both ends have now.": lambda: 2 * 128_256 * 4096,
    },
    tolerance=0.0001,
)
def _fewer() -> int:
    model = models.get("llama-3-8b")
    small = replace(model, vocab=32_000)
    return int(parameters.count(model).total) - int(parameters.count(small).total)


@exercise(
    "embeddings/2",
    mistakes={
        "a multiplication and an addition are two FLOP.": lambda: 8192 * 50_257 * 768 / 1e12,
        "that is the look-up; here the product is executed.": lambda: 0,
        "those are FLOP.": lambda: 2 * 8192 * 50_257 * 768,
        "that is one sequence.": lambda: 2 * 1024 * 50_257 * 768 / 1e12,
    },
    tolerance=0.005,
)
def _product() -> float:
    return embedding.one_hot_flop(8 * 1024, 50_257, 768) / 1e12


@exercise(
    "embeddings/3",
    mistakes={
        "pairs are counted from 0, and the last has to turn a little.": lambda: 2 * math.pi * 10_000,
        "that is the fastest pair.": lambda: 2 * math.pi,
        "a full turn is 2π radians.": lambda: 10_000 ** (62 / 64),
        "that is a head of 128.": lambda: embedding.wavelength(128, 63),
    },
    tolerance=0.001,
)
def _full_turn() -> float:
    return embedding.wavelength(64, 31)
