"""The least time that an operation can take: its work against the peak, its bytes against the bandwidth.

``Kernel`` is an operation by what it does and moves; ``bound`` holds it against a GPU. ``gemm``, ``attention``,
``norm`` and their siblings give the work and the least traffic of a transformer's operations; ``waves`` says what
whole tiles on a whole number of SMs cost beside that. ``flops`` counts models, ``memory`` what they hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

from . import hardware
from .errors import InfrabookError
from .recipes import bytes_of
from .units import Exact, exact, positive

Limit: TypeAlias = Literal["compute", "memory"]


@dataclass(frozen=True)
class Kernel:
    """An operation: ``flop`` of work, ``nbytes`` moved between memory and chip, each operand and result once."""

    name: str
    flop: Exact
    nbytes: Exact

    @property
    def intensity(self) -> Fraction:
        """FLOP for each byte moved."""
        positive("bytes moved", self.nbytes, whole=False)
        return Fraction(self.flop) / Fraction(self.nbytes)


@dataclass(frozen=True)
class Bound:
    """A kernel on a machine: the two least times in seconds, and which of them is the longer."""

    kernel: Kernel
    peak_flop_per_s: Exact
    bandwidth_bytes_per_s: Exact

    @property
    def compute_s(self) -> Fraction:
        """Seconds of work at the peak."""
        return Fraction(self.kernel.flop) / Fraction(self.peak_flop_per_s)

    @property
    def memory_s(self) -> Fraction:
        """Seconds of traffic at the bandwidth."""
        return Fraction(self.kernel.nbytes) / Fraction(self.bandwidth_bytes_per_s)

    @property
    def seconds(self) -> Fraction:
        """The least time, if work and traffic overlap completely and nothing else takes any."""
        return max(self.compute_s, self.memory_s)

    @property
    def limit(self) -> Limit:
        """What it waits for."""
        return "compute" if self.compute_s >= self.memory_s else "memory"

    @property
    def attainable_flop_per_s(self) -> Fraction:
        """The roof above this kernel: min(peak, intensity × bandwidth)."""
        return min(Fraction(self.peak_flop_per_s), self.kernel.intensity * Fraction(self.bandwidth_bytes_per_s))

    @property
    def peak_share(self) -> Fraction:
        """The share of the peak that this kernel can reach at best."""
        return self.attainable_flop_per_s / Fraction(self.peak_flop_per_s)


def bound(
    kernel: Kernel, gpu: str | hardware.Gpu, *, dtype: str = "bf16", accumulate: str = "fp32",
    bandwidth_bytes_per_s: Exact = 0,
) -> Bound:  # fmt: skip
    """``kernel`` on ``gpu``, with the dense peak of ``dtype`` and the memory's bandwidth, or that of another level.

    >>> found = bound(gemm(1, 4096, 4096), "h100-sxm")
    >>> found.limit, round(float(100 * found.peak_share), 2)
    ('memory', 0.34)
    """
    card = hardware.gpu(gpu) if isinstance(gpu, str) else gpu
    positive("bandwidth_bytes_per_s", bandwidth_bytes_per_s, whole=False, zero=True)
    return Bound(kernel, card.peak(dtype, accumulate), bandwidth_bytes_per_s or card.bandwidth_bytes_per_s)


def ridge(gpu: str | hardware.Gpu, *, dtype: str = "bf16", accumulate: str = "fp32") -> Fraction:
    """FLOP per byte at which a kernel is bound by both: the dense peak over the memory's bandwidth.

    >>> round(float(ridge("a100-sxm-80gb")), 1)
    153.0
    """
    card = hardware.gpu(gpu) if isinstance(gpu, str) else gpu
    return Fraction(card.peak(dtype, accumulate), card.bandwidth_bytes_per_s)


# -- operations --------------------------------------------------------------------------------------------------
def gemm(
    m: int, k: int, n: int, *, dtype: str = "bf16", out: str = "", batch: int = 1, accumulate: bool = False
) -> Kernel:
    """``batch`` products of m × k by k × n: 2mkn FLOP; both operands read and the result written once.

    Its intensity is mkn / (mk + kn + mn) × 2 / bytes of an element. ``accumulate`` reads the result too (C += AB).

    >>> round(float(gemm(4096, 4096, 4096).intensity), 4)
    1365.3333
    """
    for name, size in (("m", m), ("k", k), ("n", n), ("batch", batch)):
        positive(name, size)
    each, wide = bytes_of(dtype), bytes_of(out or dtype)
    moved = each * (m * k + k * n) + wide * m * n * (2 if accumulate else 1)
    return Kernel(f"{m} × {k} by {k} × {n}", 2 * batch * m * k * n, exact(batch * moved))


def attention(
    *, batch: int, queries: int, keys: int, heads: int, kv_heads: int, head_dim: int, dtype: str = "bf16",
    fused: bool = True, causal_half: bool = False,
) -> Kernel:  # fmt: skip
    """Attention of ``queries`` new tokens over ``keys`` tokens: prefill with queries = keys, decode with queries = 1.

    Fused, it reads queries, keys and values and writes the output, each once (FlashAttention's least; when keys do not
    fit on chip they are read again for each block of queries). Unfused, the scores are written, read by softmax,
    written again and read once more. Softmax's own arithmetic is left out: it runs on other units.
    """
    for name, size in (("batch", batch), ("queries", queries), ("keys", keys), ("heads", heads), ("kv_heads", kv_heads),
                       ("head_dim", head_dim)):  # fmt: skip
        positive(name, size)
    if heads % kv_heads:
        raise InfrabookError(f"{kv_heads} key-value heads do not divide {heads} heads")
    each = bytes_of(dtype)
    flop = Fraction(4 * batch * heads * queries * keys * head_dim)
    moved = each * batch * head_dim * (2 * heads * queries + 2 * kv_heads * keys)
    if not fused:
        moved += 4 * each * batch * heads * queries * keys
    return Kernel(
        f"attention, {queries:,} queries over {keys:,} keys", exact(flop / 2 if causal_half else flop), exact(moved)
    )


def elementwise(elements: int, *, reads: int = 1, writes: int = 1, flop: int = 1, dtype: str = "bf16") -> Kernel:
    """An operation on each element: ``reads`` and ``writes`` tensors of this size, ``flop`` an element.

    >>> elementwise(1000, reads=2).intensity
    Fraction(1, 6)
    """
    positive("elements", elements)
    return Kernel("elementwise", flop * elements, exact(bytes_of(dtype) * elements * (reads + writes)))


def norm(tokens: int, width: int, *, dtype: str = "bf16") -> Kernel:
    """RMSNorm over rows of ``width``: a square, a sum, and two multiplications an element; read once, written once."""
    positive("tokens", tokens)
    positive("width", width)
    return Kernel(f"RMSNorm of {tokens:,} × {width:,}", 4 * tokens * width, exact(2 * bytes_of(dtype) * tokens * width))


def softmax(rows: int, width: int, *, dtype: str = "bf16", fused: bool = True) -> Kernel:
    """Softmax over rows: maximum, subtraction, exponential (one FLOP here), sum, division.

    Fused it reads and writes once. As five operations, each reading and writing memory, it moves the tensor eight
    times: maximum 1, subtraction 2, exponential 2, sum 1, division 2 (the row statistics are left out).
    """
    positive("rows", rows)
    positive("width", width)
    passes = 2 if fused else 8
    return Kernel(f"softmax of {rows:,} × {width:,}", 5 * rows * width, exact(passes * bytes_of(dtype) * rows * width))


def embedding(tokens: int, width: int, *, dtype: str = "bf16") -> Kernel:
    """A look-up: a row read and written a token, and no work at all."""
    positive("tokens", tokens)
    positive("width", width)
    return Kernel(f"look-up of {tokens:,} rows", 0, exact(tokens * (2 * bytes_of(dtype) * width + 8)))


def adam_step(parameters: int, *, gradient: str = "bf16", weight: str = "bf16") -> Kernel:
    """A fused step of AdamW with an FP32 master copy: about 15 FLOP a parameter.

    It reads the gradient, the master copy and both moments, and writes the latter three and the weight: with 16-bit
    gradients and weights 14 bytes in and 14 out.

    >>> adam_step(1).nbytes
    28
    """
    positive("parameters", parameters)
    return Kernel("AdamW step", 15 * parameters, exact(parameters * (bytes_of(gradient) + 12 + 12 + bytes_of(weight))))


# -- whole tiles on whole machines ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Waves:
    """How a product's tiles fall on a GPU's SMs, one tile an SM at a time."""

    tiles: int
    sms: int
    useful: Fraction  # share of the tiles' work that is the product's

    @property
    def waves(self) -> int:
        """Rounds in which all tiles are done."""
        return -(-self.tiles // self.sms)

    @property
    def wave_efficiency(self) -> Fraction:
        """Share of the SMs' rounds that have a tile."""
        return Fraction(self.tiles, self.waves * self.sms)

    @property
    def efficiency(self) -> Fraction:
        """Share of the machine's work that is the product's: partial tiles and idle SMs both count."""
        return self.wave_efficiency * self.useful


def waves(m: int, n: int, sms: int, *, tile_m: int = 128, tile_n: int = 128) -> Waves:
    """The tiles of an m × n result on ``sms`` SMs.

    >>> found = waves(2048, 2048 + 128, 132)
    >>> found.tiles, found.waves, round(float(found.efficiency), 2)
    (272, 3, 0.69)
    """
    for name, size in (("m", m), ("n", n), ("sms", sms), ("tile_m", tile_m), ("tile_n", tile_n)):
        positive(name, size)
    down, across = -(-m // tile_m), -(-n // tile_n)
    return Waves(down * across, sms, Fraction(m * n, down * tile_m * across * tile_n))


@dataclass(frozen=True)
class Timed:
    """A product's least time with whole tiles, in seconds and by part."""

    bound: Bound
    waves: Waves
    launch_s: Fraction

    @property
    def compute_s(self) -> Fraction:
        """Work at the peak, as long as idle SMs and partial tiles make it."""
        return self.bound.compute_s / self.waves.efficiency

    @property
    def seconds(self) -> Fraction:
        """The longer of arithmetic and traffic, after one launch."""
        return self.launch_s + max(self.compute_s, self.bound.memory_s)

    @property
    def limit(self) -> Literal["compute", "memory", "launch"]:
        """The longest of the three."""
        longest = max(self.compute_s, self.bound.memory_s)
        if self.launch_s > longest:
            return "launch"
        return "compute" if self.compute_s >= self.bound.memory_s else "memory"


def gemm_time(
    m: int, k: int, n: int, gpu: str | hardware.Gpu, *, dtype: str = "bf16", accumulate: str = "fp32",
    tile_m: int = 128, tile_n: int = 128, launch_s: Exact | float = Fraction(3, 10**6),
) -> Timed:  # fmt: skip
    """The least time of one product: roof, whole tiles in whole waves, and a launch.

    ``launch_s`` is an assumption: a few microseconds between two kernels of one stream. Libraries choose among many
    tile shapes and split k when tiles are few, so this is a picture of the steps, not a forecast of a library.

    >>> square, thin = (gemm_time(*shape, "h100-sxm") for shape in ((4096, 4096, 4096), (16, 65536, 65536)))
    >>> square.bound.kernel.flop == thin.bound.kernel.flop, round(float(thin.seconds / square.seconds))
    (True, 18)
    """
    positive("launch_s", launch_s, whole=False, zero=True)
    card = hardware.gpu(gpu) if isinstance(gpu, str) else gpu
    one = bound(gemm(m, k, n, dtype=dtype), card, dtype=dtype, accumulate=accumulate)
    return Timed(one, waves(m, n, card.sms, tile_m=tile_m, tile_n=tile_n), Fraction(launch_s))
