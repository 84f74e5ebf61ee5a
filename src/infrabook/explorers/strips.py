"""A recurrent network's state, step by step, as a strip of colours."""

from __future__ import annotations

import math
import random
from typing import TypeAlias

from .. import palette
from ..explore import Check, Choice, Number, explore, number
from .views import plain

HIDDEN, STEPS = 8, 20
Vector: TypeAlias = list[float]
INPUTS = {
    "one knock, then silence": [1.0] + [0.0] * (STEPS - 1),
    "a knock every five steps": [1.0 if t % 5 == 0 else 0.0 for t in range(STEPS)],
    "up and down": [1.0 if t % 2 == 0 else -1.0 for t in range(STEPS)],
    "always the same": [0.5] * STEPS,
    "silence": [0.0] * STEPS,
}


def cell(state: Vector, x: float, radius: float, *, squashed: bool = True) -> tuple[Vector, list[tuple[float, float]]]:
    """The next state, and for each unit what came from the input and from the state.

    ``W_hh`` turns pairs of units by fixed angles and scales by ``radius``, which is then the modulus of all its
    eigenvalues; ``W_xh`` is drawn once, and there is no bias.
    """
    numbers = random.Random(4)
    w_xh = [round(numbers.uniform(-1, 1), 2) for _ in range(HIDDEN)]
    parts = []
    for unit in range(HIDDEN):
        angle = 0.35 * (unit // 2 + 1)
        own, other = radius * math.cos(angle), radius * math.sin(angle)
        partner = unit ^ 1
        from_state = own * state[unit] + (other if unit % 2 else -other) * state[partner]
        parts.append((w_xh[unit] * x, from_state))
    sums = [sum(part) for part in parts]
    return [math.tanh(one) for one in sums] if squashed else sums, parts


@explore(
    inputs=Choice(list(INPUTS), label="input"),
    step=Number(1, STEPS),
    radius=Number(0, 1.3, 0.05, label="W_hh scales by"),
    squashed=Check(label="tanh"),
)
def hidden_strip(
    inputs: str = "one knock, then silence", step: int = 12, radius: float = 0.95, squashed: bool = True
) -> str:
    """The state of a recurrent network of eight units, one column a step."""
    states: list[Vector] = []
    state = [0.0] * HIDDEN
    for x in INPUTS[inputs][:step]:
        state, parts = cell(state, x, radius, squashed=squashed)
        states.append(state)
    size = math.sqrt(sum(one * one for one in state))
    first = math.sqrt(sum(one * one for one in states[0]))
    left = f"{plain(100 * size / first)}% of its length after step 1" if first else "nothing has come in"
    shown = number(plain(size), float(f"{size:.9g}"))
    x = INPUTS[inputs][step - 1]
    line = " + ".join(map(_signed, parts[0]))
    new = f"tanh({line})" if squashed else line
    weights = HIDDEN * (1 + HIDDEN)
    return (
        f'<p class="explorer-answer">After step {step} the state has length {shown}: {left}.</p>'
        f"{_strip(states)}"
        f'<p class="one-line" tabindex="0"><small>unit 1: <code>{new} = {_signed(state[0])}</code></small></p>'
        f'<p class="explorer-note">Rows are the eight units, columns the steps; the input at this step is {x:g}. '
        f"The same {weights} numbers were used {step} {'time' if step == 1 else 'times'}. W_hh turns pairs of units "
        "and scales them; without tanh, its scale decides alone what becomes of the state.</p>"
    )


def _signed(value: float) -> str:
    return f"{round(value, 3) + 0.0:.3f}".replace("-", "−")


def _strip(states: list[Vector]) -> str:
    """Units as rows, steps as columns; strong colours are values near 1 (blue) and -1 (orange)."""
    side = 20
    marks = []
    for t in range(STEPS):
        for unit in range(HIDDEN):
            place = f'x="{side * t}" y="{side * unit}" width="{side - 1}" height="{side - 1}"'
            if t < len(states):
                value = states[t][unit]
                colour = palette.colour("weights" if value > 0 else "communication")
                strength = round(min(1.0, abs(value)) ** 0.5, 2)  # small values would not be seen otherwise
                marks.append(f'<rect {place} fill="{colour}" fill-opacity="{strength:g}"/>')
            else:
                marks.append(f'<rect {place} fill="none" stroke="currentColor" stroke-opacity="0.15"/>')
    said = f"The state of eight units over {len(states)} steps; the last one: "
    said += ", ".join(_signed(value) for value in states[-1])
    return (
        f'<svg class="strip" viewBox="0 0 {side * STEPS - 1} {side * HIDDEN - 1}" width="100%" role="img" '
        f'aria-label="{said}">{"".join(marks)}</svg>'
    )
