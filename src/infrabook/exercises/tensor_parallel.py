"""Answers to the exercises of ``tensor-parallel``."""

from __future__ import annotations

from fractions import Fraction

from .. import hardware
from ..activations import one_layer
from ..lab import exercise
from ..models import Transformer
from ..parallel import tensor

LAYER = Transformer("70B", 80, 8192, 64, 8, 128, 28672, 128256, 8192)
GPT = Transformer("gpt", 1, 1024, 16, 16, 64, 4096, 51200, 1024, gated=False, norm="layernorm")
PEAK = hardware.gpu("h100-sxm").peak("bf16")


def _units(degree: int, *, sequence_parallel: bool) -> float:
    kept = one_layer(
        GPT, sequence=1024, attention="eager", tensor_parallel=degree, sequence_parallel=sequence_parallel
    ).total
    return float(Fraction(kept) / 1024**2)


@exercise(
    "tensor-parallel/1",
    mistakes={
        "that is what four buffers hold; a ring sends 2(t-1)/t of each.": lambda: 4 * 2 * 8192 * 8192,
        "that is half: forward and backward, two halves of a sum, two bytes an element.": lambda: (
            4 * 7 * 2 * 8192 * 8192 // 8
        ),
    },
    tolerance=1e-9,
)
def _sent() -> int:
    return int(tensor.bytes_sent(tensor.layer_calls(LAYER, sequence=8192), 8))


@exercise(
    "tensor-parallel/2",
    mistakes={
        "that divides everything, as sequence parallelism does.": lambda: _units(16, sequence_parallel=True),
        "the scores are divided too: a rank has its heads' alone.": lambda: 10 + 24 / 16 + 80,
        "the 34 is not divided as a whole: 10 of it lie outside the products.": lambda: 34 / 16 + 80,
    },
)
def _kept() -> float:
    return _units(16, sequence_parallel=False)


@exercise(
    "tensor-parallel/3",
    mistakes={
        "an element has two bytes on the wire, and each rank computes half: one of these is missing.": lambda: (
            PEAK / (50 * 10**9)
        ),
        "an element has two bytes on the wire, and each rank computes half of the product.": lambda: (
            PEAK / (50 * 10**9) / 2
        ),
    },
)
def _width() -> float:
    return float(tensor.exposure(1, degree=2, peak_flop_per_s=PEAK, bandwidth_bytes_per_s=50 * 10**9))
