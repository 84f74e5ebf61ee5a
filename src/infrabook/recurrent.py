"""What a recurrent layer weighs, computes, keeps and forgets: plain, with three gates (GRU), with four (LSTM).

Inputs of width ``i``, a state of width ``h``, ``T`` steps, a batch of ``B``. A layer has ``g`` copies of the same pair
of matrices, ``h × i`` and ``h × h``: one, three or four of them. None of the sizes depends on ``T``; the work does.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Literal, TypeAlias

from .errors import InfrabookError
from .ledger import Ledger, Row
from .units import exact, positive

Kind: TypeAlias = Literal["rnn", "gru", "lstm"]
COPIES: dict[Kind, int] = {"rnn": 1, "gru": 3, "lstm": 4}
"""Pairs of matrices: the plain network's one; reset, update and candidate; input, forget, candidate and output."""


def copies(kind: Kind) -> int:
    """How many pairs of matrices a layer of this kind has."""
    if kind not in COPIES:
        raise InfrabookError(f"kind can be {', '.join(COPIES)}, and is {kind!r}")
    return COPIES[kind]


def parameters(kind: Kind, inputs: int, hidden: int, *, layers: int = 1, biases: int = 2) -> Ledger:
    """Parameters of ``layers`` stacked layers, one direction.

    ``biases`` a gate: 2 in PyTorch and cuDNN, 1 in textbooks and in Keras's SimpleRNN and LSTM, 0 without. The layers
    above the first read states, of width ``hidden``.

    >>> parameters("rnn", 128, 256).total, parameters("lstm", 128, 256, biases=1).total
    (98816, 394240)
    """
    for name, value in (("inputs", inputs), ("hidden", hidden), ("layers", layers)):
        positive(name, value)
    if biases not in (0, 1, 2):
        raise InfrabookError(f"biases can be 0, 1 or 2 for each gate, and is {biases!r}")
    each = copies(kind)
    reads = inputs + (layers - 1) * hidden
    return Ledger(
        f"{kind}: parameters",
        (
            Row("from the input", each * hidden * reads, "weights", "g·h·i"),
            Row("from the state", each * hidden * hidden * layers, "weights", "g·h²"),
            Row("biases", each * hidden * biases * layers, "weights", f"{biases}·g·h"),
        ),
        "parameters",
    )


def flop(kind: Kind, inputs: int, hidden: int, *, steps: int, batch: int = 1) -> Ledger:
    """FLOP of the products of one layer's forward pass; what gates do element by element is left out.

    The input's part is one product over all steps at once. The state's is ``steps`` products, one after another.

    >>> flop("rnn", 128, 256, steps=10, batch=4).total
    7864320
    """
    for name, value in (("inputs", inputs), ("hidden", hidden), ("steps", steps), ("batch", batch)):
        positive(name, value)
    each = 2 * copies(kind) * batch * steps * hidden
    return Ledger(
        f"{kind}: FLOP forward",
        (
            Row("from the input", each * inputs, formula="2·g·B·T·h·i"),
            Row("from the state", each * hidden, formula="2·g·B·T·h²"),
        ),
        "FLOP",
    )


def scan_levels(steps: int) -> int:
    """Rounds in which a linear recurrence over ``steps`` steps can be computed by combining neighbours.

    >>> scan_levels(1), scan_levels(5), scan_levels(1024)
    (0, 3, 10)
    """
    positive("steps", steps)
    return (steps - 1).bit_length()


def saved(kind: Kind, inputs: int, hidden: int, *, steps: int, batch: int = 1, bits: int = 32) -> Ledger:
    """What autograd keeps of one layer's forward pass until the backward pass, where PyTorch runs it step by step.

    The inputs; of a plain layer every state, the first included; of a GRU also the three gates' sums from the input
    and from the state, of an LSTM its four gates, the cell and its tanh. A fused layer (an LSTM in FP32 on a CPU, all
    of them under cuDNN) keeps what its library likes to.

    >>> saved("rnn", 128, 256, steps=10, batch=4, bits=64).total
    131072
    """
    for name, value in (("inputs", inputs), ("hidden", hidden), ("steps", steps), ("batch", batch), ("bits", bits)):
        positive(name, value)
    extra = 0 if copies(kind) == 1 else 6
    states = steps + (kind == "rnn")  # a plain layer's last state is its own derivative's
    each = Fraction(batch * bits, 8)
    return Ledger(
        f"{kind}: kept for the backward pass",
        (
            Row("inputs", exact(each * steps * inputs), "activations", "b·s·e"),
            Row("states", exact(each * states * hidden), "activations", "b·s·h"),
            Row("gates", exact(each * steps * extra * hidden), "activations", f"{extra}·b·s·h"),
        ),
    )


def half_life(rate: float) -> float:
    """Steps after which half is left, if each step leaves ``rate`` of what came; infinite from 1 on.

    >>> half_life(0.5), half_life(1)
    (1.0, inf)
    """
    if not rate > 0:
        raise InfrabookError(f"rate has to be greater than 0, and is {rate!r}")
    return math.inf if rate >= 1 else math.log(0.5) / math.log(rate)


def steps_until(rate: float, left: float) -> float:
    """The first whole number of steps after which no more than ``left`` of the gradient is left; infinite from 1 on.

    >>> steps_until(0.5, 0.001), steps_until(1.1, 0.001)
    (10, inf)
    """
    if not 0 < left < 1:
        raise InfrabookError(f"left has to be a share between 0 and 1, and is {left!r}")
    if half_life(rate) == math.inf:
        return math.inf
    return math.ceil(round(math.log(left) / math.log(rate), 9))
