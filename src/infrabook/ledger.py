"""The book's central object: named rows of exact amounts, and the views of them.

An account (``memory.training``, ``parameters.count``) returns a ``Ledger``; adding, scaling and dividing give
new ones. Rows keep integers or fractions, and rounding happens only in a view. ``charts`` draws them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from html import escape
from typing import Any

from . import charts, palette
from .errors import InfrabookError
from .units import BYTES, Exact, exact, percent, positive, show


@dataclass(frozen=True)
class Row:
    """One line of an account.

    ``name`` says what it is, ``value`` how much (exact), ``kind`` what it counts as (a key of
    ``palette.KINDS``, which gives its colour), ``formula`` how it was found, in the book's symbols.
    """

    name: str
    value: Exact
    kind: str = ""
    formula: str = ""


@dataclass(frozen=True)
class Ledger:
    """Rows, their total, and views of both. ``unit`` is what a row's value counts: ``"bytes"`` or any noun.

    >>> states = Ledger("a layer", (Row("weights", 14, "weights"), Row("gradients", 14, "gradients")))
    >>> states.total, (2 * states)["weights"], str(states.share("weights"))
    (28, 28, '1/2')
    """

    title: str
    rows: tuple[Row, ...]
    unit: str = "bytes"

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for row in self.rows:
            if row.name in seen:
                raise InfrabookError(f"the ledger {self.title!r} has two rows named {row.name!r}")
            seen.add(row.name)

    # -- reading ---------------------------------------------------------------------------------------------
    @property
    def total(self) -> Exact:
        """The sum of all rows, exact."""
        return exact(sum((Fraction(row.value) for row in self.rows), Fraction()))

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, name: object) -> bool:
        return any(row.name == name for row in self.rows)

    def __getitem__(self, name: str) -> Exact:
        """The value of the row called ``name``."""
        for row in self.rows:
            if row.name == name:
                return row.value
        raise InfrabookError(f"{self.title!r} has no row {name!r}; it has {', '.join(r.name for r in self.rows)}")

    def of(self, kind: str) -> Exact:
        """The sum of the rows of one kind (``"weights"``, ``"activations"`` ...)."""
        return exact(sum((Fraction(row.value) for row in self.rows if row.kind == kind), Fraction()))

    def share(self, name: str) -> Fraction:
        """The share of the row ``name`` in the total, exact."""
        if not self.total:
            raise InfrabookError(f"{self.title!r} sums to 0, so no row has a share of it")
        return Fraction(self[name]) / Fraction(self.total)

    # -- arithmetic ------------------------------------------------------------------------------------------
    def __add__(self, other: Ledger) -> Ledger:
        """Both accounts in one; rows of the same name and kind are added."""
        if self.unit != other.unit:
            raise InfrabookError(f"{self.unit} and {other.unit} do not add up")
        rows = {row.name: row for row in self.rows}
        for row in other.rows:
            mine = rows.get(row.name)
            if mine is not None and mine.kind != row.kind:
                raise InfrabookError(f"row {row.name!r} is {mine.kind!r} in one ledger and {row.kind!r} in the other")
            rows[row.name] = row if mine is None else replace(mine, value=exact(Fraction(mine.value) + row.value))
        return replace(self, rows=tuple(rows.values()))

    def __mul__(self, factor: Exact) -> Ledger:
        return self.map(lambda row: Fraction(row.value) * factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: Exact) -> Ledger:
        positive("the divisor of a ledger", divisor, whole=False)
        return self.map(lambda row: Fraction(row.value) / divisor)

    def map(self, change: Callable[[Row], Exact]) -> Ledger:
        """The same rows with ``change(row)`` for values."""
        return replace(self, rows=tuple(replace(row, value=exact(change(row))) for row in self.rows))

    def where(self, keep: Callable[[Row], bool]) -> Ledger:
        """Only the rows for which ``keep`` holds."""
        return replace(self, rows=tuple(row for row in self.rows if keep(row)))

    def named(self, title: str) -> Ledger:
        """The same account under another title."""
        return replace(self, title=title)

    def by_kind(self) -> Ledger:
        """One row a kind, in the palette's order, named by its label."""
        order = {kind: i for i, kind in enumerate(palette.KINDS)}
        kinds = sorted({row.kind for row in self.rows}, key=lambda k: (order.get(k, len(order)), k))
        return replace(self, rows=tuple(Row(palette.label(kind), self.of(kind), kind) for kind in kinds))

    def compare(self, other: Ledger) -> list[tuple[str, Exact, Exact, Exact]]:
        """(name, mine, theirs, theirs - mine) for every row that stands in either, mine first."""
        mine, theirs = ({row.name: row.value for row in ledger.rows} for ledger in (self, other))
        return [
            (name, mine.get(name, 0), theirs.get(name, 0),
             exact(Fraction(theirs.get(name, 0)) - Fraction(mine.get(name, 0))))
            for name in dict.fromkeys([*mine, *theirs])
        ]  # fmt: skip

    # -- views -----------------------------------------------------------------------------------------------
    def amount(self, value: Exact, unit: str = "GB", digits: int = 2) -> str:
        """``value`` as this ledger prints it: bytes in ``unit``, counts with separators."""
        if self.unit == "bytes":
            return show(value, unit, digits)
        return f"{int(value):,}" if exact(value) == int(value) else f"{float(value):,.{digits}f}"

    def to_text(self, unit: str = "GB", digits: int = 2) -> str:
        """The account as a fixed-width table, for a terminal."""
        self._check_unit(unit)
        cells = [(row.name, row.formula, self.amount(row.value, unit, digits), self._percent(row)) for row in self.rows]
        cells.append(("total", "", self.amount(self.total, unit, digits), ""))
        widths = [max(len(cell[i]) for cell in cells) for i in range(4)]
        rule = "-" * (sum(widths) + 6)
        lines = [
            f"{c[0]:<{widths[0]}}  {c[1]:<{widths[1]}}  {c[2]:>{widths[2]}}  {c[3]:>{widths[3]}}".rstrip()
            for c in cells
        ]
        return "\n".join([self.title, rule, *lines[:-1], rule, lines[-1]])

    __str__ = to_text

    def to_html(self, unit: str = "GB", digits: int = 2, *, formulas: bool = True) -> str:
        """The account as a table: figures right, the total under a double rule."""
        self._check_unit(unit)
        formulas = formulas and any(row.formula for row in self.rows)
        body = "".join(
            f'<tr><th scope="row">{charts.swatch(row.kind)}{escape(row.name)}</th>'
            + (f'<td class="formula">{escape(row.formula)}</td>' if formulas else "")
            + f'<td class="amount">{self.amount(row.value, unit, digits)}</td>'
            f'<td class="share">{self._percent(row)}</td></tr>'
            for row in self.rows
        )
        span = "<td></td>" if formulas else ""
        return (
            f'<table class="ledger"><caption>{escape(self.title)}</caption><tbody>{body}</tbody>'
            f'<tfoot><tr><th scope="row">total</th>{span}<td class="amount">'
            f"{self.amount(self.total, unit, digits)}</td><td></td></tr></tfoot></table>"
        )

    _repr_html_ = to_html

    def to_svg(self, unit: str = "GB", *, capacity: dict[str, Exact] | None = None) -> str:
        """One stacked bar by kind, with a labelled mark at each capacity."""
        self._check_unit(unit)
        return charts.stacked_bars({self.title: self.by_kind()}, unit=unit, capacity=capacity or {})

    def to_dict(self) -> dict[str, Any]:
        """The account as plain data for JSON; fractions become ``"numerator/denominator"``."""

        def plain(value: Exact) -> int | str:
            return value if isinstance(value, int) else str(value)

        return {
            "title": self.title,
            "unit": self.unit,
            "rows": [
                {"name": r.name, "kind": r.kind, "formula": r.formula, "value": plain(r.value)} for r in self.rows
            ],
            "total": plain(self.total),
        }

    def _percent(self, row: Row) -> str:
        return percent(row.value, self.total) if self.total else ""

    def _check_unit(self, unit: str) -> None:
        if self.unit == "bytes" and unit not in BYTES:
            raise InfrabookError(f"{unit!r} is not a unit of bytes; use one of {', '.join(BYTES)}")


def ledger(title: str, rows: Iterable[Row], *, unit: str = "bytes") -> Ledger:
    """A ``Ledger`` without its empty rows."""
    return Ledger(title, tuple(row for row in rows if row.value != 0), unit)
