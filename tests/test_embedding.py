"""Look-ups, ends and positions against PyTorch: the product, the scatter, the tied head, rotations."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from infrabook import embedding, models, parameters, recipes
from infrabook.errors import InfrabookError
from infrabook.explorers import both_ends
from infrabook.measure import work
from infrabook.nn.transformer import rotary_tables, rotate


# -- the look-up ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_look_up_is_the_one_hot_product_to_the_bit(dtype: torch.dtype) -> None:
    table, ids = torch.randn(50, 16).to(dtype), torch.randint(50, (3, 7))
    assert torch.equal(F.one_hot(ids, 50).to(dtype) @ table, F.embedding(ids, table))


def test_pytorch_counts_the_product_and_not_the_look_up() -> None:
    ids, table = torch.randint(50, (21,)), torch.randn(50, 16)
    one_hot = F.one_hot(ids, 50).float()
    assert work.total(lambda: one_hot @ table) == embedding.one_hot_flop(21, 50, 16)
    assert work.total(lambda: F.embedding(ids, table)) == 0


def test_the_product_of_the_whole_batch_is_the_work_of_the_head() -> None:
    from infrabook import flops

    model = models.get("llama-2-7b")
    assert flops.forward(model, sequence=4096)["head"] == embedding.one_hot_flop(4096, model.vocab, model.hidden)


def test_bytes_of_a_look_up_are_those_of_its_tensors() -> None:
    ids, table = torch.randint(50, (21,)), torch.randn(50, 16, dtype=torch.bfloat16)
    out = F.embedding(ids, table)
    assert embedding.look_up(21, 16)["ids"] == ids.nbytes
    assert embedding.look_up(21, 16)["output"] == out.nbytes
    moved = embedding.one_hot_product(21, 50, 16)
    assert moved["one-hot matrix"] == F.one_hot(ids, 50).bfloat16().nbytes
    assert moved["table"] == table.nbytes


@pytest.mark.parametrize("sparse", [False, True])
def test_the_gradient_is_a_scatter_that_adds(sparse: bool) -> None:
    layer = nn.Embedding(50, 16, sparse=sparse, dtype=torch.float64)
    ids = torch.tensor([3, 3, 7, 3, 0])
    upward = torch.randn(5, 16, dtype=torch.float64)
    layer(ids).backward(upward)
    gradient = layer.weight.grad
    assert gradient is not None
    wanted = F.one_hot(ids, 50).double().T @ upward
    torch.testing.assert_close(gradient.to_dense(), wanted, rtol=0, atol=1e-14)
    account = embedding.gradient(3, 50, 16, dtype="fp64", sparse=sparse)
    if sparse:
        parts = gradient.coalesce()
        assert account.total == parts.values().nbytes + parts.indices().nbytes
    else:
        assert account.total == gradient.nbytes


def test_the_backward_of_a_bf16_look_up_stops_at_256_on_a_cpu() -> None:
    """A fact of torch 2.13: each occurrence is added in BF16, where 256 + 1 is 256."""
    weight = torch.zeros(2, 4, dtype=torch.bfloat16, requires_grad=True)
    F.embedding(torch.zeros(1000, dtype=torch.long), weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad[0].tolist() == [256.0] * 4


# -- the ends ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", models.names())
def test_ends_and_layers_are_the_whole_model(name: str) -> None:
    model = models.get(name)
    account = embedding.ends(model)
    assert account.total == parameters.count(model).total
    with torch.device("meta"):
        assert account["embedding"] == nn.Embedding(model.vocab, model.hidden).weight.numel()
    assert ("head" in account) == (not model.tied or model.head_bias)


def test_tying_saves_one_matrix_and_padding_costs_rows() -> None:
    llama = models.get("llama-2-7b")
    assert embedding.ends(llama).total - embedding.ends(llama, tied=True).total == 32_000 * 4096
    gpt2 = models.get("gpt2")
    assert embedding.ends(gpt2, padded_to=128).total - embedding.ends(gpt2).total == (50_304 - 50_257) * 768


def test_states_are_those_of_adam() -> None:
    layer = nn.Embedding(100, 8)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.tensor([1])).sum().backward()
    optimizer.step()
    kept = sum(tensor.nbytes for tensor in optimizer.state[layer.weight].values() if tensor.dim())
    ours = recipes.states(100 * 8, "bf16-adamw")
    assert sum(row.value for row in ours if row.name in ("first moments", "second moments")) in (kept, 0)
    assert embedding.states(100, 8, tied=True).total == ours.total
    assert embedding.states(100, 8).total == 2 * ours.total


# -- positions -----------------------------------------------------------------------------------------------
def turned(vector: Any, position: int, **how: Any) -> torch.Tensor:
    return torch.tensor(embedding.rotated(vector.tolist(), position, **how), dtype=torch.float64)


@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
@pytest.mark.parametrize("base", [10_000, 500_000])
def test_rotation_keeps_lengths_and_products_depend_on_the_difference(pairs: str, base: int) -> None:
    query, key = torch.randn(2, 64, dtype=torch.float64)
    for difference in (0, 1, 100):
        products = []
        for at in (0, 5, 4095):
            q, k = turned(query, at + difference, base=base, pairs=pairs), turned(key, at, base=base, pairs=pairs)
            assert float(q.norm()) == pytest.approx(float(query.norm()), rel=1e-13)
            products.append(float(q @ k))
        assert products == pytest.approx([products[0]] * 3, abs=1e-10)


def test_rotation_is_that_of_the_books_llama_and_of_a_complex_product() -> None:
    vector = torch.randn(64, dtype=torch.float64)
    cos, sin = rotary_tables(200, 64, torch.float64)
    theirs = rotate(vector.expand(1, 1, 200, 64), cos, sin)[0, 0]
    for at in (0, 1, 199):
        torch.testing.assert_close(turned(vector, at), theirs[at], rtol=0, atol=1e-4)  # its tables are made in FP32
    turns = torch.polar(torch.ones(32, dtype=torch.float64), 9 * torch.tensor(embedding.frequencies(64)).double())
    wanted = torch.view_as_real(torch.view_as_complex(vector.view(-1, 2)) * turns).flatten()
    torch.testing.assert_close(turned(vector, 9, pairs="neighbours"), wanted, rtol=0, atol=1e-5)


def test_sinusoids_products_depend_on_the_difference() -> None:
    def product(m: int, n: int) -> float:
        pairs = zip(embedding.sinusoidal(m, 32), embedding.sinusoidal(n, 32), strict=True)
        return math.fsum(a * b for a, b in pairs)

    for difference in (0, 3, 40):
        wanted = math.fsum(math.cos(w * difference) for w in embedding.frequencies(32))
        assert [product(n + difference, n) for n in (0, 17, 900)] == pytest.approx([wanted] * 3, abs=1e-11)


@pytest.mark.parametrize("length", [1, 256, 300, 4096, 10_000])
def test_positions_that_bf16_keeps_apart(length: int) -> None:
    assert embedding.positions_in(8, length) == len(torch.arange(length).bfloat16().unique())
    assert embedding.positions_in(11, length) == len(torch.arange(length).half().unique())


def test_errors_are_in_the_readers_words() -> None:
    with pytest.raises(InfrabookError, match="a width of 7 is odd"):
        embedding.frequencies(7)
    with pytest.raises(InfrabookError, match="has pairs 0 to 31, and no pair 32"):
        embedding.wavelength(64, 32)
    with pytest.raises(InfrabookError, match="9 different ids do not fit into a vocabulary of 8"):
        embedding.gradient(9, 8, 4)
    with pytest.raises(InfrabookError, match="tokens has to be"):
        embedding.one_hot_flop(0, 8, 4)
    with pytest.raises(InfrabookError, match="pairs can be halves or neighbours"):
        embedding.rotated([1.0, 2.0], 1, pairs="thirds")  # type: ignore[arg-type]
    wrong: Any = "a"
    with pytest.raises(InfrabookError, match=r"a model is what models\.get gives, .* and not 'a'"):
        embedding.ends(wrong)
    with pytest.raises(InfrabookError, match="and no pair 'a'"):
        embedding.wavelength(64, wrong)
    for turn in (lambda at: embedding.sinusoidal(at, 4), lambda at: embedding.rotated([1.0, 2.0], at)):
        with pytest.raises(InfrabookError, match="a position is a number, and not 'a'"):
            turn(wrong)


# -- the explorer --------------------------------------------------------------------------------------------
def test_every_control_of_the_explorer_moves_its_costs() -> None:
    start = both_ends()
    changed = {
        "vocab": 32_000,
        "width": 1024,
        "layers": 4,
        "tied": True,
        "multiple": 1024,
        "recipe": "pure-bf16",
        "tokens": 1,
    }
    for name, value in changed.items():
        assert both_ends(**{name: value}) != start, name
    with pytest.raises(InfrabookError, match="vocabulary has to be one of"):
        both_ends(vocab=7)


def test_the_explorer_speaks_of_amounts_as_people_do() -> None:
    small = both_ends(vocab=50_257, multiple=64, tokens=1, tied=True)
    assert "For 1 token in BF16" in small
    assert "47 rows, 96.26 k parameters" in small
    assert "of the parameters are in the two ends, one matrix: " in small
    assert "would move 542.21 GB" in both_ends(vocab=256_000, tokens=1_048_576)


def test_the_one_hot_product_is_the_look_up_only_where_the_table_is_finite() -> None:
    table, ids = torch.randn(5, 3), torch.tensor([1, 2])
    table[4] = math.inf
    assert F.embedding(ids, table).isfinite().all()
    assert (F.one_hot(ids, 5).float() @ table).isnan().all()


def test_bf16_sums_err_with_the_square_root_of_half_their_number() -> None:
    torch.manual_seed(0)
    numbers = torch.randn(100_000, dtype=torch.float64)
    share = float((numbers.bfloat16().double() - numbers).norm() / numbers.norm())
    for times in (128, 2048, 8192):
        upward = torch.randn(times, 2048, dtype=torch.float64).bfloat16()
        weight = torch.zeros(1, 2048, dtype=torch.bfloat16, requires_grad=True)
        F.embedding(torch.zeros(times, dtype=torch.long), weight).backward(upward)
        assert weight.grad is not None
        exact = upward.double().sum(0)
        error = float((weight.grad[0].double() - exact).norm() / exact.norm())
        assert error == pytest.approx(share * math.sqrt(times / 2), rel=0.2)
