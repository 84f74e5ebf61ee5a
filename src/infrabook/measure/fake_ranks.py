"""What one of many ranks holds in a training step, with one process and no memory.

PyTorch's fake process group answers every collective at once and moves nothing; fake tensors have shapes and no
data. Together they run the step of one rank of any number of ranks, with the real ``DistributedDataParallel``,
``fully_shard`` or DTensor, and the memory tracker of ``peak`` charges every storage. ``ranks`` starts real ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..errors import InfrabookError
from ..ledger import Ledger
from ..models import Transformer
from .peak import Phase, PhaseTracker, StepMemory, tracked_step
from .saved import fake_tensors

Wrap = Callable[[nn.Module, DeviceMesh], nn.Module]

BUCKET = "Bucket"
WORDS = {  # the trackers' words, and one of ours -> (row, kind)
    "Parameter": ("parameters", "weights"),
    "Sharded Param": ("parameters", "weights"),
    "Gradient": ("gradients", "gradients"),
    "Sharded Grad": ("gradients", "gradients"),
    "Optstate": ("optimizer states", "optimizer"),
    "OptState": ("optimizer states", "optimizer"),
    "Activation": ("activations", "activations"),
    "Unsharded Param": ("gathered parameters", "buffers"),
    "Unsharded Grad": ("gradients of gathered parameters", "buffers"),
    "All Gather": ("all-gather output", "buffers"),
    "Reduce Scatter": ("reduce-scatter input", "buffers"),
    BUCKET: ("gradient buckets", "gradients"),
    "Temp": ("temporaries", "buffers"),
    "Buffer": ("module buffers", "buffers"),
    "Other": ("inputs", "buffers"),
    "Inputs": ("inputs", "buffers"),
}


@dataclass(frozen=True)
class RankMemory(StepMemory):
    """What one rank holds; ``by_phase`` has the peak of each phase of the step."""

    by_phase: Mapping[Phase, Ledger]


@contextmanager
def fake_ranks(axes: Mapping[str, int], *, rank: int = 0) -> Iterator[DeviceMesh]:
    """Inside, this process is ``rank`` of a fake process group of as many ranks as ``axes`` have together.

    Yields the device mesh with ``axes``, outermost first. Collectives return at once and move nothing.

    >>> with fake_ranks({"dp": 64, "tp": 8}) as mesh:
    ...     mesh["tp"].size(), dist.get_world_size()
    (8, 512)
    """
    if dist.is_initialized():
        raise InfrabookError("this process is already a rank of a process group; fake ranks need one that is not")
    count = 1
    for size in axes.values():
        count *= size
    if not 0 <= rank < count:
        raise InfrabookError(f"rank {rank} does not exist: {count} ranks are counted from 0")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=count, store=FakeStore())
    try:
        with _real_mesh_arithmetic(), _told_apart():
            yield init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
    finally:
        dist.destroy_process_group()


def training_step(
    build: Callable[[], nn.Module],
    model: Transformer,
    *,
    axes: Mapping[str, int],
    wrap: Wrap,
    rank: int = 0,
    batch: int = 1,
    sequence: int = 2048,
    dtype: torch.dtype = torch.bfloat16,
    optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW,
) -> RankMemory:
    """Memory of one rank over a training step of ``wrap(build(), mesh)``, a module called with ids and targets.

    ``build`` makes the whole model (in ``dtype``), ``wrap`` distributes it over the mesh with ``axes``: for
    example ``ddp()``, ``sharded()`` or a function that calls ``parallelize_module``. ``batch`` is one rank's.
    Measured is a step in which the optimizer's states exist. Bytes are those of a CPU build.
    Source: ``torch.distributed._tools.mem_tracker`` and ``fsdp2_mem_tracker``, the latter for FSDP2.
    """
    with fake_ranks(axes, rank=rank) as mesh, fake_tensors(dtype):
        whole = build()
        with _Allocations() as allocations:
            net = wrap(whole, mesh)
        update = optimizer(net.parameters())
        for parameter in net.parameters():  # a first step makes the optimizer's states; DDP can run but one pass here,
            parameter.grad = torch.zeros_like(parameter)  # since before its second it rebuilds buckets from real data
        update.step()
        update.zero_grad()
        ids, targets = (torch.randint(0, model.vocab, (batch, sequence)) for _ in range(2))
        tracker = _tracker(net, update, (ids, targets))
        if isinstance(net, DistributedDataParallel):
            for bucket in allocations.empty:
                tracker._update_and_maybe_create_winfos(bucket, BUCKET)
        with tracker:
            forward, backward = tracked_step(tracker, net, update, ids, targets)
            rest = tracker.account("between two steps")
        peak = tracker.account("at the peak", "peak")
        return RankMemory(forward, backward, rest, peak, tracker.peak_phase, tracker.by_phase())


# -- ways to wrap --------------------------------------------------------------------------------------------


def alone(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """The module as it is: what one rank holds without any parallelism."""
    return module


def ddp(*, bucket_view: bool = True, bucket_mib: float = 25) -> Wrap:
    """``DistributedDataParallel``; ``bucket_view``: gradients are views of the buckets (not PyTorch's default)."""

    def wrap(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        net = DistributedDataParallel(
            module, gradient_as_bucket_view=bucket_view, init_sync=False, bucket_cap_mb=bucket_mib
        )
        net.register_comm_hook(None, _hand_back)
        return net

    return wrap


def zero_1(parameters: Any) -> torch.optim.Optimizer:
    """AdamW with its states divided among the ranks, for ``optimizer``: ZeRO's first stage, over ``ddp()``."""
    return ZeroRedundancyOptimizer(parameters, torch.optim.AdamW)


def sharded(
    *, reshard_after_forward: bool | int = True, axes: tuple[str, ...] = (), units: str = "layers",
    mixed: bool = False,
) -> Wrap:  # fmt: skip
    """FSDP2: each module in ``units`` its own unit, the rest in the root's.

    ``axes``: the mesh's axes to shard over, all by default; two mean hybrid sharding, replicas first.
    ``mixed``: gathered and multiplied in BF16, reduced in FP32.
    """

    def wrap(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if mixed else MixedPrecisionPolicy()
        how: dict[str, Any] = {
            "mesh": mesh[axes] if axes else mesh,
            "reshard_after_forward": reshard_after_forward,
            "mp_policy": policy,
        }
        for unit in module.get_submodule(units).children():
            fully_shard(unit, **how)
        fully_shard(module, **how)
        return module

    return wrap


def tensor_parallel_and_sharded(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Llama under tensor parallelism with sequence parallelism over the axis "tp", FSDP2 in mixed precision over "dp".

    The logits stay divided by the vocabulary: measure it inside ``loss_parallel()``.
    """
    whole, by_length = Replicate(), Shard(1)
    ends = {
        "embedding": RowwiseParallel(input_layouts=whole, output_layouts=by_length),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=by_length, output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(module, mesh["tp"], ends)
    layer: dict[str, Any] = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(
            input_layouts=(by_length, None, None), desired_input_layouts=(whole, None, None)
        ),
        "ffn_norm": SequenceParallel(),
        "ffn": PrepareModuleInput(input_layouts=(by_length,), desired_input_layouts=(whole,)),
    }
    for name in ("attention.query", "attention.key", "attention.value", "ffn.gate", "ffn.up"):
        layer[name] = ColwiseParallel()
    for name in ("attention.output", "ffn.down"):
        layer[name] = RowwiseParallel(output_layouts=by_length)
    for block in module.get_submodule("layers").children():
        parallelize_module(block, mesh["tp"], layer)
    return sharded(axes=("dp",), mixed=True)(module, mesh)


# -- the trackers --------------------------------------------------------------------------------------------


class _RankTracker(PhaseTracker):  # type: ignore[no-untyped-call]  # torch does not type its subclass hook
    """Says what is a temporary in the optimizer's step, and keeps the peak of each phase."""

    words: ClassVar[Mapping[str, tuple[str, str]]] = WORDS

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._ref_class: Any = tuple(WORDS)
        self._peaks: dict[Phase, dict[str, int]] = {}

    def _track(self, reftype: Any, t: torch.Tensor) -> None:
        if _SHAPES.asked:
            return
        # torch calls all that the step allocates optimizer states; those that are become so when the step ends
        kept: Any = "Temp" if self.phase == "optimizer step" else reftype
        super()._track(kept, t)

    def _update_peak_stats(self, peak_state: Any) -> None:
        super()._update_peak_stats(peak_state)
        for now in self._curr_mem_snap.values():
            if now["Total"] > self._peaks.get(self.phase, {}).get("Total", 0):
                self._peaks[self.phase] = dict(now)

    def by_phase(self) -> dict[Phase, Ledger]:
        """The peak of each phase."""
        return {phase: self.charged(f"peak of the {phase}", [found]) for phase, found in self._peaks.items()}


class _ShardedTracker(_RankTracker, FSDPMemTracker):  # type: ignore[no-untyped-call]  # as above
    """The same for FSDP2, whose hooks tell gathered parameters and their buffers from sharded ones."""


def _tracker(net: nn.Module, update: torch.optim.Optimizer, inputs: tuple[torch.Tensor, ...]) -> Any:
    if isinstance(net, FSDPModule):
        tracker = _ShardedTracker(net, update)
        tracker.track_inputs(inputs)
        return tracker
    plain = _RankTracker()
    plain.track_external(net, _states(update), *inputs)
    return plain


def _states(update: torch.optim.Optimizer) -> torch.optim.Optimizer:
    return update.optim if isinstance(update, ZeroRedundancyOptimizer) else update


class _Shapes:
    """Entered while DTensor asks for the shape of a result, on fake tensors of the global shape.

    With real tensors it asks in a fake mode of its own; under ours it would be charged as if it allocated them.
    """

    def __init__(self) -> None:
        self.asked = 0

    def __enter__(self) -> None:
        self.asked += 1

    def __exit__(self, *failure: object) -> None:
        self.asked -= 1


_SHAPES = _Shapes()


class _Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not type its subclass hook
    """Keeps what is allocated empty inside: DDP's buckets are."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.empty: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.empty.memory_format:
            self.empty += [leaf for leaf in tree_leaves(out) if leaf.numel() > 1]
        return out


def _hand_back(state: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """A communication hook that is done at once: the fake group's own future holds no bucket."""
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


_hand_back.__annotations__ = {  # DDP asks for these very objects, and ours are strings
    "bucket": dist.GradBucket,  # type: ignore[attr-defined]  # not in torch's stubs
    "return": torch.futures.Future[torch.Tensor],
}


@contextmanager
def _told_apart() -> Iterator[None]:
    """Inside, DTensor's questions for shapes are marked: its own lock around them is ours."""
    before: Any = getattr(ShardingPropagator, "_fake_mode_lock", None)
    lock: Any = _SHAPES
    ShardingPropagator._fake_mode_lock = lock  # releases without this lock charge the questions, as torch does
    try:
        yield
    finally:
        ShardingPropagator._fake_mode_lock = before


@contextmanager
def _real_mesh_arithmetic() -> Iterator[None]:
    """A mesh computes with real integers; inside, it does so under fake tensors too."""
    names = [name for name in ("__init__", "__getitem__", "_concatenate") if name in vars(DeviceMesh)]
    before = {name: vars(DeviceMesh)[name] for name in names}

    def real(method: Any) -> Any:
        function = method.__func__ if isinstance(method, staticmethod) else method

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with unset_fake_temporarily():
                return function(*args, **kwargs)

        return staticmethod(call) if isinstance(method, staticmethod) else call

    try:
        for name, method in before.items():
            setattr(DeviceMesh, name, real(method))
        yield
    finally:
        for name, method in before.items():
            setattr(DeviceMesh, name, method)
