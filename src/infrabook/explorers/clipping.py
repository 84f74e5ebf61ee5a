"""Numbers in small integers: distribution, bits, granularity and clipping, and the error that is left."""

from __future__ import annotations

from html import escape
from statistics import NormalDist
from typing import Literal

from .. import quantization
from ..explore import Choice, Number, explore, number
from ..quantization import Method

CHANNELS, EACH = 8, 64
SHAPES = {
    "normal, one channel 16 times wider": "channel", "normal": "normal", "normal, a few outliers": "outliers",
    "even (uniform)": "uniform",
}  # fmt: skip
GRAINS = {"the tensor": "tensor", "a channel": "channel", "a group of 16": "16"}
METHODS = {"the maximum": "max", "the least square error": "mse"}
BARS = 41


def rows_of(shape: str) -> list[list[float]]:
    """The explorer's weights, 8 channels of 64: quantiles in a fixed order, so that nothing is drawn by chance."""
    count = CHANNELS * EACH
    spread = [(2 * i + 1) / (2 * count) for i in range(count)]
    values = [2 * p - 1 for p in spread] if shape == "uniform" else [NormalDist().inv_cdf(p) for p in spread]
    mixed = [values[i * 211 % count] for i in range(count)]  # 211 and 512 have no common divisor
    rows = [mixed[at : at + EACH] for at in range(0, count, EACH)]
    if shape == "channel":
        rows[3] = [16 * value for value in rows[3]]
    if shape == "outliers":
        rows[1][5], rows[4][40], rows[6][20] = 24.0, -20.0, 16.0
    return rows


@explore(
    shape=Choice(SHAPES, label="weights"),
    bits=Number(2, 8),
    per=Choice(GRAINS, label="a scale for"),
    method=Choice(METHODS, label="range from"),
)
def quantization_error(
    shape: str = "channel", bits: int = 4, per: str = "tensor", method: Method = "max"
) -> str:  # fmt: skip
    """The error of weights in small integers."""
    rows = rows_of(shape)
    grain: Literal["tensor", "channel"] | int = "tensor" if per == "tensor" else "channel" if per == "channel" else 16
    held = quantization.by_rows(rows, bits=bits, per=grain, method=method)
    flat = [value for row in rows for value in row]
    back = [value for row in held for value in row]
    ratio = quantization.snr_db(flat, back)
    typical = [i for i in range(CHANNELS) if i != 3]
    others = quantization.snr_db([v for i in typical for v in rows[i]], [v for i in typical for v in held[i]])
    zeros = sum(value == 0 for value in back)
    group = {"tensor": CHANNELS * EACH, "channel": EACH, "16": 16}[per]
    cost = float(quantization.bits_per_weight(bits, group))
    used = len(set(held[0]))
    words = next(words for words, name in GRAINS.items() if name == per)
    return (
        f'<p class="explorer-answer">{number(f"{others:.1f} dB", round(others, 3))} of signal over error in the seven '
        f"ordinary channels, {ratio:.1f} dB over all weights; {cost:.3g} bits a weight with an FP16 scale for "
        f"{words}.</p>" + _histogram(rows[0], [float(value) for value in held[0]]) + '<table class="ledger"><tbody>'
        f'<tr><th scope="row">numbers that the first channel can tell apart</th><td class="amount">{used}</td></tr>'
        f'<tr><th scope="row">weights that became zero</th><td class="amount">{zeros} of {len(back)}</td></tr>'
        f'<tr><th scope="row">evenly spread over the whole range, {bits} bits would give</th>'
        f'<td class="amount">{quantization.uniform_snr_db(bits):.1f} dB</td></tr></tbody></table>'
        f'<p class="explorer-note">{escape(_note(shape, per, method))}</p>'
    )


def _histogram(values: list[float], held: list[float]) -> str:
    """The first channel's values and what they became, as two rows of bars."""
    reach = max(max(map(abs, values)), max(map(abs, held)))

    def bars(numbers: list[float], name: str) -> str:
        counts = [0] * BARS
        for value in numbers:
            counts[min(int((value / reach + 1) / 2 * BARS), BARS - 1)] += 1
        most = max(counts)
        boxes = "".join(f'<i style="height:{100 * count / most:.1f}%"></i>' for count in counts)
        return f'<div class="histogram" role="img" aria-label="{name}">{boxes}</div><small>{name}</small>'

    return bars(values, "first channel, as it was") + bars(held, "first channel, as it comes back")


def _note(shape: str, per: str, method: str) -> str:
    if method != "max" and shape == "channel" and per == "tensor":
        return "Clipping for the whole tensor makes room for seven channels and cuts off most of the eighth."
    if shape == "channel" and per == "tensor":
        return "One wide channel sets the step for all. A scale for each channel costs next to nothing."
    if shape == "outliers" and per != "16":
        return "An outlier sets the step for everything that shares its scale: smaller groups, or clipping."
    return (
        "All channels have their own step, as fine as their numbers allow." if per != "tensor" else "One step for all."
    )
