"""Two kinds of parallelism at once: tensor parallelism inside a group, sharded data parallelism across groups.

``torchrun --nproc-per-node 4 -m infrabook.programs.layout tensor=2``; on each of two nodes of eight GPUs,
``torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 -m infrabook.programs.layout
tensor=8``: tensor-parallel groups are then the nodes, and only FSDP2's messages leave them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from ..measure.ranks import device, main, require
from ..measure.wire import collectives
from ..models import Transformer
from ..nn.transformer import Llama
from .tensor_parallel import split
from .zero import mean_over_ranks, states, storage_bytes

SMALL = Transformer("small", 2, 64, 8, 8, 8, 192, 256, 64)


def fresh_model() -> Llama:
    """The same weights in every rank."""
    torch.manual_seed(0)
    return Llama(SMALL).to(device())


def train(tensor: int = 2, steps: int = 3, sequences: int = 4) -> dict[str, Any]:
    """Train on a mesh of data × ``tensor`` ranks and, beside it, on one: losses, bytes held, collectives by group.

    Ranks of one tensor-parallel group get the same sequences. "groups" has (calls, bytes of the whole buffers) of the
    last step by operation and by the ranks that take part, as in "all-gather in data".
    """
    require(0, multiple_of=tensor)
    data = dist.get_world_size() // tensor
    mesh = init_device_mesh(device().type, (data, tensor), mesh_dim_names=("data", "tensor"))
    net = split(fresh_model(), mesh["tensor"], "prepared")
    for layer in net.layers:  # type: ignore[union-attr]
        fully_shard(layer, mesh=mesh["data"])
    fully_shard(net, mesh=mesh["data"])
    alone = fresh_model()
    updates = [torch.optim.AdamW(one.parameters()) for one in (net, alone)]
    numbers = torch.Generator().manual_seed(1)
    batch = torch.randint(0, SMALL.vocab, (steps, sequences, 33), generator=numbers).to(device())
    place = mesh.get_local_rank("data")
    mine = batch[:, place * sequences // data : (place + 1) * sequences // data]
    losses, wanted, calls = [], [], []
    for step in range(steps):
        with collectives() as seen:
            loss = net(mine[step, :, :-1], mine[step, :, 1:])
            loss.backward()
        calls = seen.rows
        updates[0].step()
        updates[0].zero_grad()
        losses.append(mean_over_ranks(loss.detach(), dist.get_world_size()))
        whole = alone(batch[step, :, :-1], batch[step, :, 1:])
        whole.backward()
        updates[1].step()
        updates[1].zero_grad()
        wanted.append(float(whole))
    groups: dict[str, tuple[int, int]] = {}
    for call in calls:
        count, size = groups.get(call.op, (0, 0))
        groups[call.op] = (count + 1, size + call.nbytes)
    return {
        "losses": losses, "alone": wanted, "weights": storage_bytes(net.parameters()),
        "optimizer": storage_bytes(states(updates[0])), "calls": groups,
    }  # fmt: skip


if __name__ == "__main__":
    main(train)
