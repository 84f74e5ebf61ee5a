"""Collectives as steps: their results, their bytes, their time, and the closed forms of all three."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import pytest

from infrabook import collectives, hardware
from infrabook.errors import InfrabookError
from infrabook.explore import load

ALPHA, BETA = Fraction(7, 10**6), Fraction(10**9)


def grid() -> Iterator[dict[str, object]]:
    """Every operation with every algorithm that does it, for small groups."""
    for algorithm, ops in collectives.ALGORITHMS.items():
        for op in ops:
            for ranks in range(1, 10):
                if algorithm in ("halving-doubling", "doubling") and ranks & (ranks - 1):
                    continue
                if algorithm == "hierarchical":
                    yield from (
                        {"op": op, "algorithm": algorithm, "ranks": ranks, "ranks_per_node": each}
                        for each in range(1, ranks + 1) if ranks % each == 0
                    )  # fmt: skip
                else:
                    yield {"op": op, "algorithm": algorithm, "ranks": ranks}


def expected(op: str, buffers: list[list[float]], root: int) -> list[list[float]]:
    """What the operation is defined to give, computed without any message."""
    n, total = len(buffers), [sum(column) for column in zip(*buffers, strict=True)]
    each = len(buffers[0]) // n
    if op == "broadcast":
        return [buffers[root]] * n
    if op == "reduce":
        return [total if rank == root else [] for rank in range(n)]
    if op == "all-reduce":
        return [total] * n
    if op == "reduce-scatter":
        return [total[rank * each : (rank + 1) * each] for rank in range(n)]
    if op == "all-gather":
        return [[value for buffer in buffers for value in buffer]] * n
    return [[v for buffer in buffers for v in buffer[rank * each : (rank + 1) * each]] for rank in range(n)]


def buffers_of(op: str, ranks: int) -> list[list[float]]:
    length = 3 if op == "all-gather" else 3 * ranks
    return [[float(100 * rank + i) for i in range(length)] for rank in range(ranks)]


@pytest.mark.parametrize("case", list(grid()), ids=lambda case: "-".join(map(str, case.values())))
def test_steps_give_what_the_operation_promises(case) -> None:
    buffers = buffers_of(case["op"], case["ranks"])
    assert collectives.run(collectives.plan(**case), buffers).results == expected(case["op"], buffers, 0)


@pytest.mark.parametrize("op", ["broadcast", "reduce"])
@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_any_rank_can_be_the_root(op: str, algorithm: str) -> None:
    for ranks in (2, 3, 5):
        for root in range(ranks):
            buffers = buffers_of(op, ranks)
            steps = collectives.plan(op, ranks=ranks, algorithm=algorithm, root=root)
            assert collectives.run(steps, buffers).results == expected(op, buffers, root)


@pytest.mark.parametrize("case", list(grid()), ids=lambda case: "-".join(map(str, case.values())))
def test_closed_forms_are_the_sums_over_the_steps(case) -> None:
    size = 5 * 7 * 9 * 64
    steps = collectives.plan(**case)
    assert max(steps.sent(size)) == collectives.bytes_sent(size_bytes=size, **case)
    assert sum(steps.sent(size)) == sum(steps.received(size))
    assert len(steps.steps) == collectives.steps(**case)
    time = collectives.time_s(size_bytes=size, latency_s=ALPHA, bandwidth_bytes_per_s=BETA, **case)
    assert steps.time_s(size, latency_s=ALPHA, bandwidth_bytes_per_s=BETA) == time


@pytest.mark.parametrize("case", list(grid()), ids=lambda case: "-".join(map(str, case.values())))
def test_each_rank_sends_and_receives_one_message_a_step(case) -> None:
    for step in collectives.plan(**case).steps:
        assert len({send.source for send in step}) == len({send.target for send in step}) == len(step)


@pytest.mark.parametrize("case", list(grid()), ids=lambda case: "-".join(map(str, case.values())))
def test_two_kinds_of_link_cost_the_same_by_steps_and_in_closed_form(case) -> None:
    slow = hardware.link("infiniband-ndr")
    for each in range(1, case["ranks"] + 1):
        if case["ranks"] % each or (case["algorithm"] == "hierarchical" and each != case["ranks_per_node"]):
            continue
        nodes = {**case, "ranks_per_node": each}
        steps = collectives.plan(**nodes)
        time = collectives.time_s(
            size_bytes=5040, latency_s=ALPHA, bandwidth_bytes_per_s=10 * BETA, across=slow, **nodes
        )
        assert time == steps.time_s(
            5040, latency_s=ALPHA, bandwidth_bytes_per_s=10 * BETA, across_latency_s=slow.latency_s,
            across_bandwidth_bytes_per_s=slow.bytes_per_s,
        )  # fmt: skip


def test_the_interpreter_counts_what_the_plan_promises() -> None:
    for op in collectives.OPS:
        steps = collectives.plan(op, ranks=4)
        elements = 12
        done = collectives.run(steps, buffers_of(op, 4))
        assert done.sent == steps.sent(elements), op
        assert done.received == steps.received(elements), op


def test_all_reduce_is_reduce_scatter_then_all_gather() -> None:
    for algorithm in ("ring", "halving-doubling"):
        whole, first, second = (
            collectives.plan(op, ranks=8, algorithm=algorithm) for op in ("all-reduce", "reduce-scatter", "all-gather")
        )
        assert whole.steps == first.steps + second.steps


def test_ring_all_reduce_sends_two_n_minus_one_over_n() -> None:
    for ranks in (2, 3, 8, 512):
        sent = collectives.bytes_sent("all-reduce", size_bytes=1, ranks=ranks)
        assert sent == Fraction(2 * (ranks - 1), ranks) < 2


def test_a_chain_in_pieces_approaches_one_buffer_time() -> None:
    whole, cut = (
        collectives.time_s("broadcast", size_bytes=10**9, ranks=8, bandwidth_bytes_per_s=10**9, pieces=pieces)
        for pieces in (1, 600)
    )
    assert whole == 7
    assert cut == Fraction(606, 600)
    for op in ("broadcast", "reduce"):
        for ranks in (2, 3, 4):
            steps = collectives.plan(op, ranks=ranks, pieces=4)
            buffers = buffers_of(op, ranks)
            assert collectives.run(steps, buffers).results == expected(op, buffers, 0)
            known = {"latency_s": ALPHA, "bandwidth_bytes_per_s": BETA}
            assert steps.time_s(64, **known) == collectives.time_s(op, size_bytes=64, ranks=ranks, pieces=4, **known)


def test_a_double_tree_has_logarithmic_depth_and_a_rings_bandwidth() -> None:
    """Its schedule is ours: four messages a pair of pieces, the least there can be, beside filling and draining."""
    for ranks in range(2, 20):
        for pieces in (1, 4, 16):
            buffers = buffers_of("all-reduce", ranks)
            steps = collectives.plan("all-reduce", ranks=ranks, algorithm="double-tree", pieces=pieces)
            assert collectives.run(steps, buffers).results == expected("all-reduce", buffers, 0)
            for step in steps.steps:
                assert len({send.source for send in step}) == len({send.target for send in step}) == len(step)
            assert max(steps.sent(64)) <= 2 * 64
    for ranks in (8, 16, 64):
        number = collectives.steps("all-reduce", ranks=ranks, algorithm="double-tree", pieces=32)
        assert 4 * 32 <= number <= 4 * 32 + 3 * ranks.bit_length(), (ranks, number)


def test_ranks_that_pass_on_in_one_tree_are_leaves_of_the_other() -> None:
    for ranks in range(2, 40):
        first, second = collectives.two_trees(ranks)
        both = [r for r in range(ranks) if len(first[r][1]) == 2 and len(second[r][1]) == 2]
        assert not both, (ranks, both)


def test_a_hierarchy_sends_less_between_nodes() -> None:
    """Of 16 ranks in 2 nodes: (n-1)/n of S twice from each rank, but only 1/8 of it leaves the node."""
    flat, nested = (
        collectives.plan("all-reduce", ranks=16, algorithm=algorithm, ranks_per_node=8)
        for algorithm in ("ring", "hierarchical")
    )
    assert max(flat.sent(16)) == max(nested.sent(16)) == 30
    assert max(flat.across(16)) == 30
    assert set(nested.across(16)) == {2}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: collectives.plan("gather", ranks=2), "'gather' is not a collective known here"),
        (lambda: collectives.plan("all-reduce", ranks=6, algorithm="doubling"), "power of two of ranks, and 6"),
        (lambda: collectives.plan("all-to-all", ranks=2, algorithm="tree"), "tree does not do all-to-all"),
        (lambda: collectives.plan("broadcast", ranks=2, root=2), "root 2 does not exist"),
        (lambda: collectives.plan("all-reduce", ranks=8, algorithm="hierarchical"), "needs ranks_per_node"),
        (lambda: collectives.plan("all-reduce", ranks=0), "ranks has to be greater than 0"),
        (lambda: collectives.plan("all-reduce", ranks=9, ranks_per_node=4), "4 ranks per node do not divide 9 ranks"),
        (lambda: collectives.plan("all-reduce", ranks=2, pieces=3), "is not cut into 3 pieces"),
        (lambda: collectives.time_s("reduce", size_bytes=1, ranks=2), "needs a link or bandwidth"),
        (lambda: collectives.run(collectives.plan("reduce", ranks=3), [[1.0]] * 2), "3 ranks need as many buffers"),
        (
            lambda: collectives.run(collectives.plan("reduce-scatter", ranks=2), [[1.0]] * 2),
            "2 ranks do not divide a buffer of 1",
        ),
    ],
)
def test_nonsense_is_refused_in_the_readers_words(call, words: str) -> None:
    with pytest.raises(InfrabookError, match=words):
        call()


def test_a_plan_that_sends_what_a_rank_lacks_is_refused() -> None:
    broken = collectives.Plan("broadcast", "mine", 3, 1, ((collectives.Send(1, 2, (0,)),),))
    with pytest.raises(InfrabookError, match="rank 1 sends chunk 0, which it does not have"):
        collectives.run(broken, [[1.0]] * 3)
    adding = collectives.Plan("broadcast", "mine", 2, 1, ((collectives.Send(0, 1, (0,), True),),))
    with pytest.raises(InfrabookError, match="rank 1 would add chunk 0 to nothing"):
        collectives.run(adding, [[1.0]] * 2)


def test_the_explorer_of_steps_counts_what_the_plan_sends() -> None:
    explorer = load("collective_steps")
    for op in collectives.OPS:
        for name, ops in collectives.ALGORITHMS.items():
            for ranks in (2, 4, 8):
                if op in ops:
                    pieces = (
                        4 if name == "ring" and op in ("broadcast", "reduce") else 2 if name == "double-tree" else 1
                    )
                    each = 2 if name == "hierarchical" else 0
                    plan = collectives.plan(op, ranks=ranks, algorithm=name, pieces=pieces, ranks_per_node=each)
                    view = explorer(op=op, algorithm=name, ranks=ranks, done=24)
                    assert f'data-value="{max(plan.sent(1))}"' in view, (op, name, ranks)
    with pytest.raises(InfrabookError, match="nodes of 2 do not divide 5 ranks"):
        explorer(algorithm="hierarchical", ranks=5)
    with pytest.raises(InfrabookError, match="tree does not do all-gather"):
        explorer(op="all-gather", algorithm="tree")


def test_the_explorer_of_times_shows_the_least_of_the_librarys() -> None:
    explorer = load("collective_time")
    given = {"size_bytes": 2**20, "ranks": 64, "link": "nvlink4", "ranks_per_node": 8, "across": "infiniband-ndr"}
    least = min(
        float(collectives.time_s("all-reduce", algorithm=name, **given, pieces=pieces))
        for name in collectives.ALGORITHMS
        if "all-reduce" in collectives.ALGORITHMS[name]
        for pieces in ((1, 2, 4, 8, 16, 32) if name == "double-tree" else (1,))
    )
    assert f'data-value="{least:.9g}"' in explorer()
    with pytest.raises(InfrabookError, match="a node of 16 ranks is larger than the group of 8"):
        explorer(ranks=8, each=16)
