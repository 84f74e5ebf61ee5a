"""The time of one matrix product: its intensity, its tiles, and which of three things it waits for."""

from __future__ import annotations

from html import escape

from .. import hardware, roofline
from ..errors import InfrabookError
from ..explore import Choice, Number, explore, number
from ..units import percent, scaled
from .ledger import GPUS
from .limits import DTYPES
from .views import plain

TILES = {"64 × 64": (64, 64), "128 × 128": (128, 128), "128 × 256": (128, 256), "256 × 128": (256, 128)}


@explore(
    m=Number.doubling(1, 131_072, label="M, rows"),
    k=Number.doubling(1, 131_072, label="K, inner"),
    n=Number.doubling(1, 131_072, label="N, columns"),
    dtype=Choice(list(DTYPES)),
    gpu=Choice(GPUS, label="GPU"),
    tile=Choice(list(TILES)),
    launch=Number(0, 50, 1, unit="µs", label="a launch"),
)
def product_time(
    m: int = 16, k: int = 65536, n: int = 65536, dtype: str = "bf16", gpu: str = "h100-sxm", tile: str = "128 × 256",
    launch: int = 3,
) -> str:  # fmt: skip
    """The least time of one matrix product."""
    card = hardware.gpu(gpu)
    found = [peak for peak in card.peaks if peak.dtype == dtype]
    if not found:
        have = ", ".join(dict.fromkeys(peak.dtype for peak in card.peaks if peak.dtype in DTYPES))
        raise InfrabookError(f"{card.variant} has no {dtype} units; it has {have}")
    accumulate = "fp32" if any(peak.accumulate == "fp32" for peak in found) else "fp16"
    tile_m, tile_n = TILES[tile]
    one = roofline.gemm_time(
        m, k, n, card, dtype=dtype, accumulate=accumulate, tile_m=tile_m, tile_n=tile_n, launch_s=launch * 1e-6
    )
    side = round(float(m * k * n) ** (1 / 3))
    square = roofline.gemm_time(
        side, side, side, card, dtype=dtype, accumulate=accumulate, tile_m=tile_m, tile_n=tile_n, launch_s=launch * 1e-6
    )
    waits = {"compute": "arithmetic", "memory": "memory", "launch": "its launch"}[one.limit]
    rows = (
        ("arithmetic at the peak", _time(one.bound.compute_s)),
        ("with whole tiles in whole waves", _time(one.compute_s)),
        ("traffic at the memory's rate", _time(one.bound.memory_s)),
        ("launch", _time(one.launch_s)),
    )
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="amount">{value}</td></tr>' for name, value in rows
    )
    shape, work = one.waves, one.bound.kernel
    rounds = "wave" if shape.waves == 1 else "waves"
    return (
        f'<p class="explorer-answer">{number(_time(one.seconds), one.seconds)} at least, waiting for {waits}: '
        f"× {float(one.seconds / square.seconds):,.1f} the time of a square product of as much work.</p>"
        f'<table class="ledger"><caption>parts</caption><tbody>{body}</tbody></table>'
        f'<p class="explorer-note">{scaled(work.flop, "FLOP")}, {plain(float(work.intensity))} FLOP a byte. '
        f"{shape.tiles:,} tiles on {shape.sms} SMs make {shape.waves:,} {rounds}; "
        f"{percent(shape.efficiency, 1, 0)} of their work is the product's.</p>"
    )


def _time(seconds: float | object) -> str:
    value = float(seconds)  # type: ignore[arg-type]
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= size:
            return f"{plain(value / size)} {unit}"
    return f"{plain(value * 1e9)} ns"
