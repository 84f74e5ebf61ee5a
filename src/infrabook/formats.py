"""Floating-point formats bit by bit: what a pattern means, which pattern a number becomes, and every limit.

Any format with at most one sign bit is described by five facts and decoded and encoded in exact integers and
fractions; ``encode`` rounds to nearest even, toward zero, or stochastically. Block formats (MX, NVFP4) put a shared
scale before such elements. ``quantization`` spends these bits on tensors; ``recipes.BITS`` counts bytes alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal, TypeAlias

from .errors import InfrabookError

Special: TypeAlias = Literal["ieee", "fn", "fnuz", "finite"]
Rounding: TypeAlias = Literal["nearest even", "toward zero", "stochastic"]
Value: TypeAlias = Fraction | float  # exact, or one of nan, inf, -inf, -0.0


@dataclass(frozen=True)
class Format:
    """A binary floating-point format: a sign bit (if ``signed``), ``exponent`` bits and ``mantissa`` bits.

    ``special`` says what the top of the range is used for. "ieee": the largest exponent means infinity and NaN.
    "fn": there is no infinity, and only the pattern of all ones is NaN (OCP FP8 E4M3). "fnuz": neither infinity nor
    negative zero, whose pattern is the NaN (AMD's MI300). "finite": every pattern is a number (FP4, FP6).
    Symbols: value = (-1)^sign · 2^(exponent - bias) · 1.mantissa, or without the leading one below the normal range.
    """

    name: str
    exponent: int
    mantissa: int
    special: Special = "ieee"
    bias: int | None = None
    storage_bits: int = 0  # what an element occupies, if more than it uses (TF32)
    signed: bool = True
    source: str = ""

    @property
    def bits(self) -> int:
        """Bits that carry the value."""
        return int(self.signed) + self.exponent + self.mantissa

    @property
    def stored_bits(self) -> int:
        """Bits that an element occupies in memory."""
        return self.storage_bits or self.bits

    @property
    def offset(self) -> int:
        """The exponent's bias."""
        return self.bias if self.bias is not None else 2 ** (self.exponent - 1) - 1

    # -- limits ----------------------------------------------------------------------------------------------
    @property
    def eps(self) -> Fraction:
        """The gap from 1 to the next number: one unit in the last place of 1."""
        return Fraction(1, 2**self.mantissa)

    @property
    def min_normal(self) -> Fraction:
        """The smallest number with full precision."""
        return Fraction(2) ** (1 - self.offset)

    @property
    def min_subnormal(self) -> Fraction:
        """The smallest number above zero."""
        return Fraction(2) ** (1 - self.offset - self.mantissa)

    @cached_property
    def max(self) -> Fraction:
        """The largest finite number.

        >>> FORMATS["fp16"].max, FORMATS["fp8_e4m3"].max
        (Fraction(65504, 1), Fraction(448, 1))
        """
        top = self._top
        return self._finite(top)

    def ulp(self, value: Fraction | float) -> Fraction:
        """The gap between neighbours at ``value``, within the finite range.

        >>> FORMATS["bf16"].ulp(256)
        Fraction(2, 1)
        """
        return Fraction(2) ** (self._exponent_of(abs(Fraction(value))) - self.mantissa)

    # -- patterns --------------------------------------------------------------------------------------------
    def decode(self, pattern: int) -> Value:
        """What the bits ``pattern`` mean: an exact fraction, or nan, inf, -inf, or -0.0.

        >>> FORMATS["fp16"].decode(0x3C00), FORMATS["bf16"].decode(0x7F80)
        (Fraction(1, 1), inf)
        """
        if isinstance(pattern, bool) or not isinstance(pattern, int) or not 0 <= pattern < 2**self.bits:
            raise InfrabookError(f"{self.name} has {self.bits} bits: a pattern is from 0 to {2**self.bits - 1:,}")
        negative = self.signed and pattern >> (self.bits - 1) == 1
        magnitude = pattern & (2 ** (self.exponent + self.mantissa) - 1)
        if self.special == "fnuz" and negative and magnitude == 0:
            return math.nan
        if magnitude > self._top:
            infinite = self.special == "ieee" and magnitude == self._infinity
            return (-math.inf if negative else math.inf) if infinite else math.nan
        value = self._finite(magnitude)
        if negative and value == 0:
            return -0.0
        return -value if negative else value

    def encode(
        self, value: Fraction | float, *, rounding: Rounding = "nearest even", saturate: bool = False,
        uniform: Fraction | float = Fraction(1, 2),
    ) -> int:  # fmt: skip
        """The pattern that ``value`` becomes.

        Too large a number becomes infinity, or NaN where there is none; with ``saturate`` it becomes the largest
        finite number, and so does infinity. OCP allows both for FP8. torch casts to ``float8_e4m3fn`` with saturation
        from 2.12 on (pull request 178817), before without, and to its other FP8 formats without.
        ``rounding="stochastic"`` rounds up when ``uniform``, from 0 to below 1, is less than the part cut off.

        >>> FORMATS["bf16"].encode(1 + Fraction(1, 256)) == FORMATS["bf16"].encode(1)
        True
        >>> hex(FORMATS["fp8_e4m3"].encode(1000, saturate=True)), hex(FORMATS["fp8_e4m3"].encode(1000))
        ('0x7e', '0x7f')
        """
        if isinstance(value, float) and math.isnan(value):
            return self._nan()
        negative = math.copysign(1, value) < 0 if isinstance(value, float) else value < 0
        if negative and not self.signed:
            raise InfrabookError(f"{self.name} has no sign: {value} cannot be written in it")
        if isinstance(value, float) and math.isinf(value):
            magnitude = self._overflow(saturate)
        else:
            magnitude = self._round(abs(Fraction(value)), rounding, Fraction(uniform))
            if magnitude > self._top:
                magnitude = self._overflow(saturate)
        if magnitude == 0 and self.special == "fnuz":
            negative = False
        if magnitude < 0:
            return self._nan(negative)
        return magnitude | (int(negative) << (self.bits - 1))

    def round(self, value: Fraction | float, *, rounding: Rounding = "nearest even", saturate: bool = False) -> Value:
        """``value`` as this format holds it.

        >>> float(FORMATS["bf16"].round(0.1))
        0.10009765625
        """
        return self.decode(self.encode(value, rounding=rounding, saturate=saturate))

    def numbers(self) -> Iterator[Fraction]:
        """All finite non-negative numbers, in rising order.

        >>> [str(value) for value in FORMATS["fp4"].numbers()]
        ['0', '1/2', '1', '3/2', '2', '3', '4', '6']
        """
        return (self._finite(magnitude) for magnitude in range(self._top + 1))

    @property
    def finite(self) -> int:
        """How many patterns are finite numbers, both zeros counted where there are two.

        >>> FORMATS["bf16"].finite, FORMATS["fp16"].finite, FORMATS["fp8_e4m3"].finite
        (65280, 63488, 254)
        """
        positive = self._top + 1
        return positive * (2 if self.signed else 1) - (self.special == "fnuz")

    def between(self, low: Fraction | float, high: Fraction | float, *, ends: str = "[]") -> int:
        """How many different numbers there are from ``low`` to ``high``; ``ends`` says which ends belong to them.

        >>> [FORMATS["fp8_e4m3"].between(1, 2, ends=ends) for ends in ("[]", "[)", "()")]
        [9, 8, 7]
        """
        if ends not in ("[]", "[)", "(]", "()"):
            raise InfrabookError(f"ends can be [], [), (] or (), and are {ends!r}")
        if not self.signed and low < 0:
            raise InfrabookError(f"{self.name} has no numbers below 0")

        def rank(value: Fraction | float, strict: bool) -> int:  # numbers below value, or at most value
            size = abs(Fraction(value))
            if size > self.max:
                magnitude, exact = self._top, False
            else:
                magnitude = self._round(size, "toward zero", Fraction(0))
                exact = self._finite(magnitude) == size
            if value >= 0:  # numbers from zero up to value
                return magnitude + 1 - (strict and exact)
            return -magnitude + (0 if strict or not exact else 1)

        return max(0, rank(high, ends[1] == ")") - rank(low, ends[0] == "["))

    def stall(self, addend: Fraction | float) -> Fraction | None:
        """Where a running sum stands still that starts at 0 and adds ``addend`` again and again, rounded each time.

        The smallest power of two next to which ``addend`` is at most half a step: it is reached exactly, and then
        every further sum is rounded back to it. None if the sum passes the largest number first.

        >>> [FORMATS[name].stall(1) for name in ("fp16", "bf16", "fp8_e4m3", "fp8_e5m2")]
        [Fraction(2048, 1), Fraction(256, 1), Fraction(16, 1), Fraction(8, 1)]
        """
        value = Fraction(self.round(addend))
        if value <= 0:
            raise InfrabookError(f"{addend} is not a positive number of {self.name}")
        at = self.min_normal
        while at <= self.max:
            if value <= self.ulp(at) / 2:
                return at
            at *= 2
        return None

    def fields(self, pattern: int) -> tuple[int, int, int]:
        """(sign, exponent, mantissa) of a pattern, as raw fields.

        >>> FORMATS["fp16"].fields(0xBC01)
        (1, 15, 1)
        """
        sign = pattern >> (self.bits - 1) if self.signed else 0
        return sign, (pattern >> self.mantissa) & (2**self.exponent - 1), pattern & (2**self.mantissa - 1)

    # -- inside ----------------------------------------------------------------------------------------------
    @property
    def _infinity(self) -> int:
        return ((1 << self.exponent) - 1) << self.mantissa

    @property
    def _top(self) -> int:
        """The largest magnitude (pattern without sign) that is a finite number."""
        every = (1 << (self.exponent + self.mantissa)) - 1
        return {"ieee": self._infinity - 1, "fn": every - 1, "fnuz": every, "finite": every}[self.special]

    def _finite(self, magnitude: int) -> Fraction:
        exponent, mantissa = divmod(magnitude, 1 << self.mantissa)
        if exponent == 0:
            return mantissa * self.min_subnormal
        return ((1 << self.mantissa) + mantissa) * Fraction(2) ** (exponent - self.offset - self.mantissa)

    def _exponent_of(self, value: Fraction) -> int:
        """The power of two at or below ``value``, not below that of the smallest normal number."""
        least = 1 - self.offset
        if value < self.min_normal:
            return least
        guess = value.numerator.bit_length() - value.denominator.bit_length()
        return guess if Fraction(2) ** guess <= value else guess - 1

    def _round(self, value: Fraction, rounding: Rounding, uniform: Fraction) -> int:
        exponent = self._exponent_of(value)
        units = value / Fraction(2) ** (exponent - self.mantissa)
        whole, rest = divmod(units.numerator, units.denominator)
        part = Fraction(rest, units.denominator)
        if rounding == "nearest even":
            up = part > Fraction(1, 2) or (part == Fraction(1, 2) and whole % 2 == 1)
        elif rounding == "stochastic":
            up = uniform < part
        elif rounding == "toward zero":
            up = False
        else:
            raise InfrabookError(f"rounding can be nearest even, toward zero or stochastic, and is {rounding!r}")
        # a carry runs from the mantissa into the exponent by itself, also from subnormal to normal
        below = 0 if value < self.min_normal else (exponent + self.offset - 1) << self.mantissa
        return below + whole + up

    def _overflow(self, saturate: bool) -> int:
        if saturate or self.special == "finite":
            return self._top
        return self._infinity if self.special == "ieee" else -1

    def _nan(self, negative: bool = False) -> int:
        sign = int(negative) << (self.bits - 1)
        if self.special == "fnuz":
            return 1 << (self.bits - 1)
        if self.special == "fn":
            return sign | ((1 << (self.exponent + self.mantissa)) - 1)
        if self.special == "ieee":
            return sign | self._infinity | (1 << (self.mantissa - 1))
        raise InfrabookError(f"{self.name} has no NaN")


OCP_FP8 = "OCP 8-bit Floating Point Specification (OFP8), revision 1.0"
OCP_MX = "OCP Microscaling Formats (MX) Specification, version 1.0"
FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("fp64", 11, 52, source="IEEE 754 binary64"),
        Format("fp32", 8, 23, source="IEEE 754 binary32"),
        Format("tf32", 8, 10, storage_bits=32, source="NVIDIA A100 white paper: 19 bits used, 32 stored"),
        Format("bf16", 8, 7, source="bfloat16: the upper half of binary32"),
        Format("fp16", 5, 10, source="IEEE 754 binary16"),
        Format("fp8_e5m2", 5, 2, source=OCP_FP8),
        Format("fp8_e4m3", 4, 3, "fn", source=OCP_FP8),
        Format("fp8_e5m2fnuz", 5, 2, "fnuz", 16, source="AMD MI300; Graphcore et al., arXiv 2206.02915"),
        Format("fp8_e4m3fnuz", 4, 3, "fnuz", 8, source="AMD MI300; Graphcore et al., arXiv 2206.02915"),
        Format("fp8_e4m3_ieee", 4, 3, source="IEEE P3109 style: infinity kept, so 240 is the largest"),
        Format("fp6_e3m2", 3, 2, "finite", source=OCP_MX),
        Format("fp6_e2m3", 2, 3, "finite", source=OCP_MX),
        Format("fp4", 2, 1, "finite", source=OCP_MX),
    )
}
"""Formats by name. ``fp8_e4m3`` is the OCP variant without infinity that torch calls ``float8_e4m3fn``."""

ALIASES: dict[str, str] = {
    "float64": "fp64", "double": "fp64", "binary64": "fp64", "float32": "fp32", "float": "fp32", "binary32": "fp32",
    "tensorfloat32": "tf32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "binary16": "fp16",
    "e5m2": "fp8_e5m2", "e4m3": "fp8_e4m3", "e4m3fn": "fp8_e4m3", "fp8_e4m3fn": "fp8_e4m3",
    "e5m2fnuz": "fp8_e5m2fnuz", "e4m3fnuz": "fp8_e4m3fnuz", "e3m2": "fp6_e3m2", "e3m2fn": "fp6_e3m2",
    "fp6_e3m2fn": "fp6_e3m2", "e2m3": "fp6_e2m3", "e2m3fn": "fp6_e2m3", "fp6_e2m3fn": "fp6_e2m3",
    "e2m1": "fp4", "e2m1fn": "fp4", "fp4_e2m1": "fp4", "fp4_e2m1fn": "fp4",
}  # fmt: skip
"""What else the formats are called; ``float8_`` and ``torch.float8_`` stand for ``fp8_``, and so for 6 and 4."""


def get(name: str | Format) -> Format:
    """The format called ``name``, by any of its usual names; a ``Format`` is handed back.

    >>> get("torch.float8_e4m3fn").name, get("bfloat16").name, get("e2m1").name
    ('fp8_e4m3', 'bf16', 'fp4')
    """
    if isinstance(name, Format):
        return name
    short = str(name).strip().lower().removeprefix("torch.")
    for bits in ("8", "6", "4"):
        if short.startswith(f"float{bits}_"):
            short = f"fp{bits}_" + short.removeprefix(f"float{bits}_")
    short = ALIASES.get(short, short)
    if short not in FORMATS:
        raise InfrabookError(f"there is no format {name!r}; there are {', '.join(FORMATS)}")
    return FORMATS[short]


# -- block formats ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Block:
    """``size`` elements of a format share one scale: E8M0 (a power of two) or a small float; maybe one a tensor."""

    name: str
    element: Format
    size: int
    scale: Literal["e8m0", "fp8_e4m3"] = "e8m0"
    per_tensor_bits: int = 0
    source: str = ""

    @property
    def bits_per_element(self) -> Fraction:
        """Bits of an element with its share of the scale; the tensor's own scale is left out.

        >>> [float(BLOCKS[name].bits_per_element) for name in ("mxfp4", "nvfp4", "mxfp8_e4m3")]
        [4.25, 4.5, 8.25]
        """
        return self.element.bits + Fraction(8, self.size)

    def quantize(self, values: Sequence[float]) -> tuple[Fraction, list[Fraction]]:
        """(shared scale, dequantized values) of one block.

        MX: the scale is 2^(floor(log2 of the largest magnitude) - the exponent of the element's largest number), and
        what then exceeds the range saturates (MX 1.0, section 6.3). NVFP4: the largest magnitude over 6, in E4M3.

        >>> BLOCKS["mxfp4"].quantize([0.1, -0.7, 3.0, 13.0])[0]
        Fraction(2, 1)
        """
        if not 0 < len(values) <= self.size:
            raise InfrabookError(f"a block of {self.name} has 1 to {self.size} values, and this one has {len(values)}")
        largest = max(abs(Fraction(value)) for value in values)
        if largest == 0:
            return Fraction(1), [Fraction(0)] * len(values)
        if self.scale == "e8m0":
            scale = Fraction(2) ** (_floor_log2(largest) - _floor_log2(self.element.max))
        else:
            found = FORMATS["fp8_e4m3"].round(largest / self.element.max, saturate=True)
            scale = Fraction(found) or FORMATS["fp8_e4m3"].min_subnormal
        return scale, [Fraction(self.element.round(Fraction(v) / scale, saturate=True)) * scale for v in values]


def _floor_log2(value: Fraction) -> int:
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    return guess if Fraction(2) ** guess <= value else guess - 1


BLOCKS: dict[str, Block] = {
    b.name: b
    for b in (
        Block("mxfp8_e5m2", FORMATS["fp8_e5m2"], 32, source=OCP_MX),
        Block("mxfp8_e4m3", FORMATS["fp8_e4m3"], 32, source=OCP_MX),
        Block("mxfp6_e3m2", FORMATS["fp6_e3m2"], 32, source=OCP_MX),
        Block("mxfp6_e2m3", FORMATS["fp6_e2m3"], 32, source=OCP_MX),
        Block("mxfp4", FORMATS["fp4"], 32, source=OCP_MX),
        Block("nvfp4", FORMATS["fp4"], 16, "fp8_e4m3", 32, source="NVIDIA, Introducing NVFP4"),
    )
}
"""Block formats by name."""
