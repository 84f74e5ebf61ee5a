"""Answers to the exercises of ``columnar``."""

from __future__ import annotations

from .. import columnar
from ..columnar import Column
from ..lab import exercise

STAMPED = [Column("embedding", 4096), Column("timestamp", 8)]


@exercise(
    "columnar/1",
    mistakes={
        "that would be so if no two rows shared a group.": lambda: 100,
        "that is the number of groups missed.": lambda: 100 - float(columnar.touched(1_000_000, 10_000, 100)),
        "that is for rows that lie side by side.": lambda: 1,
    },
    tolerance=0.01,  # 63 of 63.4 will do
)
def _groups() -> float:
    return float(columnar.touched(1_000_000, 10_000, 100))


@exercise(
    "columnar/2",
    mistakes={
        "that is the record: the kernel fetches whole pages.": lambda: 3000,
        "many records straddle two pages.": lambda: 4096,
        "not every record straddles two pages.": lambda: 8192,
        "that is in pages.": lambda: float(columnar.pages_touched(1_000_000, 3000, 1)),
    },
    tolerance=0.002,
)
def _mapped() -> float:
    return float(columnar.pages_touched(1_000_000, 3000, 1) * 4096)


@exercise(
    "columnar/3",
    mistakes={
        "that counts the timestamp as if it could be read by itself.": lambda: 1,
        "those are bytes; divide by what was asked for.": lambda: 4096 + 4104,
    },
    tolerance=0.006,  # with the block's 8 bytes of header or without: 2 will do
)
def _wide_and_narrow() -> float:
    return float(columnar.lance(STAMPED, 1_000_000, 1).amplification(4104))
