"""Llama split over ranks by PyTorch's DTensor, against the same model on one: numbers, collectives, bytes.

``torchrun --nproc-per-node 2 -m infrabook.programs.tensor_parallel how=sequence``
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from ..errors import InfrabookError
from ..measure import ranks, wire
from ..models import Transformer
from ..nn.transformer import GPTBlock, Llama, LlamaBlock, rotary_tables

How: TypeAlias = Literal["naive", "prepared", "sequence"]

SMALL = Transformer("small", 2, 64, 8, 4, 8, 160, 256, 64)
LENGTH = 1  # the dimension of (batch, length, hidden) that sequence parallelism divides


# -- by hand -----------------------------------------------------------------------------------------------------
class CopyToRanks(torch.autograd.Function):
    """Megatron's f: nothing in forward, an all-reduce of the gradient in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        summed = gradients[0].clone()
        dist.all_reduce(summed)
        return summed


class SumOverRanks(torch.autograd.Function):
    """Megatron's g: an all-reduce in forward, nothing in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        summed = x.clone()
        dist.all_reduce(summed)
        return summed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


def by_hand(hidden: int = 16, ffn: int = 64, tokens: int = 8) -> dict[str, Any]:
    """One feed-forward layer, its first matrix by columns and its second by rows, between f and g."""
    n, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(0)
    up, down, x = torch.randn(ffn, hidden), torch.randn(hidden, ffn), torch.randn(tokens, hidden)
    device = ranks.device()
    whole = [part.to(device).requires_grad_() for part in (x, up, down)]
    wanted = nn.functional.gelu(whole[0] @ whole[1].T) @ whole[2].T
    wanted.square().sum().backward()  # type: ignore[no-untyped-call]
    mine = [
        part.detach().clone().to(device).requires_grad_() for part in (x, up.chunk(n)[rank], down.chunk(n, dim=1)[rank])
    ]
    with wire.collectives() as forward:
        inner = nn.functional.gelu(CopyToRanks.apply(mine[0]) @ mine[1].T)  # type: ignore[no-untyped-call]
        found = SumOverRanks.apply(inner @ mine[2].T)  # type: ignore[no-untyped-call]
    with wire.collectives() as backward:
        found.square().sum().backward()
    pairs = [
        (found, wanted), (mine[0].grad, whole[0].grad), (mine[1].grad, whole[1].grad.chunk(n)[rank]),  # type: ignore[union-attr]
        (mine[2].grad, whole[2].grad.chunk(n, dim=1)[rank]),  # type: ignore[union-attr]
    ]  # fmt: skip
    return {
        "forward": forward.summary(),
        "backward": backward.summary(),
        "equal": all(torch.allclose(a, b, rtol=1e-4, atol=1e-3) for a, b in pairs),  # type: ignore[arg-type]
    }


# -- by DTensor --------------------------------------------------------------------------------------------------
def layer_plan(how: How) -> dict[str, ParallelStyle]:
    """How each module of a layer is divided.

    "naive": query, key, value, gate and up by columns, output and down by rows, and nothing else. "prepared": the
    input of attention and of the feed-forward layer is made a tensor of the mesh once, so that its gradient is summed
    once. "sequence": between these, activations are divided by the length of the sequence.
    """
    if how not in ("naive", "prepared", "sequence"):
        raise InfrabookError(f"how can be naive, prepared or sequence, and is {how!r}")
    out = Shard(LENGTH) if how == "sequence" else Replicate()
    columns = ("attention.query", "attention.key", "attention.value", "ffn.gate", "ffn.up")
    plan: dict[str, ParallelStyle] = {name: ColwiseParallel() for name in columns}
    plan |= {name: RowwiseParallel(output_layouts=out) for name in ("attention.output", "ffn.down")}
    if how != "naive":
        whole = Replicate()
        plan["attention"] = PrepareModuleInput(
            input_layouts=(out, None, None), desired_input_layouts=(whole, None, None)
        )
        plan["ffn"] = PrepareModuleInput(input_layouts=(out,), desired_input_layouts=(whole,))
    if how == "sequence":
        plan |= {name: SequenceParallel(sequence_dim=LENGTH) for name in ("attention_norm", "ffn_norm")}
    return plan


def outer_plan(how: How, *, parallel_loss: bool = False) -> dict[str, ParallelStyle]:
    """Embedding and head, both by the vocabulary; ``parallel_loss`` leaves the logits divided."""
    out = Shard(LENGTH) if how == "sequence" else Replicate()
    plan: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=out),
        "head": ColwiseParallel(
            input_layouts=out,
            output_layouts=Shard(-1) if parallel_loss else Replicate(),
            use_local_output=not parallel_loss,
        ),
    }
    if how == "sequence":
        plan["norm"] = SequenceParallel(sequence_dim=LENGTH)
    return plan


def split(model: nn.Module, mesh: DeviceMesh, how: How = "prepared", *, parallel_loss: bool = False) -> nn.Module:
    """``nn.transformer.Llama`` divided over ``mesh``, in place."""
    parallelize_module(model, mesh, outer_plan(how, parallel_loss=parallel_loss))
    for layer in model.layers:  # type: ignore[union-attr]
        parallelize_module(layer, mesh, layer_plan(how))
    return model


def split_gpt_layer(block: GPTBlock, mesh: DeviceMesh, how: How = "prepared") -> GPTBlock:
    """``nn.transformer.GPTBlock`` divided over ``mesh``, in place: its norms give what all products read."""
    out = Shard(LENGTH) if how == "sequence" else Replicate()
    plan: dict[str, ParallelStyle] = {name: ColwiseParallel() for name in ("query", "key", "value", "up")}
    plan |= {name: RowwiseParallel(output_layouts=out) for name in ("output", "down")}
    norms = ("attention_norm", "ffn_norm")
    if how == "sequence":
        parallelize_module(block, mesh, {name: SequenceParallel(sequence_dim=LENGTH) for name in norms})
    if how != "naive":
        plan |= {name: PrepareModuleOutput(output_layouts=out, desired_output_layouts=Replicate()) for name in norms}
    parallelize_module(block, mesh, plan)
    block.heads //= mesh.size()  # its own heads: the layer reshapes by their number
    return block


def compare(
    how: How = "prepared", model: Transformer = SMALL, batch: int = 2, sequence: int = 32, parallel_loss: bool = False
) -> dict[str, Any]:
    """One forward and backward pass, divided and whole, from the same seed: differences, collectives, bytes sent."""
    device = ranks.device()
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    torch.manual_seed(0)  # the same weights on every rank
    whole, divided = Llama(model), Llama(model)
    divided.load_state_dict(whole.state_dict())
    generator = torch.Generator().manual_seed(1)
    ids, targets = (torch.randint(0, model.vocab, (batch, sequence), generator=generator).to(device) for _ in range(2))
    whole, divided = whole.to(device), divided.to(device)
    split(divided, mesh, how, parallel_loss=parallel_loss)
    wanted = whole(ids, targets)
    wanted.backward()
    divided(ids, targets) if not parallel_loss else None  # gloo makes its connections
    dist.barrier()
    debug = {when: CommDebugMode() for when in ("forward", "backward")}  # type: ignore[no-untyped-call]
    start = wire.sent_bytes()
    with debug["forward"], wire.collectives() as forward:
        if parallel_loss:
            with loss_parallel():
                loss = divided(ids, targets)
        else:
            loss = divided(ids, targets)
    middle = wire.sent_bytes()
    with debug["backward"], wire.collectives() as backward:
        if parallel_loss:
            with loss_parallel():
                loss.backward()
        else:
            loss.backward()
    end = wire.sent_bytes()
    distance = 0.0
    for (_, a), (_, b) in zip(divided.named_parameters(), whole.named_parameters(), strict=True):
        ours = a.grad.full_tensor() if isinstance(a.grad, DTensor) else a.grad
        assert ours is not None
        assert b.grad is not None
        distance = max(distance, float((ours - b.grad).abs().max() / b.grad.abs().max()))
    value = loss.full_tensor() if isinstance(loss, DTensor) else loss
    held = sum(_local(parameter).numel() for parameter in divided.parameters())
    return {
        "loss": float(value.detach()), "wanted": float(wanted.detach()), "gradients": distance, "parameters": held,
        "forward": forward.rows, "backward": backward.rows,
        "debug": {when: _said(mode.get_comm_counts()) for when, mode in debug.items()},
        "sent": None if start is None or middle is None or end is None else (middle - start, end - middle),
    }  # fmt: skip


def _said(counts: dict[Any, int]) -> dict[str, int]:
    """``CommDebugMode``'s counts in the book's words."""
    words = {
        "all_reduce": "all-reduce",
        "all_gather_into_tensor": "all-gather",
        "reduce_scatter_tensor": "reduce-scatter",
    }
    return {words.get(str(op).rpartition(".")[2], str(op)): count for op, count in counts.items()}


def _local(parameter: Tensor) -> Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def counted(rows: list[wire.Call]) -> dict[str, int]:
    """How many collectives of each kind."""
    return dict(Counter(row.op for row in rows))


def timed_layer(how: How = "prepared", hidden: int = 4096, sequence: int = 4096, repeats: int = 10) -> dict[str, float]:
    """Milliseconds of forward and backward of one Llama layer on a GPU of each rank: whole, and divided."""
    device = ranks.device()
    model = Transformer("one layer", 1, hidden, 32, 32, hidden // 32, 11008 * hidden // 4096, 256, sequence)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    found = {}
    for name in ("whole", "divided"):
        layer = LlamaBlock(model).to(device, torch.bfloat16)
        length = sequence
        if name == "divided":
            parallelize_module(layer, mesh, layer_plan(how))
            length = sequence // dist.get_world_size() if how == "sequence" else sequence
        x = torch.randn(1, length, hidden, device=device, dtype=torch.bfloat16, requires_grad=True)
        cos, sin = rotary_tables(sequence, model.head_dim, torch.bfloat16, device=device)
        for _ in range(3):
            layer(x, cos, sin).sum().backward()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        dist.barrier()
        start.record()
        for _ in range(repeats):
            layer(x, cos, sin).sum().backward()
        end.record()
        torch.cuda.synchronize()
        found[f"{name}_ms"] = float(start.elapsed_time(end)) / repeats
    return found


def report(how: How = "prepared", layers: int = 2, hidden: int = 64) -> dict[str, Any]:
    """``compare`` as plain data, for whoever starts this under ``torchrun``."""
    model = Transformer("given", layers, hidden, 8, 8, hidden // 8, 4 * hidden, 256, 64)
    found = compare(how, model)
    return found | {"forward": counted(found["forward"]), "backward": counted(found["backward"])}


if __name__ == "__main__":
    ranks.main(report)
