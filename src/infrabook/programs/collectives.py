"""The six collectives on whatever backend there is: what each gives, and what leaves this process for it.

``torchrun --nproc-per-node 2 -m infrabook.programs.collectives kib=3072``
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from .. import collectives
from ..measure import ranks, wire

# gloo's own algorithms (its source: allreduce.cc, reduce.cc, broadcast.cc, and PyTorch's ProcessGroupGloo.cpp), in
# this library's words: what the call becomes, by which algorithm, and into how many messages a ring's step is cut.
GLOO = {
    "broadcast": ("broadcast", "tree", 1),
    "reduce": ("reduce", "scatter-gather", 2),
    "all-reduce": ("all-reduce", "ring", 2),
    "reduce-scatter": ("all-reduce", "ring", 2),
    "all-gather": ("all-gather", "ring", 2),
    "all-to-all": ("all-to-all", "ring", 1),
}
HEADER = 48  # bytes that gloo puts before a message, and sends for each notice "ready to send", "ready to receive"


def calls(buffer: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    """The six calls on a rank's ``buffer``; for the all-gather, its first 1/n is this rank's shard."""
    n = dist.get_world_size()
    shard, whole = buffer[: buffer.numel() // n], torch.empty_like(buffer)
    part = torch.empty_like(shard)

    def broadcast() -> torch.Tensor:
        dist.broadcast(buffer, src=0)
        return buffer

    def reduce() -> torch.Tensor:
        dist.reduce(buffer, dst=0)
        return buffer

    def all_reduce() -> torch.Tensor:
        dist.all_reduce(buffer)
        return buffer

    def reduce_scatter() -> torch.Tensor:
        dist.reduce_scatter_tensor(part, buffer)
        return part

    def all_gather() -> torch.Tensor:
        dist.all_gather_into_tensor(whole, shard)
        return whole

    def all_to_all() -> torch.Tensor:
        dist.all_to_all_single(whole, buffer)
        return whole

    return {
        "broadcast": broadcast, "reduce": reduce, "all-reduce": all_reduce, "reduce-scatter": reduce_scatter,
        "all-gather": all_gather, "all-to-all": all_to_all,
    }  # fmt: skip


def numbers(rank: int, elements: int) -> list[float]:
    """What rank ``rank`` begins with: 100, 101, 102 ... for rank 1."""
    return [float(100 * rank + i) for i in range(elements)]


def results(elements: int = 12) -> dict[str, list[float]]:
    """What each collective gives this rank."""
    found = {}
    for op in collectives.OPS:
        buffer = torch.tensor(numbers(dist.get_rank(), elements), device=ranks.device())
        found[op] = calls(buffer)[op]().tolist()
    return found


def traffic(kib: int = 3072) -> dict[str, int | None]:
    """Bytes that left this process's TCP sockets for each collective on a buffer of ``kib`` KiB."""
    buffer = torch.ones(kib * 256, device=ranks.device())
    sent: dict[str, int | None] = {}
    for op, call in calls(buffer).items():
        call()  # connections are made
        dist.barrier()
        before = wire.sent_bytes()
        call()
        after = wire.sent_bytes()
        sent[op] = None if before is None or after is None else after - before
        dist.barrier()
    return sent


def carry_out(plan: collectives.Plan, buffer: torch.Tensor) -> torch.Tensor:
    """A plan's steps for real, as messages between ranks; changes ``buffer``, which has every chunk (not all-to-all).

    For a reduce-scatter the result is chunk number rank, for an all-gather a rank's own chunk is what it gives.
    """
    rank, chunks = dist.get_rank(), buffer.chunk(plan.parts)
    for step in plan.steps:
        under_way: list[dist.Work | None] = []
        arrivals = []
        for send in step:
            if send.source == rank:
                under_way.append(dist.isend(torch.cat([chunks[c] for c in send.chunks]), send.target))
            if send.target == rank:
                incoming = torch.cat([torch.empty_like(chunks[c]) for c in send.chunks])
                under_way.append(dist.irecv(incoming, send.source))
                arrivals.append((send, incoming))
        for work in under_way:
            if work is not None:
                work.wait()
        for send, incoming in arrivals:
            for c, part in zip(send.chunks, incoming.chunk(len(send.chunks)), strict=True):
                chunks[c].copy_(chunks[c] + part if send.add else part)
    return buffer


def predicted(op: str, *, size_bytes: int, rank: int, ranks: int) -> tuple[int, int]:
    """Bytes that gloo sends from ``rank``: (payload, headers and notices).

    A message costs its sender a header and a notice, and its receiver another notice.
    """
    meant, algorithm, cut = GLOO[op]
    steps = collectives.plan(meant, ranks=ranks, algorithm=algorithm)
    overhead = 0
    for step in steps.steps:
        for send in step:
            messages = 1 if op == "reduce" and not send.add else cut  # the root is sent its chunks whole
            overhead += HEADER * messages * (2 * (send.source == rank) + (send.target == rank))
    return int(steps.sent(size_bytes)[rank]), overhead


def bus_bandwidth(kib: int = 2**18, repeats: int = 20) -> dict[str, Any]:
    """Algorithm and bus bandwidth in GB/s of each collective, as nccl-tests defines them."""
    n, size = dist.get_world_size(), kib * 2**10
    buffer = torch.ones(size // 4, device=ranks.device())
    found = {}
    for op, call in calls(buffer).items():
        seconds = _seconds(call, repeats)
        found[op] = {
            "algorithm_gb_per_s": float(collectives.algorithm_bandwidth(size_bytes=size, seconds=seconds) / 10**9),
            "bus_gb_per_s": float(collectives.bus_bandwidth(op, size_bytes=size, ranks=n, seconds=seconds) / 10**9),
        }
    return {"ranks": n, "backend": dist.get_backend(), "kib": kib, **found}


def _seconds(call: Callable[[], Any], repeats: int) -> float:
    """Mean seconds of a call, begun together; on a GPU by its own clock."""
    for _ in range(3):
        call()
    dist.barrier()
    if ranks.device().type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(repeats):
            call()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / 1000 / repeats
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - began) / repeats


def report(kib: int = 3072, repeats: int = 20) -> dict[str, Any]:
    """Bytes over TCP and bandwidths, for whoever starts this under ``torchrun``."""
    return {"sent over TCP": traffic(kib), "GB/s": bus_bandwidth(kib, repeats)}


if __name__ == "__main__":
    ranks.main(report)
