"""Chart shapes as SVG strings: the same bytes in a kernel, on the page and in the reader's browser.

Colours come from ``palette``; text takes the page's own colour, so one drawing serves both themes.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from html import escape
from typing import TYPE_CHECKING

from . import palette
from .units import Exact, show

if TYPE_CHECKING:
    from .ledger import Ledger

WIDTH = 680
BAR, GAP, TOP, LABEL = 34, 30, 26, 18


def swatch(kind: str) -> str:
    """A small square in the colour of ``kind``, hidden from screen readers: the label stands beside it."""
    if kind not in palette.KINDS:
        return ""
    return f'<span class="swatch" style="background:{palette.colour(kind)}" aria-hidden="true"></span>'


def svg(width: float, height: float, body: list[str], title: str) -> str:
    """An ``<svg>`` that scales with its column, named by ``title`` for those who cannot see it."""
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title)}" class="chart" '
        f'style="width:100%;max-width:{width:g}px;height:auto">{"".join(body)}</svg>'
    )


def text(x: float, y: float, words: str, *, anchor: str = "start", size: float = 13, weight: str = "normal") -> str:
    """Words in the page's colour."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}" font-weight="{weight}" '
        f'fill="currentColor">{escape(words)}</text>'
    )


def stacked_bars(
    accounts: Mapping[str, Ledger], *, unit: str = "GB", capacity: Mapping[str, Exact], title: str = ""
) -> str:
    """One horizontal bar an account, its rows side by side, and a dashed mark at each capacity.

    Predicted and measured stand in two bars, never one over the other.
    """
    rows = [row for ledger in accounts.values() for row in ledger]
    totals = [Fraction(ledger.total) for ledger in accounts.values()]
    longest = max([*totals, *map(Fraction, capacity.values()), Fraction(1)])
    scale = float((WIDTH - 4) / (longest * Fraction(108, 100)))
    body: list[str] = []
    y = float(TOP)
    for (name, ledger), total in zip(accounts.items(), totals, strict=True):
        body.append(text(2, y + 12, f"{name}: {show(total, unit)}", weight="600"))
        x, y = 2.0, y + LABEL
        for row in ledger:
            width = float(row.value) * scale
            body.append(
                f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{BAR}" '
                f'fill="{palette.colour(row.kind)}"><title>{escape(row.name)}: {show(row.value, unit)}</title></rect>'
            )
            x += width
        y += BAR + GAP - LABEL
    bottom = y - (GAP - LABEL) + 6
    placed: list[tuple[float, str]] = []
    for name, value in sorted(capacity.items(), key=lambda item: item[1]):
        x = 2 + float(value) * scale
        body.append(
            f'<path d="M{x:.1f} {TOP - 6}V{bottom:.1f}" stroke="currentColor" stroke-width="1.5" '
            f'stroke-dasharray="4 3" fill="none"/>'
        )
        placed.append((x, name))
    for x, name in placed:
        anchor = "end" if x > WIDTH / 2 else "start"
        body.append(text(min(x + (4 if anchor == "start" else -4), WIDTH - 2), TOP - 10, name, anchor=anchor, size=12))
    y = bottom + 22
    x = 2.0
    for kind in dict.fromkeys(row.kind for row in rows):
        words = palette.label(kind)
        width = 24 + 7.2 * len(words)
        if x + width > WIDTH:
            x, y = 2.0, y + 20
        body.append(f'<rect x="{x:.1f}" y="{y - 10:.1f}" width="12" height="12" fill="{palette.colour(kind)}"/>')
        body.append(text(x + 17, y, words))
        x += width + 12
    sums = "; ".join(f"{name} {show(total, unit)}" for name, total in zip(accounts, totals, strict=True))
    return svg(WIDTH, y + 10, body, title or sums)


def gigabytes(value: Exact) -> str:
    """``value`` bytes in both units a reader may have in mind.

    >>> gigabytes(112 * 10**9)
    '112.00 GB (104.31 GiB)'
    """
    return f"{show(value, 'GB')} ({show(value, 'GiB')})"
