"""When in a training step memory is highest, and what it holds then, on tensors that take no memory.

PyTorch's ``FakeTensorMode`` runs a step of any size without allocating it, and its ``MemTracker`` charges every
storage that would be alive. The tracker agrees with the allocator trace of a real run to the byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker

from ..ledger import Ledger, Row, ledger
from ..models import Transformer
from ..units import GIB
from .saved import fake_tensors

KINDS = {  # the tracker's word -> (row, kind)
    "Parameter": ("parameters", "weights"),
    "Gradient": ("gradients", "gradients"),
    "Optstate": ("optimizer states", "optimizer"),
    "Activation": ("activations", "activations"),
    "Temp": ("temporaries of the backward pass", "buffers"),
    "Buffer": ("module buffers", "buffers"),
    "Other": ("inputs", "buffers"),
}
Phase = Literal["forward", "backward", "optimizer step"]


class PhaseTracker(MemTracker):  # type: ignore[no-untyped-call]  # torch does not type its subclass hook
    """The tracker without statistics a module, which make it quadratic in depth; it notes the phase of the peak.

    ``words`` are the tracker's own words for what holds memory, each with a row's name and kind.
    """

    words: ClassVar[Mapping[str, tuple[str, str]]] = KINDS
    phase: Phase = "forward"
    peak_phase: Phase = "forward"

    def _update_peak_stats(self, peak_state: Any) -> None:
        for device, now in self._curr_mem_snap.items():
            if now["Total"] > self._peak_mem.get(device, 0):
                self._peak_mem[device] = now["Total"]
                self._peak_mem_snap[device] = dict(now)
                self.peak_phase = self.phase

    def account(self, title: str, which: Literal["current", "peak"] = "current") -> Ledger:
        """What is alive now, or was at the peak, as a ledger in bytes."""
        return self.charged(title, self.get_tracker_snapshot(which).values())

    def charged(self, title: str, snapshots: Iterable[Mapping[str, int]]) -> Ledger:
        """The tracker's snapshots, one a device, as one ledger; rows of the same name are added."""
        found = dict.fromkeys(self.words.values(), 0)
        for snapshot in snapshots:
            for kind, value in snapshot.items():
                word = getattr(kind, "value", str(kind))
                if word in self.words:
                    found[self.words[word]] += int(value)
        return ledger(title, (Row(name, value, kind) for (name, kind), value in found.items()))


@dataclass(frozen=True)
class StepMemory:
    """What a second training step holds (the first makes the optimizer's states)."""

    after_forward: Ledger
    after_backward: Ledger
    after_step: Ledger
    peak: Ledger
    peak_phase: Phase

    @property
    def peak_gib(self) -> float:
        """The peak in GiB."""
        return float(self.peak.total) / GIB


def forward_pass(build: Callable[[], nn.Module], model: Transformer, *, batch: int = 1, sequence: int = 2048) -> Ledger:
    """The peak of a forward pass without gradients, in BF16: weights, and what is alive at the worst moment.

    ``build()`` is a module with ``logits(ids)``.
    """
    with fake_tensors(torch.bfloat16), torch.no_grad():
        net = build()
        ids = torch.randint(0, model.vocab, (batch, sequence))
        tracker = PhaseTracker()
        tracker.track_external(net, ids)
        with tracker:
            net.logits(ids)  # type: ignore[operator]  # a method of the module, not a submodule
    return tracker.account("at the peak of the forward pass", "peak")


def tracked_step(
    tracker: Any, net: nn.Module, update: torch.optim.Optimizer, ids: torch.Tensor, targets: torch.Tensor
) -> tuple[Ledger, Ledger]:
    """One step of ``net`` with the phases told to ``tracker``; what is alive after forward and after backward."""
    tracker.phase = "forward"
    loss = net(ids, targets)
    forward: Ledger = tracker.account("after the forward pass")
    tracker.phase = "backward"
    loss.backward()
    backward: Ledger = tracker.account("after the backward pass")
    tracker.phase = "optimizer step"
    update.step()
    update.zero_grad()
    return forward, backward


def training_step(
    build: Callable[[], nn.Module], model: Transformer, *, batch: int = 1, sequence: int = 2048,
    dtype: torch.dtype = torch.bfloat16,
    optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW,
) -> StepMemory:  # fmt: skip
    """Memory over one training step of ``build()``, a module called with ids and targets, without allocating it.

    Bytes are those of a CPU build; only on CUDA does the tracker round a storage up, to 512 bytes.
    Source: ``torch.distributed._tools.mem_tracker``.
    """
    with fake_tensors(dtype):
        net = build()
        update = optimizer(net.parameters())
        ids, targets = (torch.randint(0, model.vocab, (batch, sequence)) for _ in range(2))
        tracker = PhaseTracker()
        tracker.track_external(net, update, ids, targets)
        with tracker:
            for _ in range(2):
                forward, backward = tracked_step(tracker, net, update, ids, targets)
                tracker.reset_mod_stats()
            rest = tracker.account("between two steps")
        return StepMemory(forward, backward, rest, tracker.account("at the peak", "peak"), tracker.peak_phase)
