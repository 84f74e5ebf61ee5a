"""A number as each format holds it, with the bits of one format to flip."""

from __future__ import annotations

import math
from fractions import Fraction
from html import escape
from urllib.parse import urlencode

from ..explore import Choice, Number, explore, number
from ..formats import FORMATS, Format, Value
from .views import plain

SHOWN = {
    "FP32": "fp32", "TF32": "tf32", "BF16": "bf16", "FP16": "fp16", "FP8 E5M2": "fp8_e5m2", "FP8 E4M3": "fp8_e4m3",
    "FP6 E3M2": "fp6_e3m2", "FP6 E2M3": "fp6_e2m3", "FP4 E2M1": "fp4",
}  # fmt: skip
STOPS = (1e-10, 1e-9, 1e-8, 1.5e-8, 5e-8, 1e-7, 1e-6, 1e-5, 1e-4, 0.001, 0.01, 0.1, 1.0, 3.14159, 300.0, 65519.0, 1e6)
PARTS = ("sign", "exponent", "fraction")


@explore(
    value=Number(-3.41e38, 3.41e38, 1.0, label="a number", stops=STOPS),
    times=Number.among([2**k for k in range(0, 25, 2)], label="multiplied by (a loss scale)"),
    bits=Choice(SHOWN, label="bits shown of"),
)
def rounded_in_formats(value: float = 1.5e-8, times: int = 1, bits: str = "fp16") -> str:
    """A number as each format holds it."""
    exact = Fraction(value) * times
    one = FORMATS[bits]
    pattern = one.encode(exact)
    held = one.decode(pattern)
    rows = "".join(_row(words, FORMATS[name], exact, name == bits) for words, name in SHOWN.items())
    words = next(words for words, name in SHOWN.items() if name == bits)
    scaled = "" if times == 1 else f" times {times:,}"
    said = number(f"{_plain(held)}", _plain(held))
    return (
        f'<p class="explorer-answer">{words} holds {_plain(value)}{scaled} as {said}{_error(held, exact)}.</p>'
        + _bits(one, pattern, times, bits)
        + '<table class="ledger"><caption>The number in each format</caption><thead><tr><th scope="col">format</th>'
        f'<th scope="col" class="amount">held as</th><th scope="col" class="amount">error</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
        f'<p class="explorer-note">{escape(_note(one, words, exact, held))}</p>'
    )


def _row(words: str, one: Format, exact: Fraction, chosen: bool) -> str:
    held = one.round(exact)
    mark = ' style="font-weight:600"' if chosen else ""
    return (
        f'<tr{mark}><th scope="row">{words}</th><td class="amount">{_plain(held)}</td>'
        f'<td class="amount">{_share(held, exact)}</td></tr>'
    )


def _bits(one: Format, pattern: int, times: int, name: str) -> str:
    """The pattern's bits in three groups; following a bit's link flips it, by setting the number that it then is."""
    place = one.bits
    groups = []
    for part, width in zip(PARTS, (1, one.exponent, one.mantissa), strict=True):
        boxes = []
        for _ in range(width):
            place -= 1
            digit, flipped = pattern >> place & 1, one.decode(pattern ^ (1 << place))
            if isinstance(flipped, float) and not math.isfinite(flipped):
                boxes.append(f'<span title="flipped, it would be {_plain(flipped)}">{digit}</span>')
            else:
                then = repr(float(Fraction(flipped) / times) + 0.0)  # no -0.0 in a link
                link = "#rounded_in_formats?" + urlencode({"value": then, "times": times, "bits": name})
                said = f"{part} bit {place} is {digit}: flip it, to {_plain(flipped)}"
                boxes.append(f'<a href="{escape(link)}" title="{said}" aria-label="{said}">{digit}</a>')
        groups.append(f'<span class="bits-{part}">{"".join(boxes)}<small>{part}</small></span>')
    return f'<div class="bits" role="group" aria-label="bits: follow one to flip it">{"".join(groups)}</div>'


def _plain(value: Value) -> str:
    """A number for people: few digits, or the word for what is no number."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, float) and math.isinf(value):
        return "−∞" if value < 0 else "∞"
    one = float(value)
    words = plain(one, 9) if 1e6 <= abs(one) < 1e9 else f"{one:,.6g}"
    if "e" in words:
        digits, _, power = words.partition("e")
        words = f"{digits}e{int(power)}"
    return words.replace("-", "−")


def _share(held: Value, exact: Fraction) -> str:
    """The relative error as a percentage, or what happened instead."""
    if isinstance(held, float) and not math.isfinite(held):
        return "overflow"
    if held == exact:
        return "exact"
    if held == 0:
        return "lost"
    off = float(abs(Fraction(held) - exact) / abs(exact))
    if off < 1e-5:
        return "below 0.001%"
    return f"{plain(100 * off, 2)}%" if off < 1 else f"{off:,.0f} times"


def _error(held: Value, exact: Fraction) -> str:
    share = _share(held, exact)
    return {
        "overflow": ": it is too large", "exact": ", without an error", "lost": ": it is lost",
    }.get(share, f", an error of {share}")  # fmt: skip


def _note(one: Format, words: str, exact: Fraction, held: Value) -> str:
    least, normal = _plain(one.min_subnormal), _plain(one.min_normal)
    said = f"{words} goes from {least}, with full precision from {normal}, up to {_plain(one.max)}."
    if isinstance(held, float) and not math.isfinite(held):
        return said + " FP8 E4M3 has no infinity: a cast gives NaN, or the largest number where it saturates."
    if abs(exact) <= one.max:
        said += f" Here its numbers are {_plain(one.ulp(exact))} apart."
    if one.special == "finite":
        said += " It has neither infinity nor NaN, and what is too large becomes the largest."
    return said
