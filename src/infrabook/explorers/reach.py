"""How much of a gradient arrives from so many steps away."""

from __future__ import annotations

import math
from html import escape

from .. import formats, recurrent
from ..errors import InfrabookError
from ..explore import Choice, Number, explore, number
from .views import plain

WAYS = {"plain: W_hh and tanh": "plain", "LSTM: the forget gate": "lstm"}
SHOWN = (1, 3, 10, 30, 100, 300)
FORMATS = {"FP32": "fp32", "BF16": "bf16", "FP16": "fp16"}


@explore(
    way=Choice(WAYS, label="the way back"),
    radius=Number(0.05, 1.5, 0.005, label="spectral radius of W_hh"),
    slope=Number(0.05, 1, 0.05, label="mean slope of tanh"),
    bias=Number(-2, 8, 0.1, label="bias of the forget gate"),
    length=Number.among([10, 20, 50, 100, 200, 500, 1000, 2000, 5000], unit="steps"),
    dtype=Choice(FORMATS, label="gradient kept in"),
)
def gradient_reach(
    way: str = "plain", radius: float = 0.575, slope: float = 1.0, bias: float = 0.0, length: int = 100,
    dtype: str = "fp32",
) -> str:  # fmt: skip
    """What is left of a gradient by distance, for a plain network and along an LSTM's cell."""
    rate = radius * slope if way == "plain" else 1 / (1 + math.exp(-bias))
    if length * abs(math.log10(rate)) > 300:
        raise InfrabookError(f"{plain(rate)} to the power of {length:,} is beyond any number format: take fewer steps")
    smallest = float(formats.get(dtype).min_subnormal)
    rows = "".join(_row(rate, steps) for steps in SHOWN)
    left = rate**length
    half, gone = recurrent.half_life(rate), recurrent.steps_until(rate, smallest)
    words = (
        f"half is left after {plain(half)} steps, and nothing that {dtype.upper()} can hold after {gone:,}"
        if rate < 1
        else "nothing fades" + (", and it grows" if rate > 1 else "")
    )
    first = "radius × slope" if way == "plain" else "the forget gate, σ(bias)"
    return (
        f'<p class="explorer-answer">From {length:,} steps away {number(_power(left), float(f"{left:.6g}"))} of the '
        f"gradient arrives: {words}.</p>"
        '<table class="ledger shares"><thead><tr><th scope="col">steps back</th><th scope="col" class="bar">'
        f'</th><th scope="col" class="amount">left</th></tr></thead><tbody>{rows}</tbody>'
        f"<tfoot>{_row(rate, length, kind='total')}</tfoot></table>"
        f'<p class="explorer-note">Each step leaves {escape(first)} = {plain(rate)} of what came. Bars are decades: '
        "full is 1 and more, empty a trillionth. Real layers have as many rates as units; the largest is what arrives "
        "from afar.</p>"
    )


def _row(rate: float, steps: int, *, kind: str = "") -> str:
    left = rate**steps
    width = min(1.0, max(0.0, 1 + math.log10(left) / 12)) if left else 0.0
    return (
        f'<tr class="{kind}"><th scope="row">{steps:,}</th>'
        f'<td class="bar"><i style="width:{100 * width:.2f}%"></i></td><td class="amount">{_power(left)}</td></tr>'
    )


def _power(value: float) -> str:
    """A number of any size, as people write it.

    >>> _power(0.25), _power(3.2e-25), _power(0.0)
    ('0.25', '3.2·10⁻²⁵', '0')
    """
    if value == 0 or 1e-3 <= value < 1e5:
        return plain(value)
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa}·10{str(int(exponent)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"
