"""What PyTorch itself counts: work by its FLOP counter, and the kernels and bytes that it dispatches.

``FlopCounterMode`` sees every matrix product that is dispatched, also on the meta device, where none is computed.
It gives causal attention no discount and counts no elementwise work. ``flops`` is the account it is compared with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
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


class _Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not type its subclass hook
    """Notes every operation that would be a kernel: its name, and the bytes of its inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        before = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        after = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        if not func.is_view and not any(word in func.name() for word in ("empty", "view")):
            moved = sum(t.numel() * t.element_size() for t in [*before, *after])
            self.rows.append((func.name().partition("::")[2].partition(".")[0], moved))
        return out


def dispatched(run: Callable[[], Any]) -> list[tuple[str, int]]:
    """(operation, bytes) of everything PyTorch dispatches in ``run()``, views left out, one row a kernel.

    Bytes are those of all inputs and outputs: what a chain of unfused kernels moves if nothing stays on chip.

    >>> x = torch.ones(2, 3, device="meta")
    >>> dispatched(lambda: torch.softmax(x, -1)), dispatched(lambda: (x + 1).exp())
    ([('_softmax', 48)], [('add', 48), ('exp', 48)])
    """
    mode = _Dispatched()
    with mode:
        run()
    return mode.rows
