"""A softmax over one row of scores, taken a block at a time: what the row has to remember, and how it is corrected."""

from __future__ import annotations

import math
import re
from html import escape

from ..errors import InfrabookError
from ..explore import Choice, Number, Text, explore, number

MOST = 32
FP32_LIMIT = math.log(3.4028234663852886e38)  # exp of anything larger overflows FP32


@explore(
    scores=Text(label="scores of one query, separated by blanks", rows=2),
    values=Text(label="values, one number each (empty: 1, 2, 3, …)", rows=2),
    block=Number(1, MOST, 1, "keys", "block"),
    order=Choice({"first to last": "forward", "last to first": "backward", "inside out": "middle"}),
    seen=Number(0, MOST, 1, label="blocks seen"),
)
def online_softmax(
    scores: str = "88 90 89 93 95 91 97 92", values: str = "", block: int = 2, order: str = "forward", seen: int = 3
) -> str:
    """A softmax taken block by block."""
    x = _numbers("scores", scores)
    if not x:
        raise InfrabookError("type at least one score")
    v = _numbers("values", values) or [float(i + 1) for i in range(len(x))]
    if len(v) != len(x):
        raise InfrabookError(f"there are {len(x)} scores and {len(v)} values; each score needs one")
    blocks = [list(range(i, min(i + block, len(x)))) for i in range(0, len(x), block)]
    if order == "backward":
        blocks.reverse()
    elif order == "middle":
        middle = (len(blocks) - 1) / 2
        blocks.sort(key=lambda keys: abs(keys[0] / block - middle))
    done = min(seen, len(blocks))
    maximum, total, weighted = -math.inf, 0.0, 0.0
    rows = []
    for step, keys in enumerate(blocks):
        words = ", ".join(_short(x[i]) for i in keys)
        if step >= done:
            rows.append(f'<tr class="later"><th scope="row">{words}</th>' + '<td class="amount"></td>' * 4 + "</tr>")
            continue
        new = max(maximum, *(x[i] for i in keys))
        factor = math.exp(maximum - new) if maximum > -math.inf else 0.0
        weights = [math.exp(x[i] - new) for i in keys]
        total = total * factor + sum(weights)
        weighted = weighted * factor + sum(w * v[i] for w, i in zip(weights, keys, strict=True))
        maximum = new
        shown = _short(factor) if step else "–"
        rows.append(
            f'<tr><th scope="row">{words}</th>'
            + "".join(
                f'<td class="amount">{cell}</td>'
                for cell in (_short(maximum), shown, _short(total), _short(weighted / total))
            )
            + "</tr>"
        )
    head = '<th scope="col">block of scores</th>' + "".join(
        f'<th scope="col" class="amount">{words}</th>' for words in ("maximum", "old × this", "sum", "output")
    )
    if done:
        output = weighted / total
        seen_keys = [i for keys in blocks[:done] for i in keys]
        answer = (
            f"{number(_short(output), round(output, 9))} after {len(seen_keys)} of {len(x)} scores: the softmax of "
            f"those, exactly, times their values."
        )
    else:
        answer = f"{number('nothing', 0)} is known yet of {len(x)} scores."
    return (
        f'<p class="explorer-answer">{answer}</p>'
        f'<table class="ledger steps"><caption>{escape("block by block")}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
        f'<p class="explorer-note">{_remark(x, v, done == len(blocks), weighted, total)}</p>'
    )


def _remark(x: list[float], v: list[float], finished: bool, weighted: float, total: float) -> str:
    """What the plain formula would have done with the same scores, and whether the two agree."""
    words = []
    if finished:
        top = max(x)
        weights = [math.exp(score - top) for score in x]
        whole = sum(w * value for w, value in zip(weights, v, strict=True)) / sum(weights)
        same = math.isclose(whole, weighted / total, rel_tol=1e-12, abs_tol=1e-12)
        words.append(f"All at once it is {_short(whole)}" + (", the same." if same else "; rounding differs."))
    if max(x) > FP32_LIMIT:
        words.append(
            f"exp({_short(max(x))}) is more than FP32 can hold, so exp(score) / Σ exp(score) as it stands would be no "
            "number."
        )
    elif max(x) < -103:  # exp of less than this is 0 in FP32
        words.append("Every exp(score) is 0 in FP32, so the plain formula would divide 0 by 0.")
    else:
        words.append("These scores are small enough for the plain formula too; try adding 90 to each.")
    return " ".join(words)


def _numbers(name: str, text: str) -> list[float]:
    words = re.findall(r"[^\s,;]+", text)
    found = []
    for word in words:
        try:
            found.append(float(word))
        except ValueError as error:
            raise InfrabookError(f"{word!r} among the {name} is not a number") from error
        if not abs(found[-1]) <= 1e6:
            raise InfrabookError(f"{word} among the {name} is out of range: use -1000000 to 1000000")
    if len(found) > MOST:
        raise InfrabookError(f"there are {len(found)} {name}; up to {MOST} can be followed by eye")
    return found


def _short(value: float) -> str:
    """Four significant digits, without an exponent where one can do without."""
    if value == 0:
        return "0"
    if abs(value) < 1e-3 or abs(value) >= 1e6:
        return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
