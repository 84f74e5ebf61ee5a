"""Answers to the exercises of ``mixed-precision``."""

from __future__ import annotations

from .. import models, recipes
from ..lab import exercise
from ..units import GB


@exercise(
    "mixed-precision/1",
    mistakes={
        "the scales are missing.": lambda: 10,
        "that is one of the two moments.": lambda: 2 + 2 + 4 + 1 + 4 / 64,
        "there is a master copy too.": lambda: 2 + 2 + 2 * (1 + 4 / 64),
        "those are blocks of 2,048, as in the paper.": lambda: 2 + 2 + 4 + 2 * (1 + 4 / 2048),
    },
    tolerance=0.0001,
)
def _bytes_of_8_bit_adam() -> float:
    return float(recipes.bytes_per_parameter(recipes.adam_8bit(block=64)))


@exercise(
    "mixed-precision/2",
    mistakes={
        "that is the whole distance to the next number; half of it is rounded away.": lambda: 2**-11,
        "BF16 has 7 bits of fraction, FP16 has 10.": lambda: 2**-15,
        "that is half the distance next to 1; next to 0.1 numbers are closer.": lambda: 2**-8,
        "the distance is the same all the way from 2^-4 to 2^-3; it is not proportional to 0.1.": lambda: 0.1 * 2**-8,
    },
    tolerance=0.001,
)
def _update_lost_at_a_tenth() -> float:
    return 2**-4 * 2**-7 / 2


@exercise(
    "mixed-precision/3",
    mistakes={
        "that is 16 bytes: the gradient is in FP32.": lambda: recipes.states(models.get("llama-65b")).total / GB,
        "that is 20 bytes: the BF16 gradient is freed.": lambda: (
            recipes.states(models.get("llama-65b"), "fp32-accumulation").total / GB
        ),
        "that is 12 bytes, the paper's own count.": lambda: (
            recipes.states(models.get("llama-65b"), "bf16-no-master").total / GB
        ),
        "that is for 65 billion exactly; the model has a few more.": lambda: 65 * 18,
        "that is the figure in GiB.": lambda: recipes.states(models.get("llama-65b"), "megatron").total / 2**30,
    },
    tolerance=0.001,
)
def _states_of_llama_65b() -> float:
    return float(recipes.states(models.get("llama-65b"), "megatron").total / GB)
