"""Answers to the exercises of ``seven-billion``."""

from __future__ import annotations

from .. import models, recipes
from ..lab import exercise
from ..units import GB


@exercise(
    "seven-billion/1",
    mistakes={
        "that is for eight billion parameters exactly; the model has a few more.": lambda: 128,
        "that is the figure in GiB.": lambda: recipes.states(models.get("llama-3-8b"), "bf16-adamw").total / 2**30,
        "that is Llama-2-7B.": lambda: recipes.states(models.get("llama-2-7b"), "bf16-adamw").total / GB,
    },
    tolerance=0.001,
)
def _states_of_llama_3_8b() -> float:
    return float(recipes.states(models.get("llama-3-8b"), "bf16-adamw").total / GB)


@exercise(
    "seven-billion/2",
    mistakes={"that is where 5·as/h is 34 for one head: count all of them.": lambda: 34 * 1600 / 5},
    tolerance=0.01,
)
def _quadratic_equals_linear() -> float:
    return 34 * 1600 / (5 * 25)


@exercise(
    "seven-billion/3",
    mistakes={
        "that is Llama-2-7B's layer, where every head has keys of its own.": lambda: 12 + 4 + 8 * 11008 / 4096,
        "the keys and values have 8 heads, not 32.": lambda: 12 + 4 + 8 * 14336 / 4096,
        "keys and values: two tensors of two bytes each.": lambda: 12 + 2 * 8 / 32 + 8 * 14336 / 4096,
    },
    tolerance=0.002,
)
def _coefficient_of_llama_3_8b() -> float:
    return 12 + 4 * 8 / 32 + 8 * 14336 / 4096
