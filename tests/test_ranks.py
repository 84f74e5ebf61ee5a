"""Ranks start, fail and end as they should; the two counts of what they send agree with what was sent."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from infrabook.errors import InfrabookError  # noqa: E402
from infrabook.measure.ranks import RankError, device, launch, main, require, torchrun  # noqa: E402
from infrabook.measure.wire import Call, collectives, sent_bytes  # noqa: E402

MIB = 2**20


def who() -> tuple[int, int, str, int]:
    return dist.get_rank(), dist.get_world_size(), str(device()), torch.get_num_threads()


def test_every_rank_returns_its_own_result() -> None:
    assert launch(who, 3) == [(rank, 3, "cpu", 1) for rank in range(3)]
    assert launch(who, 1, threads=2) == [(0, 1, "cpu", 2)]


def test_a_function_without_a_module_travels_with_its_code_and_tensors_come_back() -> None:
    factor = 3

    def scaled(start: float, *, more: float = 0.0) -> object:
        values = torch.full((2,), start + dist.get_rank() + more)
        dist.all_reduce(values)
        return factor * values

    scaled.__module__ = "__main__"
    for result in launch(scaled, 2, 1.0, more=0.5):
        assert result.tolist() == [12.0, 12.0]  # 3 · (1.5 + 2.5)


def test_random_numbers_are_those_of_the_seed() -> None:
    torch.manual_seed(7)
    wanted = torch.rand(3).tolist()
    assert launch(lambda: torch.rand(3).tolist(), 2, seed=7) == [wanted, wanted]


def test_what_ranks_print_comes_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    launch(lambda: print("here\nand there"), 2)
    assert capsys.readouterr().out.splitlines() == [
        f"rank {r}: {word}" for r in (0, 1) for word in ("here", "and there")
    ]


def fails_in_rank_one() -> None:
    if dist.get_rank() == 1:
        raise ValueError("on purpose")
    dist.barrier()


def dies_in_rank_one() -> None:
    if dist.get_rank() == 1:
        os.write(2, b"last words\n")
        os._exit(7)
    dist.barrier()


def waits_for_ever() -> None:
    if dist.get_rank() == 0:
        dist.barrier()
    time.sleep(60)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (fails_in_rank_one, r"(?s)rank 1 failed: .*in fails_in_rank_one.*ValueError: on purpose"),
        (dies_in_rank_one, r"rank 1 failed: it died with exit code 7\nlast words"),
        (waits_for_ever, r"no answer from rank 0, 1 within 2 s"),
    ],
)
def test_a_failure_is_the_failing_ranks_own_and_nobody_is_left(function: object, words: str) -> None:
    began = time.monotonic()
    with pytest.raises(RankError, match=words):
        launch(function, 2, timeout=2 if function is waits_for_ever else 40)  # type: ignore[arg-type]
    assert time.monotonic() - began < 30  # none was waited for until the end of its sleep
    import multiprocessing

    assert multiprocessing.active_children() == []


def test_nonsense_is_refused_before_any_process_starts() -> None:
    with pytest.raises(InfrabookError, match="ranks has to be greater than 0"):
        launch(who, 0)
    with pytest.raises(InfrabookError, match="timeout"):
        launch(who, 2, timeout=-1)
    with pytest.raises(RankError, match="written for 4 ranks, and runs on 2"):
        launch(require, 2, 4)
    with pytest.raises(RankError, match="2 ranks cannot be divided into groups of 4"):
        launch(require, 2, 0, multiple_of=4)


# -- torchrun ----------------------------------------------------------------------------------------------------
def test_torchrun_runs_the_same_function_on_one_node_and_on_two() -> None:
    from infrabook.programs import ddp

    wanted = launch(ddp.compare, 2)
    lines = torchrun("infrabook.programs.ddp", ranks=2).splitlines()
    assert [line.split(":")[0] for line in lines] == ["rank 0", "rank 1"]
    assert all(f'"in_turn": {result["in_turn"]}' in line for line, result in zip(lines, wanted, strict=True))
    assert len(torchrun("infrabook.programs.ddp", ranks=2, nodes=2).splitlines()) == 4


def test_settings_are_typed_as_name_and_value(capsys: pytest.CaptureFixture[str]) -> None:
    def show(number: int = 1, word: str = "") -> list[object]:
        return [number, word, dist.get_world_size()]

    main(show, ["number=3", "word=ring"])
    assert capsys.readouterr().out == 'rank 0: [3, "ring", 1]\n'
    with pytest.raises(SystemExit, match="no setting 'nmber'; there are number, word"):
        main(show, ["nmber=3"])
    with pytest.raises(SystemExit, match="'3' is not a setting; write it as name=value"):
        main(show, ["3"])


def test_plain_python_runs_a_program_as_one_rank() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "infrabook.programs.ddp"], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.startswith("rank 0: {")


# -- what is sent ------------------------------------------------------------------------------------------------
def every_collective() -> list[Call]:
    ranks = dist.get_world_size()
    whole, part = torch.ones(ranks * 8), torch.ones(8)
    with collectives() as calls:
        dist.all_reduce(whole)
        dist.broadcast(whole, 0)
        dist.reduce(whole, 0)
        dist.all_gather_into_tensor(whole, part)
        dist.all_gather([torch.ones(8) for _ in range(ranks)], part)
        dist.reduce_scatter_tensor(part, whole)
        dist.all_to_all_single(whole.clone(), whole)
        dist.all_reduce(whole[:8])  # a view of a larger storage
        if dist.get_rank() == 0:
            dist.send(part, 1)
        elif dist.get_rank() == 1:
            dist.recv(part, 0)
        dist.barrier()
    return calls.rows


def test_the_dispatcher_sees_each_collective_with_its_whole_buffer() -> None:
    rows = launch(every_collective, 4)
    names = [
        "all-reduce", "broadcast", "reduce", "all-gather", "all-gather", "reduce-scatter", "all-to-all", "all-reduce",
    ]  # fmt: skip
    sizes = [128] * 7 + [32]
    wanted = [Call(name, 4, size) for name, size in zip(names, sizes, strict=True)]
    assert rows[0] == [*wanted, Call("send", 4, 32)]
    assert rows[1] == [*wanted, Call("receive", 4, 32)]
    assert rows[2] == wanted


def functional() -> dict[str, tuple[int, int]]:
    from torch.distributed import _functional_collectives as funcol

    group = dist.group.WORLD
    with collectives() as calls:
        funcol.all_reduce(torch.ones(8), "sum", group).sum()
        funcol.all_gather_tensor(torch.ones(8), 0, group).sum()
        funcol.reduce_scatter_tensor(torch.ones(16), "sum", 0, group).sum()
    return calls.summary()


def test_collectives_of_dtensor_and_compilers_are_counted_alike() -> None:
    assert launch(functional, 2)[0] == {"all-reduce": (1, 32), "all-gather": (1, 64), "reduce-scatter": (1, 64)}


def broadcast_bytes(size: int) -> int | None:
    buffer = torch.ones(size // 4)
    dist.broadcast(buffer, 0)
    before = sent_bytes()
    dist.broadcast(buffer, 0)
    after = sent_bytes()
    return None if before is None or after is None else after - before


@pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO's byte counts are Linux's")
def test_the_kernel_counts_what_left_this_process() -> None:
    root, other = launch(broadcast_bytes, 2, 4 * MIB)
    assert 4 * MIB <= root < 4 * MIB + 1000
    assert other < 1000
