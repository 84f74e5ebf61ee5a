"""Pipeline schedules: the same actions as PyTorch's, valid, with the time, memory and messages that theory says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
import torch

from infrabook import activations, models
from infrabook.errors import InfrabookError
from infrabook.measure import pipelining
from infrabook.measure.ranks import launch, torchrun
from infrabook.measure.saved import fake_tensors
from infrabook.nn.transformer import GPTBlock
from infrabook.parallel import pipeline
from infrabook.parallel.pipeline import Action, Times
from infrabook.programs.pipeline_parallel import ROWS, step

GRID = [(p, m) for p in (1, 2, 3, 4, 5, 8) for m in (1, 2, 3, 4, 6, 8, 10, 16, 20)]
CHUNKS = {"GPipe": (1,), "1F1B": (1,), "ZB-V": (2,), "DualPipeV": (2,)}  # others: 2, 3 and 4


def settings() -> Iterator[tuple[str, int, int, int]]:
    """Every schedule that PyTorch has, for a grid of p, m and v."""
    for name in pipelining.NAMES:
        for p, m in GRID:
            for v in CHUNKS.get(name, (2, 3, 4)):
                yield name, p, m, v


# -- against PyTorch -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", pipelining.NAMES)
def test_actions_are_those_of_torch(name: str) -> None:
    """Equal on every rank, and refused for the same sizes; 1F1B's printed table is the one exception, below."""
    equal = 0
    for _, p, m, v in (case for case in settings() if case[0] == name):
        try:
            ours = pipeline.build(name, p, micro_batches=m, chunks=v)
        except InfrabookError:
            with pytest.raises(InfrabookError):
                pipelining.table(name, p, micro_batches=m, chunks=v)
            continue
        if name == "1F1B" and m < p:  # torch refuses; the schedule is defined all the same
            assert "PyTorch refuses" in refusal(pipelining.table, name, p, micro_batches=m)
            continue
        theirs = pipelining.table(name, p, micro_batches=m, chunks=v)
        if name == "1F1B":
            theirs = (*theirs[:-1], tuple(a._replace(micro_batch=a.micro_batch - (a.kind == "F")) for a in theirs[-1]))
        assert ours.rows == theirs, f"p {p}, m {m}, v {v}"
        equal += 1
    assert equal >= 28


def test_table_of_1f1b_in_torch_numbers_the_last_ranks_forwards_from_one() -> None:
    """A mistake of torch 2.13's table (not of its execution): when this fails, upstream has mended it."""
    table = pipelining.table("1F1B", 2, micro_batches=3)
    assert [str(action) for action in table[-1]] == ["1F1", "1B0", "1F2", "1B1", "1F3", "1B2"]
    with pytest.raises(InfrabookError, match="rank 1 runs 1B0 before 1F0"):
        pipeline.read("\n".join(" ".join(map(str, row)) for row in table))


@pytest.mark.parametrize("name", pipelining.NAMES)
def test_what_ran_is_what_was_planned(name: str) -> None:
    """Two real ranks: actions, activations kept, messages sent, and one process's gradients."""
    chunks = 1 if name in ("GPipe", "1F1B") else 2
    plan = pipeline.build(name, 2, micro_batches=4, chunks=chunks)
    kept, sent = pipeline.in_flight(plan), pipeline.messages(plan)
    for rank, result in enumerate(launch(step, 2, schedule=name, micro_batches=4, chunks=chunks, hidden=32)):
        assert result["actions"] == list(map(str, plan.rows[rank]))
        assert result["kept"] == kept[rank]
        assert result["gradient_error"] < 1e-7
        payload = sent[rank] * pipeline.message_bytes(hidden=32, sequence=1, batch=ROWS, element_bytes=4)
        assert payload < result["sent"] <= payload + 200 * sent[rank], "gloo's headers are 144 bytes a message"


def test_the_same_program_runs_under_torchrun_on_two_nodes() -> None:
    program, settings = "infrabook.programs.pipeline_parallel", ("schedule=ZB-V", "micro_batches=3", "chunks=2")
    lines = torchrun(program, *settings, ranks=1, nodes=2).splitlines()
    for line, row in zip(lines, pipeline.zb_v(2, 3).rows, strict=True):
        assert json.loads(line.partition(": ")[2])["actions"] == list(map(str, row))


def refusal(call: object, *args: object, **kwargs: object) -> str:
    """The sentence with which a call is refused."""
    with pytest.raises(InfrabookError) as caught:
        call(*args, **kwargs)  # type: ignore[operator]
    return str(caught.value)


# -- validity ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", pipeline.SCHEDULES)
def test_every_schedule_is_valid(name: str) -> None:
    for p, m in GRID:
        try:
            schedule = pipeline.build(name, p, micro_batches=m, chunks=2)
        except InfrabookError:
            continue
        pipeline.check(schedule)
        assert sum(len(row) for row in schedule.rows) >= 2 * schedule.stages * schedule.micro_batches


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("0F0 0F0 0B0", "rank 0 runs forward of micro-batch 0 on stage 0 twice"),
        ("0F0 0B0 0I0", "rank 0 runs backward by input of micro-batch 0 on stage 0 twice"),
        ("0F0 0I0", "rank 0 never runs 0W0"),
        ("0F0 0F1 0B0", "rank 0 never runs 0B1"),
        ("0F0 0W0 0I0", "rank 0 runs 0W0 before 0I0, whose result it needs"),
        ("0F0 0B0 1F0\n1B0", "stage 1 is on rank 0 and on rank 1; it has one home"),
        ("0F0 0B0\n2F0 2B0", "no rank runs stage 1, and there is a stage 2"),
        ("0F0 0X0", "'0X0' is not an action; write stage, F, B, I or W, and micro-batch, as in 0F3"),
        ("", "the schedule has no actions"),
        (
            "0F0 0B0 0F1 0B1\n1F1 1F0 1B0 1B1",
            "the ranks wait for each other: rank 0 waits at 0B0 for 1B0, rank 1 waits at 1F1 for 0F1",
        ),
    ],
)
def test_what_is_wrong_with_a_schedule_is_said(text: str, sentence: str) -> None:
    assert refusal(pipeline.read, text) == sentence


def test_a_schedule_can_be_written_down_and_read() -> None:
    for name in ("1F1B", "ZB-V", "ZB-H2"):
        schedule = pipeline.build(name, 3, micro_batches=6)
        again = pipeline.read(schedule.text())
        assert (again.rows, again.placement) == (schedule.rows, schedule.placement)


def test_sizes_are_refused_in_the_readers_words() -> None:
    assert "ranks has to be greater than 0" in refusal(pipeline.gpipe, 0, 4)
    assert "7 micro-batches do not fall into 3 rounds" in refusal(pipeline.interleaved, 2, 7)
    assert "DualPipe runs in two directions" in refusal(pipeline.dualpipe, 3, 8)
    assert refusal(pipeline.dualpipe_v, 4, 6) == (
        "DualPipeV needs at least 8 micro-batches, twice the number of ranks, and has 6"
    )
    assert "there is no schedule 'PipeDream'" in refusal(pipeline.build, "PipeDream", 2, micro_batches=2)
    assert "400,000 are the most" in refusal(pipeline.gpipe, 1000, 1000)
    assert "scale has 2 factors, and there are 4 stages" in refusal(
        pipeline.simulate, pipeline.gpipe(4, 4), Times(scale=(1, 2))
    )
    assert "forward has to be greater than 0" in refusal(Times, forward=0)
    assert "cannot take 1, less than the longer one alone, 2" in refusal(Times, paired=1)


# -- time ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["GPipe", "1F1B"])
@pytest.mark.parametrize("backward", [1, 2, Fraction(7, 3)])
def test_bubble_in_both_conventions_whatever_backward_takes(name: str, backward: Fraction) -> None:
    """(p - 1)/m of ideal time and (p - 1)/(m + p - 1) of total time: 1F1B gains nothing over GPipe."""
    times = Times(1, Fraction(backward) / 2, Fraction(backward) / 2)
    for p, m in GRID:
        line = pipeline.simulate(pipeline.build(name, p, micro_batches=m), times)
        assert line.bubble_of_ideal == Fraction(p - 1, m)
        assert line.bubble_of_total == Fraction(p - 1, m + p - 1)
        assert line.makespan == (m + p - 1) * times.micro_batch


def test_interleaving_divides_the_bubble() -> None:
    """Megatron-LM's (p - 1)/(v·m), where p divides m."""
    for p, m, v in ((2, 4, 2), (4, 8, 2), (4, 8, 4), (8, 32, 3), (5, 10, 6)):
        for name in ("Interleaved1F1B", "LoopedBFS"):
            line = pipeline.simulate(pipeline.build(name, p, micro_batches=m, chunks=v))
            assert line.bubble_of_ideal == Fraction(p - 1, v * m)


FIGURE_3 = """
F1F2F3F4---B1W1F5B2W2F6B3W3F7B4W4F8B5W5B6W6B7W7B8W8
-F1F2F3--B1F4B2W1F5B3W2F6B4W3F7B5W4F8B6W5B7W6B8W7W8
--F1F2-B1F3B2F4B3W1F5B4W2F6B5W3F7B6W4F8B7W5B8W6W7W8
---F1B1F2B2F3B3F4B4W1F5B5W2F6B6W3F7B7W4F8B8W5W6W7W8
F1F2F3F4F5F6F7B1W1F8B2W2B3W3B4W4B5W5B6W6B7W7B8W8---
-F1F2F3F4F5B1F6B2F7B3W1F8B4W2B5W3B6W4B7W5B8W6W7W8--
--F1F2F3B1F4B2F5B3F6B4F7B5W1F8B6W2B7W3B8W4W5W6W7W8-
---F1B1F2B2F3B3F4B4F5B5F6B6F7B7W1F8B8W2W3W4W5W6W7W8
"""  # Qi et al., arXiv 2401.10241: top ZB-H1, bottom ZB-H2; their B is our I, and they count from 1


def test_zero_bubble_papers_figure_3() -> None:
    drawn = FIGURE_3.split()
    for name, rows in (("ZB-H1", drawn[:4]), ("ZB-H2", drawn[4:])):
        line = pipeline.simulate(pipeline.build(name, 4, micro_batches=8))
        for slots, wanted in zip(line.rows, rows, strict=True):
            cells = ["-"] * 27
            for action, start, _ in slots:
                cells[int(start)] = f"{action.kind.replace('I', 'B')}{action.micro_batch + 1}"
            assert "".join(cells) == wanted


def test_zero_bubble_papers_table_2_holds_where_passes_take_alike() -> None:
    """And for other times as long as nothing of what the formula leaves out is longer: see the chapter."""
    for p in (2, 4, 8):
        for name in ("1F1B", "ZB-H1", "ZB-H2", "ZB-V", "DualPipe", "DualPipeV"):
            line = pipeline.simulate(pipeline.build(name, p, micro_batches=8 * p))
            idle = max(line.span(rank) - line.busy(rank) for rank in range(p))
            assert idle == pipeline.bubble_formula(name, p), f"{name}, p {p}"


def test_an_optimizer_that_waits_takes_zero_bubbles_gain() -> None:
    """ZB-H2 without a pause between steps needs 3m, with one 3m + p - 1: exactly ZB-H1's time, at twice the memory."""
    for p, m in ((2, 8), (4, 8), (8, 32)):
        h1, h2 = pipeline.zb_h1(p, m), pipeline.zb_h2(p, m)
        assert pipeline.simulate(h1).makespan == pipeline.simulate(h2).makespan == 3 * m + p - 1
        assert period(h1) == 3 * m + p - 1
        assert period(h2) == 3 * m
        assert (max(pipeline.in_flight(h1)), max(pipeline.in_flight(h2))) == (p, 2 * p - 1)


def period(schedule: pipeline.Schedule) -> object:
    """Time of one more step when steps follow without waiting."""
    three, two = (pipeline.simulate(pipeline.repeated(schedule, steps)).makespan for steps in (3, 2))
    return three - two


def test_a_slow_stage_sets_the_pace() -> None:
    """A head that costs half a stage more: every micro-batch waits for it."""
    line = pipeline.simulate(pipeline.one_f_one_b(4, 64), Times(scale=(1, 1, 1, Fraction(3, 2))))
    assert line.busy(3) == Fraction(3, 2) * line.busy(0)
    assert line.makespan >= line.busy(3) + 3
    assert line.bubble_of_total == 1 - Fraction(line.ideal) / line.makespan


def test_messages_delay_what_waits_for_them() -> None:
    """GPipe: 2(p - 1) messages are on the critical path, however many micro-batches there are."""
    for m in (4, 16):
        slow = pipeline.simulate(pipeline.gpipe(4, m), Times(message=Fraction(1, 4)))
        assert slow.makespan - pipeline.simulate(pipeline.gpipe(4, m)).makespan == 6 * Fraction(1, 4)


def test_times_are_exact_whatever_their_unit() -> None:
    line = pipeline.simulate(pipeline.one_f_one_b(4, 8), Times(0.1, 0.15, 0.05))
    assert line.makespan == Fraction("3.3")
    assert line.rows[0][0].end == Fraction(1, 10)


def test_overlapping_pairs_shorten_dualpipe() -> None:
    slow, fast = (
        pipeline.simulate(pipeline.dualpipe(4, 16), Times(paired=together)) for together in (3, Fraction(5, 2))
    )
    assert fast.makespan < slow.makespan
    assert fast.busy(0) < slow.busy(0)


def test_work_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 ranks, 512 micro-batches: each action is looked at once, and again for a result it waited for."""
    looked = 0
    group = pipeline._group

    def counted(row: pipeline.Row, at: int) -> pipeline.Row:
        nonlocal looked
        looked += 1
        return group(row, at)

    monkeypatch.setattr(pipeline, "_group", counted)
    schedule = pipeline.one_f_one_b(64, 512)
    line = pipeline.simulate(schedule, Times(message=Fraction(1, 7)))
    assert line.makespan > 3 * (512 + 63)
    assert looked <= 2 * sum(map(len, schedule.rows))


# -- memory and messages -------------------------------------------------------------------------------------------
def test_in_flight_is_what_the_memory_account_assumes() -> None:
    """``activations.in_flight`` has the formulas; here they are counted."""
    for p, m in ((2, 8), (4, 8), (8, 32)):
        for stage in range(p):
            assert pipeline.in_flight(pipeline.one_f_one_b(p, m))[stage] == activations.in_flight(
                pipeline_parallel=p, stage=stage
            )
            for v in (2, 4):
                chunks = pipeline.in_flight(pipeline.interleaved(p, m, chunks=v))[stage]
                assert Fraction(chunks, v) == activations.in_flight(
                    pipeline_parallel=p, stage=stage, schedule="interleaved", virtual_stages=v
                )
        assert set(pipeline.in_flight(pipeline.gpipe(p, m))) == {m}


def test_memory_of_split_backward_is_the_papers() -> None:
    """(p - i + 1)M_B + (i - 1)M_W for ZB-H1, (2p - 2i + 1)M_B + (2i - 2)M_W for ZB-H2, i from 1."""
    p, m, whole, rest = 6, 24, 34, 20
    kept = {"activations": whole, "kept_for_weights": rest}
    one = pipeline.peak_activations(pipeline.zb_h1(p, m), **kept)  # type: ignore[arg-type]
    two = pipeline.peak_activations(pipeline.zb_h2(p, m), **kept)  # type: ignore[arg-type]
    assert one == tuple((p - i + 1) * whole + (i - 1) * rest for i in range(1, p + 1))
    assert two == tuple((2 * p - 2 * i + 1) * whole + (2 * i - 2) * rest for i in range(1, p + 1))


def test_memory_of_v_shapes() -> None:
    """ZB-V: p of p stages on every rank; DualPipe p + 1 with twice the weights, DualPipeV 2p + 1 of 2p."""
    for p in (2, 4, 8):
        assert set(pipeline.in_flight(pipeline.zb_v(p, 4 * p))) == {2 * p}
        assert set(pipeline.in_flight(pipeline.dualpipe(p, 4 * p))) == {p + 1}
        assert set(pipeline.in_flight(pipeline.dualpipe_v(p, 4 * p))) == {2 * p + 1}


def test_messages_are_counted() -> None:
    for p, m in ((2, 4), (4, 8)):
        assert sum(pipeline.messages(pipeline.one_f_one_b(p, m))) == 2 * (p - 1) * m
        assert sum(pipeline.messages(pipeline.zb_h2(p, m))) == 2 * (p - 1) * m
        assert sum(pipeline.messages(pipeline.interleaved(p, m, chunks=3))) == 2 * (3 * p - 1) * m
        assert sum(pipeline.messages(pipeline.zb_v(p, m))) == 4 * (p - 1) * m
        assert sum(pipeline.messages(pipeline.dualpipe(p, 2 * m))) == 4 * (p - 1) * m
    assert pipeline.message_bytes(hidden=4096, sequence=2048, batch=2) == 2048 * 2 * 4096 * 2


def test_chart_shows_every_action_and_tells_stages_apart() -> None:
    schedule = pipeline.interleaved(2, 4, chunks=2)
    rows = pipeline.simulate(schedule).chart(halves=True)
    assert [name for name, _ in rows] == ["rank 0", "rank 1"]
    assert {span.kind for _, row in rows for span in row} == {"forward", "backward_input", "backward_weight"}
    assert len({span.tone for span in rows[0][1]}) == 2
    paired = pipeline.simulate(pipeline.dualpipe_v(2, 8)).chart()
    for _, row in paired:
        assert all(a.end <= b.start for a, b in pairwise(row)), "boxes do not lie over each other"


def test_an_action_reads_as_torch_writes_it() -> None:
    assert str(Action.read("12I7")) == "12I7"


# -- published tables -----------------------------------------------------------------------------------------------
PROFILED = {  # Qi et al., arXiv 2401.10241, table 9: (p, m): F, B, W and message in ms
    (8, 24): (18.522, 18.086, 9.337, 0.601), (16, 48): (11.347, 11.248, 8.132, 0.377),
    (32, 96): (10.419, 10.207, 7.715, 0.408),
}  # fmt: skip
BUBBLE_RATES = {  # table 5: 1F1B, ZB-H1, ZB-H2
    (8, 24): (0.2431, 0.1585, 0.1083), (16, 48): (0.2552, 0.1397, 0.0672), (32, 96): (0.2646, 0.1421, 0.0641),
}  # fmt: skip


@pytest.mark.parametrize("size", PROFILED)
def test_zero_bubble_papers_table_5(size: tuple[int, int]) -> None:
    *passes, message = PROFILED[size]
    times = Times(*passes, message=message)
    builders = (pipeline.one_f_one_b, pipeline.zb_h1, pipeline.zb_h2)
    rates = [round(float(pipeline.simulate(build(*size), times).bubble_of_span), 4) for build in builders]
    assert rates == list(BUBBLE_RATES[size])


def test_messages_that_1f1b_waits_for() -> None:
    """2(p - 1)m/p + 2(p - 2): p micro-batches under way share the messages of their round trip."""
    unit = Fraction(1, 100)
    for p, m in ((2, 4), (4, 16), (8, 32)):
        waited = {}
        for eager in (False, True):
            schedule = pipeline.one_f_one_b(p, m, eager=eager)
            slow, fast = (pipeline.simulate(schedule, Times(message=t)).makespan for t in (unit, 0))
            waited[eager] = (slow - fast) / unit
        assert waited == {False: Fraction(2 * (p - 1) * m, p) + 2 * (p - 2), True: 2 * (p - 1)}


def test_halves_of_a_gpt_3_layers_backward_are_the_papers() -> None:
    """Table 1's FLOP to the last one, by PyTorch's counter. Its bytes hold for F; PyTorch frees nothing after I."""
    shape = replace(models.get("gpt2"), hidden=12_288, heads=96, kv_heads=96, head_dim=128, ffn=4 * 12_288)
    with fake_tensors(torch.bfloat16):
        found = pipelining.halves(GPTBlock(shape), torch.empty(1, 2048, 12_288))
    paper = pipeline.gpt_passes(hidden=12_288, heads=96, sequence=2048)
    assert (found.forward, found.input_gradient, found.weight_gradient) == paper[:3]
    sbh = 2048 * 12_288
    assert found.saved == pytest.approx(paper.activations, rel=0.002)
    assert found.saved - found.saved_after_input == sbh, "one dropout mask"
    assert found.gradients_held == 22 * sbh
