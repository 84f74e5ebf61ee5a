"""Chart shapes as SVG strings: the same bytes in a kernel, on the page and in the reader's browser.

Colours come from ``palette``; text takes the page's own colour, so one drawing serves both themes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from . import palette
from .units import Exact, show

if TYPE_CHECKING:
    from .ledger import Ledger

WIDTH = 680
BAR, GAP, TOP, LABEL = 34, 30, 26, 18


def swatch(kind: str, kinds: Mapping[str, tuple[str, str]] = palette.KINDS) -> str:
    """A small square in the colour of ``kind``, hidden from screen readers: the label stands beside it."""
    if kind not in kinds:
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


class Span(NamedTuple):
    """A stretch of a row of ``gantt``: ``kind`` is one of ``palette.PHASES``, or of ``KINDS`` on an axis of bytes.

    ``tone`` from 0 (the kind's own colour) to 1 (white) tells parts of one kind apart, such as a rank's stages.
    """

    start: Exact | float
    end: Exact | float
    kind: str
    label: str = ""
    tone: float = 0.0


NARROW, WIDE = 270, 560  # pixels of a row on a phone, and from which its finer labels are shown
DENSE = 1200  # spans from which one path a kind is drawn instead of a box with a tip a span


def gantt(
    rows: Sequence[tuple[str, Sequence[Span]]],
    *,
    title: str,
    unit: str = "",
    end: Exact | float = 0,
    height: int = 22,
    rest: str = "idle",
) -> str:
    """Rows of spans over one axis of time from 0 to ``end`` (at least the last span's end); idle time is hatched.

    ``rest`` is what the hatched ground means, where the axis is no time.

    HTML around one SVG a row, so that words keep their size on a phone; a label that does not fit is left out.
    ``unit`` stands at the axis; ``title`` says the finding to those who cannot see it.

    >>> picture = gantt([("rank 0", [Span(0, 1, "forward", "0"), Span(1, 3, "backward", "0")])], title="one step")
    >>> picture.count("<rect"), "forward 0: 0 to 1" in picture
    (2, True)
    """
    spans = [Span(*span) for _, row in rows for span in row]
    last = float(max([end, *(span.end for span in spans)], default=0)) or 1.0
    longest = max((len(name) for name, _ in rows), default=0)
    needed: dict[tuple[str, float], float] = {}  # all spans of one kind and length have labels, or none has
    for span in spans:
        alike = _alike(span, last)
        needed[alike] = max(needed.get(alike, 0.0), 6.4 * len(span.label) + 2)
    dense = len(spans) > DENSE
    drawn = [
        f'<div class="gantt-row"><span class="gantt-name">{escape(name)}</span>'
        f'<svg width="100%" height="{height}" aria-hidden="true">'
        f"{_dense(row, last) if dense else _spans(row, last, height, needed)}</svg></div>"
        for name, row in rows
    ]
    every = palette.KINDS | palette.PHASES
    kinds = [kind for kind in every if kind != "idle" and any(span.kind == kind for span in spans)]
    words = "".join(f"<span>{swatch(kind, every)}{escape(palette.label(kind))}</span>" for kind in kinds)
    words += f'<span><span class="swatch gantt-idle" aria-hidden="true"></span>{escape(rest)}</span>'
    side = f"--gantt-name:{0.56 * longest + 0.5:.1f}em" if longest <= 12 else "--gantt-name:100%"
    return (
        f'<div class="gantt" role="img" aria-label="{escape(title)}" style="{side}">{"".join(drawn)}'
        f'<div class="gantt-row gantt-axis"><span class="gantt-name"></span>{_axis(last, unit)}</div></div>'
        f'<p class="legend">{words}</p>'
    )


def _alike(span: Span, last: float) -> tuple[str, float]:
    return span.kind, round(float(span.end - span.start) / last, 4)


def _spans(row: Sequence[Span], last: float, height: int, needed: Mapping[tuple[str, float], float]) -> str:
    body = []
    for span in (Span(*span) for span in row):
        start, end, kind, label, tone = span
        at, share = float(start) / last, float(end - start) / last
        said = f"{palette.label(kind)} {label}".rstrip() + f": {_tick(float(start))} to {_tick(float(end))}"
        fill = "none" if kind == "idle" else palette.tint(kind, tone)
        edge = ' class="edge"' if share * NARROW >= 4 else ""
        body.append(
            f'<rect x="{100 * at:.3f}%" width="{100 * share:.3f}%" height="{height}" fill="{fill}"{edge}>'
            f"<title>{escape(said)}</title></rect>"
        )
        room = needed[_alike(span, last)]
        if label and share * WIDE >= room and kind != "idle":
            fine = "" if share * NARROW >= room else ' class="fine"'
            place = f'x="{100 * (at + share / 2):.3f}%" y="{height / 2 + 4:g}"'
            body.append(f'<text {place} fill="{palette.ink(fill)}"{fine}>{escape(label)}</text>')
    return "".join(body)


def _dense(row: Sequence[Span], last: float) -> str:
    """One path a colour: thousands of spans, without tips and labels."""
    paths: dict[str, list[str]] = {}
    for start, end, kind, _, tone in (Span(*span) for span in row):
        if kind != "idle":
            at, width = 10_000 * float(start) / last, 10_000 * float(end - start) / last
            paths.setdefault(palette.tint(kind, tone), []).append(f"M{at:.1f} 0h{width:.1f}v1h-{width:.1f}z")
    drawn = "".join(f'<path d="{"".join(parts)}" fill="{fill}"/>' for fill, parts in paths.items())
    return f'<svg viewBox="0 0 10000 1" preserveAspectRatio="none" width="100%" height="100%">{drawn}</svg>'


def _axis(last: float, unit: str) -> str:
    step = next(
        (size * 10.0**power for power in range(-12, 16) for size in (1, 2, 5) if size * 10.0**power * 5 >= last), last
    )
    marks = []
    for i in range(int(last / step + 1e-9) + 1):
        at = 100 * i * step / last
        anchor = "start" if i == 0 else "end" if at > 97 else "middle"
        words = _tick(i * step) + (f" {unit}" if unit and i == 0 else "")
        marks.append(f'<line x1="{at:.3f}%" x2="{at:.3f}%" y2="5"/>')
        marks.append(f'<text x="{at:.3f}%" y="17" text-anchor="{anchor}">{escape(words)}</text>')
    return f'<svg width="100%" height="20" aria-hidden="true">{"".join(marks)}</svg>'


def _tick(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def gigabytes(value: Exact) -> str:
    """``value`` bytes in both units a reader may have in mind.

    >>> gigabytes(112 * 10**9)
    '112.00 GB (104.31 GiB)'
    """
    return f"{show(value, 'GB')} ({show(value, 'GiB')})"


def roofline(
    peak_flop_per_s: float, bandwidth_bytes_per_s: float, points: Mapping[str, float], *, title: str, note: str = ""
) -> str:
    """The roof min(peak, intensity × bandwidth) on logarithmic axes, and a mark on it for each name -> intensity."""
    left, right, top, bottom = 66.0, WIDTH - 14.0, 26.0, 300.0
    low, high = -2.0, 4.0  # decades of FLOP per byte
    roof_top = math.log10(peak_flop_per_s)
    floor = roof_top - 5.0

    def x(decade: float) -> float:
        return left + (min(max(decade, low), high) - low) / (high - low) * (right - left)

    def y(decade: float) -> float:
        return bottom - (max(decade, floor) - floor) / (roof_top + 0.5 - floor) * (bottom - top)

    def roof(decade: float) -> float:
        return min(roof_top, decade + math.log10(bandwidth_bytes_per_s))

    ridge = roof_top - math.log10(bandwidth_bytes_per_s)
    body = []
    for decade in range(int(low), int(high) + 1):
        at = x(decade)
        body.append(f'<path d="M{at:.1f} {top}V{bottom}" stroke="currentColor" stroke-opacity="0.15" fill="none"/>')
        body.append(text(at, bottom + 17, f"{10.0**decade:g}", anchor="middle", size=12))
    for decade in range(math.ceil(floor), int(roof_top) + 1):
        height = y(decade)
        body.append(f'<path d="M{left} {height:.1f}H{right}" stroke="currentColor" stroke-opacity="0.15" fill="none"/>')
        body.append(text(left - 6, height + 4, _rate(10.0**decade), anchor="end", size=12))
    line = f"M{x(low):.1f} {y(roof(low)):.1f}L{x(ridge):.1f} {y(roof_top):.1f}H{right}"
    body.append(f'<path d="{line}" stroke="currentColor" stroke-width="2" fill="none"/>')
    body.append(text(x(ridge), y(roof_top) - 9, f"ridge at {10**ridge:.0f}", anchor="middle", size=12))
    for name, intensity in points.items():
        place = math.log10(intensity) if intensity > 0 else low
        at_x, at_y = x(place), y(roof(place))
        anchor = "end" if at_x > WIDTH * 0.6 else "start"
        body.append(f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="6" fill="{palette.colour("communication")}"/>')
        body.append(text(at_x + (11 if anchor == "start" else -11), at_y + 20, name, anchor=anchor, weight="600"))
    body.append(text(right, bottom + 36, "FLOP for each byte moved", anchor="end", size=12))
    body.append(text(left, top - 12, note or "FLOP/s", size=12))
    return svg(WIDTH, bottom + 44, body, title)


def _rate(value: float) -> str:
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:g} {prefix}"
    return f"{value:g}"
