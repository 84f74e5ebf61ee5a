"""From a token id to a vector: what a look-up moves and a product would compute, how large the ends are, positions.

``parameters`` counts whole models and pads vocabularies; this module looks at the first and the last matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from . import parameters, recipes
from .errors import InfrabookError
from .ledger import Ledger, Row
from .models import Transformer
from .recipes import Recipe
from .units import Exact, exact, positive

Pairs = Literal["halves", "neighbours"]

WAVELENGTH = 10_000  # the base of sinusoidal and rotary frequencies (Vaswani et al. 2017; Su et al. 2021)


# -- the look-up ---------------------------------------------------------------------------------------------
def one_hot_flop(tokens: int, vocab: int, hidden: int) -> int:
    """FLOP of the product of one-hot rows with the table, 2·T·V·h; a look-up has none.

    >>> one_hot_flop(4096, 32_000, 4096)
    1073741824000
    """
    _sizes(tokens=tokens, vocab=vocab, hidden=hidden)
    return 2 * tokens * vocab * hidden


def look_up(tokens: int, hidden: int, *, dtype: str | int = "bf16", id_dtype: str | int = "int64") -> Ledger:
    """Bytes that a look-up moves: ids, the rows they name, and the output.

    >>> look_up(4096, 4096).total
    67141632
    """
    _sizes(tokens=tokens, hidden=hidden)
    rows = tokens * hidden * recipes.bytes_of(dtype)
    return _bytes(
        "look-up",
        ("ids", tokens * recipes.bytes_of(id_dtype), "T"),
        ("rows read", rows, "T·h"),
        ("output", rows, "T·h"),
    )


def one_hot_product(tokens: int, vocab: int, hidden: int, *, dtype: str | int = "bf16") -> Ledger:
    """Bytes that the same product moves if it is executed: the one-hot matrix, the whole table, the output.

    >>> one_hot_product(4096, 32_000, 4096)["one-hot matrix"]
    262144000
    """
    _sizes(tokens=tokens, vocab=vocab, hidden=hidden)
    size = recipes.bytes_of(dtype)
    return _bytes(
        "one-hot product",
        ("one-hot matrix", tokens * vocab * size, "T·V"),
        ("table", vocab * hidden * size, "V·h"),
        ("output", tokens * hidden * size, "T·h"),
    )


def gradient(distinct: int, vocab: int, hidden: int, *, dtype: str | int = "bf16", sparse: bool = False) -> Ledger:
    """Bytes of the table's gradient: every row, or with ``sparse`` those of the ``distinct`` ids and their numbers.

    >>> gradient(1000, 32_000, 4096).total, gradient(1000, 32_000, 4096, sparse=True).total
    (262144000, 8200000)
    """
    _sizes(distinct=distinct, vocab=vocab, hidden=hidden)
    if distinct > vocab:
        raise InfrabookError(f"{distinct:,} different ids do not fit into a vocabulary of {vocab:,}")
    size = recipes.bytes_of(dtype)
    if not sparse:
        return _bytes("gradient", ("rows", vocab * hidden * size, "V·h"))
    return _bytes("sparse gradient", ("rows", distinct * hidden * size, "u·h"), ("their ids", 8 * distinct, "8·u"))


# -- the size of the ends ------------------------------------------------------------------------------------
def ends(model: Transformer, *, tied: bool | None = None, padded_to: int = 1) -> Ledger:
    """The parameters of a model in rows "embedding", "head" (if it is not tied), "positions" (if learned), "layers".

    ``padded_to`` rounds the vocabulary up. Biases of the head count to it.

    >>> from infrabook.models import get
    >>> ends(get("llama-2-7b"))["embedding"], float(ends(get("gpt2")).share("embedding"))
    (131072000, 0.31016...)
    """
    if not isinstance(model, Transformer):
        raise InfrabookError(f"a model is what models.get gives, as models.get('llama-2-7b'), and not {model!r}")
    wide = replace(model, vocab=parameters.padded_vocab(model.vocab, padded_to))
    account = parameters.count(wide, tied=tied)
    named = {"embedding": "embedding", "head": "head", "head bias": "head", "positions": "positions"}
    sums: dict[str, Exact] = {}
    for row in account:
        name = named.get(row.name, "layers and norms")
        sums[name] = exact(sums.get(name, 0) + row.value)
    return Ledger(f"{model.name}: parameters", tuple(Row(name, size) for name, size in sums.items()), "parameters")


def states(vocab: int, hidden: int, *, tied: bool = False, recipe: str | Recipe = "bf16-adamw") -> Ledger:
    """Bytes of weights, gradients and optimizer states of the embedding and the head, one matrix if they are tied.

    >>> states(32_000, 4096).total
    4194304000
    """
    _sizes(vocab=vocab, hidden=hidden)
    return recipes.states(vocab * hidden * (1 if tied else 2), recipe)


# -- positions -----------------------------------------------------------------------------------------------
def frequencies(width: int, *, base: float = WAVELENGTH) -> list[float]:
    """Radians a token by which each of the ``width / 2`` pairs turns: base^(-2i/width).

    >>> frequencies(4)
    [1.0, 0.01]
    """
    positive("width", width)
    positive("base", base, whole=False)
    if width % 2:
        raise InfrabookError(f"positions turn pairs of numbers, and a width of {width} is odd")
    return [float(base) ** (-i / width) for i in range(0, width, 2)]


def wavelength(width: int, pair: int, *, base: float = WAVELENGTH) -> float:
    """Tokens after which a pair has made one full turn.

    >>> round(wavelength(128, 0), 2), round(wavelength(128, 63))
    (6.28, 54410)
    """
    turns = frequencies(width, base=base)
    if isinstance(pair, bool) or not isinstance(pair, int) or not 0 <= pair < len(turns):
        raise InfrabookError(f"a width of {width} has pairs 0 to {len(turns) - 1}, and no pair {pair!r}")
    return 2 * math.pi / turns[pair]


def sinusoidal(position: int, width: int, *, base: float = WAVELENGTH) -> list[float]:
    """The vector that Vaswani et al. (2017), section 3.5, add at a position: sine and cosine of each pair in turn.

    >>> sinusoidal(0, 4)
    [0.0, 1.0, 0.0, 1.0]
    """
    _position(position)
    return [f(position * w) for w in frequencies(width, base=base) for f in (math.sin, math.cos)]


def rotated(
    vector: Sequence[float], position: int, *, base: float = WAVELENGTH, pairs: Pairs = "halves"
) -> list[float]:
    """The vector with each pair of its numbers turned by an angle that grows with the position (RoPE).

    ``pairs``: "neighbours" are (0, 1), (2, 3) ..., as in the paper (arXiv:2104.09864) and in Meta's code; "halves"
    are (0, d/2), (1, d/2 + 1) ..., as in Hugging Face's. The two differ by a permutation.

    >>> [round(x, 3) for x in rotated([1, 0], 1)], rotated([3, 4, 5, 6], 0)
    ([0.54, 0.841], [3.0, 4.0, 5.0, 6.0])
    """
    if pairs not in ("halves", "neighbours"):
        raise InfrabookError(f"pairs can be halves or neighbours, and is {pairs!r}")
    _position(position)
    half = len(vector) // 2
    turned = [0.0] * len(vector)
    for i, turn in enumerate(frequencies(len(vector), base=base)):
        a, b = (i, i + half) if pairs == "halves" else (2 * i, 2 * i + 1)
        cos, sin = math.cos(position * turn), math.sin(position * turn)
        turned[a], turned[b] = vector[a] * cos - vector[b] * sin, vector[a] * sin + vector[b] * cos
    return turned


def positions_in(dtype_digits: int, length: int) -> int:
    """How many of the positions 0 to ``length`` - 1 stay apart in a float with so many significant binary digits.

    >>> positions_in(8, 256), positions_in(8, 4096), positions_in(24, 4096)
    (256, 769, 4096)
    """
    positive("significant digits", dtype_digits)
    positive("length", length)
    return len({_rounded(position, dtype_digits) for position in range(length)})


def _position(position: float) -> None:
    """A number that may be negative: differences of positions are."""
    if isinstance(position, bool) or not isinstance(position, int | float) or not math.isfinite(position):
        raise InfrabookError(f"a position is a number, and not {position!r}")


def _rounded(number: int, digits: int) -> int:
    """To the nearest that has so many binary digits, ties to even."""
    step = 1 << max(0, number.bit_length() - digits)
    whole, rest = divmod(number, step)
    return (whole + (2 * rest > step or (2 * rest == step and whole % 2 == 1))) * step


def _sizes(**values: int) -> None:
    for name, value in values.items():
        positive(name, value)


def _bytes(title: str, *rows: tuple[str, Exact, str]) -> Ledger:
    return Ledger(title, tuple(Row(name, exact(value), "", formula) for name, value, formula in rows))
