"""Bytes read for random rows, by file format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from html import escape

from .. import columnar
from ..columnar import Column, Reads
from ..explore import Choice, Number, explore, number
from ..ledger import Ledger
from ..units import GB, KB, KIB, MB, TB, Exact
from .views import plain

WANTED = {"all columns": "all", "the wide column": "wide", "one narrow column": "narrow"}


def size(value: Exact) -> str:
    """Bytes in the largest decimal unit that they fill, to three digits.

    >>> size(512), size(8192), size(Fraction(36_541_247))
    ('512 B', '8.19 KB', '36.5 MB')
    """
    for unit, name in ((TB, "TB"), (GB, "GB"), (MB, "MB"), (KB, "KB")):
        if value >= unit:
            return f"{plain(float(Fraction(value) / unit))} {name}"
    return f"{plain(float(value))} B"


@explore(
    rows=Number.among([10**k for k in range(3, 10)], unit="rows"),
    wide=Number.doubling(1, 65_536, unit="bytes", label="wide column"),
    narrow=Number(0, 64, label="narrow columns of 8 bytes"),
    wanted=Choice(WANTED, label="read"),
    k=Number.doubling(1, 4096, label="random rows"),
    group=Number.doubling(128, 1_048_576, unit="rows", label="Parquet row group"),
    page=Number.among([4, 8, 16, 64, 256, 1024], unit="KiB", label="Parquet page"),
)
def bytes_read(
    rows: int = 1_000_000, wide: int = 512, narrow: int = 4, wanted: str = "all", k: int = 256, group: int = 8192,
    page: int = 8,
) -> str:  # fmt: skip
    """What each format reads to give you k random rows."""
    whole = [Column(f"narrow {i + 1}", 8) for i in range(narrow)] + [Column("wide", wide)]
    asked = {"all": whole, "wide": whole[-1:], "narrow": whole[:1]}[wanted]
    row = sum(Fraction(c.width) for c in asked)
    record = int(sum(Fraction(c.width) for c in whole))
    table = rows * record
    only = "" if len(asked) > 1 else asked[0].name
    found: dict[str, Reads] = {
        "NumPy, read": columnar.numpy_rows(asked, rows, k),
        "NumPy, mapped": columnar.numpy_memmap(whole, rows, k, only=only),
        "Parquet, by row group": _together(asked, lambda one: columnar.parquet(one, rows, k, group=min(group, rows))),
        "Parquet, by page": _together(asked, lambda one: columnar.parquet_pages(one, rows, k, page=page * KIB)),
        "Lance": _together(asked, lambda one: columnar.lance(one, rows, k)),
    }
    least = min(found, key=lambda name: Fraction(found[name].bytes.total))
    body = "".join(
        f'<tr class="{"fits" if name == least else ""}"><th scope="row">{escape(name)}</th>'
        f'<td class="amount">{size(one.bytes.total)}</td>'
        f'<td class="amount">× {plain(float(one.amplification(k * row)))}</td>'
        f'<td class="amount">{plain(float(one.requests))}</td>'
        f'<td class="amount fit">{plain(float(Fraction(rows, k) * one.bytes.total / table))}</td></tr>'
        for name, one in found.items()
    )
    titles = ("format", "bytes read", "for each byte wanted", "pieces", "tables read in an epoch")
    head = "".join(
        f'<th scope="col"{" class=" + chr(34) + "amount" + " fit" * (i == 4) + chr(34) if i else ""}>{words}</th>'
        for i, words in enumerate(titles)
    )
    best: Exact = found[least].bytes.total
    touched = columnar.touched(rows, min(group, rows), k)
    return (
        f'<p class="explorer-answer">{number(size(best), best)} at least, by {escape(least)}, for '
        f"{size(k * row)} asked for. The rows touch {plain(float(touched))} of "
        f"{-(-rows // min(group, rows)):,} row groups.</p>"
        f'<table class="ledger policies"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        f'<p class="explorer-note">The table has {size(table)}; nothing is compressed. An epoch takes every row once, '
        f"{k:,} random rows at a time. NumPy reads one column of a record in place, at its offset. Footers and indexes "
        f"are read once and not counted. Parquet by page needs a page index and a reader that uses it.</p>"
    )


def _together(columns: list[Column], account: Callable[[list[Column]], Reads]) -> Reads:
    """``account`` of all columns, asking once for columns that are alike."""
    kinds: dict[Exact, list[Column]] = {}
    for column in columns:
        kinds.setdefault(column.width, []).append(column)
    parts = [(account(alike[:1]), len(alike)) for alike in kinds.values()]
    rows = tuple(replace(row, value=row.value * count) for one, count in parts for row in one.bytes)
    return Reads(Ledger(parts[0][0].bytes.title, rows), sum(one.requests * count for one, count in parts))
