"""The forward pass of attention as one GPU kernel, in Triton: ``blockwise.forward`` for a real HBM and a real SRAM.

One program owns a block of queries, keeps its running maximum, sum and output on chip, and streams keys and values past
(FlashAttention 2's order). Written to be read; cuDNN's and FlashAttention's own kernels are faster. Triton comes with
PyTorch for CUDA; without it ``attention`` says so.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import InfrabookError

try:
    import triton  # type: ignore[import-not-found, unused-ignore]  # only CUDA builds of PyTorch bring it
    import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    triton = None

LOG2_E = 1.4426950408889634  # exp(x) = exp2(x · log2 e), and exp2 is what the hardware has


def attention(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False, rows: int = 64, columns: int = 64
) -> Tensor:
    """Softmax attention of (batch, heads, s, d) tensors, d a power of two from 16 to 128, in one kernel."""
    if triton is None:
        raise InfrabookError("Triton is not installed; it comes with PyTorch for CUDA on Linux")
    batch, heads, s, d = query.shape
    if d not in (16, 32, 64, 128):
        raise InfrabookError(f"this kernel takes heads of width 16, 32, 64 or 128, and they have {d}")
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    output = torch.empty_like(query)
    grid = (-(-s // rows), batch * heads)
    _forward[grid](query, key, value, output, s, d**-0.5 * LOG2_E, CAUSAL=causal, ROWS=rows, COLUMNS=columns, WIDTH=d)
    return output


_forward: Any = None
if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]  # Triton has no types
    def _forward(  # type: ignore[no-untyped-def, no-redef, unused-ignore]  # Triton reads the signature
        query, key, value, output, s, scale,
        CAUSAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        first = tl.program_id(0) * ROWS
        head = tl.program_id(1).to(tl.int64) * s * WIDTH
        at_row, at_width = first + tl.arange(0, ROWS), tl.arange(0, WIDTH)
        mine = head + at_row[:, None] * WIDTH + at_width[None, :]
        q = tl.load(query + mine, mask=at_row[:, None] < s, other=0.0)
        maximum = tl.full([ROWS], -float("inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        weighted = tl.zeros([ROWS, WIDTH], tl.float32)
        end = tl.minimum(first + ROWS, s) if CAUSAL else s
        for start in range(0, end, COLUMNS):
            at_column = start + tl.arange(0, COLUMNS)
            theirs = head + at_column[:, None] * WIDTH + at_width[None, :]
            k = tl.load(key + theirs, mask=at_column[:, None] < s, other=0.0)
            v = tl.load(value + theirs, mask=at_column[:, None] < s, other=0.0)
            seen = at_column[None, :] < s
            if CAUSAL:
                seen = seen & (at_column[None, :] <= at_row[:, None])
            scores = tl.where(seen, tl.dot(q, tl.trans(k)) * scale, -float("inf"))
            new = tl.maximum(maximum, tl.max(scores, 1))
            rescale = tl.exp2(maximum - new)  # the first block has a key for every row, so new is finite
            p = tl.exp2(scores - new[:, None])
            total = total * rescale + tl.sum(p, 1)
            weighted = weighted * rescale[:, None] + tl.dot(p.to(v.dtype), v)
            maximum = new
        tl.store(output + mine, (weighted / total[:, None]).to(q.dtype), mask=at_row[:, None] < s)
