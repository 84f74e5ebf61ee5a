"""The levels of memory between a multiplier and a disk: how much each holds, how fast, how far away.

``levels`` lists a card's, each with its source; zero means that nothing was published. ``hardware`` has the cards,
``tiling`` counts what has to come from the next level, ``occupancy`` what an SM keeps waiting in the meantime.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

from . import hardware
from .errors import InfrabookError
from .lookup import not_found, toml
from .units import Exact, positive

PCIE_LANES_OF_A_DRIVE = 4


@dataclass(frozen=True)
class Level:
    """One level of memory as one GPU has it; all its SMs together where every SM has its own.

    ``bandwidth_bytes_per_s`` reads, in one direction; ``latency_s`` is of one dependent load. Zero: not published.
    ``copies`` is the number of SMs that have their own, 1 for a level that all share. ``basis`` says whether the
    bandwidth is "published", "derived" from published widths and clocks, or unknown ("").
    """

    name: str
    capacity_bytes: int
    bandwidth_bytes_per_s: Exact
    latency_s: Fraction
    copies: int
    basis: str
    source: str

    @property
    def read_s(self) -> Fraction:
        """Seconds to read all of it once; raises ``InfrabookError`` where the bandwidth was not published."""
        if not self.bandwidth_bytes_per_s:
            raise InfrabookError(f"the bandwidth of {self.name} was not published")
        return Fraction(self.capacity_bytes) / Fraction(self.bandwidth_bytes_per_s)

    @property
    def in_flight_bytes(self) -> Fraction:
        """Bytes that have to be under way to keep the bandwidth busy: latency × bandwidth (Little's law)."""
        if not self.latency_s or not self.bandwidth_bytes_per_s:
            raise InfrabookError(f"the latency or the bandwidth of {self.name} was not published")
        return self.latency_s * Fraction(self.bandwidth_bytes_per_s)


def levels(name: str) -> tuple[Level, ...]:
    """The levels of a card from its registers to its host's drive, nearest first.

    >>> [level.name for level in levels("a100-sxm-80gb")][:4]
    ['registers', 'shared memory and L1', 'L2', 'HBM2e']
    >>> levels("a100-sxm-80gb")[1].bandwidth_bytes_per_s
    19491840000000
    """
    card = hardware.gpu(name)
    data = _data()
    if card.name not in data["gpu"]:
        raise not_found("card whose levels are known", card.name, data["gpu"])
    row, source, clock = data["gpu"][card.name], data["source"], card.boost_mhz * 10**6
    cycles = row.get("latency_cycles", {})

    def wait(key: str) -> Fraction:
        return Fraction(cycles.get(key, 0), clock)

    l2 = row.get("l2_bytes_per_clock", 0)
    found = [
        Level(
            "registers", card.register_bytes, card.fp32_flop_per_clock_per_sm // 2 * 12 * card.sms * clock, Fraction(),
            card.sms, "derived", source["registers"],
        ),
        Level(
            "shared memory and L1", card.l1_bytes, 32 * 4 * card.sms * clock, wait("l1"), card.sms, "derived",
            source["banks"],
        ),
        Level("L2", card.l2_bytes, l2 * clock, wait("l2"), 1, "published" if l2 else "", source["l2"] if l2 else ""),
        Level(
            card.memory_type, card.memory_bytes, card.bandwidth_bytes_per_s, wait("memory"), 1, "published", card.source
        ),
    ]  # fmt: skip
    if card.nvlink:
        link = hardware.link(card.nvlink)
        found.append(
            Level("a peer by NVLink", card.memory_bytes, link.bytes_per_s, Fraction(), 1, "published", link.source)
        )
    pcie = hardware.link(card.pcie)
    if "host" in row:
        host = data["host"][row["host"]]
        size = host["memory_gib"] * 2**30
        found.append(Level("the host by PCIe", size, pcie.bytes_per_s, Fraction(), 1, "published", pcie.source))
        rate = host["channels"] * 8 * host["mega_transfers_per_s"] * 10**6
        found.append(Level("the host's memory, to its processor", size, rate, Fraction(), 1, "derived", host["source"]))
        if "drive_gb" in host:
            rate = Fraction(PCIE_LANES_OF_A_DRIVE * host["drive_pcie_gt_per_s"] * 10**9 * 128, 130 * 8)
            found.append(
                Level("one NVMe drive", host["drive_gb"] * 10**9, rate, Fraction(), 1, "derived", host["source"])
            )
    else:
        found.append(Level("the host by PCIe", 0, pcie.bytes_per_s, Fraction(), 1, "published", pcie.source))
    return tuple(found)


def level(name: str, which: str) -> Level:
    """One level of a card by its name, or by the beginning of it: "L2", "shared", "HBM".

    >>> level("v100-sxm2-32gb", "L2").capacity_bytes < level("v100-sxm2-32gb", "registers").capacity_bytes
    True
    """
    found = [one for one in levels(name) if one.name.lower().startswith(which.lower())]
    if not found:
        raise InfrabookError(f"{name} has no level {which!r}; it has {', '.join(one.name for one in levels(name))}")
    return found[0]


def known() -> tuple[str, ...]:
    """The cards whose levels are known."""
    return tuple(_data()["gpu"])


@dataclass(frozen=True)
class Energy:
    """What moving one bit costs, in picojoules, by technology."""

    what: str
    pj_per_bit: Exact
    source: str


def energies() -> tuple[Energy, ...]:
    """Energy of a bit by technology, cheapest first.

    >>> [energy.what for energy in energies()][:2]
    ['SRAM, 8 KiB', 'SRAM, 32 KiB']
    """
    rows = [Energy(row["what"], row["pj_per_bit"], row["source"]) for row in _data()["energy"]]
    return tuple(sorted(rows, key=lambda row: row.pj_per_bit))


def watts(pj_per_bit: Exact, bytes_per_s: Exact) -> Fraction:
    """Power of moving ``bytes_per_s`` at ``pj_per_bit``.

    >>> float(watts(Fraction(392, 100), 900 * 10**9))
    28.224
    """
    positive("pj_per_bit", pj_per_bit, whole=False)
    positive("bytes_per_s", bytes_per_s, whole=False)
    return Fraction(pj_per_bit) * 8 * Fraction(bytes_per_s) / 10**12


@cache
def _data() -> dict[str, Any]:
    return toml("hierarchy")
