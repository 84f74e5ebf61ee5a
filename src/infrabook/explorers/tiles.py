"""A matrix product in tiles on one card: what a tile takes of an SM, and what the tiles ask of HBM."""

from __future__ import annotations

import math
from fractions import Fraction

from .. import hardware, occupancy, tiling
from ..errors import InfrabookError
from ..explore import Check, Choice, Number, explore, number
from ..units import percent, show

CARDS = {
    "V100 SXM2 32 GB": "v100-sxm2-32gb", "T4": "t4", "A100 SXM 80 GB": "a100-sxm-80gb", "H100 SXM": "h100-sxm",
    "H200": "h200", "B200": "b200",
}  # fmt: skip
SIDES = (16, 32, 64, 128, 256)
OTHER_REGISTERS = 40  # of a thread, for addresses, loop counters and fragments of the operands; ours, and generous


@explore(
    gpu=Choice(CARDS, label="GPU"),
    size=Number.doubling(512, 32_768, label="N of an N × N by N × N product"),
    tile_m=Number.among(SIDES, label="tile, rows"),
    tile_n=Number.among(SIDES, label="tile, columns"),
    tile_k=Number.among((16, 32, 64, 128), label="slice"),
    stages=Number(1, 6, label="slices in shared memory"),
    threads=Number.among((64, 128, 256, 384, 512), label="threads of a block"),
    shared=Check(label="tiles that run together share through L2"),
)
def tile_and_traffic(
    gpu: str = "h100-sxm", size: int = 8192, tile_m: int = 64, tile_n: int = 64, tile_k: int = 32, stages: int = 3,
    threads: int = 128, shared: bool = False,
) -> str:  # fmt: skip
    """A matrix product in tiles: shared memory, occupancy and traffic."""
    card = hardware.gpu(gpu)
    words = next(words for words, name in CARDS.items() if name == gpu)
    if tile_m > size or tile_n > size:
        raise InfrabookError(f"a tile of {tile_m} × {tile_n} is larger than the matrix of {size} × {size}")
    sums = -(-tile_m * tile_n // threads)
    registers = sums + OTHER_REGISTERS
    if registers > occupancy.MOST_REGISTERS:
        raise InfrabookError(
            f"{threads} threads would keep {sums} sums each of a {tile_m} × {tile_n} tile, and with {OTHER_REGISTERS} "
            f"registers for the rest that is {registers}: a thread has {occupancy.MOST_REGISTERS}. Take more threads "
            "or a smaller tile"
        )
    staged = tiling.staged_bytes(tile_m, tile_n, tile_k, stages=stages)
    held = occupancy.resident(gpu, threads=threads, registers=registers, shared_bytes=staged)
    alone = tiling.traffic(size, size, size, tile_m=tile_m, tile_n=tile_n)
    wave = tiling.wave_traffic(
        size, size, size, tile_m=tile_m, tile_n=tile_n, at_once=card.sms * held.blocks, group=_square(card.sms, held)
    )
    moved = 2 * Fraction(wave.total if shared else alone.total)
    work = 2 * size**3
    times = {
        "arithmetic at the peak": Fraction(work, card.peak("fp16")),
        "HBM, each tile for itself": 2 * Fraction(alone.total) / card.bandwidth_bytes_per_s,
        "HBM, if a wave shares": 2 * Fraction(wave.total) / card.bandwidth_bytes_per_s,
    }
    memory, compute = moved / card.bandwidth_bytes_per_s, times["arithmetic at the peak"]
    least = max(memory, compute)
    ridge = Fraction(card.peak("fp16"), card.bandwidth_bytes_per_s)
    verdict = "the arithmetic decides" if compute >= memory else f"HBM decides, {_times(memory / compute)} over"
    longest = max(times.values())
    bars = "".join(
        f'<tr><th scope="row">{name}</th><td class="bar"><i style="width:{float(100 * s / longest):.2f}%"></i></td>'
        f'<td class="amount">{_ms(s)}</td></tr>'
        for name, s in times.items()
    )
    rows = "".join(
        f'<tr><th scope="row">{name}</th><td class="amount">{value}</td></tr>'
        for name, value in (
            ("shared memory of a block", show(staged, "KiB", 0)),
            ("registers of a thread", f"{sums} sums + {OTHER_REGISTERS}"),
            (f"blocks on an SM, limited by {held.limiter}", f"{held.blocks}"),
            (f"occupancy, of {held.most_warps} warps", f"{held.warps}, {percent(held.share, 1, 0)}"),
            ("traffic", show(moved, "GB", 2)),
            (f"FLOP for each byte; the card wants {float(ridge):.0f}", f"{float(work / moved):.0f}"),
        )
    )
    return (
        f'<p class="explorer-answer">{number(_ms(least), least)} at least on one {words}: {verdict}.</p>'
        f'<table class="ledger shares"><tbody>{bars}</tbody></table>'
        f'<table class="ledger"><tbody>{rows}</tbody></table>'
        '<p class="explorer-note">FP16 operands, FP32 sums in registers. A wave is as many tiles as fit on all SMs at '
        "once, taken in a group of rows about as high as it is wide; sharing is perfect, which L2 is not.</p>"
    )


def _square(sms: int, held: occupancy.Occupancy) -> int:
    """Rows of tiles of a wave that is about square."""
    return math.isqrt(sms * held.blocks)


def _times(ratio: Fraction) -> str:
    return f"{float(ratio):.1f} times" if ratio < 10 else f"{float(ratio):,.0f} times"


def _ms(seconds: Fraction) -> str:
    value = float(1000 * seconds)
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.2f} ms" if value >= 0.1 else f"{1000 * value:.1f} µs"
