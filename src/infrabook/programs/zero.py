"""Four ways to share the update of one model among data-parallel ranks: losses, bytes held, collectives called.

``torchrun --nproc-per-node 2 -m infrabook.programs.zero way=fsdp2``; on each of two nodes of eight GPUs,
``torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 -m infrabook.programs.zero
way=hybrid shard=8``: weights are then gathered inside a node, and only gradient shards cross between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ..errors import InfrabookError
from ..measure.ranks import device, main, require
from ..measure.wire import collectives, sent_bytes
from ..models import Transformer
from ..nn.transformer import Llama

SMALL = Transformer("a small Llama", 3, 64, 4, 2, 16, 172, 1021, 128)
"""Its vocabulary is a prime number, so that no group of ranks divides every tensor evenly."""

WAYS = ("alone", "ddp", "zero-1", "fsdp2", "fsdp2-default", "fsdp2-kept", "hybrid")
Build = tuple[nn.Module, Callable[[Iterable[Tensor]], torch.optim.Optimizer]]


def fresh_model() -> Llama:
    """The same weights in every rank."""
    torch.manual_seed(0)
    return Llama(SMALL).to(device())


def sharded(net: Llama, *, shard: int = 0, reshard_after_forward: bool | None = True) -> Llama:
    """FSDP2 over ``net``, each layer a unit and the rest the root's; with ``shard``, in groups of so many ranks.

    ``reshard_after_forward=None`` is FSDP2's default: layers let go of their weights, the root does not.
    """
    ranks = dist.get_world_size()
    shape, names = ((ranks // shard, shard), ("replicas", "shards")) if shard else ((ranks,), ("shards",))
    how: dict[str, Any] = {
        "mesh": init_device_mesh(device().type, shape, mesh_dim_names=names),
        "reshard_after_forward": reshard_after_forward,
    }
    for layer in net.layers:
        fully_shard(layer, **how)
    fully_shard(net, **how)
    return net


def distributed(way: str, shard: int) -> Build:
    """The model and its optimizer in one of ``WAYS``."""
    if way == "alone":
        return fresh_model(), torch.optim.AdamW
    if way in ("ddp", "zero-1"):
        net = DistributedDataParallel(fresh_model(), gradient_as_bucket_view=True)
        net.register_comm_hook(None, allreduce_hook)  # the same all-reduce, called where it can be counted
        return net, torch.optim.AdamW if way == "ddp" else zero_redundancy
    resharding = {"fsdp2": True, "fsdp2-default": None, "fsdp2-kept": False}
    if way in resharding:
        return sharded(fresh_model(), reshard_after_forward=resharding[way]), torch.optim.AdamW
    if way == "hybrid":
        require(0, multiple_of=shard)
        return sharded(fresh_model(), shard=shard), torch.optim.AdamW
    raise InfrabookError(f"there is no way {way!r}; there are {', '.join(WAYS)}")


def zero_redundancy(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """AdamW whose states are divided among the ranks, whole tensors to each."""
    return ZeroRedundancyOptimizer(parameters, torch.optim.AdamW)


def train(way: str = "fsdp2", steps: int = 4, sequences: int = 4, shard: int = 2) -> dict[str, Any]:
    """Train on ``sequences`` of one global batch, each rank on its part: losses, bytes held, the last step's traffic.

    The losses are means over the whole batch. "weights" and "optimizer" are held between steps, "gradients" when
    backward has ended.
    """
    net, make = distributed(way, shard)
    update = make(net.parameters())
    ranks, rank = (1, 0) if way == "alone" else (dist.get_world_size(), dist.get_rank())
    numbers = torch.Generator().manual_seed(1)
    batch = torch.randint(0, SMALL.vocab, (steps, sequences, 65), generator=numbers).to(device())
    mine = batch[:, rank * sequences // ranks : (rank + 1) * sequences // ranks]
    losses, gradients, wire = [], 0, 0
    for step in range(steps):
        ids, targets = mine[step, :, :-1], mine[step, :, 1:]
        before = sent_bytes()
        with collectives() as calls:
            loss = net(ids, targets)
            loss.backward()
            gradients = storage_bytes(p.grad for p in net.parameters())
            update.step()
        after = sent_bytes()
        wire = -1 if before is None or after is None else after - before
        update.zero_grad()
        losses.append(mean_over_ranks(loss.detach(), ranks))
    return {
        "losses": losses,
        "weights": storage_bytes(net.parameters()),
        "gradients": gradients,
        "optimizer": storage_bytes(states(update)),
        "calls": [(call.op, call.ranks, call.nbytes) for call in calls.rows],
        "wire": wire,
    }


def storage_bytes(tensors: Iterable[Tensor | None]) -> int:
    """Bytes of the storages behind ``tensors`` on this rank, each once."""
    found = {}
    for tensor in tensors:
        if tensor is not None:
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            storage = local.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    found.pop(0, None)  # a rank that has no row of a tensor has an empty shard
    return sum(found.values())


def states(update: torch.optim.Optimizer) -> list[Tensor]:
    """An optimizer's moments on this rank; its step counters are left out."""
    own = update.optim if isinstance(update, ZeroRedundancyOptimizer) else update
    return [state[name] for state in own.state.values() for name in ("exp_avg", "exp_avg_sq")]


def mean_over_ranks(loss: Tensor, ranks: int) -> float:
    """The mean of a number over all ranks, each of which saw as many tokens."""
    if ranks > 1:
        dist.all_reduce(loss)
    return float(loss) / ranks


if __name__ == "__main__":
    main(train)
