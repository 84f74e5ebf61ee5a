"""Units that say what they are: GB is 10^9 bytes, GiB is 2^30, FLOP is work and FLOP/s a rate.

Values stay exact (``int`` or ``Fraction``) until ``show`` makes text of them for a person.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TypeAlias

from .errors import InfrabookError

Exact: TypeAlias = int | Fraction

KB, MB, GB, TB, PB = (10**k for k in (3, 6, 9, 12, 15))
KIB, MIB, GIB, TIB, PIB = (2**k for k in (10, 20, 30, 40, 50))

BYTES: dict[str, int] = {
    "B": 1, "KB": KB, "MB": MB, "GB": GB, "TB": TB, "PB": PB,
    "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB, "PiB": PIB,
}  # fmt: skip

_PREFIXES = ((10**18, "E"), (10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))


def exact(value: Exact | float) -> Exact:
    """``value`` as an ``int`` where it is whole, else as a ``Fraction``; floats are taken at their decimal value.

    >>> exact(2.0), exact(0.1), exact(Fraction(6, 3))
    (2, Fraction(1, 10), 2)
    """
    number = value if isinstance(value, int) else Fraction(repr(value) if isinstance(value, float) else value)
    return number.numerator if number.denominator == 1 else number


def quantity(text: str) -> Exact:
    """Bytes meant by ``text`` such as ``"80 GB"`` or ``"1.5GiB"``.

    >>> quantity("80 GB"), quantity("0.5 KiB")
    (80000000000, 512)
    """
    match = re.fullmatch(r"\s*([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    if not match:
        raise InfrabookError(f"{text!r} is not an amount of memory; write it as '80 GB' or '74.5 GiB'")
    number, unit = match.groups()
    if unit and unit not in BYTES:
        raise InfrabookError(f"{unit!r} is not a unit of bytes; use one of {', '.join(BYTES)}")
    return exact(Fraction(re.sub("[_,]", "", number)) * BYTES[unit or "B"])


def show(value: Exact | float, unit: str = "GB", digits: int = 2) -> str:
    """``value`` bytes in ``unit``, rounded half to even only here.

    >>> show(112 * 10**9), show(112 * 10**9, "GiB"), show(512, "B")
    ('112.00 GB', '104.31 GiB', '512 B')
    """
    if unit not in BYTES:
        raise InfrabookError(f"{unit!r} is not a unit of bytes; use one of {', '.join(BYTES)}")
    if unit == "B" and exact(value) == int(value):
        return f"{int(value):,} B"
    return f"{_rounded(Fraction(value) / BYTES[unit], digits)} {unit}"


def scaled(value: Exact | float, noun: str, digits: int = 2) -> str:
    """``value`` with a decimal prefix: counts of parameters, FLOP, rates.

    >>> scaled(6_738_415_616, ""), scaled(989_400_000_000_000, "FLOP/s", 1)
    ('6.74 G', '989.4 TFLOP/s')
    """
    for size, prefix in _PREFIXES:
        if abs(Fraction(value)) >= size:
            return f"{_rounded(Fraction(value) / size, digits)} {prefix}{noun}".rstrip()
    return f"{_rounded(Fraction(value), 0 if exact(value) == int(value) else digits)} {noun}".rstrip()


def percent(part: Exact | float, whole: Exact | float, digits: int = 1) -> str:
    """``part`` of ``whole`` as a percentage.

    >>> percent(1, 3)
    '33.3%'
    """
    if whole == 0:
        raise InfrabookError("a share of nothing is not defined: the whole is 0")
    return f"{_rounded(100 * Fraction(part) / Fraction(whole), digits)}%"


def positive(name: str, value: Exact | float, *, whole: bool = True, zero: bool = False) -> None:
    """Refuse ``value`` unless it is a positive (or, with ``zero``, non-negative) finite number."""
    kind = "whole number" if whole else "number"
    least = "0 or more" if zero else "greater than 0"
    bad = isinstance(value, bool) or not isinstance(value, int | float | Fraction)
    if bad or value != value or value in (float("inf"), float("-inf")) or (whole and value != int(value)):
        raise InfrabookError(f"{name} has to be a {kind} {least}, and is {value!r}")
    if value < 0 or (value == 0 and not zero):
        raise InfrabookError(f"{name} has to be {least}, and is {value!r}")


def _rounded(value: Fraction, digits: int) -> str:
    scale = 10**digits
    whole = round(value * scale)
    sign, whole = ("-" if whole < 0 else ""), abs(whole)
    return f"{sign}{whole // scale:,}" + (f".{whole % scale:0{digits}d}" if digits else "")
