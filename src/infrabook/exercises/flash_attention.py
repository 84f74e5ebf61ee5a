"""Answers to the exercises of ``flash-attention``."""

from __future__ import annotations

import math

from .. import attention_io
from ..attention_io import Blocks
from ..lab import exercise

S, D, COLUMNS = 8192, 64, 256
SRAM = 227 * 1024  # bytes of shared memory that a block can have on an H100


@exercise(
    "flash-attention/1",
    mistakes={
        "the running maximum and sum come and go as well, two numbers a row each way.": lambda: (
            2 * S * D + 3 * (S // COLUMNS) * S * D
        ),
        "the output is read and written for every block of columns, not written once.": lambda: (
            2 * S * D + (S // COLUMNS) * (S * D + 4 * S) + S * D
        ),
        "that is FlashAttention 2's order of the loops.": lambda: (
            attention_io.flash_forward(sequence=S, head_dim=D, blocks=Blocks(COLUMNS, 64), outer="rows").total
        ),
        "that is standard attention.": lambda: attention_io.standard_forward(sequence=S, head_dim=D).total,
    },
    tolerance=1e-9,
)
def _accesses() -> int:
    return int(attention_io.flash_forward(sequence=S, head_dim=D, blocks=Blocks(64, COLUMNS)).total)


def _merged(a: float, b: float) -> float:
    """Outputs 10 and 20 with weights ``a`` and ``b``."""
    return (10 * a + 20 * b) / (a + b)


@exercise(
    "flash-attention/2",
    mistakes={
        "that is the plain mean; each part weighs what its exponentials sum to.": lambda: 15,
        "the sums are relative to two different maxima: bring them to one first.": lambda: _merged(4, 1.5),
        "the first part is rescaled by exp of old maximum minus new, which is less than 1.": lambda: _merged(
            4 * math.exp(2), 1.5
        ),
        "the outputs are normalized already: multiply each by its sum before you add.": lambda: _merged(
            math.exp(-2), 1
        ),
    },
    tolerance=0.001,
)
def _merge_by_hand() -> float:
    return _merged(4 * math.exp(3 - 5), 1.5)


@exercise(
    "flash-attention/3",
    mistakes={
        "M counts elements, and a BF16 element has two bytes.": lambda: attention_io.break_even_head_dim(
            sram_elements=SRAM
        ),
        "that counts the queries of each pass; the output comes and goes with them.": lambda: math.sqrt(SRAM / 2),
    },
    tolerance=0.005,
)
def _break_even() -> float:
    return attention_io.break_even_head_dim(sram_elements=SRAM // 2)
