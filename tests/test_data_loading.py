"""Loops that wait for data: the model against its closed forms, and against the real DataLoader.

Orders, counts and equalities are exact. Times are those of sleeping work, in wide bounds.
"""

from __future__ import annotations

import math
import multiprocessing
import random
import re
from fractions import Fraction
from itertools import chain, product
from pathlib import Path

import pytest

from infrabook import data_loading
from infrabook.data_loading import LOOPS, interval, keeps_up, prefetch_needed, simulate, workers_needed
from infrabook.errors import InfrabookError
from infrabook.explore import load as load_explorer
from infrabook.lab import check, find_exercise

SKEWED = [80, 20, 20, 20]  # every fourth batch is slow
COSTS = ((30, 0, 0, 10), (30, 10, 5, 10), (7, 3, 11, 10), (5, 0, 9, 2), (100, 1, 3, 7), (0, 13, 2, 29))


# -- the model -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("loop", LOOPS)
def test_intervals_are_sums_or_maxima(loop: str) -> None:
    for workers, prefetch, (load, transform, copy, step) in product(range(6), (1, 2, 3), COSTS):
        costs = {"load": load, "transform": transform, "copy": copy, "step": step}
        line = simulate(240, workers=workers, prefetch=prefetch, loop=loop, **costs)
        assert line.interval == interval(workers=workers, loop=loop, **costs), (workers, prefetch, costs)
        assert line.utilization == Fraction(step) / Fraction(line.interval)


def test_times_of_one_batch_come_in_order() -> None:
    for loop, workers in product(LOOPS, (0, 1, 3)):
        line = simulate(40, load=[50, 3, 9], transform=4, copy=6, step=[7, 11], workers=workers, loop=loop)
        for batch in line.batches:
            assert list(batch[2:6]) == sorted(batch[2:6])
            assert list(batch[6:]) == sorted(batch[6:])
            assert batch.ready <= batch.delivered
        assert all(a.stepped <= b.stepping for a, b in zip(line.batches, line.batches[1:], strict=False))


def test_a_fourth_worker_can_make_it_slower() -> None:
    """Batch i is worker i mod n's: with four workers one of them gets every slow batch, with three they take turns."""
    found = [simulate(480, load=SKEWED, step=10, workers=n).interval for n in range(6)]
    assert found == [45, 35, 25, Fraction(25, 2), 20, 10]


def test_littles_law_of_the_batches_in_flight() -> None:
    """In flight = throughput × time in the system: always workers × prefetch, however long a batch is in it."""
    for workers, prefetch, load in product((1, 2, 5), (1, 2, 6), (5, 60, SKEWED)):
        line = simulate(600, load=load, step=10, workers=workers, prefetch=prefetch)
        queue = workers * prefetch
        assert all(line.issued_before(i) == min(i + 1 + queue, 600) for i in range(600))
        late = line.batches[300:540]
        in_the_system = sum(Fraction(batch.delivered - batch.issued) for batch in late) / len(late)
        pace = Fraction(late[-1].delivered - line.batches[299].delivered) / len(late)
        assert abs(in_the_system / pace - queue) < Fraction(queue, 20)


def test_prefetch_hides_a_slow_batch_and_not_less_of_it() -> None:
    for workers, step, slow in product((1, 2, 4), (20, 25), (50, 100, 330, 700)):
        needed = prefetch_needed(slowest=slow, step=step, workers=workers)
        for prefetch in {max(needed - 1, 1), needed, needed + 1}:
            line = simulate(600, load=[15] * 199 + [slow], step=step, workers=workers, prefetch=prefetch)
            assert (sum(map(Fraction, line.waited[100:])) == 0) == (prefetch >= needed)


def test_prefetch_helps_where_every_worker_keeps_up_and_nowhere_else() -> None:
    """Random settings: if each worker can do its own share, the formula is the least prefetch that makes nobody wait.

    If one cannot, no prefetch does.
    """
    chance, kept = random.Random(5), 0
    for _ in range(80):
        workers, step, every = chance.choice([1, 2, 3, 4, 6]), chance.choice([7, 10, 20]), chance.choice([4, 7, 12, 30])
        usual = chance.randint(1, workers * step)
        slowest = chance.randint(usual, 30 * step)
        needed = prefetch_needed(slowest=slowest, step=step, workers=workers)
        period = math.lcm(every, workers)
        half = period * math.ceil(300 / period)

        def waits(prefetch: int, load: list[int], step: int, workers: int, half: int) -> bool:
            count = 2 * half + 4 * workers * prefetch
            line = simulate(count, load=load, step=step, workers=workers, prefetch=prefetch)
            return any(line.waited[half:])

        settings = ([slowest] + [usual] * (every - 1), step, workers, half)
        if keeps_up(usual=usual, slowest=slowest, every=every, step=step, workers=workers):
            kept += 1
            assert not waits(needed, *settings)
            assert needed == 1 or waits(needed - 1, *settings)
        else:
            assert all(waits(prefetch, *settings) for prefetch in (needed, needed + 3, 4 * needed))
    assert 20 < kept < 60


def test_prefetch_cannot_raise_throughput_of_equal_batches() -> None:
    assert len({simulate(400, load=90, step=10, workers=3, prefetch=f).interval for f in (1, 2, 8, 32)}) == 1


def test_prefetch_lets_workers_reach_their_average_if_each_gets_its_part_of_the_slow_batches() -> None:
    def found(workers: int) -> list[Fraction]:
        lines = [simulate(960, load=SKEWED, step=10, workers=workers, prefetch=f) for f in (1, 2, 4, 16)]
        return [Fraction(line.interval) for line in lines]

    assert found(3) == [Fraction(45, 2), Fraction(25, 2), Fraction(35, 3), Fraction(35, 3)]
    assert found(4) == [20, 20, 20, 20], "8 steps in flight are enough by the formula, and worker 0 has all slow ones"
    assert prefetch_needed(slowest=80, step=10, workers=4) == 2


def test_batches_are_cut_where_they_are_dealt() -> None:
    assert data_loading.batch_sizes(1000, 32)[-1] == 8
    assert sum(data_loading.batch_sizes(1000, 32, streams=8, drop_last=True)) == 768
    assert data_loading.batch_sizes(3, 4, streams=5) == [1, 1, 1]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"workers": -1}, "workers has to be 0 or more, and is -1"),
        ({"prefetch": 0}, "prefetch has to be greater than 0, and is 0"),
        ({"load": -3}, "load has to be 0 or more, and is -3"),
        ({"load": []}, "load has no durations"),
        ({"load": "80"}, "load has to be a number 0 or more, and is '80'"),
        ({"loop": "spins"}, "loop has to be one of waits, runs ahead, pinned, copy stream, and is 'spins'"),
    ],
)
def test_nonsense_is_refused(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(InfrabookError, match=f"^{sentence}$"):
        simulate(4, **({"load": 1} | settings))  # type: ignore[arg-type]
    with pytest.raises(InfrabookError, match="an interval needs at least 2 batches"):
        _ = simulate(1, load=1).interval
    with pytest.raises(InfrabookError, match="the device's part of no time is not defined"):
        _ = simulate(4, load=0).utilization
    with pytest.raises(InfrabookError, match=r"load, the same for all batches, has to be .* and is \[80, 20\]"):
        interval(load=[80, 20], step=10, workers=3)  # type: ignore[arg-type]


def test_a_chart_shows_all_that_happens_in_its_window() -> None:
    line = simulate(480, load=SKEWED, step=10, workers=4)
    rows = dict(line.chart(start=800, end=1200))
    assert sum(span.end - span.start for span in rows["worker 0"]) == 400, "the slow worker never rests"
    assert sum(span.end - span.start for span in rows["step"]) == 200
    assert all(0 <= span.start < span.end <= 400 for row in rows.values() for span in row)
    assert [name for name, _ in simulate(4, load=1, copy=1).chart()] == ["loop", "copy", "step"]


def test_workers_needed() -> None:
    assert workers_needed(batch=90, step=30) == 3
    assert workers_needed(batch=91, step=30) == 4


# -- the real DataLoader -------------------------------------------------------------------------------------------
torch = pytest.importorskip("torch")

from infrabook.measure.loader import device_beside, loader, start_method, watch  # noqa: E402  (needs torch)
from infrabook.programs import data_loading as program  # noqa: E402

forks = pytest.mark.skipif(start_method() != "fork", reason="about forked workers")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"workers": -1}, "workers has to be 0 or more, and is -1"),
        ({"prefetch": 0}, "prefetch has to be greater than 0, and is 0"),
        ({"load": -3}, "load has to be 0 or more, and is -3"),
        ({"load": []}, "load has no durations"),
    ],
)
def test_nonsense_is_refused_before_anything_starts(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(InfrabookError, match=f"^{sentence}$"):
        watch(4, **({"load": 1} | settings))  # type: ignore[arg-type]
    with pytest.raises(InfrabookError, match="source has to be one of own generator, global, and is 'nonsense'"):
        program.draws("nonsense")
    with pytest.raises(InfrabookError, match="one batch has no time from one to the next"):
        program.diagnose(program.PREPARED["A"], 1)
    with pytest.raises(InfrabookError, match=r"start has to be one of .*, and is 'magic'"):
        loader(program.Stream(3), workers=1, start="magic")


@pytest.mark.parametrize(("workers", "prefetch"), [(0, 2), (1, 2), (2, 1), (2, 2), (2, 3), (3, 2)])
def test_dataloader_issues_and_hands_out_as_predicted(workers: int, prefetch: int) -> None:
    """Who made which batch, in which order, and how many were asked for by then."""
    line, drawn = watch(14, load=[6, 1, 1], step=2, workers=workers, prefetch=prefetch)
    model = simulate(14, load=[6, 1, 1], step=2, workers=workers, prefetch=prefetch)
    assert [(b.number, b.worker) for b in line.batches] == [(b.number, b.worker) for b in model.batches]
    queue = workers * prefetch
    assert drawn == [min(14, i + 1 + queue) for i in range(14)]
    assert drawn == [model.issued_before(i) for i in range(14)]
    for before, batch in zip(line.batches, line.batches[queue:], strict=False):
        if workers:  # asked for as batch i - workers × prefetch was handed out, and not before
            assert before.ready <= batch.issued <= before.delivered


def test_dataloader_without_order_hands_out_everything_once() -> None:
    line, _ = watch(16, load=[30, 1, 1, 1], workers=4, in_order=False)
    assert sorted(batch.number for batch in line.batches) == list(range(16))


def test_dataloader_is_slower_with_a_fourth_worker() -> None:
    """Predicted 1.6 times. Bounds are for a busy machine."""
    three, four = (watch(36, load=SKEWED, step=10, workers=n)[0].interval for n in (3, 4))
    assert 1.15 < float(four) / float(three) < 2.1


def test_dataloader_with_three_workers_needs_prefetch_to_reach_their_average() -> None:
    """Predicted 1.8 times. Bounds are for a busy machine."""
    one, two = (watch(36, load=SKEWED, step=10, workers=3, prefetch=f)[0].interval for f in (1, 2))
    assert 1.2 < float(one) / float(two) < 2.5


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_dataloader_takes_as_long_as_predicted(workers: int) -> None:
    costs = {"load": 30, "transform": 6, "step": 12}
    line, _ = watch(16, workers=workers, **costs)  # type: ignore[arg-type]
    predicted = interval(workers=workers, **costs)  # type: ignore[arg-type]
    assert 0.8 < float(line.interval) / float(predicted) < 2


def test_a_loop_that_does_not_wait_overlaps_without_workers() -> None:
    costs = {"load": 44, "copy": 8, "step": 40}
    real = {loop: device_beside(12, loop=loop, **costs) for loop in LOOPS}  # type: ignore[arg-type]
    for loop in LOOPS:
        assert 0.85 < real[loop] / float(interval(loop=loop, **costs)) < 1.5, loop  # type: ignore[arg-type]
    assert real["waits"] > 1.3 * real["runs ahead"]
    assert real["runs ahead"] > real["copy stream"]


@pytest.mark.parametrize(("name", "verdict"), [("A", "load"), ("B", "transform"), ("C", "model"), ("D", "balanced")])
def test_the_recipe_names_the_slow_part(name: str, verdict: str) -> None:
    assert program.diagnose(program.PREPARED[name], 12).verdict == verdict


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [
        ((30, 26, 30, 20), "balanced"),
        ((10, 9, 10, 10), "balanced"),
        ((62, 60, 9, 4), "model"),
        ((20, 10, 20, 20), "load"),
    ],
)
def test_both_ratios_near_one_are_nobodys_fault_alone(seconds: tuple[float, ...], verdict: str) -> None:
    """The last is the loop with the fourth worker: no time tells that another number of workers is the cure."""
    assert program.verdict(*seconds) == verdict


def test_the_profiler_sees_the_loop_wait() -> None:
    hungry, fed = (program.profiled(program.PREPARED[name], 10) for name in ("A", "C"))
    assert program.waiting(hungry) > 0.5 > program.waiting(fed)
    assert fed["step"] > 0.5 > hungry["step"]


@pytest.mark.parametrize("workers", [0, 3])
def test_the_recipe_does_not_need_workers(workers: int) -> None:
    assert program.diagnose(program.Program(4, 60, 10, workers), 12).verdict == "transform"


@forks
def test_workers_copy_a_generator_and_torch_seeds_numpys_own() -> None:
    def distinct(source: str, **settings: object) -> int:
        return len(set(program.draws(source, **settings)))  # type: ignore[arg-type]

    own = program.draws("own generator")  # 8 samples twice
    assert own[0::2] == own[1::2], "two workers draw the same"
    assert own[:8] == own[8:], "and so do two epochs"
    assert distinct("own generator", workers=0) == 16
    assert distinct("own generator") == 4
    assert distinct("own generator", persistent=True) == 8
    assert distinct("own generator", init=program.reseed) == 16
    assert distinct("global") == 16, "PyTorch seeds it, in each worker and epoch"
    assert distinct("global", init=program.reseed_by_number) == 8, "the old cure repeats each epoch"
    assert program.draws("own generator", init=program.reseed) == program.draws("own generator", init=program.reseed)


@pytest.mark.skipif("forkserver" not in multiprocessing.get_all_start_methods(), reason="needs a fork server")
def test_workers_that_are_not_forked_have_their_copies_as_well() -> None:
    """A pickled generator is as much of a copy as a forked one. Python 3.14 starts workers like this on Linux."""
    assert len(set(program.draws("own generator", start="forkserver", epochs=1))) == 4
    assert len([*chain(*program.batches_of(program.Stream(30), 8, workers=2, start="forkserver"))]) == 60


def test_every_worker_of_a_stream_yields_everything() -> None:
    for workers in (0, 1, 2, 3):
        everything = program.batches_of(program.Stream(30), 8, workers=workers)
        assert sorted(chain(*everything)) == sorted([*range(30)] * max(workers, 1))
        shares = program.batches_of(program.Stream(30, divided=True), 8, workers=workers)
        assert sorted(chain(*shares)) == list(range(30))


@pytest.mark.parametrize(("samples", "batch", "workers"), [(30, 8, 2), (30, 8, 3), (7, 2, 4), (64, 8, 2), (3, 4, 2)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batch_sizes_are_torchs(samples: int, batch: int, workers: int, drop_last: bool) -> None:
    stream = program.Stream(samples, divided=True)
    found = program.batches_of(stream, batch, workers=workers, drop_last=drop_last)
    assert list(map(len, found)) == data_loading.batch_sizes(samples, batch, streams=workers, drop_last=drop_last)


@forks
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux's account of pages")
def test_reading_a_list_of_objects_copies_it_and_reading_an_array_does_not() -> None:
    objects, array = program.Names(100_000, array=False), program.Names(100_000, array=True)
    assert 0.8 < program.copied_by_reading(objects) / objects.nbytes < 1.5
    assert program.copied_by_reading(array) / array.nbytes < 0.2


def test_batches_in_shared_memory_and_what_happens_without_room() -> None:
    ample = program.run_with_shm("200m", megabytes=4, workers=2, prefetch=2, batches=16)
    if ample is None:
        pytest.skip("no namespaces of one's own here")
    recorded: dict[str, dict[object, object]] = program.RECORDED  # type: ignore[assignment]
    for workers, prefetch in recorded["in_use"]:  # type: ignore[misc]
        batches = data_loading.shared_memory_bytes(batch_bytes=1, workers=workers, prefetch=prefetch, exchange=False)
        assert recorded["in_use"][workers, prefetch] == batches
    predicted = data_loading.shared_memory_bytes(batch_bytes=4, workers=2, prefetch=2, exchange=False)
    assert ample == {"received": 16, "usual_mib": predicted, "complaint": "", "worker_said": ""}
    for room, complete in recorded["complete"].items():
        found = program.run_with_shm(f"{4 * room}m", megabytes=4, workers=2, prefetch=2, batches=12, patience=3)  # type: ignore[operator]
        assert found is not None
        assert (found["received"] == 12) == complete, room
        if not complete:
            assert "timed out" in found["complaint"], "the loop hears nothing of it and would wait for ever"
            assert "No space left on device" in found["worker_said"]


# -- explorer and exercises ----------------------------------------------------------------------------------------
def test_explorer_shows_the_fourth_worker_and_every_cost_moves_it() -> None:
    explorer = load_explorer("loader_timeline")
    assert "20 ms" in explorer()[:200]
    first = explorer()
    changes = {"load": 40, "transform": 40, "copy": 9, "step": 30, "workers": 2, "slow": 2, "every": 3}
    for name, value in (changes | {"prefetch": 9, "loop": "copy stream"}).items():
        assert explorer(**{name: value}) != first, name
    busy = re.search(r"(\d+) batches with 4 workers", explorer(workers=4, prefetch=16, slow=1))
    assert busy
    far_ahead = explorer(workers=4, prefetch=16, slow=1)
    assert far_ahead.count("<rect") > 3 * int(busy[1]), "workers are shown at work on batches far ahead"
    slow = explorer(workers=6, prefetch=4, load=60, transform=8, copy=2, step=30, slow=20, every=16)
    steady = re.search('data-value="([^"]*)"', slow)
    assert steady
    assert float(Fraction(steady[1])) == pytest.approx(45.739, rel=0.01), "as after 40,000 batches"
    assert "no prefetch hides it" in explorer()
    assert "a prefetch of 2." in explorer(workers=5)
    for workers, every in ((0, 1), (8, 16), (7, 13)):
        assert "NaN" not in explorer(workers=workers, every=every, load=0, transform=0)
    with pytest.raises(InfrabookError, match="workers has to be a whole number from 0 to 8, and is '9'"):
        explorer(workers="9")


def test_exercises_know_their_answers() -> None:
    assert check("data-loading/1", 4)
    assert check("data-loading/2", 7)
    assert check("data-loading/3", 272)
    for number in (1, 2, 3):
        exercise = find_exercise(f"data-loading/{number}")
        wrong = [mistake() for mistake in exercise.mistakes.values()]
        assert len(set(wrong)) == len(wrong)
        assert exercise.answer() not in wrong
