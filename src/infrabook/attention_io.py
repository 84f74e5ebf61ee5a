"""How many elements attention moves between HBM and on-chip memory, with the matrix of scores and without it.

``standard_*`` count the algorithm that writes scores and probabilities out, ``flash_*`` those that compute them a block
at a time, ``theorem`` what stays when constants go; all for one head of one sequence. ``work`` counts the products,
``saved`` what is kept for backward. ``nn.blockwise`` computes it, ``measure.traffic`` counts it while it is computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from .errors import InfrabookError
from .ledger import Ledger, Row, ledger
from .units import Exact, exact, positive

PAPER = "Dao et al., FlashAttention, arXiv 2205.14135"


# -- blocks ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Blocks:
    """``rows`` of queries and ``columns`` of keys that are on chip at once."""

    rows: int
    columns: int

    def __post_init__(self) -> None:
        positive("rows", self.rows)
        positive("columns", self.columns)


def paper_blocks(*, sram_elements: int, head_dim: int) -> Blocks:
    """Algorithm 1's rule: ⌈M/4d⌉ columns, and as many rows but at most d. M counts elements, not bytes.

    >>> paper_blocks(sram_elements=98_304, head_dim=64)
    Blocks(rows=64, columns=384)
    """
    positive("sram_elements", sram_elements)
    positive("head_dim", head_dim)
    columns = _up(sram_elements, 4 * head_dim)
    return Blocks(min(columns, head_dim), columns)


def on_chip(blocks: Blocks, *, head_dim: int, element_bytes: int = 2, score_bytes: int = 2) -> Ledger:
    """Bytes that one step of Algorithm 1 keeps on chip: blocks of Q, O, K and V, the scores, two numbers a row.

    ``score_bytes`` is the width of scores, of the two numbers, and of the output while it is being added up.

    >>> on_chip(paper_blocks(sram_elements=98_304, head_dim=128), head_dim=128).total > 192 * 1024
    True
    """
    for name, size in (("head_dim", head_dim), ("element_bytes", element_bytes), ("score_bytes", score_bytes)):
        positive(name, size)
    r, c, d = blocks.rows, blocks.columns, head_dim
    rows = (
        Row("keys and values", 2 * c * d * element_bytes, "", "2·columns·d"),
        Row("queries", r * d * element_bytes, "", "rows·d"),
        Row("output", r * d * score_bytes, "", "rows·d"),
        Row("scores", r * c * score_bytes, "", "rows·columns"),
        Row("running maximum and sum", 2 * r * score_bytes, "", "2·rows"),
    )
    return ledger(f"on chip, {r} × {c} scores at a time", rows)


def most_columns(
    *, shared_bytes: int, head_dim: int, rows: int, element_bytes: int = 2, score_bytes: int = 2, multiple: int = 16
) -> int:
    """The most columns that fit ``shared_bytes`` beside ``rows`` rows, rounded down to a ``multiple``.

    >>> most_columns(shared_bytes=163 * 1024, head_dim=128, rows=128)
    128
    """
    positive("shared_bytes", shared_bytes)
    positive("multiple", multiple)
    fixed = on_chip(Blocks(rows, 1), head_dim=head_dim, element_bytes=element_bytes, score_bytes=score_bytes)
    each = 2 * head_dim * element_bytes + rows * score_bytes
    columns = (shared_bytes - int(fixed.total)) // each + 1
    columns -= columns % multiple
    if columns < 1:
        raise InfrabookError(f"{rows} rows of width {head_dim} leave {shared_bytes:,} B no room for {multiple} columns")
    return columns


# -- accesses, in elements -------------------------------------------------------------------------------------
def standard_forward(*, sequence: int, head_dim: int) -> Ledger:
    """Algorithm 0 of the paper, three kernels that meet in HBM: 4s² + 4sd elements.

    >>> standard_forward(sequence=1024, head_dim=64).total
    4456448
    """
    s, d = _sizes(sequence, head_dim)
    return _accesses(
        "standard attention, forward",
        ("scores: read Q and K", 2 * s * d, "2·s·d"), ("scores: write S", s * s, "s²"),
        ("softmax: read S", s * s, "s²"), ("softmax: write P", s * s, "s²"),
        ("output: read P", s * s, "s²"), ("output: read V", s * d, "s·d"), ("output: write O", s * d, "s·d"),
    )  # fmt: skip


def standard_backward(*, sequence: int, head_dim: int) -> Ledger:
    """Algorithm 3 of the paper, five kernels: 7s² + 8sd elements.

    >>> standard_backward(sequence=1024, head_dim=64).total
    7864320
    """
    s, d = _sizes(sequence, head_dim)
    return _accesses(
        "standard attention, backward",
        ("dV: read P", s * s, "s²"), ("dV: read dO", s * d, "s·d"), ("dV: write dV", s * d, "s·d"),
        ("dP: read dO and V", 2 * s * d, "2·s·d"), ("dP: write dP", s * s, "s²"),
        ("dS: read P and dP", 2 * s * s, "2·s²"), ("dS: write dS", s * s, "s²"),
        ("dQ: read dS", s * s, "s²"), ("dQ: read K", s * d, "s·d"), ("dQ: write dQ", s * d, "s·d"),
        ("dK: read dS", s * s, "s²"), ("dK: read Q", s * d, "s·d"), ("dK: write dK", s * d, "s·d"),
    )  # fmt: skip


def flash_forward(
    *, sequence: int, head_dim: int, blocks: Blocks, outer: Literal["columns", "rows"] = "columns",
    causal: bool = False, initialise: bool = False,
) -> Ledger:  # fmt: skip
    """FlashAttention's forward pass, exactly, for given blocks.

    ``outer="columns"`` is Algorithm 1 (FlashAttention 1): keys and values are read once; queries, the unfinished
    output and its two numbers a row come and go once for each block of columns, and the rows of a block do not matter.
    ``outer="rows"`` is FlashAttention 2: queries are read and the output is written once, with one number a row, the
    log-sum-exp; keys and values are read once for each block of rows. With ``causal`` blocks above the diagonal are
    skipped. ``initialise`` counts the zeros that Algorithm 1 writes first.

    >>> flash_forward(sequence=1024, head_dim=64, blocks=Blocks(64, 384)).total
    733184
    """
    s, d = _sizes(sequence, head_dim)
    if outer not in ("columns", "rows"):
        raise InfrabookError(f"the outer loop can be over columns or rows, and is {outer!r}")
    if outer == "columns":
        visited = _rows_visited(s, blocks, causal)
        lines = [
            ("K and V, once", 2 * s * d, "2·s·d"),
            ("Q, again for each block of columns", visited * d, "T·s·d"),
            ("O read", visited * d, "T·s·d"), ("O written", visited * d, "T·s·d"),
            ("maximum and sum read", 2 * visited, "2·T·s"), ("maximum and sum written", 2 * visited, "2·T·s"),
        ]  # fmt: skip
        if initialise:
            lines.append(("zeros first", s * d + 2 * s, "s·d + 2·s"))
        return _accesses("FlashAttention 1, forward", *lines)
    if initialise:
        raise InfrabookError("with rows outside nothing is initialised in HBM: the output is built on chip")
    visited = _columns_visited(s, blocks, causal)
    return _accesses(
        "FlashAttention 2, forward",
        ("Q, once", s * d, "s·d"),
        ("K and V, again for each block of rows", 2 * visited * d, "2·T·s·d"),
        ("O written", s * d, "s·d"),
        ("log-sum-exp written", s, "s"),
    )


def flash_backward(
    *, sequence: int, head_dim: int, blocks: Blocks, causal: bool = False, initialise: bool = False
) -> Ledger:
    """Algorithm 4, FlashAttention 1's backward pass: scores are computed again, and dQ comes and goes.

    >>> flash_backward(sequence=1024, head_dim=64, blocks=Blocks(64, 384)).total
    1251328
    """
    s, d = _sizes(sequence, head_dim)
    visited = _rows_visited(s, blocks, causal)
    lines = [
        ("K and V, once", 2 * s * d, "2·s·d"),
        ("Q, O and dO, again for each block of columns", 3 * visited * d, "3·T·s·d"),
        ("dQ read", visited * d, "T·s·d"), ("dQ written", visited * d, "T·s·d"),
        ("maximum and sum read", 2 * visited, "2·T·s"),
        ("dK and dV written", 2 * s * d, "2·s·d"),
    ]  # fmt: skip
    if initialise:
        lines.append(("zeros first", 3 * s * d, "3·s·d"))
    return _accesses("FlashAttention 1, backward", *lines)


def theorem(*, sequence: int, head_dim: int, sram_elements: int) -> Fraction:
    """s²d²/M, the theorem's count of FlashAttention's accesses without its constant (theorems 2 and 5 of the paper).

    With the paper's own blocks the constants are 12 forward and 20 backward, for many blocks of columns.

    >>> theorem(sequence=4096, head_dim=128, sram_elements=98_304)
    Fraction(8388608, 3)
    """
    s, d = _sizes(sequence, head_dim)
    positive("sram_elements", sram_elements)
    if not d <= sram_elements:
        raise InfrabookError(f"the theorem needs room for one row: {sram_elements} elements do not hold {d}")
    return Fraction(s * s * d * d, sram_elements)


def break_even_head_dim(*, sram_elements: int) -> float:
    """The head width at which Algorithm 1 with its own blocks moves as much as standard attention, for long sequences.

    12·s²d²/M = 4·s², so d = √(M/3): wider heads move more.

    >>> round(break_even_head_dim(sram_elements=98_304))
    181
    """
    positive("sram_elements", sram_elements)
    return math.sqrt(sram_elements / 3)


# -- work and memory -------------------------------------------------------------------------------------------
PRODUCTS = {"forward": 2, "backward": 4, "backward with scores again": 5}
"""Products of s²·d pairs in attention: QKᵀ and PV; dV, dP, dQ and dK; and QKᵀ once more."""


def work(
    *, sequence: int, head_dim: int, heads: int = 1, batch: int = 1, causal: bool = False,
    passes: Literal["forward", "backward", "both"] = "forward", scores_again: bool = True, checkpointed: bool = False,
) -> Exact:  # fmt: skip
    """FLOP of attention's products: 2s²d for each of them, half with ``causal``.

    ``scores_again`` says that backward computes the scores a second time, as FlashAttention does: five products, not
    four. ``checkpointed`` repeats the forward pass before the backward pass on top of that.

    >>> work(sequence=2048, head_dim=64, heads=32, batch=8, causal=True, passes="backward")
    343597383680
    """
    s, d = _sizes(sequence, head_dim)
    positive("heads", heads)
    positive("batch", batch)
    if passes not in ("forward", "backward", "both"):
        raise InfrabookError(f"passes can be forward, backward or both, and is {passes!r}")
    count = PRODUCTS["forward"] if passes != "backward" else 0
    if passes != "forward":
        count += PRODUCTS["backward with scores again" if scores_again else "backward"]
        count += PRODUCTS["forward"] if checkpointed else 0
    return exact(Fraction(count * 2 * batch * heads * s * s * d, 2 if causal else 1))


def saved(
    *, sequence: int, head_dim: int, heads: int = 1, batch: int = 1, element_bytes: int = 2,
    kind: Literal["eager", "flash"] = "flash",
) -> Ledger:  # fmt: skip
    """Bytes kept for the backward pass by attention alone: linear in the sequence with ``flash``, quadratic ``eager``.

    Eager attention keeps Q, K, V and the probabilities; its output belongs to whoever reads it. Flash keeps the output
    instead, and one FP32 number a row, the log-sum-exp.

    >>> saved(sequence=4096, head_dim=64, heads=16)["log-sum-exp"]
    262144
    """
    s, d = _sizes(sequence, head_dim)
    for name, size in (("heads", heads), ("batch", batch), ("element_bytes", element_bytes)):
        positive(name, size)
    if kind not in ("eager", "flash"):
        raise InfrabookError(f"attention can be eager or flash, and is {kind!r}")
    tensor, each = batch * heads * s * d * element_bytes, batch * heads * s
    rows = [Row("Q, K and V", 3 * tensor, "activations", "3·b·a·s·d")]
    if kind == "eager":
        rows.append(Row("probabilities", each * s * element_bytes, "activations", "b·a·s²"))
    else:
        rows += [Row("output", tensor, "activations", "b·a·s·d"), Row("log-sum-exp", 4 * each, "activations", "b·a·s")]
    return ledger(f"saved by {kind} attention, {s:,} tokens", rows)


def _sizes(sequence: int, head_dim: int) -> tuple[int, int]:
    positive("sequence", sequence)
    positive("head_dim", head_dim)
    return sequence, head_dim


def _up(a: int, b: int) -> int:
    return -(-a // b)


def _rows_visited(s: int, blocks: Blocks, causal: bool) -> int:
    """Rows of queries that all blocks of columns together read. Causal: those that end above the block are skipped."""
    starts = range(0, s, blocks.columns)
    return sum(s - (start // blocks.rows * blocks.rows if causal else 0) for start in starts)


def _columns_visited(s: int, blocks: Blocks, causal: bool) -> int:
    """Columns of keys that all blocks of rows together read, in whole blocks."""
    if not causal:
        return s * _up(s, blocks.rows)
    last_rows = (min(start + blocks.rows, s) - 1 for start in range(0, s, blocks.rows))
    return sum(min(s, (last // blocks.columns + 1) * blocks.columns) for last in last_rows)


def _accesses(title: str, *lines: tuple[str, int, str]) -> Ledger:
    return ledger(title, (Row(name, value, "", formula) for name, value, formula in lines), unit="elements")
