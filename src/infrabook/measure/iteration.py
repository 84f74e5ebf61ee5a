"""What is alive at every operation of a training iteration, as PyTorch's memory tracker sees it.

The witness of ``infrabook.iteration``: moments carry the same names. ``peak`` asks for the highest moment alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..iteration import ZeroGrad
from ..ledger import Ledger
from ..models import Transformer
from .peak import PhaseTracker
from .saved import fake_tensors


@dataclass
class Iteration:
    """One iteration: what was alive at named moments, and after each operation with the phase it belongs to.

    ``at`` says after how many operations a moment came.
    """

    moments: dict[str, Ledger] = field(default_factory=dict)
    at: dict[str, int] = field(default_factory=dict)
    operations: list[tuple[str, dict[str, int]]] = field(default_factory=list)

    def highest(self, phase: str) -> int:
        """The most that was alive in ``phase``: forward, backward or step, with ``(2)`` for the second micro-batch."""
        return max(alive["Total"] for name, alive in self.operations if name == phase)


class OperationTracker(PhaseTracker):  # type: ignore[no-untyped-call]  # torch does not type its subclass hook
    """The tracker, writing into ``now`` what is alive after every operation."""

    now: Iteration
    part: str = "start"

    def _update_peak_stats(self, peak_state: Any) -> None:
        super()._update_peak_stats(peak_state)
        for alive in self._curr_mem_snap.values():
            plain = {getattr(kind, "value", str(kind)): int(size) for kind, size in alive.items()}
            self.now.operations.append((self.part, plain))

    def note(self, name: str) -> None:
        """Keep what is alive now as the moment ``name``."""
        self.now.moments[name] = self.account(name)
        self.now.at[name] = len(self.now.operations)


def iterations(
    build: Callable[[], nn.Module],
    model: Transformer,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = torch.optim.AdamW,
    *,
    count: int = 2,
    micro_batches: int = 1,
    zero_grad: ZeroGrad = "after the step",
    batch: int = 1,
    sequence: int = 2048,
    dtype: torch.dtype = torch.bfloat16,
    fake: bool = True,
) -> list[Iteration]:
    """``count`` iterations of ``build()``, a module called with ids and targets whose layers stand in ``layers``.

    Parameters are of ``dtype``. With ``fake`` nothing is allocated, and a model of any size will do.
    """
    done = []
    with fake_tensors(dtype) if fake else _parameters_of(dtype):
        net: Any = build()
        update = optimizer(net.parameters())
        ids, targets = (torch.randint(0, model.vocab, (batch, sequence)) for _ in range(2))
        tracker = OperationTracker()
        tracker.track_external(net, update, ids, targets)
        mark = _marks(net, tracker)
        with tracker:
            for _ in range(count):
                tracker.now = Iteration()
                done.append(tracker.now)
                tracker.note("start")
                for number in range(1, micro_batches + 1):
                    mark[0] = f" ({number})" if micro_batches > 1 else ""
                    tracker.part = "forward" + mark[0]
                    loss = net(ids, targets) / micro_batches
                    tracker.note("forward done" + mark[0])
                    if zero_grad == "before backward" and number == 1:
                        update.zero_grad()
                    tracker.part = "backward" + mark[0]
                    loss.backward()
                    del loss
                    tracker.note("backward done" + mark[0])
                    tracker.reset_mod_stats()
                tracker.part = "step"
                update.step()
                tracker.note("step done")
                if zero_grad != "before backward":
                    update.zero_grad(set_to_none=zero_grad == "after the step")
                tracker.note("end")
    return done


@contextmanager
def _parameters_of(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _marks(net: Any, tracker: OperationTracker) -> list[str]:
    """Hooks that note each layer's end; the string in the list is added to the moments' names."""
    mark = [""]

    def entered(number: int) -> Callable[..., None]:
        def hook(_module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            inputs[0].register_hook(lambda _: tracker.note(f"layer {number} backward{mark[0]}"))  # type: ignore[no-untyped-call]

        return hook

    def left(number: int) -> Callable[..., None]:
        return lambda _module, _inputs, _output: tracker.note(f"layer {number} forward{mark[0]}")

    for number, layer in enumerate(net.layers, 1):
        layer.register_forward_pre_hook(entered(number))
        layer.register_forward_hook(left(number))
    net.embedding.weight.register_hook(lambda _: tracker.note(f"embedding backward{mark[0]}"))
    return mark
