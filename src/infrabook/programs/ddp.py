"""Data parallelism by PyTorch's DDP: equal gradients, the buckets it sends, and what breaks the equality.

``torchrun --nproc-per-node 2 -m infrabook.programs.ddp``; on each of two nodes of eight GPUs,
``torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 -m infrabook.programs.ddp``.
"""

# no postponed annotations: DDP reads a communication hook's, and refuses strings
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from ..measure.ranks import device, main
from ..measure.wire import collectives, sent_bytes
from ..models import Transformer
from ..nn.transformer import Llama

SMALL = Transformer("a small Llama", 3, 512, 8, 8, 64, 1376, 4096, 256)


def batch_of(rank: int, sequences: int = 2, length: int = 32) -> Tensor:
    """The token ids that ``rank`` is given: the same wherever they are asked for."""
    numbers = torch.Generator().manual_seed(1000 + rank)
    return torch.randint(0, SMALL.vocab, (sequences, length), generator=numbers).to(device())


def fresh_model() -> Llama:
    """The same weights in every rank."""
    torch.manual_seed(0)
    return Llama(SMALL).to(device())


# -- equal gradients ---------------------------------------------------------------------------------------------
def compare() -> dict[str, Any]:
    """DDP's gradients beside those of one process that sees every rank's batch: at once, and one after another."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ddp = DistributedDataParallel(fresh_model())
    ids = batch_of(rank)
    ddp(ids, ids).backward()

    alone = fresh_model()
    everything = torch.cat([batch_of(one) for one in range(ranks)])
    alone(everything, everything).backward()

    in_turn = fresh_model()
    for one in range(ranks):
        (in_turn(batch_of(one), batch_of(one)) / ranks).backward()

    ours = flat_gradient(ddp.module)

    def largest_difference(other: nn.Module) -> float:
        theirs = flat_gradient(other)
        return float((ours - theirs).abs().max() / theirs.abs().max())

    return {"whole_batch": largest_difference(alone), "in_turn": largest_difference(in_turn)}


def flat_gradient(net: nn.Module) -> Tensor:
    """All gradients of ``net`` in one vector."""
    return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])


# -- buckets and bytes -------------------------------------------------------------------------------------------
def buckets_sent(steps: int = 3, **options: Any) -> list[list[tuple[int, int]]]:
    """(bytes, gradients) of each bucket in the order in which DDP sends them, step by step.

    ``options`` are DDP's: ``bucket_cap_mb``, ``find_unused_parameters`` ...
    """
    ddp = DistributedDataParallel(fresh_model(), **options)
    seen: list[tuple[int, int]] = []

    def note(state: None, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]  # torch's stub lacks it
        seen.append((bucket.buffer().nbytes, len(bucket.parameters())))
        return averaged(bucket.buffer())

    ddp.register_comm_hook(None, note)
    ids, sent = batch_of(dist.get_rank()), []
    for _ in range(steps):
        ddp(ids, ids).backward()
        sent.append(list(seen))
        seen.clear()
    return sent


def averaged(buffer: Tensor) -> "Future[Tensor]":
    """What DDP does with a bucket if nobody asks for anything else: the mean over ranks, on its way."""
    work = dist.all_reduce(buffer.div_(dist.get_world_size()), async_op=True)
    done: Future[Tensor] = work.get_future().then(lambda future: future.value()[0])
    return done


def bytes_of_a_step(steps: int = 3) -> int | None:
    """What this rank's sockets send in the last of ``steps`` steps, by the kernel's count."""
    ddp = DistributedDataParallel(fresh_model())
    ids = batch_of(dist.get_rank())
    before = after = sent_bytes()
    for _ in range(steps):
        before = sent_bytes()
        ddp(ids, ids).backward()
        after = sent_bytes()
    return None if before is None or after is None else after - before


def exchanges(passes: int = 4, no_sync: bool = True) -> int:
    """All-reduces in a step of ``passes`` accumulated passes, with ``no_sync`` in all but the last or without."""
    ddp = DistributedDataParallel(fresh_model())

    def seen_by_the_dispatcher(state: None, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        return averaged(bucket.buffer())

    ddp.register_comm_hook(None, seen_by_the_dispatcher)
    ids = batch_of(dist.get_rank())
    ddp(ids, ids).backward()  # after this DDP has cut its buckets
    with collectives() as calls:
        for number in range(passes):
            last = number == passes - 1
            with nullcontext() if last or not no_sync else ddp.no_sync():
                (ddp(ids, ids) / passes).backward()
    return calls.count("all-reduce")


# -- who waits for whom ------------------------------------------------------------------------------------------
def overlap(bucket_cap_mb: float = 4.0) -> dict[str, Any]:
    """From the profiler: all-reduces that began before the last gradient was computed, and shares of time."""
    ddp = DistributedDataParallel(fresh_model(), bucket_cap_mb=bucket_cap_mb)
    ids = batch_of(dist.get_rank(), sequences=8)
    for _ in range(2):
        ddp(ids, ids).backward()
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        ddp(ids, ids).backward()
    events = list(trace.events())
    calls = [event.time_range for event in events if event.name == "c10d::allreduce_"]
    work = [event.time_range for event in events if event.name == "gloo:all_reduce"]
    computed = max(event.time_range.end for event in events if event.name.startswith("EmbeddingBackward"))
    hidden = sum(max(0, min(span.end, computed) - span.start) for span in work)
    return {
        "all_reduces": len(calls),
        "begun_before_the_last_gradient": sum(call.start < computed for call in calls),
        "hidden_share": hidden / max(1e-9, sum(span.end - span.start for span in work)),
    }


def step_seconds(bucket_cap_mb: float = 25.0, hidden: int = 4096, layers: int = 12, tokens: int = 8192) -> float:
    """Seconds of a forward and backward pass of ``layers`` square layers on GPUs, the least of ten, at this cap."""
    net = nn.Sequential(*(nn.Linear(hidden, hidden, bias=False) for _ in range(layers)))
    ddp = DistributedDataParallel(net.to(device(), torch.bfloat16), bucket_cap_mb=bucket_cap_mb)
    x = torch.randn(tokens, hidden, device=device(), dtype=torch.bfloat16)
    least = float("inf")
    for _ in range(12):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        ddp(x).sum().backward()
        end.record()
        torch.cuda.synchronize()
        least = min(least, start.elapsed_time(end) / 1e3)
    return least


# -- where the equality ends -------------------------------------------------------------------------------------
def uneven(weigh: bool = False) -> float:
    """How far DDP's gradient is from the whole batch's if rank 0 has three times the tokens, relative to its norm.

    DDP averages ranks, and each rank's loss averages its own tokens. ``weigh`` scales each rank's loss by its share.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    lengths = [48 if one == 0 else 16 for one in range(ranks)]
    ddp = DistributedDataParallel(fresh_model())
    ids = batch_of(rank, length=lengths[rank])
    factor = ranks * lengths[rank] / sum(lengths) if weigh else 1.0
    (ddp(ids, ids) * factor).backward()

    alone = fresh_model()
    for one in range(ranks):
        part = batch_of(one, length=lengths[one])
        (alone(part, part) * lengths[one] / sum(lengths)).backward()
    theirs = flat_gradient(alone)
    return float((flat_gradient(ddp.module) - theirs).norm() / theirs.norm())


def batch_norm() -> dict[str, list[float]]:
    """The running mean of a BatchNorm after a step in training and then in evaluation, and what one process has."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    data = [torch.full((4, 1), float(one)) for one in range(ranks)]
    ddp = DistributedDataParallel(nn.Sequential(nn.BatchNorm1d(1, momentum=1.0), nn.Linear(1, 1)))

    def mean() -> list[float]:
        return [float(value) for value in ddp.module[0].running_mean]

    ddp(data[rank])
    mine = mean()
    ddp.eval()
    ddp(data[rank])  # the first forward pass after a step begins with a broadcast of rank 0's buffers
    return {"mine": mine, "in_evaluation": mean(), "of_the_whole_batch": [float(torch.cat(data).mean())]}


class Forgetful(nn.Module):
    """Two layers, of which a step may use only the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, use: bool) -> Tensor:
        """(..., 8) -> the same."""
        out: Tensor = self.first(x)
        return self.second(out) if use else out


def unused_parameter(find: bool = False) -> str:
    """What DDP says in the second step if a parameter takes no part in the loss; ``find`` tells it to look."""
    ddp = DistributedDataParallel(Forgetful(), find_unused_parameters=find)
    try:
        for _ in range(2):
            ddp(torch.ones(2, 8), False).sum().backward()
    except RuntimeError as error:
        return str(error).partition(". ")[0]
    return "no error"


if __name__ == "__main__":
    main(compare)
