"""Answers to the exercises of ``roofline``."""

from __future__ import annotations

from .. import hardware, models, parameters, roofline
from ..lab import exercise


def _first_bound_by_arithmetic(gpu: str) -> int:
    needed = roofline.ridge(gpu)
    return next(b for b in range(1, 4096) if roofline.gemm(b, 4096, 14336).intensity >= needed)


@exercise(
    "roofline/1",
    mistakes={
        "a BF16 weight has two bytes.": lambda: 8.03 / 4.8,
        "that is an H100's bandwidth.": lambda: 2 * 8030.261248 / hardware.gpu("h100-sxm").bandwidth_bytes_per_s * 1e9,
    },
    tolerance=0.01,
)
def _least_time_for_a_token() -> float:
    weights = 2 * parameters.count(models.get("llama-3-8b")).total
    return float(1000 * weights / hardware.gpu("h200").bandwidth_bytes_per_s)


@exercise(
    "roofline/2",
    mistakes={
        "that is the ridge; the activations' bytes push the batch a little further.": lambda: 153,
        "that is for an H100.": lambda: _first_bound_by_arithmetic("h100-sxm"),
    },
    tolerance=0,
)
def _batch_for_an_a100() -> int:
    return _first_bound_by_arithmetic("a100-sxm-80gb")


@exercise(
    "roofline/3",
    mistakes={
        "that is in BF16.": lambda: 8,
        "count an addition and a multiplication.": lambda: 4,
        "keys and values are both read.": lambda: 32,
    },
    tolerance=0.001,
)
def _intensity_of_decode_attention() -> float:
    return 4 * 64 / (2 * 8 * 1)
