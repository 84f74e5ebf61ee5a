"""Real ranks hold what ZeRO's account says, call what it predicts, and learn what one process learns."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("torch")

from infrabook.errors import InfrabookError
from infrabook.measure import fake_ranks
from infrabook.measure.ranks import RankError, launch, torchrun
from infrabook.parallel import zero
from infrabook.programs import zero as program

RANKS = {"ddp": 2, "zero-1": 2, "fsdp2": 3, "fsdp2-default": 2, "fsdp2-kept": 2, "hybrid": 4}


@pytest.fixture(scope="module")
def shapes() -> list[tuple[int, ...]]:
    return [tuple(parameter.shape) for parameter in program.fresh_model().parameters()]


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    found: dict[str, Any] = launch(program.train, 1, "alone", sequences=6)[0]
    return found


@pytest.mark.parametrize("way", ["ddp", "zero-1", "fsdp2", "fsdp2-kept", "hybrid"])
def test_ranks_hold_what_the_account_says_and_learn_the_same(
    way: str, shapes: list[tuple[int, ...]], alone: dict[str, Any]
) -> None:
    ranks = RANKS[way]
    results = launch(program.train, ranks, way, sequences=6 if ranks < 4 else 4)
    reference = alone if ranks < 4 else launch(program.train, 1, "alone", sequences=4)[0]
    sizes = [program.torch.Size(shape).numel() for shape in shapes]
    for rank, found in enumerate(results):
        assert found["losses"] == pytest.approx(reference["losses"], abs=1e-5)
        shard = 2 if way == "hybrid" else ranks
        if way in ("ddp", "zero-1"):
            weights = gradients = 4 * sum(sizes)
            own = zero.whole_tensors(sizes, ranks)[rank] if way == "zero-1" else range(len(sizes))
            states = 8 * sum(sizes[index] for index in own)
        else:
            weights = gradients = 4 * zero.shard_elements(shapes, ranks=shard, padded=True)
            states = 8 * zero.shard_elements(shapes, ranks=shard, rank=rank % shard)
        assert (found["weights"], found["gradients"], found["optimizer"]) == (weights, gradients, states)


@pytest.mark.parametrize(("way", "gathers"), [("fsdp2", 8), ("fsdp2-default", 7), ("fsdp2-kept", 4)])
def test_fsdp2_gathers_each_unit_as_often_as_predicted(way: str, gathers: int, shapes: list[tuple[int, ...]]) -> None:
    found = launch(program.train, 2, way)[0]["calls"]
    calls, sent = Counter(op for op, _, _ in found), Counter[str]()
    for op, _, size in found:
        sent[op] += size
    whole = 4 * 2 * zero.shard_elements(shapes, ranks=2, padded=True)
    root = 4 * 2 * zero.shard_elements([shapes[0], *shapes[-2:]], ranks=2, padded=True)
    assert calls == {"all-gather": gathers, "reduce-scatter": 4}
    assert sent["reduce-scatter"] == whole
    assert sent["all-gather"] == {8: 2 * whole, 7: 2 * whole - root, 4: whole}[gathers]


def test_torch_zero_1_sends_half_as_much_again_as_ddp() -> None:
    sent = {way: sum(found["wire"] for found in launch(program.train, 2, way)) / 2 for way in ("ddp", "zero-1")}
    if min(sent.values()) < 0:
        pytest.skip("this system does not count what a socket has sent")
    assert sent["zero-1"] / sent["ddp"] == pytest.approx(3 / 2, rel=0.01)


def test_a_way_that_does_not_exist_is_refused_in_words() -> None:
    with pytest.raises(RankError, match="there is no way 'zero-9'"):
        launch(program.train, 1, "zero-9")


def test_fake_ranks_refuse_what_cannot_be() -> None:
    with fake_ranks.fake_ranks({"dp": 4}) as mesh:
        assert mesh.size() == 4
        with pytest.raises(InfrabookError, match="already a rank"), fake_ranks.fake_ranks({"dp": 2}):
            pass
    with pytest.raises(InfrabookError, match="rank 9 does not exist"), fake_ranks.fake_ranks({"dp": 4}, rank=9):
        pass


def test_torchrun_runs_the_same_program_on_two_nodes() -> None:
    printed = torchrun("infrabook.programs.zero", "way=hybrid", "shard=2", "steps=1", ranks=2, nodes=2)
    rows = [json.loads(line.partition(": ")[2]) for line in printed.splitlines() if line.startswith("rank ")]
    ops = Counter(op for op, _, _ in rows[0]["calls"])
    assert len(rows) == 4
    assert ops == {"all-gather": 8, "reduce-scatter": 4, "all-reduce": 4}
