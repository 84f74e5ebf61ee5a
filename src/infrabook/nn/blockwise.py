"""Attention a block at a time, in PyTorch: exact softmax without the matrix of scores, and its backward pass by hand.

``Partial`` is what has to be known of a row after some of its keys; ``merge`` joins two of them in any order.
``forward`` and ``backward`` walk the blocks, ``attention`` is both under autograd. ``attention_io`` counts what they
would move.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import InfrabookError


# -- one row's softmax from parts of it ------------------------------------------------------------------------
class Partial(NamedTuple):
    """What rows know after some of their keys: the maximum (..., rows), the sum of exp(score − maximum) (..., rows),
    and the sum of exp(score − maximum) · value (..., rows, width). The output is the third over the second."""

    maximum: Tensor
    total: Tensor
    weighted: Tensor

    @property
    def output(self) -> Tensor:
        """Softmax of the keys seen so far, times their values."""
        return self.weighted / self.total[..., None]

    @property
    def log_sum_exp(self) -> Tensor:
        """ln Σ exp(score), the one number a row that the backward pass needs."""
        return self.maximum + self.total.log()


def partial(scores: Tensor, values: Tensor) -> Partial:
    """Rows after the keys whose ``scores`` (..., rows, columns) and ``values`` (..., columns, width) are given.

    >>> partial(torch.tensor([[1000.0, 1000.0]]), torch.tensor([[1.0], [3.0]])).output
    tensor([[2.]])
    """
    maximum = scores.amax(-1)
    weights = (scores - _finite(maximum)[..., None]).exp()
    return Partial(maximum, weights.sum(-1), weights @ values.to(weights.dtype))


def merge(first: Partial, second: Partial) -> Partial:
    """Rows after the keys of both; associative and commutative, up to rounding.

    A part whose keys are all masked has the maximum −∞ and weighs nothing.
    """
    maximum = torch.maximum(first.maximum, second.maximum)
    a, b = ((part.maximum - _finite(maximum)).exp() for part in (first, second))
    return Partial(
        maximum, a * first.total + b * second.total,
        a[..., None] * first.weighted + b[..., None] * second.weighted,
    )  # fmt: skip


def _finite(maximum: Tensor) -> Tensor:
    """−∞ − −∞ is no number; with 0 in place of the second, exp gives the 0 that is meant."""
    return maximum.masked_fill(maximum == -math.inf, 0.0)


# -- all rows, block by block ----------------------------------------------------------------------------------
def forward(
    query: Tensor, key: Tensor, value: Tensor, *, rows: int = 64, columns: int = 64, causal: bool = False,
    scale: float | None = None, order: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention of (..., s, d) tensors by blocks of ``rows`` queries and ``columns`` keys: output and log-sum-exp.

    ``order`` is the order in which blocks of keys are visited, for instance ``[2, 0, 1]``; any order is right.
    Scores, sums and the log-sum-exp are FP32 for 16-bit inputs, as in the kernels.
    """
    s, starts = query.shape[-2], range(0, key.shape[-2], _positive("columns", columns))
    visit = list(range(len(starts))) if order is None else list(order)
    if sorted(visit) != list(range(len(starts))):
        raise InfrabookError(f"the order has to name each of the {len(starts)} blocks of keys once, and is {visit}")
    outputs, sums = [], []
    for i in range(0, s, _positive("rows", rows)):
        held: Partial | None = None
        for j in (starts[number] for number in visit):
            scores = block_of_scores(query, key, i, j, rows, columns, causal, scale)
            if scores is not None:
                new = partial(scores, value[..., j : j + columns, :])
                held = new if held is None else merge(held, new)
        assert held is not None  # every row sees at least its own key
        outputs.append(held.output)
        sums.append(held.log_sum_exp)
    return torch.cat(outputs, -2).to(query.dtype), torch.cat(sums, -1)


def backward(
    query: Tensor, key: Tensor, value: Tensor, output: Tensor, log_sum_exp: Tensor, gradient: Tensor, *,
    rows: int = 64, columns: int = 64, causal: bool = False, scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of query, key and value; each block of probabilities is computed again from its scores.

    P = exp(S − log-sum-exp). With D = Σ_d dO·O, one number a row, dS = P·(dOVᵀ − D) needs no whole row of P.
    """
    factor = _scale(query, scale)
    wide = log_sum_exp.dtype
    d_query, d_key, d_value = (torch.zeros_like(x, dtype=wide) for x in (query, key, value))
    correction = (gradient.to(wide) * output).sum(-1)
    for j in range(0, key.shape[-2], _positive("columns", columns)):
        keys = slice(j, j + columns)
        for i in range(0, query.shape[-2], _positive("rows", rows)):
            queries = slice(i, i + rows)
            scores = block_of_scores(query, key, i, j, rows, columns, causal, scale)
            if scores is None:
                continue
            p = (scores - log_sum_exp[..., queries, None]).exp()
            d_out, q, k, v = (
                x.to(wide)
                for x in (gradient[..., queries, :], query[..., queries, :], key[..., keys, :], value[..., keys, :])
            )
            d_value[..., keys, :] += p.transpose(-1, -2) @ d_out
            d_scores = p * (d_out @ v.transpose(-1, -2) - correction[..., queries, None])
            d_query[..., queries, :] += factor * (d_scores @ k)
            d_key[..., keys, :] += factor * (d_scores.transpose(-1, -2) @ q)
    return d_query.to(query.dtype), d_key.to(key.dtype), d_value.to(value.dtype)


class _Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, settings: dict[str, Any]) -> Tensor:
        output, log_sum_exp = forward(query, key, value, **settings)
        ctx.save_for_backward(query, key, value, output, log_sum_exp)
        ctx.settings = settings
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, log_sum_exp = ctx.saved_tensors
        return *backward(query, key, value, output, log_sum_exp, gradients[0], **ctx.settings), None


def attention(
    query: Tensor, key: Tensor, value: Tensor, *, rows: int = 64, columns: int = 64, causal: bool = False,
    scale: float | None = None,
) -> Tensor:  # fmt: skip
    """``F.scaled_dot_product_attention`` by the two functions above: nothing of size s² is kept, or ever made."""
    settings = {"rows": rows, "columns": columns, "causal": causal, "scale": scale}
    out: Tensor = _Blockwise.apply(query, key, value, settings)  # type: ignore[no-untyped-call]
    return out


def block_of_scores(
    query: Tensor, key: Tensor, i: int, j: int, rows: int, columns: int, causal: bool = False,
    scale: float | None = None,
) -> Tensor | None:  # fmt: skip
    """The scores of queries from ``i`` and keys from ``j``, or None where the causal mask leaves none of them."""
    q, k = query[..., i : i + rows, :], key[..., j : j + columns, :]
    if causal and j > i + q.shape[-2] - 1:
        return None
    if q.element_size() < 4:
        q, k = q.float(), k.float()
    scores: Tensor = q @ k.transpose(-1, -2) * _scale(query, scale)
    if causal and j + k.shape[-2] - 1 > i:
        at_row = torch.arange(i, i + q.shape[-2], device=q.device)[:, None]
        scores = scores.masked_fill(torch.arange(j, j + k.shape[-2], device=q.device) > at_row, -math.inf)
    return scores


def _scale(query: Tensor, scale: float | None) -> float:
    return query.shape[-1] ** -0.5 if scale is None else scale


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise InfrabookError(f"a block needs at least one of its {name}, and has {value}")
    return value
