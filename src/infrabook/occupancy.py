"""How many thread blocks an SM keeps at once, and which of its resources runs out first.

``resident`` follows NVIDIA's occupancy calculator: warps, blocks, registers by warp, shared memory by block. What the
waiting warps are for is ``hierarchy``'s latency.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from . import hardware
from .errors import InfrabookError
from .hierarchy import _data
from .lookup import not_found
from .units import positive

WARP = 32
PARTITIONS = 4  # of an SM, each with a quarter of its registers
REGISTER_UNIT = 256  # registers are given to a warp in this many
MOST_REGISTERS = 255  # of one thread
MOST_THREADS = 1024  # of one block


@dataclass(frozen=True)
class Occupancy:
    """``blocks`` resident on one SM, their ``warps`` of ``most_warps``, and what each resource alone would allow."""

    blocks: int
    warps: int
    most_warps: int
    limits: dict[str, int]

    @property
    def share(self) -> Fraction:
        """Resident warps over those an SM can have."""
        return Fraction(self.warps, self.most_warps)

    @property
    def limiter(self) -> str:
        """The resource that runs out first, the first of them if several do."""
        return min(self.limits, key=lambda name: self.limits[name])


def resident(gpu: str, *, threads: int, registers: int = 32, shared_bytes: int = 0) -> Occupancy:
    """Blocks of ``threads`` threads, ``registers`` a thread and ``shared_bytes`` a block that one SM holds.

    A block that does not fit at all raises ``InfrabookError``. Sources: NVIDIA CUDA C++ Programming Guide, technical
    specifications by compute capability; ``cuda_occupancy.h``.

    >>> resident("v100-sxm2-32gb", threads=320, registers=37).share
    Fraction(5, 8)
    """
    card = hardware.gpu(gpu)
    table = _data()["resident"]
    if card.name not in table:
        raise not_found("card whose limits are known", card.name, table)
    limit = table[card.name]
    positive("threads", threads)
    positive("registers", registers)
    positive("shared_bytes", shared_bytes, zero=True)
    if threads > MOST_THREADS:
        raise InfrabookError(f"a block has at most {MOST_THREADS:,} threads, and this one has {threads:,}")
    if registers > MOST_REGISTERS:
        raise InfrabookError(f"a thread has at most {MOST_REGISTERS} registers, and this one wants {registers}")
    most_shared = limit["block_shared_kib"] * 1024
    if shared_bytes > most_shared:
        raise InfrabookError(
            f"a block on {card.name} has at most {most_shared:,} bytes of shared memory, and this one wants "
            f"{shared_bytes:,}"
        )
    warps = -(-threads // WARP)
    of_a_warp = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    register_warps = card.registers_per_sm // PARTITIONS // of_a_warp * PARTITIONS
    limits = {
        "warps": limit["warps"] // warps,
        "blocks": limit["blocks"],
        "registers": register_warps // warps,
    }
    of_a_block = shared_bytes + limit["reserved_kib"] * 1024
    if of_a_block:
        of_a_block = -(-of_a_block // limit["shared_unit"]) * limit["shared_unit"]
        limits["shared memory"] = card.shared_bytes_per_sm // of_a_block
    blocks = min(limits.values())
    if blocks == 0:
        short = next(name for name, fits in limits.items() if not fits)
        raise InfrabookError(f"an SM of {card.name} cannot hold one such block: it has too few {short}")
    return Occupancy(blocks, blocks * warps, limit["warps"], limits)
