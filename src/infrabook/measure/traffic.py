"""A slow memory that counts what crosses its border while an algorithm really computes.

``SlowMemory`` holds tensors; an algorithm may compute only with what it has ``read`` and hands results back with
``write``. ``attention_io`` and ``tiling`` predict the counts. Two levels, no cache, as in the theorem.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from ..attention_io import Blocks
from ..nn.blockwise import Partial as Softmax
from ..nn.blockwise import block_of_scores, merge, partial


class SlowMemory:
    """Tensors by name, and how many of their elements were read and written.

    >>> memory = SlowMemory(a=torch.ones(4, 4))
    >>> memory.write("b", 2 * memory.read("a", slice(0, 2)))
    >>> memory.reads["a"], memory.writes["b"], memory.total
    (8, 8, 16)
    """

    def __init__(self, **tensors: Tensor) -> None:
        self.tensors = dict(tensors)
        self.reads: Counter[str] = Counter()
        self.writes: Counter[str] = Counter()

    def read(self, name: str, *index: Any) -> Tensor:
        """A copy of ``tensors[name][index]``, counted."""
        found = self.tensors[name][index].clone()
        self.reads[name] += found.numel()
        return found

    def write(self, name: str, value: Tensor, *index: Any) -> None:
        """Put ``value`` at ``index`` of the tensor ``name``, counted; without an index it becomes that tensor."""
        self.writes[name] += value.numel()
        if index:
            self.tensors[name][index] = value
        else:
            self.tensors[name] = value.clone()

    def reserve(self, name: str, *shape: int, like: Tensor, fill: float = 0.0) -> None:
        """Space for a tensor, not counted: the paper's algorithms are counted without their zeros."""
        self.tensors[name] = torch.full(shape, fill, dtype=like.dtype)

    @property
    def total(self) -> int:
        """Elements that crossed the border, both ways."""
        return sum(self.reads.values()) + sum(self.writes.values())


# -- a matrix product in tiles ------------------------------------------------------------------------------------
def tiled_product(a: Tensor, b: Tensor, *, tile_m: int, tile_n: int, tile_k: int = 16) -> SlowMemory:
    """a (m, k) times b (k, n), a tile of the result at a time, which stays on chip until it is done; in ``"C"``."""
    (m, k), n = a.shape, b.shape[1]
    memory = SlowMemory(A=a, B=b)
    memory.reserve("C", m, n, like=a)
    for i in range(0, m, tile_m):
        for j in range(0, n, tile_n):
            rows, columns = slice(i, i + tile_m), slice(j, j + tile_n)
            total = torch.zeros(len(range(m)[rows]), len(range(n)[columns]), dtype=a.dtype)
            for start in range(0, k, tile_k):
                inner = slice(start, start + tile_k)
                total += memory.read("A", rows, inner) @ memory.read("B", inner, columns)
            memory.write("C", total, rows, columns)
    return memory


# -- attention that writes its matrices out ----------------------------------------------------------------------
def standard_forward(q: Tensor, k: Tensor, v: Tensor) -> SlowMemory:
    """Three kernels that meet in slow memory, for (s, d) tensors; the output is ``tensors["O"]``."""
    memory = SlowMemory(Q=q, K=k, V=v)
    memory.write("S", memory.read("Q") @ memory.read("K").T * q.shape[-1] ** -0.5)
    memory.write("P", memory.read("S").softmax(-1))
    memory.write("O", memory.read("P") @ memory.read("V"))
    return memory


def standard_backward(q: Tensor, k: Tensor, v: Tensor, d_out: Tensor) -> SlowMemory:
    """Five kernels; P is in slow memory already, as the forward pass left it."""
    scale = q.shape[-1] ** -0.5
    memory = SlowMemory(Q=q, K=k, V=v, dO=d_out, P=(q @ k.T * scale).softmax(-1))
    memory.write("dV", memory.read("P").T @ memory.read("dO"))
    memory.write("dP", memory.read("dO") @ memory.read("V").T)
    p, d_p = memory.read("P"), memory.read("dP")
    memory.write("dS", p * (d_p - (p * d_p).sum(-1, keepdim=True)))
    memory.write("dQ", memory.read("dS") @ memory.read("K") * scale)
    memory.write("dK", memory.read("dS").T @ memory.read("Q") * scale)
    return memory


# -- attention by blocks -----------------------------------------------------------------------------------------
def flash_forward(
    q: Tensor, k: Tensor, v: Tensor, blocks: Blocks, *, outer: str = "columns", causal: bool = False
) -> SlowMemory:
    """FlashAttention 1 (``outer="columns"``) or 2 (``"rows"``) over (s, d) tensors.

    With columns outside, the unfinished output and its two numbers a row live in slow memory between visits.
    """
    s, d = q.shape
    memory = SlowMemory(Q=q, K=k, V=v)
    memory.reserve("O", s, d, like=q)
    if outer == "rows":
        memory.reserve("lse", s, like=q)
        for i in range(0, s, blocks.rows):
            rows, held = slice(i, i + blocks.rows), None
            mine = memory.read("Q", rows)
            for j in range(0, s, blocks.columns):
                if causal and j > i + mine.shape[0] - 1:
                    break
                columns = slice(j, j + blocks.columns)
                new = _block(mine, memory.read("K", columns), memory.read("V", columns), i, j, causal)
                held = new if held is None else merge(held, new)
            assert held is not None
            memory.write("O", held.output, rows)
            memory.write("lse", held.log_sum_exp, rows)
        return memory
    memory.reserve("m", s, like=q, fill=-torch.inf)
    memory.reserve("l", s, like=q)
    for j in range(0, s, blocks.columns):
        columns = slice(j, j + blocks.columns)
        keys, values = memory.read("K", columns), memory.read("V", columns)
        for i in range(0, s, blocks.rows):
            rows = slice(i, i + blocks.rows)
            if causal and j > min(i + blocks.rows, s) - 1:
                continue
            new = _block(memory.read("Q", rows), keys, values, i, j, causal)
            out, maximum, total = memory.read("O", rows), memory.read("m", rows), memory.read("l", rows)
            held = merge(Softmax(maximum, total, out * total[:, None]), new)
            memory.write("O", held.output, rows)
            memory.write("m", held.maximum, rows)
            memory.write("l", held.total, rows)
    return memory


def flash_backward(
    q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, blocks: Blocks, *, causal: bool = False
) -> SlowMemory:
    """Algorithm 4 over (s, d) tensors: gradients in ``tensors["dQ"]``, ``"dK"``, ``"dV"``."""
    done = flash_forward(q, k, v, blocks, causal=causal).tensors
    memory, scale = SlowMemory(Q=q, K=k, V=v, O=done["O"], dO=d_out, m=done["m"], l=done["l"]), q.shape[-1] ** -0.5
    for name in ("dQ", "dK", "dV"):
        memory.reserve(name, *q.shape, like=q)
    s = q.shape[0]
    for j in range(0, s, blocks.columns):
        columns = slice(j, j + blocks.columns)
        keys, values = memory.read("K", columns), memory.read("V", columns)
        d_keys, d_values = torch.zeros_like(keys), torch.zeros_like(values)
        for i in range(0, s, blocks.rows):
            rows = slice(i, i + blocks.rows)
            if causal and j > min(i + blocks.rows, s) - 1:
                continue
            queries, out, d_o, d_q = (memory.read(name, rows) for name in ("Q", "O", "dO", "dQ"))
            log_sum_exp = memory.read("m", rows) + memory.read("l", rows).log()
            p = (_scores(queries, keys, i, j, causal) - log_sum_exp[:, None]).exp()
            d_values += p.T @ d_o
            d_s = p * (d_o @ values.T - (d_o * out).sum(-1, keepdim=True))
            memory.write("dQ", d_q + scale * d_s @ keys, rows)
            d_keys += scale * d_s.T @ queries
        memory.write("dK", d_keys, columns)
        memory.write("dV", d_values, columns)
    return memory


def _block(queries: Tensor, keys: Tensor, values: Tensor, i: int, j: int, causal: bool) -> Softmax:
    return partial(_scores(queries, keys, i, j, causal), values)


def _scores(queries: Tensor, keys: Tensor, i: int, j: int, causal: bool) -> Tensor:
    """Scores of one block that is on chip; ``i`` and ``j`` say where in the sequence it stands."""
    scores = block_of_scores(queries, keys, 0, 0, queries.shape[0], keys.shape[0])
    assert scores is not None
    if causal:
        at_row = torch.arange(i, i + queries.shape[0])[:, None]
        scores = scores.masked_fill(torch.arange(j, j + keys.shape[0]) > at_row, -torch.inf)
    return scores
