"""The answers to the labs' exercises, computed by the library; ``lab.check`` compares without telling.

One section a chapter. A mistake worth naming has its own word for the reader who makes it.
"""

from __future__ import annotations

from . import flops, kv_cache, models, parameters, recipes
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


# -- mixed-precision ---------------------------------------------------------------------------------------------


@exercise(
    "mixed-precision/1",
    mistakes={
        "the scales are missing.": lambda: 10,
        "that is one of the two moments.": lambda: 2 + 2 + 4 + 1 + 4 / 256,
        "there is a master copy too.": lambda: 2 + 2 + 2 * (1 + 4 / 256),
        "those are blocks of 2,048, as in the paper.": lambda: 2 + 2 + 4 + 2 * (1 + 4 / 2048),
    },
    tolerance=0.0001,
)
def _bytes_of_8_bit_adam() -> float:
    return float(recipes.bytes_per_parameter(recipes.adam_8bit(block=256)))


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


# -- flops -------------------------------------------------------------------------------------------------------


@exercise(
    "flops/1",
    mistakes={
        "that leaves the feed-forward layer out.": lambda: 2,
        "that is for scores counted by the causal half.": lambda: 12,
        "that is a gated layer of three matrices.": lambda: 8,
    },
    tolerance=0.001,
)
def _crossover_in_widths() -> float:
    return float(flops.crossover(models.get("gpt2-xl")) / 1600)


@exercise(
    "flops/2",
    mistakes={
        "that is with the logits of every position.": lambda: flops.forward(models.get("gpt2"), sequence=1024).total,
        "the last position still needs its logits.": lambda: flops.forward(
            models.get("gpt2"), sequence=1024, head=False
        ).total,
    },
    tolerance=1e-6,
)
def _forward_of_a_server() -> int:
    return int(flops.forward(models.get("gpt2"), sequence=1024, logits="last").total)


@exercise(
    "flops/3",
    mistakes={
        "that is all parameters over active ones; attention's scores are work too.": lambda: float(
            parameters.count(models.get("mixtral-8x7b")).total / parameters.active(models.get("mixtral-8x7b")).total
        ),
        "not four: attention and the ends are not divided among experts.": lambda: 4,
    },
    tolerance=0.005,
)
def _overstated_by_six_n() -> float:
    mixtral = models.get("mixtral-8x7b")
    return float(6 * parameters.count(mixtral).total / flops.per_token(mixtral, sequence=4096))
