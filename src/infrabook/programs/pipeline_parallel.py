"""One training step of a small network through a real pipeline, and the same step on one process.

    torchrun --nproc-per-node 2 -m infrabook.programs.pipeline_parallel schedule=1F1B micro_batches=4

Every rank holds its stages of the network alone; ``torch.distributed.pipelining`` sends activations and gradients.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

from ..measure import ranks
from ..measure.pipelining import NAMES, recorded, skip_self_sends
from ..measure.wire import sent_bytes
from ..parallel import pipeline

ROWS = 4  # samples in a micro-batch


def step(
    schedule: str = "1F1B", micro_batches: int = 4, chunks: int = 1, hidden: int = 64, layers: int = 8,
    sleep: float = 0.0, steps: int = 2,
) -> dict[str, Any]:  # fmt: skip
    """What this rank ran in the last step, how far its gradients are from one process's, what it kept and sent.

    The first step also agrees on shapes. With ``sleep`` every half of a backward and every forward takes so many
    seconds longer, and nobody counts bytes, so that all ranks start together.
    """
    plan = pipeline.build(schedule, dist.get_world_size(), micro_batches=micro_batches, chunks=chunks)
    device, per_stage = ranks.device(), layers // plan.stages
    mine = [stage for stage, home in enumerate(plan.placement) if home == dist.get_rank()]
    stages = [
        PipelineStage(network(hidden, layers)[i * per_stage : (i + 1) * per_stage].to(device), i, plan.stages, device)
        for i in mine
    ]
    engine = get_schedule_class(NAMES[schedule])(stages if plan.chunks > 1 else stages[0], micro_batches, loss_fn=loss)
    skip_self_sends(stages)
    inputs, targets = data(hidden, micro_batches, device)

    losses: list[torch.Tensor] = []
    settings: dict[str, Any] = {"target": targets, "losses": losses} if plan.stages - 1 in mine else {}
    seconds, sent = [], 0
    for _ in range(steps):
        for one in stages:
            one.submod.zero_grad()
        dist.barrier()
        before = (not sleep and sent_bytes()) or 0
        start = time.perf_counter()
        with recorded(stages, seconds=sleep) as log:
            engine.step(*([inputs] if 0 in mine else []), **settings)
        seconds.append(time.perf_counter() - start)
        sent = ((not sleep and sent_bytes()) or 0) - before

    whole = network(hidden, layers).to(device)
    torch.autograd.backward(loss(whole(inputs), targets))
    theirs = [parameter.grad for parameter in whole.parameters()]
    ours = {one.stage_index: [parameter.grad for parameter in one.submod.parameters()] for one in stages}
    error = max(
        float((mine - theirs[stage * len(grads) + k]).abs().max())  # type: ignore[operator]
        for stage, grads in ours.items()
        for k, mine in enumerate(grads)
    )
    return {
        "actions": log.actions, "kept": log.most, "gradient_error": error, "seconds": min(seconds[1:] or seconds),
        "sent": sent, "loss": float(torch.stack(losses[-micro_batches:]).mean()) if losses else None,
        "loss_of_one": float(loss(whole(inputs), targets)),
    }  # fmt: skip


def network(hidden: int, layers: int) -> nn.Sequential:
    """The same weights wherever it is called."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh()) for _ in range(layers)))


def data(hidden: int, micro_batches: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of one step, the same on every rank."""
    generator = torch.Generator().manual_seed(5)
    inputs, targets = (torch.randn(micro_batches * ROWS, hidden, generator=generator) for _ in range(2))
    return inputs.to(device), targets.to(device)


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean over the micro-batch; PyTorch divides the gradients by the number of micro-batches."""
    return (output - target).pow(2).mean()


if __name__ == "__main__":
    ranks.main(step)
