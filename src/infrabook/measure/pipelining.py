"""PyTorch's pipeline schedules as witnesses: the tables its classes print, and the actions that a run executes.

``parallel.pipeline`` predicts both. A table is a plan; only what ran is the truth.
"""

from __future__ import annotations

import gc
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from ..errors import InfrabookError
from ..parallel.pipeline import Action, Row

NAMES = {  # ours -> torch's
    "GPipe": "GPipe", "1F1B": "1F1B", "LoopedBFS": "LoopedBFS", "Interleaved1F1B": "Interleaved1F1B",
    "InterleavedZeroBubble": "InterleavedZeroBubble", "ZB-V": "ZBVZeroBubble", "DualPipeV": "DualPipeV",
}  # fmt: skip


def table(name: str, ranks: int, *, micro_batches: int, chunks: int = 1) -> tuple[Row, ...]:
    """The rows that PyTorch's class for our schedule ``name`` plans, without its pauses and gradient reductions.

    An overlapped forward and backward are two actions, the first of them paired. In torch 2.13 the table of 1F1B
    numbers the last rank's forwards from 1 instead of 0; what that class executes is right.
    """
    if name not in NAMES:
        raise InfrabookError(f"PyTorch has no schedule {name!r}; it has {', '.join(NAMES)}")
    try:
        rows = get_schedule_ops(NAMES[name], ranks, micro_batches, chunks)
    except (ValueError, AssertionError) as error:
        raise InfrabookError(f"PyTorch refuses {name} with {ranks} ranks and {micro_batches}: {error}") from error
    return tuple(tuple(action for op in row if op is not None for action in _actions(op)) for row in rows)


def _actions(op: Any) -> Iterator[Action]:
    if op.sub_actions:
        forward, backward = (Action.read(str(part)) for part in op.sub_actions)
        yield forward._replace(paired=True)
        yield backward
    elif "REDUCE_GRAD" not in str(op):
        yield Action.read(str(op))


def skip_self_sends(stages: Sequence[Any]) -> None:
    """Have stages set up point-to-point communication with other ranks only.

    Two neighbouring stages of a V lie on one rank, which would send to itself: gloo in torch 2.11 refuses that.
    """
    for stage in stages:
        operations, me = stage._get_init_p2p_neighbors_ops, stage.group_rank
        stage._get_init_p2p_neighbors_ops = lambda operations=operations, me=me: [
            op for op in operations() if op.group_peer != me
        ]


@dataclass
class Log:
    """What a rank's stages did: the actions in order, and the most activations that were kept at once."""

    actions: list[str] = field(default_factory=list)
    kept: int = 0
    most: int = 0

    def note(self, action: str, change: int) -> None:
        """One action, and by how much it changes what is kept."""
        self.actions.append(action)
        self.kept += change
        self.most = max(self.most, self.kept)


@contextmanager
def recorded(stages: Sequence[Any], *, seconds: float = 0.0) -> Iterator[Log]:
    """Inside, what ``torch.distributed.pipelining`` has these stages do is noted, as it happens.

    With ``seconds`` each forward, and each half of a backward, also sleeps that long: a clock that does not depend
    on how many ranks share a processor.
    """
    log, before = Log(), [(stage, dict(vars(stage))) for stage in stages]
    for stage in stages:
        _wrap(stage, log, seconds)
    try:
        yield log
    finally:
        for stage, attributes in before:
            for name in ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk"):
                if name not in attributes:
                    delattr(stage, name)


def _wrap(stage: Any, log: Log, seconds: float) -> None:
    forward, backward, weight = stage.forward_one_chunk, stage.backward_one_chunk, stage.backward_weight_one_chunk

    def run(call: Callable[..., Any], kind: str, change: int, halves: int, args: Any, kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        log.note(f"{stage.stage_index}{kind}{args[0]}", change)
        if seconds:
            time.sleep(seconds * halves)
        return result

    def forward_one_chunk(*args: Any, **kwargs: Any) -> Any:
        return run(forward, "F", 1, 1, args, kwargs)

    def backward_one_chunk(*args: Any, **kwargs: Any) -> Any:
        full = kwargs.get("full_backward", True)
        return run(backward, "B" if full else "I", -1 if full else 0, 2 if full else 1, args, kwargs)

    def backward_weight_one_chunk(*args: Any, **kwargs: Any) -> Any:
        return run(weight, "W", -1, 1, args, kwargs)

    stage.forward_one_chunk = forward_one_chunk
    stage.backward_one_chunk = backward_one_chunk
    stage.backward_weight_one_chunk = backward_weight_one_chunk


# -- a backward pass in two halves --------------------------------------------------------------------------------
@dataclass(frozen=True)
class Halves:
    """FLOP of a stage's three passes as PyTorch counts them, and bytes that are alive between them."""

    forward: int
    input_gradient: int
    weight_gradient: int
    saved: int  # by autograd, after the forward pass
    saved_after_input: int  # of these, after the gradient of the input has been computed
    gradients_held: int  # beside them, for the gradients of the weights


def halves(stage: nn.Module, inputs: torch.Tensor) -> Halves:
    """``stage``'s forward pass and the two halves of its backward as PyTorch's zero-bubble schedules run them.

    Works on fake tensors too. FLOP and bytes are counted in two runs: the counter's hooks would keep tensors alive.
    Source: ``torch.distributed.pipelining._backward``.
    """
    inputs = inputs.detach().requires_grad_()
    with FlopCounterMode(display=False) as forward:
        outputs = stage(inputs)
    with FlopCounterMode(display=False) as input_gradient:
        _, groups = stage_backward_input([outputs], [torch.ones_like(outputs)], [inputs], stage.parameters())
    with FlopCounterMode(display=False) as weight_gradient:
        stage_backward_weight(stage.parameters(), groups)
    kept, after_input, held = _alive(stage, inputs.detach().requires_grad_())
    return Halves(
        forward.get_total_flops(), input_gradient.get_total_flops(), weight_gradient.get_total_flops(), kept,
        after_input, held,
    )  # fmt: skip


def _alive(stage: nn.Module, inputs: torch.Tensor) -> tuple[int, int, int]:
    """Bytes: saved by the forward pass, of these alive after I, and held beside them for W."""
    alive: dict[int, tuple[int, int]] = {}
    weights = {parameter.untyped_storage()._cdata for parameter in stage.parameters()}

    def pack(tensor: torch.Tensor) -> _Box:
        box, storage = _Box(tensor), tensor.untyped_storage()
        if storage._cdata not in weights:
            alive[id(box)] = (storage._cdata, storage.nbytes())
            weakref.finalize(box, alive.pop, id(box), None)
        return box

    def saved() -> int:
        gc.collect()
        return sum(dict(alive.values()).values())

    with saved_tensors_hooks(pack, lambda box: box.tensor):
        outputs = stage(inputs)
    kept = saved()
    _, groups = stage_backward_input([outputs], [torch.ones_like(outputs)], [inputs], stage.parameters())
    del outputs
    return kept, saved(), _bytes([group.get("grads", ()) for group in groups])


class _Box:
    """A saved tensor in a box whose end can be noticed."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def _bytes(tree: Any) -> int:
    storages = {leaf.untyped_storage()._cdata: leaf.untyped_storage().nbytes()
                for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)}  # fmt: skip
    return sum(storages.values())
