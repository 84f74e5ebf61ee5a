"""The answers to the labs' exercises, computed by the library; ``lab.check`` compares without telling.

One section a chapter. A mistake worth naming has its own word for the reader who makes it.
"""

from __future__ import annotations

from . import kv_cache, models, recipes
from .lab import exercise
from .units import GB, GIB

# -- seven-billion -----------------------------------------------------------------------------------------------


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
    mistakes={"that is where 5·as/h is 34 for one head: count all of them.": lambda: 34 * 4096 / 5},
    tolerance=0.01,
)
def _quadratic_equals_linear() -> float:
    return 34 * 4096 / (5 * 32)


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


# -- fits-or-not -------------------------------------------------------------------------------------------------


@exercise(
    "fits-or-not/1",
    mistakes={
        "that counts keys or values, not both.": lambda: 10**10 // (32 * 8 * 128 * 2 * 4096),
        "that is for 32 heads; the cache has 8.": lambda: 10**10 // (2 * 32 * 32 * 128 * 2 * 4096),
        "10 GB are 10·10^9 bytes.": lambda: 10 * 2**30 // (2 * 32 * 8 * 128 * 2 * 4096),
    },
    tolerance=0,
)
def _conversations() -> int:
    return kv_cache.max_batch(models.get("mistral-7b"), 10**10, context=4096)


@exercise(
    "fits-or-not/2",
    mistakes={
        "that is what lives between the steps and the gradients; the step makes something more.": lambda: 8,
        "that is a copy of both moments; only the second one's square root is taken.": lambda: 12,
    },
    tolerance=0,
)
def _bytes_in_the_optimizer_step() -> int:
    return 2 + 2 + 2 * 2 + 2


@exercise(
    "fits-or-not/3",
    mistakes={
        "that is one of the two, or both in a format of two bytes.": lambda: 4 * 8192 * 128_256 / GIB,
        "those are GB.": lambda: 2 * 4 * 8192 * 128_256 / GB,
    },
    tolerance=0.005,
)
def _loss_gradients() -> float:
    return 2 * 4 * 8192 * models.get("llama-3-8b").vocab / GIB
