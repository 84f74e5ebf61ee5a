"""Parts that explorers' views share, in HTML rather than SVG: words keep their size on a phone.

``charts`` draws for figures; ``explore.number`` marks an explorer's main number. Styled by ``explorer.css``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from html import escape

from .. import palette
from ..charts import swatch
from ..ledger import Ledger
from ..units import Exact, exact, percent, scaled, show


def meter(account: Ledger, room: Exact, name: str, *, unit: str = "GB", longest: Exact = 0) -> str:
    """A ledger's rows as one bar, over the outline of the room there is; past its end is what does not fit.

    The bar and the room share the width; with ``longest``, the most that bars to compare hold, so do all of them.

    >>> from ..ledger import Row
    >>> "width:50.00%" in meter(Ledger("a", (Row("weights", 40, "weights"),)), 80, "80 B", unit="B")
    True
    """
    total = Fraction(account.total)
    whole = max(total, Fraction(room), Fraction(longest), Fraction(1))
    parts = "".join(
        f'<i style="width:{_share(row.value, total)};background:{palette.colour(row.kind)}" '
        f'title="{escape(row.name)}: {account.amount(row.value, unit)}"></i>'
        for row in account
        if row.value
    )
    at = Fraction(room) / whole
    side = f"left:{_share(at)};transform:translateX(-{_share(at)})"  # from end to end, and never outside
    said = "; ".join(f"{row.name} {account.amount(row.value, unit)}" for row in account)
    return (
        f'<div class="meter" role="img" aria-label="{escape(f"{said}; {name}")}">'
        f'<span class="meter-room" style="width:{_share(at)}"></span>'
        f'<div class="meter-parts" style="width:{_share(total, whole)}">{parts}</div>'
        f'<span class="meter-mark" style="left:{_share(at)}"></span>'
        f'<span class="meter-name" style="{side}">{escape(name)}</span></div>'
    )


def an(name: str) -> str:
    """``name`` with its article; a word is read, an abbreviation spelled.

    >>> an("H100"), an("RTX 4090"), an("GeForce RTX 4090"), an("Instinct MI300X"), an("T4"), an("B200")
    ('an H100', 'an RTX 4090', 'a GeForce RTX 4090', 'an Instinct MI300X', 'a T4', 'a B200')
    """
    word = any(letter.islower() for letter in name.split(" ")[0])
    return f"{'an' if name[:1] in ('AEIOU' if word else 'AEFHILMNORSX') else 'a'} {name}"


def plain(value: float, digits: int = 3) -> str:
    """``value`` to so many digits, as people write it: never with an exponent.

    >>> plain(3642.5), plain(99.96), plain(0.75), plain(1 / 6), plain(0.000123), plain(1e6, 9), plain(0)
    ('3,640', '100', '0.75', '0.167', '0.000123', '1,000,000', '0')
    """
    rounded = float(f"{value:.{digits}g}")
    places = max(digits - 1 - math.floor(math.log10(abs(rounded))), 0) if rounded else 0
    words = f"{rounded:,.{places}f}"
    return words.rstrip("0").rstrip(".") if places else words


def legend(kinds: Sequence[str]) -> str:
    """What the colours of a bar mean, where no table beside it says so.

    >>> "KV cache" in legend(["weights", "kv_cache"])
    True
    """
    words = "".join(f"<span>{swatch(kind)}{escape(palette.label(kind))}</span>" for kind in kinds)
    return f'<p class="legend">{words}</p>'


def account_table(
    account: Ledger, kinds: tuple[str, ...], *, room: tuple[str, Exact] | None = None, unit: str = "GB"
) -> str:
    """A table with one line a kind, also for a kind of which there is nothing: its height never changes.

    With ``room``, a name and a capacity, the total is held against it below the line.
    """
    total = account.total
    rows = "".join(
        f'<tr><th scope="row">{swatch(kind)}{escape(palette.label(kind))}</th>'
        f'<td class="amount">{show(account.of(kind), unit)}</td>'
        f'<td class="share">{percent(account.of(kind), total) if total else ""}</td></tr>'
        for kind in kinds
    )
    closing: list[tuple[str, Exact, str, str]] = [("total", total, percent(total, total) if total else "", "total")]
    if room is not None:
        name, capacity = room
        rest = exact(Fraction(capacity) - total)
        closing += [
            (name, capacity, "", "room"),
            ("left" if rest >= 0 else "missing", max(rest, -rest), "", "left" if rest >= 0 else "missing"),
        ]
    foot = "".join(
        f'<tr class="{line}"><th scope="row">{escape(name)}</th><td class="amount">{show(value, unit)}</td>'
        f'<td class="share">{share}</td></tr>'
        for name, value, share, line in closing
    )
    return (
        f'<table class="ledger"><caption>{escape(account.title)}</caption><tbody>{rows}</tbody>'
        f"<tfoot>{foot}</tfoot></table>"
    )


def _share(part: Exact, whole: Exact = 1) -> str:
    return f"{float(100 * Fraction(part) / Fraction(whole)):.2f}%"


def share_table(account: Ledger) -> str:
    """A table whose rows carry their share as a bar, for accounts whose rows have no colour of their own.

    >>> from ..ledger import Row
    >>> "width:25.00%" in share_table(Ledger("a", (Row("x", 1), Row("y", 3)), "FLOP"))
    True
    """
    total = account.total

    def line(name: str, value: Exact, bar: str, kind: str = "") -> str:
        return (
            f'<tr{kind}><th scope="row">{escape(name)}</th><td class="bar">{bar}</td>'
            f'<td class="amount">{scaled(value, account.unit)}</td><td class="share">{percent(value, total)}</td></tr>'
        )

    rows = "".join(line(row.name, row.value, f'<i style="width:{_share(row.value, total)}"></i>') for row in account)
    foot = line("total", total, "", ' class="total"')
    return (
        f'<table class="ledger shares"><caption>{escape(account.title)}</caption><tbody>{rows}</tbody>'
        f"<tfoot>{foot}</tfoot></table>"
    )
