"""Recipes against the live tensors of PyTorch, and conventions against each other."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from infrabook import models, parameters, recipes, shapes
from infrabook.errors import InfrabookError
from infrabook.recipes import bytes_per_parameter, states


@pytest.mark.parametrize(
    ("recipe", "size"),
    [("fp32-adamw", 16), ("bf16-adamw", 16), ("megatron", 18), ("fp32-accumulation", 20), ("bf16-no-master", 12),
     ("pure-bf16", 8), ("torch-autocast", 18), ("sgd-momentum", 12)],
)  # fmt: skip
def test_bytes_per_parameter(recipe: str, size: int) -> None:
    assert bytes_per_parameter(recipe) == size


def test_autocast_keeps_16_bytes_at_rest_and_18_in_a_step() -> None:
    assert bytes_per_parameter("torch-autocast", at_rest=True) == 16


def test_every_convention_is_its_recipe() -> None:
    for one in recipes.CONVENTIONS:
        assert one.source
        if one.recipe:
            assert bytes_per_parameter(one.recipe) == one.bytes, one.who
    assert {one.bytes for one in recipes.CONVENTIONS} == {8, 10, 12, 16, 18, 20}


def test_zero_stages_are_4_plus_12_over_n_and_so_on() -> None:
    for n in (2, 4, 64, 1024):
        each = [bytes_per_parameter("bf16-adamw", zero=stage, data_parallel=n) for stage in range(4)]
        assert each == [16, 4 + Fraction(12, n), 2 + Fraction(14, n), Fraction(16, n)]


def test_megatrons_distributed_optimizer_is_6_plus_12_over_n() -> None:
    assert bytes_per_parameter("megatron", zero=1, data_parallel=8) == Fraction(15, 2)


def test_nf4_with_double_quantization_is_4_127_bits() -> None:
    bits = 8 * recipes.bytes_of("nf4", recipes.NF4_DOUBLE_QUANTIZED)
    assert round(bits, 3) == Fraction("4.127")


def test_lora_trains_18_874_368_parameters_of_gpt_3() -> None:
    gpt3 = models.get("gpt3-175b")
    assert recipes.adapter_parameters(gpt3, rank=4, targets=("q", "v")) == 18_874_368
    account = states(gpt3, recipes.lora(rank=4))
    assert account["adapters"] == 4 * 18_874_368
    assert account["base weights"] == 2 * parameters.count(gpt3).total


def test_qlora_quantizes_the_linear_layers_alone() -> None:
    llama = models.get("llama-2-7b")
    account = states(llama, "qlora")
    other = 2 * 32000 * 4096 + 65 * 4096
    assert account["base weights, not quantized"] == 2 * other
    quantized = Fraction(account["base weights, quantized"])
    assert round(8 * quantized / (6_738_415_616 - other), 3) == Fraction("4.127")


@pytest.mark.parametrize("name", models.names())
def test_shapes_add_up_to_the_count_of_parameters(name: str) -> None:
    model = models.get(name)
    total = parameters.count(model).total
    assert shapes.elements(model) == total
    stages = [shapes.elements(model, shapes.Rank(1, 2, stage)) for stage in range(2) if model.layers % 2 == 0]
    if stages:  # a tied head is a second copy of the embedding, on the last stage
        assert sum(stages) == total + (model.vocab * model.hidden if model.tied else 0)


def test_tensor_parallel_ranks_hold_norms_whole() -> None:
    llama = models.get("llama-2-7b")
    norms = 65 * 4096
    eighth = shapes.elements(llama, shapes.Rank(8))
    assert eighth == (6_738_415_616 - norms) // 8 + norms
    grouped = models.get("llama-3-8b")  # 8 key-value heads on 16 ranks: each has one
    sixteenth = shapes.elements(grouped, shapes.Rank(16), lambda shape: shape.name == "k")
    assert sixteenth == 32 * 4096 * 128


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: recipes.get("adamw"), "there is no recipe 'adamw'; there are fp32-adamw"),
        (lambda: states(-1), "the number of parameters has to be greater than 0"),
        (lambda: states(7 * 10**9, "lora"), "give a model"),
        (lambda: bytes_per_parameter("adafactor"), "depends on the matrices"),
        (lambda: bytes_per_parameter("bf16-adamw", zero=4), "stages 0, 1, 2 and 3"),
        (lambda: recipes.lora(targets=("query",)), "LoRA cannot target query; it can target q, k, v"),
        (lambda: states(models.get("gpt2"), recipes.lora(targets=("gate",))), "gpt2 has no matrix gate"),
        (lambda: recipes.bits("float17"), "'float17' is not a dtype"),
    ],
)  # fmt: skip
def test_bad_input_is_answered_in_words(call: Any, words: str) -> None:
    with pytest.raises(InfrabookError, match=words):
        call()


# -- live tensors --------------------------------------------------------------------------------------------

MODEL = models.Transformer("tiny", 2, 64, 4, 2, 16, 172, 100, 64)


def build(torch: Any, dtype: Any) -> Any:
    """A parameter for every tensor of ``MODEL``, linear layers as ``Linear``."""
    module = torch.nn.ModuleList()
    for shape in shapes.shapes(MODEL):
        for _ in range(shape.count):
            dims = (shape.rows, shape.columns) if shape.columns else (shape.rows,)
            holder = torch.nn.Module()
            holder.weight = torch.nn.Parameter(torch.randn(*dims, dtype=dtype))
            module.append(holder)
    return module


def measured(torch: Any, dtype: Any, optimizer: Any) -> dict[str, int]:
    module = build(torch, dtype)
    run = optimizer(module.parameters())
    sum(p.float().pow(2).sum() for p in module.parameters()).backward()
    run.step()
    every = list(module.parameters())
    kept = [t for state in run.state.values() for name, t in state.items() if name != "step" and t is not None]
    return {
        "weights": sum(p.nbytes for p in every),
        "gradients": sum(p.grad.nbytes for p in every),
        "optimizer": sum(t.nbytes for t in kept),
    }


@pytest.mark.parametrize(
    ("recipe", "dtype", "name", "how"),
    [
        ("fp32-adamw", "float32", "AdamW", {}),
        ("pure-bf16", "bfloat16", "AdamW", {}),
        ("sgd-momentum", "float32", "SGD", {"lr": 0.1, "momentum": 0.9}),
        ("sgd", "float32", "SGD", {"lr": 0.1}),
    ],
)
def test_states_are_what_torch_optim_keeps(recipe: str, dtype: str, name: str, how: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    live = measured(torch, getattr(torch, dtype), lambda p: getattr(torch.optim, name)(p, **how))
    account = states(MODEL, recipe)
    assert {kind: account.of(kind) for kind in live} == live


def test_adafactor_keeps_rows_and_columns() -> None:
    """torch.optim.Adafactor: a row and a column variance a matrix, a whole one a vector, in the gradients' dtype."""
    torch = pytest.importorskip("torch")
    live = measured(torch, torch.float32, lambda p: torch.optim.Adafactor(p))
    assert states(MODEL, "adafactor").of("optimizer") == live["optimizer"]


def test_mixed_precision_by_hand_is_16_bytes() -> None:
    """bf16 weights and gradients beside an fp32 master that AdamW updates: every tensor counted."""
    torch = pytest.importorskip("torch")
    module = build(torch, torch.bfloat16)
    weights = list(module.parameters())
    sum(p.float().pow(2).sum() for p in weights).backward()
    master = [p.detach().float().requires_grad_() for p in weights]
    optimizer = torch.optim.AdamW(master)
    for copy, weight in zip(master, weights, strict=True):
        copy.grad = weight.grad.float()
    optimizer.step()
    moments = [t for state in optimizer.state.values() for name, t in state.items() if name != "step"]
    live = sum(t.nbytes for t in [*weights, *(w.grad for w in weights), *master, *moments])
    assert live == states(MODEL, "bf16-adamw").total
    accumulated = sum(copy.grad.nbytes for copy in master)  # what fp32 gradients beside them would add
    assert live + accumulated == states(MODEL, "fp32-accumulation").total


def test_autocast_saves_a_bf16_copy_of_every_linear_weight() -> None:
    torch = pytest.importorskip("torch")
    layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(3)))
    x = torch.randn(4, 64, requires_grad=True)
    copies: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        if tensor.shape == (64, 64):
            copies[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), torch.autocast("cpu"):
        layers(x)
    assert sum(storage.nbytes() for storage in copies.values()) == 2 * sum(p.numel() for p in layers.parameters())
    extra = bytes_per_parameter("torch-autocast") - bytes_per_parameter("torch-autocast", at_rest=True)
    assert extra == 2
