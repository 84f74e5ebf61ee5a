"""Block-wise softmax is softmax: in any blocks, in any order, merged in any tree, and so is its gradient."""

from __future__ import annotations

import itertools
import random
from functools import reduce

import pytest
import torch
import torch.nn.functional as F

from infrabook.errors import InfrabookError
from infrabook.measure.saved import saved_for_backward
from infrabook.nn import blockwise, triton_attention
from infrabook.nn.blockwise import merge, partial


def inputs(s: int = 37, d: int = 8, spread: float = 1.0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(s)
    return tuple(spread * torch.randn(2, 3, s, d, generator=generator, dtype=torch.float64) for _ in range(3))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("columns", [1, 2, 5, 8, 36, 37, 64])
def test_any_block_size_in_any_order_is_exact(columns: int, causal: bool) -> None:
    q, k, v = inputs(spread=3)
    wanted = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    number = -(-37 // columns)
    shuffled = random.Random(columns).sample(range(number), number)
    for order in (None, range(number - 1, -1, -1), shuffled):
        out, lse = blockwise.forward(q, k, v, rows=7, columns=columns, causal=causal, order=order)
        assert (out - wanted).abs().max() < 1e-12
    scores = q @ k.transpose(-1, -2) / 8**0.5
    if causal:
        scores = scores.masked_fill(torch.ones(37, 37, dtype=torch.bool).triu(1), -torch.inf)
    assert (lse - scores.logsumexp(-1)).abs().max() < 1e-12


def test_any_tree_of_merges_gives_the_same() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = 30 * torch.randn(5, 24, generator=generator, dtype=torch.float64)
    values = torch.randn(24, 3, generator=generator, dtype=torch.float64)
    wanted = scores.softmax(-1) @ values
    for seed in range(20):
        rng = random.Random(seed)
        cuts = [0, *sorted(rng.sample(range(1, 24), 6)), 24]
        parts = [partial(scores[:, a:b], values[a:b]) for a, b in itertools.pairwise(cuts)]
        rng.shuffle(parts)
        while len(parts) > 1:
            a, b = parts.pop(rng.randrange(len(parts))), parts.pop(rng.randrange(len(parts)))
            parts.append(merge(a, b))
        assert (parts[0].output - wanted).abs().max() < 1e-12


def test_a_masked_block_may_come_first_and_weighs_nothing() -> None:
    values = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    nothing = partial(torch.full((1, 2), -torch.inf, dtype=torch.float64), values)
    something = partial(torch.tensor([[0.0, 0.0]], dtype=torch.float64), values)
    for parts in ([nothing, nothing, something], [something, nothing]):
        assert reduce(merge, parts).output.item() == 1.5


def test_scores_that_overflow_exp_are_no_trouble() -> None:
    scores = torch.tensor([[999.0, 1000.0, -1000.0]])
    values = torch.tensor([[1.0], [2.0], [3.0]])
    assert torch.isnan((scores.exp() / scores.exp().sum()) @ values).all()
    parts = [partial(scores[:, i : i + 1], values[i : i + 1]) for i in range(3)]
    assert reduce(merge, parts).output.item() == pytest.approx((scores.softmax(-1) @ values).item())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (4, 3), (16, 16)])
def test_backward_passes_gradcheck(rows: int, columns: int, causal: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    x = [torch.randn(2, 9, 4, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradcheck(lambda *a: blockwise.attention(*a, rows=rows, columns=columns, causal=causal), x)


def test_it_keeps_what_sdpa_keeps() -> None:
    kept = {}
    for name, run in (("ours", blockwise.attention), ("sdpa", F.scaled_dot_product_attention)):
        x = [torch.randn(1, 2, 64, 16, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
        with saved_for_backward(torch.nn.Module()) as saved:
            run(*x)
        kept[name] = sorted(row.nbytes for row in saved.rows)
    assert kept["ours"] == kept["sdpa"]


def test_an_order_that_misses_a_block_is_refused() -> None:
    q, k, v = inputs()
    with pytest.raises(InfrabookError, match="each of the 5 blocks"):
        blockwise.forward(q, k, v, columns=8, order=[0, 1, 2])
    with pytest.raises(InfrabookError, match="at least one of its columns"):
        blockwise.forward(q, k, v, columns=0)


def test_the_kernel_says_when_triton_is_missing() -> None:
    q, k, v = inputs()
    if triton_attention.triton is None:
        with pytest.raises(InfrabookError, match="Triton is not installed"):
            triton_attention.attention(q, k, v)
    elif torch.cuda.is_available():
        q, k, v = (torch.randn(1, 2, 100, 64, device="cuda", dtype=torch.float16) for _ in range(3))
        for causal in (False, True):
            wanted = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            assert (triton_attention.attention(q, k, v, causal=causal) - wanted).abs().max() < 1e-2


def test_sixteen_bit_inputs_are_as_good_as_pytorchs() -> None:
    q, k, v = (x.bfloat16().requires_grad_() for x in inputs(s=64, d=16))
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    wanted = F.scaled_dot_product_attention(*exact)
    wanted.sum().backward()
    errors = {}
    for name, run in (("ours", lambda: blockwise.attention(q, k, v, rows=16, columns=16)),
                      ("sdpa", lambda: F.scaled_dot_product_attention(q, k, v))):  # fmt: skip
        out = run()
        gradients = torch.autograd.grad(out.sum(), (q, k, v))
        pairs = zip((out, *gradients), (wanted, *(x.grad for x in exact)), strict=True)
        errors[name] = [float((a.detach().double() - b.detach()).abs().max()) for a, b in pairs]
    assert all(a <= 1.5 * b for a, b in zip(errors["ours"], errors["sdpa"], strict=True)), errors
