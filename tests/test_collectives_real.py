"""The six collectives on real ranks: what they give, and what leaves the sockets, to the byte."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.distributed as dist

from infrabook import collectives
from infrabook.measure.ranks import launch, torchrun
from infrabook.programs import collectives as program

SIZE = 3072 * 1024


def _both(elements: int) -> tuple[dict[str, list[float]], dict[str, int | None]]:
    return program.results(elements), program.traffic()


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_gloo_gives_what_the_steps_give_and_sends_what_they_send(ranks: int) -> None:
    every = launch(_both, ranks, 12)
    for op in collectives.OPS:
        buffers = [program.numbers(rank, 12 // ranks if op == "all-gather" else 12) for rank in range(ranks)]
        wanted = collectives.run(collectives.plan(op, ranks=ranks), buffers).results
        for rank, (found, sent) in enumerate(every):
            if wanted[rank]:  # a reduce promises nothing off its root
                assert found[op] == wanted[rank], (op, rank)
            if sys.platform == "linux":
                assert sent[op] == sum(program.predicted(op, size_bytes=SIZE, rank=rank, ranks=ranks)), (op, rank)


def _carried_out(cases: list[tuple[str, str]]) -> list[list[float]]:
    rank, ranks, found = dist.get_rank(), dist.get_world_size(), []
    for op, algorithm in cases:
        each = 2 if algorithm == "hierarchical" else 0
        plan = collectives.plan(op, ranks=ranks, algorithm=algorithm, ranks_per_node=each)
        buffer = torch.tensor(program.numbers(rank, 12))
        if op == "all-gather":
            whole = torch.full((12,), -1.0)
            whole.chunk(ranks)[rank].copy_(buffer[: 12 // ranks])
            buffer = whole
        result = program.carry_out(plan, buffer)
        found.append(result.chunk(ranks)[rank].tolist() if op == "reduce-scatter" else result.tolist())
    return found


def test_every_plan_runs_on_real_ranks() -> None:
    cases = [(op, name) for name, ops in collectives.ALGORITHMS.items() for op in ops if op != "all-to-all"]
    every = launch(_carried_out, 4, cases)
    for i, (op, algorithm) in enumerate(cases):
        buffers = [program.numbers(rank, 3 if op == "all-gather" else 12) for rank in range(4)]
        wanted = collectives.run(collectives.plan(op, ranks=4), buffers).results
        for rank in range(4):
            if wanted[rank]:
                assert every[rank][i] == wanted[rank], (op, algorithm, rank)


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_same_program_runs_under_torchrun(nodes: int) -> None:
    said = torchrun("infrabook.programs.collectives", "kib=24", "repeats=2", ranks=2 // nodes, nodes=nodes)
    assert said.count("bus_gb_per_s") == 2 * len(collectives.OPS)
    assert '"ranks": 2' in said
