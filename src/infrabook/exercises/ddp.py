"""Answers to the exercises of ``ddp``."""

from __future__ import annotations

from fractions import Fraction

from .. import collectives, hardware, models
from ..lab import exercise
from ..parallel import ddp
from ..units import GB, GIB


@exercise(
    "ddp/1",
    mistakes={
        "that closes a bucket before it would overflow; DDP closes it after.": lambda: 6,
        "that fills them in the order of registration; gradients come in reverse.": lambda: len(
            ddp.buckets(_listed(), rebuilt=False)
        ),
    },
    tolerance=0,
)
def _buckets_by_hand() -> int:
    return len(ddp.buckets(_listed()))


def _listed() -> list[ddp.Gradient]:
    sizes = [40, 20, 20, 6, 6, 6, 6, 30, 0.5]  # MiB, in the order of registration
    return [ddp.Gradient(str(i), int(size * 2**20)) for i, size in enumerate(sizes)]


@exercise(
    "ddp/2",
    mistakes={
        "that is with all of the peak; the GPU reaches 40% of it.": lambda: _tokens(1.0),
        "that is against forward and backward pass; only the backward pass hides anything.": lambda: (
            _tokens(0.4) * 2 / 3
        ),
        "that is for two bytes a gradient; these are in FP32.": lambda: _tokens(0.4) / 2,
    },
    tolerance=0.01,
)
def _tokens_to_hide() -> float:
    return _tokens(0.4)


def _tokens(share: float) -> float:
    return float(
        ddp.tokens_to_hide(
            ranks=16, flop_per_s=share * hardware.gpu("a100-sxm-80gb").peak("bf16"), bytes_per_gradient=4,
            bandwidth_bytes_per_s=hardware.link("infiniband-hdr").bytes_per_s,
        )
    )  # fmt: skip


@exercise(
    "ddp/3",
    mistakes={
        "that is every pass; no_sync leaves out all but the last.": lambda: 8 * _wire_gb(),
        "that is the whole buffer; a ring sends 2·(n−1)/n of it.": lambda: _gradient_bytes() / GB,
        "those are GiB.": lambda: _wire_gb() * GB / GIB,
    },
)
def _on_the_wire() -> float:
    return _wire_gb()


def _wire_gb() -> float:
    return float(collectives.bytes_sent("all-reduce", size_bytes=_gradient_bytes(), ranks=4) / Fraction(GB))


def _gradient_bytes() -> int:
    return sum(gradient.nbytes for gradient in ddp.gradients(models.get("llama-3-8b"), "bf16"))
