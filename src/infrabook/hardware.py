"""What a GPU and a link can do at most: memory, bandwidth, dense peaks, each with its source.

``gpu`` and ``link`` read ``data/hardware.toml``. Every peak has a dtype, an accumulator and is dense; every
bandwidth is of one direction unless its name says otherwise. ``roofline`` sets these against the work.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any, TypeVar

from .errors import InfrabookError
from .lookup import not_found, toml
from .units import Exact, positive

Row = TypeVar("Row", "Gpu", "Link")

DTYPES = ("fp64", "fp64_tensor", "fp32", "tf32", "bf16", "fp16", "fp8", "fp6", "fp4", "int8", "int4")
# Formats with a choice of accumulator; the others have one: themselves, fp32 for tf32, int32 for integers.
ACCUMULATED = ("bf16", "fp16", "fp8", "fp6", "fp4")


@dataclass(frozen=True)
class Peak:
    """A dense peak rate: ``flop_per_s`` with inputs of ``dtype`` summed in ``accumulate``."""

    dtype: str
    accumulate: str
    flop_per_s: int


@dataclass(frozen=True)
class Gpu:
    """One GPU, by what limits it. Zero means: not published, or not known to us.

    ``label_gb`` is the number on the box, ``physical_gb`` what is soldered on where that is known to differ;
    ``memory_bytes`` is what a driver reports as total, which need be neither that many GB nor GiB.
    ``tensor_mhz`` is the clock at which the matrix peaks are quoted (Hopper: below the boost clock). An SM is a
    compute unit on AMD's; its shared memory is the LDS.
    """

    name: str
    vendor: str
    variant: str
    label_gb: int
    physical_gb: int
    memory_bytes: int
    memory_type: str
    bandwidth_bytes_per_s: int
    bus_bits: int
    memory_mhz: Exact
    sms: int
    boost_mhz: int
    tensor_mhz: int
    fp16_flop_per_clock_per_sm: int
    fp32_flop_per_clock_per_sm: int
    l2_bytes: int
    l1_bytes_per_sm: int
    shared_bytes_per_sm: int
    registers_per_sm: int
    peaks: tuple[Peak, ...]
    pcie: str
    nvlink: str
    source: str

    def peak(self, dtype: str, accumulate: str = "fp32") -> int:
        """Dense peak in FLOP/s (OP/s for integers) for inputs of ``dtype``.

        ``accumulate`` matters to the formats below 32 bits ("fp16" or "fp32"). "fp32" and "fp64" are the vector
        units, "fp64_tensor" the matrix units. Raises ``InfrabookError`` where the GPU has no such unit.

        >>> gpu("h100-sxm").peak("bf16"), gpu("rtx-4090").peak("fp16"), gpu("rtx-4090").peak("fp16", "fp16")
        (989400000000000, 165200000000000, 330300000000000)
        >>> gpu("t4").peak("bf16")
        Traceback (most recent call last):
        infrabook.errors.InfrabookError: t4 has no bf16 units; it has fp64, fp32, fp16, int8, int4
        """
        if dtype not in DTYPES:
            raise InfrabookError(f"{dtype!r} is not a dtype known here; known are {', '.join(DTYPES)}")
        of_dtype = [peak for peak in self.peaks if peak.dtype == dtype]
        if not of_dtype:
            have = ", ".join(dict.fromkeys(peak.dtype for peak in self.peaks))
            raise InfrabookError(f"{self.name} has no {dtype} units; it has {have}")
        for peak in of_dtype:
            if peak.accumulate == accumulate or (accumulate == "fp32" and dtype not in ACCUMULATED):
                return peak.flop_per_s
        have = ", ".join(peak.accumulate for peak in of_dtype)
        raise InfrabookError(f"{self.name} has no {dtype} with {accumulate} sums; it accumulates in {have}")

    @property
    def label_bytes(self) -> int:
        """The number on the box, read as decimal GB."""
        return self.label_gb * 10**9

    @property
    def register_bytes(self) -> int:
        """The register files of all SMs: 32-bit registers."""
        return 4 * self.registers_per_sm * self.sms

    @property
    def shared_bytes(self) -> int:
        """The most shared memory of all SMs together."""
        return self.shared_bytes_per_sm * self.sms

    @property
    def l1_bytes(self) -> int:
        """L1 and shared memory of all SMs together."""
        return self.l1_bytes_per_sm * self.sms


@dataclass(frozen=True)
class Link:
    """A link as one GPU (or one port of a node) has it.

    ``bytes_per_s`` is one direction after line coding. ``both_ways_bytes_per_s`` is the figure that data sheets
    print: both directions added, and for PCIe before line coding. ``latency_s`` is what one step of a ring costs
    beside its bytes, as NCCL's own cost model has it for this class of link.
    """

    name: str
    links: int
    lanes_per_link: int
    gbit_per_s_per_lane: int
    coding: Fraction
    both_ways_bytes_per_s: int
    latency_s: Fraction
    source: str

    @property
    def bytes_per_s(self) -> int:
        """Bytes per second in one direction, rounded down to a whole byte.

        >>> link("nvlink4").bytes_per_s, link("pcie4-x16").bytes_per_s
        (450000000000, 31507692307)
        """
        lanes = self.links * self.lanes_per_link
        return int(lanes * self.gbit_per_s_per_lane * 10**9 * self.coding / 8)


def gpu(name: str) -> Gpu:
    """The GPU called ``name`` in ``data/hardware.toml``; raises ``InfrabookError`` with near matches.

    >>> gpu("A100 SXM 80GB").bandwidth_bytes_per_s
    2039000000000
    >>> gpu("a100")
    Traceback (most recent call last):
    infrabook.errors.InfrabookError: no GPU is called 'a100'; near: a100-sxm-40gb, a100-sxm-80gb, a100-pcie-40gb
    """
    return _find(_gpus(), name, "GPU")


def gpus() -> tuple[Gpu, ...]:
    """All GPUs of the table, in its order."""
    return tuple(_gpus().values())


def link(name: str) -> Link:
    """The link called ``name``; raises ``InfrabookError`` with near matches.

    >>> link("infiniband-ndr").bytes_per_s
    50000000000
    """
    return _find(_links(), name, "link")


def links() -> tuple[Link, ...]:
    """All links of the table, in its order."""
    return tuple(_links().values())


def matrix_peak(*, sms: int, cores_per_sm: int, fma_per_core: int, mhz: Exact) -> Exact:
    """FLOP/s of ``sms`` times ``cores_per_sm`` matrix cores, each ``fma_per_core`` fused multiply-adds a clock.

    A fused multiply-add is two FLOP. Data sheets round what this gives, up or down.

    >>> matrix_peak(sms=108, cores_per_sm=4, fma_per_core=256, mhz=1410)
    311869440000000
    """
    for field, value in (("sms", sms), ("cores_per_sm", cores_per_sm), ("fma_per_core", fma_per_core)):
        positive(field, value)
    positive("mhz", mhz, whole=False)
    return 2 * sms * cores_per_sm * fma_per_core * mhz * 10**6


def dram_bandwidth(*, bus_bits: int, mhz: Exact, per_clock: int = 2) -> Exact:
    """Peak bytes per second of a memory bus: ``per_clock`` transfers a clock (2: double data rate).

    >>> dram_bandwidth(bus_bits=5120, mhz=1593)
    2039040000000
    """
    positive("bus_bits", bus_bits)
    positive("mhz", mhz, whole=False)
    positive("per_clock", per_clock)
    rate = Fraction(bus_bits, 8) * per_clock * mhz * 10**6
    return rate.numerator if rate.denominator == 1 else rate


def _find(table: dict[str, Row], name: str, what: str) -> Row:
    key = "-".join(name.lower().replace("_", " ").replace("-", " ").split()) if isinstance(name, str) else ""
    if key in table:
        return table[key]
    raise not_found(what, key or name, table)


@cache
def _data() -> dict[str, Any]:
    return toml("hardware")


@cache
def _gpus() -> dict[str, Gpu]:
    chips, cards = _data()["chip"], _data()["gpu"]
    return {name: _gpu(name, chips[row["chip"]] | row) for name, row in cards.items()}


def _gpu(name: str, row: dict[str, Any]) -> Gpu:
    return Gpu(
        name=name,
        vendor=row["vendor"],
        variant=row["variant"],
        label_gb=row["label_gb"],
        physical_gb=row.get("physical_gb", row["label_gb"]),
        memory_bytes=int(row.get("memory_mib", 0) * 2**20),
        memory_type=row["memory_type"],
        bandwidth_bytes_per_s=row["bandwidth_gb_per_s"] * 10**9,
        bus_bits=row.get("bus_bits", 0),
        memory_mhz=row.get("memory_mhz", 0),
        sms=row["sms"],
        boost_mhz=row["boost_mhz"],
        tensor_mhz=row.get("tensor_mhz", 0),
        fp16_flop_per_clock_per_sm=row.get("fp16_flop_per_clock_per_sm", 0),
        fp32_flop_per_clock_per_sm=row["fp32_flop_per_clock_per_sm"],
        l2_bytes=row["l2_mib"] * 2**20,
        l1_bytes_per_sm=row["l1_kib_per_sm"] * 2**10,
        shared_bytes_per_sm=row["shared_kib_per_sm"] * 2**10,
        registers_per_sm=row["registers_per_sm"],
        peaks=tuple(_peaks(row["peak_tflops"])),
        pcie=row["pcie"],
        nvlink=row.get("nvlink", ""),
        source=row["source"],
    )


def _peaks(table: dict[str, int | Fraction]) -> Iterable[Peak]:
    """``{"fp16/fp32": 989.4}`` as peaks: the dtype of the inputs, a slash, the dtype of the sums."""
    for key, tflops in table.items():
        dtype, accumulate = key.split("/")
        yield Peak(dtype, accumulate, int(tflops * 10**12))


@cache
def _links() -> dict[str, Link]:
    return {
        name: Link(
            name=name,
            links=row["links"],
            lanes_per_link=row["lanes_per_link"],
            gbit_per_s_per_lane=row["gbit_per_s_per_lane"],
            coding=Fraction(*row.get("coding", (1, 1))),
            both_ways_bytes_per_s=row["both_ways_gb_per_s"] * 10**9,
            latency_s=Fraction(row["latency_us"]) / 10**6,
            source=row["source"],
        )
        for name, row in _data()["link"].items()
    }
