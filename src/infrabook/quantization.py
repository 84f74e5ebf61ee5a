"""Numbers as small integers with a scale: how they are rounded, what the scales cost, and how to choose a range.

``Scheme`` maps numbers to codes and back, exactly, on lists; ``calibrate`` finds the range that it spans;
``BLOCK_FORMATS`` and ``bits_per_weight`` count the bits of published formats with their scales. ``formats`` has the
floating-point elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from statistics import NormalDist
from typing import Literal, TypeAlias

from .errors import InfrabookError
from .units import Exact, exact, positive

Real: TypeAlias = int | float | Fraction
Convention: TypeAlias = Literal["127", "127.5"]
Order: TypeAlias = Literal["round, then shift", "shift, then round"]
Method: TypeAlias = Literal["max", "percentile", "mse", "entropy"]


# -- one scale ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Scheme:
    """code = round(x / ``scale``) + ``zero_point``, kept in ``low`` .. ``high``; back, x is (code - zero) · scale."""

    scale: Fraction
    zero_point: int
    low: int
    high: int

    def quantize(self, values: Sequence[Real], *, order: Order = "round, then shift") -> list[int]:
        """Codes of ``values``, rounded half to even and clipped.

        ONNX rounds x / scale and then adds the zero point, as does torch's fake quantization; torch 2.13's
        quantize_per_tensor adds first, 2.11's did not. They differ at ties, if the zero point is odd.

        >>> [affine(-1, 2).quantize([0.5], order=o) for o in ("round, then shift", "shift, then round")]
        [[127], [128]]
        """
        if order not in ("round, then shift", "shift, then round"):
            raise InfrabookError(f"order can be 'round, then shift' or 'shift, then round', and is {order!r}")
        first = self.zero_point if order == "shift, then round" else 0
        codes = []
        for value in values:
            if value != value or value in (math.inf, -math.inf):
                raise InfrabookError(f"only finite numbers can be quantized, and {value} is none")
            code = round(Fraction(value) / self.scale + first) + self.zero_point - first
            codes.append(min(max(code, self.low), self.high))
        return codes

    def dequantize(self, codes: Sequence[int]) -> list[Fraction]:
        """The numbers that ``codes`` stand for.

        >>> symmetric(2).dequantize([-127, 0, 64])
        [Fraction(-2, 1), Fraction(0, 1), Fraction(128, 127)]
        """
        return [(code - self.zero_point) * self.scale for code in codes]

    def held(self, values: Sequence[Real]) -> list[Fraction]:
        """``values`` as they come back."""
        return self.dequantize(self.quantize(values))


def affine(low: Real, high: Real, *, bits: int = 8, signed: bool = False) -> Scheme:
    """A scale and a zero point for numbers from ``low`` to ``high``; the range is widened to hold 0, exactly.

    >>> affine(-1, 2).scale, affine(-1, 2).zero_point
    (Fraction(1, 85), 85)
    """
    _bits(bits)
    least, most = min(Fraction(low), Fraction(0)), max(Fraction(high), Fraction(0))
    if least == most:
        raise InfrabookError("a range needs two ends: all values are 0")
    first = -(2 ** (bits - 1)) if signed else 0
    last = first + 2**bits - 1
    scale = (most - least) / (2**bits - 1)
    return Scheme(scale, min(max(first - round(least / scale), first), last), first, last)


def symmetric(largest: Real, *, bits: int = 8, convention: Convention = "127") -> Scheme:
    """A scale without a zero point for magnitudes up to ``largest``, in signed codes.

    "127": the largest code stands for ``largest``, and -128 is not used (textbooks, TensorRT). "127.5": the whole
    range of 2^bits codes spans twice ``largest`` (torch's observers); ``largest`` itself is half a step out of
    reach and is clipped to 127.

    >>> symmetric(2, convention="127.5").quantize([-1, 0, 0.5, 2])
    [-64, 0, 32, 127]
    """
    _bits(bits, least=2)
    if not Fraction(largest) > 0:
        raise InfrabookError(f"the largest magnitude has to be greater than 0, and is {largest}")
    top = 2 ** (bits - 1) - 1
    if convention == "127":
        return Scheme(Fraction(largest) / top, 0, -top, top)
    if convention == "127.5":
        return Scheme(Fraction(largest) / Fraction(2 * top + 1, 2), 0, -top - 1, top)
    raise InfrabookError(f"a symmetric convention is '127' or '127.5', and this one is {convention!r}")


def by_rows(
    rows: Sequence[Sequence[Real]],
    *,
    bits: int = 8,
    per: Literal["tensor", "channel"] | int = "tensor",
    method: Method = "max",
) -> list[list[Fraction]]:
    """A matrix as it comes back from symmetric codes with one scale for the ``tensor``, a row (``channel``), or a
    group of so many neighbours in a row, each range found by ``method``. Stretches of zeros stay zero.

    >>> by_rows([[1, 0.5], [100, 50]], per="channel", bits=4)[0]
    [Fraction(1, 1), Fraction(4, 7)]
    """
    if per == "tensor":
        flat = _held([value for row in rows for value in row], bits, method)
        ends = [0]
        for row in rows:
            ends.append(ends[-1] + len(row))
        return [flat[a:b] for a, b in pairwise(ends)]
    if per == "channel":
        return [_held(row, bits, method) for row in rows]
    positive("the size of a group", per)
    size = int(per)
    return [[x for at in range(0, len(row), size) for x in _held(row[at : at + size], bits, method)] for row in rows]


def _held(values: Sequence[Real], bits: int, method: Method) -> list[Fraction]:
    if not any(values):
        return [Fraction(0)] * len(values)
    largest = max(abs(Fraction(value)) for value in values)
    at = largest if method == "max" else Fraction(calibrate(values, method=method, bits=bits))
    return symmetric(at or largest, bits=bits).held(values)


# -- error -------------------------------------------------------------------------------------------------------
def mean_square_error(values: Sequence[Real], held: Sequence[Real]) -> float:
    """The mean of the squared differences."""
    if len(values) != len(held) or not values:
        raise InfrabookError(f"{len(values):,} values cannot be compared with {len(held):,}")
    return sum((float(a) - float(b)) ** 2 for a, b in zip(values, held, strict=True)) / len(values)


def snr_db(values: Sequence[Real], held: Sequence[Real]) -> float:
    """Signal over error in decibels; 6.02 more for each bit if no value is clipped.

    >>> round(snr_db([3, 4], [3, 4.5]), 2)
    20.0
    """
    noise = mean_square_error(values, held)
    return math.inf if noise == 0 else 10 * math.log10(sum(float(v) ** 2 for v in values) / len(values) / noise)


def uniform_snr_db(bits: int) -> float:
    """The same in theory, for numbers spread evenly over the whole range: 20 log10 of 2^bits.

    >>> round(uniform_snr_db(1), 2), round(uniform_snr_db(8), 1)
    (6.02, 48.2)
    """
    _bits(bits)
    return 20 * bits * math.log10(2)


# -- choosing the range ------------------------------------------------------------------------------------------
def calibrate(
    values: Sequence[Real], *, method: Method = "max", bits: int = 8, percentile: float = 99.9, steps: int = 100
) -> float:
    """The magnitude at which to clip ``values`` for symmetric codes of ``bits``.

    "max": nothing is clipped. "percentile": of magnitudes, the nearest rank. "mse": the one of ``steps`` equal
    fractions of the maximum with the least mean square error. "entropy": the one with the least Kullback-Leibler
    divergence between the histogram of magnitudes and its quantized self, as TensorRT does (Migacz 2017), over
    1,024 bins.

    >>> calibrate([*[1.0] * 99, 100.0], method="percentile", percentile=99)
    1.0
    """
    sizes = sorted(abs(float(value)) for value in values)
    if not sizes or sizes[-1] == 0:
        raise InfrabookError("a range cannot be found from no values, or from zeros alone")
    if method == "max":
        return sizes[-1]
    if method == "percentile":
        if not 0 < percentile <= 100:
            raise InfrabookError(f"a percentile is above 0 and at most 100, and this one is {percentile}")
        return sizes[max(0, math.ceil(len(sizes) * percentile / 100) - 1)]
    if method == "mse":
        tried = [sizes[-1] * k / steps for k in range(1, steps + 1)]
        errors = [_clipped_error(sizes, at, bits) for at in tried]
        return tried[errors.index(min(errors))]
    if method == "entropy":
        return _least_divergence(sizes, 2 ** (bits - 1))
    raise InfrabookError(f"a range is found by max, percentile, mse or entropy, and not by {method!r}")


def _clipped_error(sizes: Sequence[float], at: float, bits: int) -> float:
    top: int = 2 ** (bits - 1) - 1
    step = at / top
    return sum((min(round(size / step), top) * step - size) ** 2 for size in sizes)


def _least_divergence(sizes: Sequence[float], levels: int, bins: int = 1024) -> float:
    width = sizes[-1] / bins
    histogram = [0] * bins
    for size in sizes:
        histogram[min(int(size / width), bins - 1)] += 1
    best, found = math.inf, bins
    for edge in range(max(levels, 1), bins + 1, max(1, levels // 16)):
        clipped = histogram[:edge]
        seen = [count > 0 for count in clipped]
        clipped[-1] += sum(histogram[edge:])
        approximate = [0.0] * edge
        for level in range(levels):
            first, last = level * edge // levels, (level + 1) * edge // levels
            filled = [i for i in range(first, last) if seen[i]]
            for i in filled:
                approximate[i] = sum(histogram[first:last]) / len(filled)
        total, other = sum(clipped), sum(approximate)
        if other == 0:
            continue
        divergence = sum(
            p / total * math.log(p / total / (q / other if q else 1e-9))
            for p, q in zip(clipped, approximate, strict=True)
            if p
        )
        if divergence < best:
            best, found = divergence, edge
    return found * width


# -- bits --------------------------------------------------------------------------------------------------------
def bits_per_weight(bits: int, group: int, *, scale_bits: int = 16, zero_bits: int = 0) -> Fraction:
    """Bits of a weight with its share of the group's scale and zero point.

    >>> [float(bits_per_weight(4, 128, zero_bits=z)) for z in (0, 4, 16)]
    [4.125, 4.15625, 4.25]
    """
    _bits(bits)
    positive("group", group)
    return bits + Fraction(scale_bits + zero_bits, group)


def double_quantized(
    bits: int = 4, *, block: int = 64, scale_bits: int = 8, second_block: int = 256, second_bits: int = 32
) -> Fraction:
    """Bits of a weight whose scales are quantized themselves (QLoRA, arXiv 2305.14314, section 3).

    >>> float(double_quantized())
    4.126953125
    """
    return bits + Fraction(scale_bits, block) + Fraction(second_bits, block * second_block)


def size_bytes(parameters: int, bits: Exact | float) -> Exact:
    """Bytes of so many weights, if each of them is quantized; real files keep norms and embeddings wider.

    >>> size_bytes(8 * 10**9, 4.5)
    4500000000
    """
    positive("parameters", parameters)
    return exact(Fraction(repr(bits) if isinstance(bits, float) else bits) * parameters / 8)


@dataclass(frozen=True)
class BlockFormat:
    """``block`` weights stored together as ``parts``: (what, how many, bits of each)."""

    name: str
    block: int
    parts: tuple[tuple[str, int, int], ...]

    @property
    def bytes_per_block(self) -> int:
        """Bytes of a block.

        >>> BLOCK_FORMATS["Q4_K"].bytes_per_block
        144
        """
        return sum(count * bits for _, count, bits in self.parts) // 8

    @property
    def bits_per_weight(self) -> Fraction:
        """Bits of a weight with its share of everything else.

        >>> {name: float(BLOCK_FORMATS[name].bits_per_weight) for name in ("Q4_0", "Q6_K", "Q8_0")}
        {'Q4_0': 4.5, 'Q6_K': 6.5625, 'Q8_0': 8.5}
        """
        return Fraction(8 * self.bytes_per_block, self.block)


_HALF = ("scale", 1, 16)
_TWO = ("scale and minimum", 2, 16)
_K = ("6-bit scales and minimums", 16, 6)
BLOCK_FORMATS: dict[str, BlockFormat] = {
    f.name: f
    for f in (
        BlockFormat("Q4_0", 32, (_HALF, ("codes", 32, 4))),
        BlockFormat("Q4_1", 32, (_TWO, ("codes", 32, 4))),
        BlockFormat("Q5_0", 32, (_HALF, ("high bits", 32, 1), ("low bits", 32, 4))),
        BlockFormat("Q5_1", 32, (_TWO, ("high bits", 32, 1), ("low bits", 32, 4))),
        BlockFormat("Q8_0", 32, (_HALF, ("codes", 32, 8))),
        BlockFormat("Q8_1", 32, (("scale and scaled sum", 2, 16), ("codes", 32, 8))),
        BlockFormat("Q2_K", 256, (_TWO, ("4-bit scales and minimums", 32, 4), ("codes", 256, 2))),
        BlockFormat("Q3_K", 256, (_HALF, ("6-bit scales", 16, 6), ("high bits", 256, 1), ("low bits", 256, 2))),
        BlockFormat("Q4_K", 256, (_TWO, _K, ("codes", 256, 4))),
        BlockFormat("Q5_K", 256, (_TWO, _K, ("high bits", 256, 1), ("low bits", 256, 4))),
        BlockFormat("Q6_K", 256, (_HALF, ("8-bit scales", 16, 8), ("high bits", 256, 2), ("low bits", 256, 4))),
        BlockFormat("Q8_K", 256, (("scale", 1, 32), ("codes", 256, 8), ("sums", 16, 16))),
        BlockFormat("IQ4_NL", 32, (_HALF, ("codes", 32, 4))),
        BlockFormat(
            "IQ4_XS", 256, (_HALF, ("high bits of scales", 8, 2), ("low bits of scales", 8, 4), ("codes", 256, 4))
        ),
        BlockFormat("IQ3_XXS", 256, (_HALF, ("grid indices", 64, 8), ("signs and scales", 8, 32))),
        BlockFormat("IQ2_XXS", 256, (_HALF, ("grid indices, signs and scales", 32, 16))),
        BlockFormat("IQ2_XS", 256, (_HALF, ("grid indices and signs", 32, 16), ("4-bit scales", 16, 4))),
        BlockFormat("IQ1_S", 256, (_HALF, ("low bits of grid indices", 32, 8), ("high bits and scales", 8, 16))),
        BlockFormat("TQ1_0", 256, (_HALF, ("five ternary digits a byte", 48, 8), ("four a byte", 4, 8))),
        BlockFormat("TQ2_0", 256, (_HALF, ("codes", 256, 2))),
        BlockFormat("MXFP4", 32, (("power of two", 1, 8), ("codes", 32, 4))),
        BlockFormat("NVFP4", 16, (("E4M3 scale", 1, 8), ("codes", 16, 4))),
        BlockFormat("MXFP8", 32, (("power of two", 1, 8), ("codes", 32, 8))),
        BlockFormat("NF4", 64, (("scale", 1, 32), ("codes", 64, 4))),
    )
}
"""Block formats by name: ggml-common.h of llama.cpp, OCP's MX, NVIDIA's NVFP4 (without its FP32 a tensor), QLoRA."""


def nf4_levels(offset: float = 0.9677083, *, positive_levels: int = 8, negative_levels: int = 7) -> list[float]:
    """NF4's 16 levels: quantiles of the normal distribution, 0 among them, scaled to end at -1 and 1.

    ``offset`` is the outermost probability, between 1 - 1/32 and 1 - 1/30: their mean, as bitsandbytes has it.

    >>> [round(level, 4) for level in nf4_levels()[6:10]]
    [-0.091, 0.0, 0.0796, 0.1609]
    """
    quantile = NormalDist().inv_cdf

    def side(count: int) -> list[float]:
        return [quantile(offset + (0.5 - offset) * i / count) for i in range(count)]

    upper, lower = side(positive_levels), side(negative_levels)
    largest = max(upper[0], lower[0])
    return sorted([*(-x / largest for x in lower), 0.0, *(x / largest for x in upper)])


# -- arithmetic --------------------------------------------------------------------------------------------------
def safe_length(left: int = 128, right: int = 128, *, accumulator: int = 32) -> int:
    """How many products of codes up to ``left`` and ``right`` in magnitude a signed accumulator surely holds.

    >>> safe_length(), safe_length(127, 127), safe_length(255, 128), safe_length(accumulator=16)
    (131071, 133144, 65793, 1)
    """
    positive("left", left)
    positive("right", right)
    return int((2 ** (accumulator - 1) - 1) // (left * right))


def layer_bytes(
    inputs: int, weights: int, outputs: int, *, wide: int = 2, conversions: Literal["none", "fused", "separate"]
) -> int:
    """Bytes that a layer moves in the ``wide`` format (``conversions`` "none"), or in INT8.

    "fused": its neighbours are INT8 as well, and one byte goes in and out. "separate": it stands alone; a kernel
    reads the wide input and writes codes, another reads the codes of the output and writes it wide.

    >>> [layer_bytes(100, 1000, 100, conversions=c) for c in ("none", "fused", "separate")]
    [2400, 1200, 1800]
    """
    if conversions == "none":
        return wide * (inputs + weights + outputs)
    fused = inputs + weights + outputs
    return fused + (inputs + outputs) * (wide + 1) if conversions == "separate" else fused


def _bits(bits: int, *, least: int = 1) -> None:
    if isinstance(bits, bool) or not isinstance(bits, int) or not least <= bits <= 32:
        raise InfrabookError(f"codes have {least} to 32 bits, and not {bits!r}")
