"""What a matrix product reads from the slower memory: by tile, by the order of tiles, through a cache of its own mind.

``traffic`` is the account of one kernel whose tiles share nothing; ``wave_traffic`` lets tiles that run together share;
``lru`` counts the misses of loops written out, one access after another. ``measure.traffic`` is the witness.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Literal

from .errors import InfrabookError
from .ledger import Ledger, Row, ledger
from .units import positive

Order = Literal["ijk", "ikj", "jki"]


def traffic(m: int, n: int, k: int, *, tile_m: int, tile_n: int) -> Ledger:
    """Elements that an m × k by k × n product moves when every tile of the result fetches its own operands.

    A is read once for each column of tiles, B once for each row of tiles, the result is written once. Exact where tiles
    do not divide the matrix; for square tiles that do, 2N³/T + N². ``tile_m = tile_n = 1`` is no reuse at all.

    >>> traffic(1024, 1024, 1024, tile_m=32, tile_n=32).total == 2 * 1024**3 // 32 + 1024**2
    True
    """
    for name, size in (("m", m), ("n", n), ("k", k), ("tile_m", tile_m), ("tile_n", tile_n)):
        positive(name, size)
    rows = (
        Row("A", m * k * _up(n, tile_n), "", "M·K·⌈N/T⌉"),
        Row("B", k * n * _up(m, tile_m), "", "K·N·⌈M/T⌉"),
        Row("result", m * n, "", "M·N"),
    )
    return ledger(f"{m:,} × {k:,} by {k:,} × {n:,} in tiles of {tile_m} × {tile_n}", rows, unit="elements")


def intensity(tile_m: int, tile_n: int, *, element_bytes: int = 2) -> Fraction:
    """FLOP for each byte fetched, for a long product: 2·T_m·T_n over (T_m + T_n) elements.

    >>> intensity(128, 128), intensity(1, 1)
    (Fraction(64, 1), Fraction(1, 2))
    """
    for name, size in (("tile_m", tile_m), ("tile_n", tile_n), ("element_bytes", element_bytes)):
        positive(name, size)
    return Fraction(2 * tile_m * tile_n, (tile_m + tile_n) * element_bytes)


def staged_bytes(tile_m: int, tile_n: int, tile_k: int, *, element_bytes: int = 2, stages: int = 2) -> int:
    """Shared memory for ``stages`` slices of both operands; the result is added up in registers.

    >>> staged_bytes(128, 128, 32, stages=3)
    49152
    """
    sizes = (
        ("tile_m", tile_m), ("tile_n", tile_n), ("tile_k", tile_k), ("element_bytes", element_bytes), ("stages", stages)
    )  # fmt: skip
    for name, size in sizes:
        positive(name, size)
    return stages * (tile_m + tile_n) * tile_k * element_bytes


# -- tiles that run at the same time ---------------------------------------------------------------------------
def tile_order(rows: int, columns: int, *, group: int = 1) -> Iterator[tuple[int, int]]:
    """Tiles of a rows × columns grid in launch order; ``group`` rows of tiles are taken column by column.

    ``group=1`` is row after row. The grouping is that of Triton's matrix-product tutorial.

    >>> list(tile_order(2, 3, group=2))
    [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    """
    for name, size in (("rows", rows), ("columns", columns), ("group", group)):
        positive(name, size)
    for first in range(0, rows, group):
        height = min(group, rows - first)
        for column in range(columns):
            for row in range(first, first + height):
                yield row, column


def wave_traffic(m: int, n: int, k: int, *, tile_m: int, tile_n: int, at_once: int, group: int = 1) -> Ledger:
    """Elements fetched when ``at_once`` tiles run in step and a shared cache gives each slice to all who want it.

    Between waves nothing is remembered. The best a cache of one wave's slices can do; without it see ``traffic``.

    >>> ledger = wave_traffic(9, 9, 9, tile_m=1, tile_n=1, at_once=9, group=3)
    >>> (ledger["A"] + ledger["B"]) // 9  # blocks of operands a wave, as Triton's tutorial counts them
    54
    """
    for name, size in (("m", m), ("n", n), ("k", k), ("tile_m", tile_m), ("tile_n", tile_n), ("at_once", at_once)):
        positive(name, size)
    positive("group", group)
    grid_rows, grid_columns = _up(m, tile_m), _up(n, tile_n)
    a = b = 0
    for start in range(0, grid_rows * grid_columns, at_once):
        rows_of_wave, columns_of_wave = _wave(grid_rows, grid_columns, group, start, start + at_once)
        a += sum(min(end * tile_m, m) - first * tile_m for first, end in rows_of_wave)
        b += sum(min(end * tile_n, n) - first * tile_n for first, end in columns_of_wave)
    rows = (Row("A", a * k, "", ""), Row("B", b * k, "", ""), Row("result", m * n, "", "M·N"))
    return ledger(f"{m:,} × {k:,} by {k:,} × {n:,}, {at_once} tiles in step", rows, unit="elements")


def _wave(
    rows: int, columns: int, group: int, start: int, end: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Rows and columns, as disjoint intervals, of the tiles that ``tile_order`` numbers from ``start`` to ``end``.

    >>> _wave(9, 9, 3, 0, 9)
    ([(0, 3)], [(0, 3)])
    """
    found_rows: list[tuple[int, int]] = []
    found_columns: list[tuple[int, int]] = []
    end = min(end, rows * columns)
    while start < end:
        first = start // (group * columns) * group  # the first row of the group that ``start`` is in
        height = min(group, rows - first)
        local, last = start - first * columns, min(end - first * columns, height * columns)
        if last - local >= height:
            found_rows.append((first, first + height))
        else:
            top, bottom = local % height, (last - 1) % height + 1
            parts = [(top, bottom)] if top < bottom else [(0, bottom), (top, height)]
            found_rows += [(first + low, first + high) for low, high in parts]
        found_columns.append((local // height, _up(last, height)))
        start = first * columns + last
    return found_rows, _joined(found_columns)


def _joined(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for low, high in sorted(intervals):
        if joined and low <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return joined


# -- a cache that the programmer does not control -----------------------------------------------------------------
def lru(lines: Iterable[int], *, capacity: int) -> int:
    """Misses of a fully associative cache of ``capacity`` lines that evicts the least recently used.

    >>> lru([1, 2, 1, 3, 2], capacity=2)
    4
    """
    positive("capacity", capacity)
    held: OrderedDict[int, None] = OrderedDict()
    misses = 0
    for line in lines:
        if line in held:
            held.move_to_end(line)
            continue
        misses += 1
        held[line] = None
        if len(held) > capacity:
            held.popitem(last=False)
    return misses


def product_lines(n: int, *, order: Order = "ijk", block: int = 0, line: int = 8) -> Iterator[int]:
    """Cache lines that C += A·B touches, access by access, for n × n matrices stored row by row.

    A line has ``line`` elements, and a row begins with one. ``order`` names the loops from the outside in: i a row of A
    and C, j a column of B and C, k what is summed over.
    With ``block`` the same three loops run inside cubes of that side. Lines of A, B and C are numbered apart.

    >>> len(list(product_lines(8))), len(set(product_lines(8)))
    (1536, 24)
    """
    positive("n", n)
    positive("line", line)
    positive("block", block, zero=True)
    if sorted(order) != ["i", "j", "k"]:
        raise InfrabookError(f"the loops can be ijk, ikj or jki, and are {order!r}")
    if n % line:
        raise InfrabookError(f"rows of {n} elements do not begin with a line of {line}")
    side, per_row = block or n, n // line
    for first in range(0, n, side):
        for second in range(0, n, side):
            for third in range(0, n, side):
                inside = [range(start, min(start + side, n)) for start in (first, second, third)]
                for x in inside[0]:
                    for y in inside[1]:
                        for z in inside[2]:
                            at = {order[0]: x, order[1]: y, order[2]: z}
                            i, j, k = at["i"], at["j"], at["k"]
                            yield i * per_row + k // line
                            yield (n + k) * per_row + j // line
                            yield (2 * n + i) * per_row + j // line


def _up(a: int, b: int) -> int:
    return -(-a // b)
