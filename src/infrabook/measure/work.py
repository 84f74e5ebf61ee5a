"""What PyTorch itself counts as work: its FLOP counter, by the module that ran.

``FlopCounterMode`` sees every matrix product that is dispatched, also on the meta device, where none is computed.
It gives causal attention no discount and counts no elementwise work. ``flops`` is the account it is compared with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.flop_counter import FlopCounterMode


def counted(run: Callable[[], Any]) -> dict[str, int]:
    """FLOP of ``run()`` by module path, each product charged to the innermost module that issued it.

    Paths leave the outermost class name out; work outside any module has the path ``""``.

    >>> import torch
    >>> layer = torch.nn.Linear(4, 3, device="meta")
    >>> counted(lambda: layer(torch.ones(2, 4, device="meta")))
    {'': 48}
    """
    counter = FlopCounterMode(display=False)
    with counter:
        run()
    totals = {
        path: sum(by_operation.values()) for path, by_operation in counter.get_flop_counts().items() if path != "Global"
    }
    inner = dict(totals)
    for path, value in totals.items():
        parent = path.rpartition(".")[0]
        while parent and parent not in totals:  # a ModuleList is never called, and counts nothing itself
            parent = parent.rpartition(".")[0]
        if parent:
            inner[parent] -= value
    return {path.partition(".")[2]: value for path, value in inner.items() if value}


def total(run: Callable[[], Any]) -> int:
    """All FLOP of ``run()`` that PyTorch counts."""
    counter = FlopCounterMode(display=False)
    with counter:
        run()
    return int(counter.get_total_flops())
