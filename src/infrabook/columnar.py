"""How many bytes a file format reads for k random rows, from the size of what it reads as one piece.

NumPy reads rows or the kernel's pages, Parquet column chunks of row groups (or pages, with a page index), Lance
mini-blocks or single wide values. Each account is the same question: how many pieces do k rows touch?
``measure.files`` counts what was really read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from .errors import InfrabookError
from .ledger import Ledger, Row
from .units import KIB, Exact, exact, positive

KERNEL_PAGE = 4096  # bytes; x86 and most others
LANCE_HOLE = 4 * KIB  # local files: requests no further apart than this are read as one (Lance's block size)
LANCE_WIDE = 256  # bytes: with one value so wide, each is read by itself (found by measuring pylance 14, format 2.2)
LANCE_BLOCK = {False: 8186, True: 4 * KIB}  # most bytes of values in a mini-block, of fixed and of variable width
LANCE_PACKED = 1024  # values in a mini-block of bit-packed integers
OFFSET = 4  # bytes that say where a value of variable width ends, in Lance; its length, in Parquet
LANCE_HEADER = 8  # bytes of a mini-block that are not values


@dataclass(frozen=True)
class Column:
    """A column of a table: ``width`` bytes a value, on average where the width is ``variable``.

    ``longest`` is the longest value: NumPy's field has its width, and Lance looks at it before it chooses how to store
    a column. ``encoded`` is for integers that Lance packs into as few bits as they need: the mean bytes that a value
    then takes, its share of a block's header included.
    """

    name: str
    width: Exact
    variable: bool = False
    longest: int = 0
    encoded: Exact = 0

    def __post_init__(self) -> None:
        positive(f"the width of {self.name}", self.width, whole=False)
        positive(f"the encoded width of {self.name}", self.encoded, whole=False, zero=True)
        positive(f"the longest value of {self.name}", self.longest, zero=True)
        if self.longest and self.longest < self.width:
            raise InfrabookError(
                f"{self.name} has {float(self.width):g} bytes a value, more than its longest, {self.longest}"
            )

    @property
    def field(self) -> Exact:
        """Bytes of NumPy's fixed-width field."""
        return self.longest or self.width

    @property
    def plain(self) -> Fraction:
        """Bytes of a value stored as it is; where widths vary, something has to say how long it is."""
        return Fraction(self.width) + (OFFSET if self.variable else 0)


@dataclass(frozen=True)
class Reads:
    """What an operation reads: ``bytes``, a ledger with a row a column, and ``requests``, separate pieces of a file."""

    bytes: Ledger
    requests: Exact

    def amplification(self, wanted: Exact) -> Fraction:
        """Bytes read for each byte that was asked for."""
        positive("the bytes asked for", wanted, whole=False)
        return Fraction(self.bytes.total) / Fraction(wanted)


# -- pieces touched by random rows -----------------------------------------------------------------------------
def none_in(rows: int, window: int, k: int) -> Fraction:
    """The probability that none of ``k`` distinct random rows falls among ``window`` given ones: C(N-w, k) / C(N, k).

    Exact up to 512 factors; beyond, to a double's precision, since the integers would have a million digits.

    >>> none_in(4, 2, 1), none_in(4, 2, 2), none_in(4, 2, 3)
    (Fraction(1, 2), Fraction(1, 6), Fraction(0, 1))
    """
    _rows(rows, k)
    positive("rows of the window", window, zero=True)
    if window + k > rows:
        return Fraction(0)
    long, short = max(window, k), min(window, k)
    if short <= 512:
        return Fraction(math.perm(rows - long, short), math.perm(rows, short))
    return Fraction(math.exp(math.fsum(math.log1p(-long / (rows - i)) for i in range(short))))


def touched(rows: int, unit: int, k: int) -> Exact:
    """Expected number of distinct pieces of ``unit`` rows that ``k`` distinct random rows of ``rows`` fall into.

    >>> touched(65_536, 1024, 1), float(touched(65_536, 1024, 64))
    (1, 40.65227292104422)
    """
    positive("rows of a piece", unit)
    pieces, rest = divmod(rows, unit)
    found = pieces * (1 - none_in(rows, unit, k)) if pieces else Fraction(0)
    return exact(found + (1 - none_in(rows, rest, k) if rest else 0))


def pages_touched(
    rows: int, width: int, k: int, *, page: int = KERNEL_PAGE, offset: int = 0, length: int | None = None
) -> Exact:
    """Expected number of the kernel's pages that ``k`` random rows of ``width`` bytes, back to back, lie on.

    A row may straddle two pages or more, and a page may hold parts of rows; both are counted exactly. Of each row the
    ``length`` bytes from ``offset`` on are wanted: a field, or all of it.

    >>> pages_touched(1000, 4096, 10), float(pages_touched(65_536, 512, 1)), float(pages_touched(65_536, 564, 1))
    (10, 1.0, 1.13671875)
    >>> pages_touched(1000, 65_544, 1), pages_touched(1000, 65_544, 1, length=8)
    (17, 1)
    """
    positive("the width of a row", width)
    positive("the bytes of a page", page)
    positive("the offset in a row", offset, zero=True)
    length = width - offset if length is None else length
    positive("the bytes wanted of a row", length)
    if offset + length > width:
        raise InfrabookError(f"a row of {width:,} bytes has no {length:,} bytes from byte {offset:,} on")
    _rows(rows, k)
    period = width // math.gcd(width, page)  # after so many pages, rows begin at the same places again
    pages = -(-rows * width // page)

    def held(at: int) -> int:
        """Rows of which page ``at`` has wanted bytes."""
        first = max(0, (at * page - offset - length) // width + 1)
        return max(0, min(rows, -(-((at + 1) * page - offset) // width)) - first)

    counts: Counter[int] = Counter()
    whole = max(0, pages - 1) // period
    for at in range(min(period, pages - 1)):
        counts[held(at)] += whole + (at < (pages - 1) % period)
    counts[held(pages - 1)] += 1
    return exact(sum((n * (1 - none_in(rows, size, k)) for size, n in counts.items()), Fraction()))


def coalesced(rows: int, unit: int, unit_bytes: Exact, k: int, *, hole: int = 0) -> tuple[Exact, Exact]:
    """Expected (bytes, requests) for ``k`` random rows where gaps of at most ``hole`` bytes are read along.

    Pieces i and i + j + 1 are touched, and the j between them not, with probability q(j) - 2 q(j+1) + q(j+2), where
    q(j) is the chance that no row falls into j pieces in succession.

    >>> bytes_read, requests = coalesced(65_536, 1, 512, 1024, hole=4096)
    >>> round(bytes_read), round(requests)
    (793911, 889)
    """
    positive("bytes of a piece", unit_bytes, whole=False)
    positive("the gap that is read along", hole, whole=False, zero=True)
    count = touched(rows, unit, k)
    bytes_read, requests = Fraction(count) * Fraction(unit_bytes), Fraction(count)
    pieces = -(-rows // unit)
    last = rows - (pieces - 1) * unit
    for j in range(min(int(hole / Fraction(unit_bytes)), pieces - 2) + 1 if pieces > 1 else 0):
        q = [none_in(rows, i * unit, k) for i in (j, j + 1, j + 2)] if pieces > j + 2 else [Fraction(0)] * 3
        tail = [none_in(rows, i * unit + last, k) for i in (j, j + 1)]  # windows that end with the last piece
        pairs = (pieces - j - 2) * (q[0] - 2 * q[1] + q[2])
        pairs += none_in(rows, j * unit, k) - none_in(rows, (j + 1) * unit, k) - tail[0] + tail[1]
        bytes_read += j * pairs * Fraction(unit_bytes)
        requests -= pairs
    return exact(bytes_read), exact(requests)


def pieces_of(indices: Iterable[int], unit: int) -> list[int]:
    """The distinct pieces of ``unit`` rows that these rows fall into, in order.

    >>> pieces_of([5, 1030, 7], 1024)
    [0, 1]
    """
    positive("rows of a piece", unit)
    found = sorted({index // unit for index in indices})
    if found and found[0] < 0:
        raise InfrabookError("rows are numbered from 0, and one of these is negative")
    return found


def joined(pieces: Iterable[int], unit_bytes: Exact, *, hole: int = 0) -> tuple[Exact, int]:
    """(bytes, requests) to read these pieces, where gaps of at most ``hole`` bytes are read along.

    >>> joined([0, 2, 40], 512, hole=4096)
    (2048, 2)
    """
    positive("bytes of a piece", unit_bytes, whole=False)
    positive("the gap that is read along", hole, whole=False, zero=True)
    pieces = sorted(set(pieces))
    gaps = [b - a - 1 for a, b in pairwise(pieces)]
    near = [gap for gap in gaps if gap * unit_bytes <= hole]
    return (len(pieces) + sum(near)) * unit_bytes, len(pieces) - len(near)


# -- formats ---------------------------------------------------------------------------------------------------
def numpy_rows(columns: Sequence[Column], rows: int, k: int) -> Reads:
    """One record a row, read at ``row · width``: nothing is read that was not asked for but padding."""
    _rows(rows, k)
    return Reads(_ledger("NumPy, records", ((c.name, k * c.field) for c in columns)), k)


def numpy_memmap(columns: Sequence[Column], rows: int, k: int, *, page: int = KERNEL_PAGE, only: str = "") -> Reads:
    """The same file mapped into memory: whole pages of the kernel, no read-ahead.

    ``only`` one column is wanted: then only the pages of that field of each record.
    """
    widths = {c.name: Fraction(c.field) for c in columns}
    width = sum(widths.values())
    if any(one.denominator != 1 for one in widths.values()):
        raise InfrabookError(f"a NumPy record has a whole number of bytes, and this one would have {float(width)}")
    if only and only not in widths:
        raise InfrabookError(f"the record has no column {only!r}, only {', '.join(widths)}")
    before = list(widths).index(only) if only else 0
    offset = int(sum(list(widths.values())[:before]))
    pages = pages_touched(rows, int(width), k, page=page, offset=offset, length=int(widths[only]) if only else None)
    return Reads(_ledger("NumPy, memory-mapped", [("pages", Fraction(pages) * page)]), pages)


def parquet(columns: Sequence[Column], rows: int, k: int, *, group: int) -> Reads:
    """Parquet by row group, as pyarrow reads it: a row costs the column chunks of its whole group.

    Page headers and the footer are not counted; chunks of one group that are all wanted count as one request each.
    """
    count = touched(rows, group, k)
    mean = Fraction(rows, -(-rows // group)) if rows % group == 0 else _mean_rows(rows, group, k)
    parts = ((c.name, Fraction(count) * mean * c.plain) for c in columns)
    return Reads(_ledger("Parquet, by row group", parts), exact(Fraction(count) * len(columns)))


def parquet_pages(columns: Sequence[Column], rows: int, k: int, *, page: int = 8 * KIB) -> Reads:
    """Parquet by data page, for readers that use the page index: of each column, the pages that hold a row."""
    positive("bytes of a page", page)
    parts, requests = [], Fraction(0)
    for c in columns:
        unit = max(1, int(page / c.plain))
        count = Fraction(touched(rows, min(unit, rows), k))
        parts.append((c.name, count * min(unit, rows) * c.plain))
        requests += count
    return Reads(_ledger("Parquet, by page", parts), exact(requests))


def lance_unit(column: Column) -> tuple[int, Exact]:
    """(rows, bytes) that Lance reads as one: a wide value by itself, narrow ones by mini-blocks of a power of two.

    Where widths vary the longest value decides, for all of them: one of 256 bytes makes every value stand alone.

    >>> lance_unit(Column("id", 8)), lance_unit(Column("embedding", 512)), lance_unit(Column("bits", 129))
    ((512, 4104), (1, 512), (32, 4136))
    >>> [lance_unit(Column("text", 178, variable=True, longest=longest)) for longest in (255, 256)]
    [(16, 2920), (1, 182)]
    """
    if max(column.width, column.longest if column.variable else 0) >= LANCE_WIDE:
        return 1, exact(column.plain)
    if column.encoded:
        return LANCE_PACKED, exact(LANCE_PACKED * Fraction(column.encoded))
    unit = 1 << (int(LANCE_BLOCK[column.variable] / column.plain).bit_length() - 1)
    return unit, exact(unit * column.plain + LANCE_HEADER)


def lance_offsets(column: Column, rows: int) -> int:
    """Bytes that Lance reads before the first row, and keeps: where each value begins, if they stand alone and vary.

    A value of fixed width is found by multiplying; a mini-block by a list of blocks, which is short and not counted.

    >>> lance_offsets(Column("embedding", 512), 65_536), lance_offsets(Column("page", 600, variable=True), 65_536)
    (0, 262144)
    """
    positive("rows", rows)
    return OFFSET * rows if column.variable and lance_unit(column)[0] == 1 else 0


def lance(columns: Sequence[Column], rows: int, k: int, *, hole: int = LANCE_HOLE) -> Reads:
    """Lance, format 2.2, on a local disk, without general compression, once its offsets have been read."""
    parts, requests = [], Fraction(0)
    for c in columns:
        unit, size = lance_unit(c)
        bytes_read, pieces = coalesced(rows, min(unit, rows), size, k, hole=hole)
        if rows % unit:
            ends = 1 - none_in(rows, rows % unit, k)  # how often the last block is read
            bytes_read = Fraction(bytes_read) - ends * _missing(c, rows)
        parts.append((c.name, exact(bytes_read)))
        requests += Fraction(pieces)
    return Reads(_ledger("Lance", parts), exact(requests))


def lance_taken(column: Column, rows: int, indices: Iterable[int], *, hole: int = LANCE_HOLE) -> tuple[Exact, int]:
    """(bytes, requests) for these rows of one column: ``lance`` with nothing left to chance.

    >>> lance_taken(Column("score", 8), 50_000, [3, 700]), lance_taken(Column("score", 8), 50_000, [49_999])
    ((8208, 1), (2696, 1))
    """
    unit, size = lance_unit(column)
    pieces = pieces_of(indices, unit)
    bytes_read, requests = joined(pieces, size, hole=hole)
    short = bool(pieces) and rows % unit > 0 and pieces[-1] == rows // unit
    return exact(Fraction(bytes_read) - short * _missing(column, rows)), requests


def _missing(column: Column, rows: int) -> Fraction:
    """Bytes by which the last mini-block is shorter than the others."""
    unit, size = lance_unit(column)
    value = Fraction(size) / unit if column.encoded else column.plain
    return -rows % unit * value


def _mean_rows(rows: int, group: int, k: int) -> Fraction:
    """Rows in a touched group, on average: the last group is shorter."""
    rest = rows % group
    if not k:
        return Fraction(0)
    full, last = rows // group * (1 - none_in(rows, group, k)) if rows > group else 0, 1 - none_in(rows, rest, k)
    return (full * group + last * rest) / (full + last)


def _rows(rows: int, k: int) -> None:
    positive("rows", rows)
    positive("random rows", k, zero=True)
    if k > rows:
        raise InfrabookError(f"{k:,} different rows cannot be drawn from a table of {rows:,}")


def _ledger(title: str, parts: Iterable[tuple[str, Exact]]) -> Ledger:
    return Ledger(title, tuple(Row(name, exact(value)) for name, value in parts))
