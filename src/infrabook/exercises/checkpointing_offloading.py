"""Answers to the exercises of ``checkpointing-offloading``."""

from __future__ import annotations

from .. import hardware, models, parameters
from ..lab import exercise


@exercise(
    "checkpointing-offloading/1",
    mistakes={
        "that is right if a layer saved no more than its input.": lambda: 8,
        "the input has 2 bytes for each element, not 1.": lambda: (64 * 34) ** 0.5,
    },
    tolerance=0.02,
)
def _segments() -> float:
    return float((64 * 34 / 2) ** 0.5)


@exercise(
    "checkpointing-offloading/2",
    mistakes={
        "the two directions run at once.": lambda: 2 * _waiting_ms("pcie4-x16"),
        "that is PCIe 5.": lambda: _waiting_ms("pcie5-x16"),
    },
    tolerance=0.01,
)
def _waiting() -> float:
    return _waiting_ms("pcie4-x16")


def _waiting_ms(link: str) -> float:
    return float(2000 * parameters.count(models.get("llama-3-8b")).total / hardware.link(link).bytes_per_s)


@exercise(
    "checkpointing-offloading/3",
    mistakes={
        "of the forward pass, yes; a step is three of those.": lambda: 100 * 4 * 4096 / (4 * 4096 + 24 * 8192),
        "that is with the step without its scores as the whole.": lambda: 100 * 4 * 4096 / (3 * 24 * 8192),
    },
    tolerance=0.003,
)
def _selective_work() -> float:
    return 100 * 4 * 4096 / (3 * (4 * 4096 + 24 * 8192))
