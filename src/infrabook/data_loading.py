"""When a training loop waits for data: batches loaded by workers, copied to the device, and used, one after another.

``simulate`` follows ``torch.utils.data.DataLoader``: batch i is worker ``i % workers``'s, a worker does its batches in
order, batches are handed out in order, and handing out batch i asks for batch ``i + workers * prefetch``. Times are in
any one unit and stay exact. ``measure.loader`` times the real one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, TypeAlias

from .charts import Span
from .errors import InfrabookError
from .units import Exact, exact, positive

Duration: TypeAlias = Exact | float
Durations: TypeAlias = Duration | Sequence[Duration]  # of every batch; a sequence is repeated over and over

LOOPS = ("waits", "runs ahead", "pinned", "copy stream")


class Batch(NamedTuple):
    """One batch's moments, in the order in which they happen."""

    number: int
    worker: int  # -1 where the loop itself loads
    issued: Exact  # its indices are handed to the worker
    started: Exact  # the worker begins to load
    loaded: Exact  # ... and to transform
    ready: Exact  # the worker is done
    asked: Exact  # the loop wants it
    delivered: Exact  # the loop has it
    copying: Exact  # the copy to the device begins
    copied: Exact
    stepping: Exact  # the device computes
    stepped: Exact


@dataclass(frozen=True)
class Timeline:
    """What happened to each batch."""

    batches: tuple[Batch, ...]
    workers: int
    prefetch: int

    @property
    def interval(self) -> Exact:
        """Time from one step's end to the next, on average over the second half."""
        first = len(self.batches) // 2 - 1
        if first < 0:
            raise InfrabookError("an interval needs at least 2 batches")
        span = Fraction(self.batches[-1].stepped - self.batches[first].stepped)
        return exact(span / (len(self.batches) - 1 - first))

    @property
    def utilization(self) -> Exact:
        """The part of the second half in which the device computes."""
        second = self.batches[len(self.batches) // 2 :]
        if not self.interval:
            raise InfrabookError("the device's part of no time is not defined: loads, copies and steps are all 0")
        busy = sum(Fraction(batch.stepped - batch.stepping) for batch in second)
        return exact(busy / len(second) / Fraction(self.interval))

    @property
    def waited(self) -> tuple[Exact, ...]:
        """How long the loop waited for each batch after asking for it."""
        return tuple(exact(batch.delivered - batch.asked) for batch in self.batches)

    def ready_before(self, index: int) -> int:
        """Batches that were ready when the loop asked for batch ``index``: the depth of the queue it meets."""
        asked = self.batches[index].asked
        return sum(batch.ready <= asked for batch in self.batches[index:] if batch.worker >= 0)

    def issued_before(self, index: int) -> int:
        """Batches issued until the loop had batch ``index``, it and those before it included."""
        had = self.batches[index].delivered
        return sum(batch.issued <= had for batch in self.batches)

    def chart(self, start: Exact = 0, end: Exact | None = None) -> list[tuple[str, list[Span]]]:
        """Rows for ``charts.gantt``, from ``start`` to ``end``: each worker, or the loop's own loading; copies; steps.

        >>> [(name, len(spans)) for name, spans in simulate(4, load=30, step=10, workers=2).chart(start=30, end=60)]
        [('worker 0', 1), ('worker 1', 1), ('step', 2)]
        """
        end = self.batches[-1].stepped if end is None else end

        def spans(kind: str, moments: Sequence[tuple[int, Exact, Exact]]) -> list[Span]:
            cut = [(number, max(begin, start), min(until, end)) for number, begin, until in moments]
            return [Span(exact(b - start), exact(e - start), kind, str(number)) for number, b, e in cut if e > b]

        rows = []
        for worker in range(self.workers) if self.workers else (-1,):
            mine = [batch for batch in self.batches if batch.worker == worker]
            made = spans("load", [(b.number, b.started, b.loaded) for b in mine])
            made += spans("transform", [(b.number, b.loaded, b.ready) for b in mine])
            rows.append((f"worker {worker}" if self.workers else "loop", sorted(made)))
        copies = spans("copy", [(b.number, b.copying, b.copied) for b in self.batches])
        steps = spans("step", [(b.number, b.stepping, b.stepped) for b in self.batches])
        return [*rows, *([("copy", copies)] if copies else []), ("step", steps)]


def simulate(
    batches: int, *, load: Durations, transform: Durations = 0, copy: Durations = 0, step: Durations = 0,
    workers: int = 0, prefetch: int = 2, loop: str = "waits",
) -> Timeline:  # fmt: skip
    """The timeline of ``batches`` batches, loaded in the loop itself or by ``workers`` with ``prefetch`` batches each.

    How the loop deals with the device: one that "waits" asks for the next batch when the step is done
    (``loss.item()`` in every step). One that "runs ahead" asks as soon as the step is enqueued, behind a copy that
    blocks it (pageable memory). From "pinned" memory, with ``non_blocking=True``, the copy blocks the loop no more,
    and on the same stream it still stands in line behind the step before. On a "copy stream" of its own it runs beside
    that step. A sequence of durations is repeated: ``load=[80, 20, 20, 20]`` makes every fourth batch slow.

    >>> [int(batch.delivered) for batch in simulate(4, load=30, step=10).batches]
    [30, 70, 110, 150]
    >>> [int(batch.delivered) for batch in simulate(4, load=30, step=10, workers=2).batches]
    [30, 40, 60, 70]
    """
    positive("batches", batches)
    positive("workers", workers, zero=True)
    positive("prefetch", prefetch)
    if loop not in LOOPS:
        raise InfrabookError(f"loop has to be one of {', '.join(LOOPS)}, and is {loop!r}")
    times = {
        name: durations(name, value)
        for name, value in (("load", load), ("transform", transform), ("copy", copy), ("step", step))
    }
    queue = workers * prefetch
    free: list[Exact] = [0] * max(workers, 1)  # when each worker is done with what it has
    host: Exact = 0
    made: list[Batch] = []
    for i in range(batches):
        loading, transforming, moving, computing = (row[i % len(row)] for row in times.values())
        asked = host
        issued: Exact = (made[i - queue].delivered if i >= queue else 0) if workers else asked
        worker = i % workers if workers else -1
        started = max(issued, free[worker])
        loaded, ready = started + loading, started + loading + transforming
        free[worker] = ready
        delivered = max(asked, ready)
        before = made[-1] if made else None
        engine: Exact = 0
        if before:
            engine = before.copied if loop == "copy stream" else before.stepped
        copying = max(delivered, engine)
        copied = copying + moving
        stepping = max(copied, before.stepped if before else 0)
        stepped = stepping + computing
        host = {
            "waits": stepped,
            "runs ahead": copied,
        }.get(loop, max(delivered, before.stepping if before else 0))  # one batch waits on the device, not more
        made.append(
            Batch(i, worker, issued, started, loaded, ready, asked, delivered, copying, copied, stepping, stepped)
        )
    return Timeline(tuple(made), workers, prefetch)


def durations(name: str, value: Durations) -> list[Exact]:
    """``value`` as a list of exact durations, refused unless all are 0 or more.

    >>> durations("load", 30), durations("load", [80, 0.5])
    ([30], [80, Fraction(1, 2)])
    """
    values = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if not values:
        raise InfrabookError(f"{name} has no durations")
    for one in values:
        positive(name, one, whole=False, zero=True)
    return [exact(one) for one in values]


# -- closed forms ------------------------------------------------------------------------------------------------
def interval(
    *, load: Duration, transform: Duration = 0, copy: Duration = 0, step: Duration = 0, workers: int = 0,
    loop: str = "waits",
) -> Exact:  # fmt: skip
    """Time from step to step when all batches are alike: a sum of what cannot overlap, the maximum of what can.

    >>> interval(load=30, step=10), interval(load=30, step=10, workers=2), interval(load=30, step=10, workers=4)
    (40, 15, 10)
    """
    positive("workers", workers, zero=True)
    if loop not in LOOPS:
        raise InfrabookError(f"loop has to be one of {', '.join(LOOPS)}, and is {loop!r}")
    for name, value in (("load", load), ("transform", transform), ("copy", copy), ("step", step)):
        positive(f"{name}, the same for all batches,", value, whole=False, zero=True)
    getting, moving, computing = (Fraction(exact(load)) + exact(transform), exact(copy), exact(step))
    if workers:
        beside = max(moving, computing) if loop == "copy stream" else moving + computing
        return exact(max(getting / workers, beside))
    if loop == "waits":
        return exact(getting + moving + computing)
    if loop == "runs ahead":
        return exact(moving + max(getting, computing))
    if loop == "pinned":
        return exact(max(getting, moving + computing))
    return exact(max(getting, moving, computing))


def workers_needed(*, batch: Duration, step: Duration) -> int:
    """The least number of workers that keep up, when a batch takes one worker ``batch`` and the device ``step``.

    >>> workers_needed(batch=90, step=20)
    5
    """
    positive("batch", batch, whole=False)
    positive("step", step, whole=False)
    return math.ceil(Fraction(exact(batch)) / Fraction(exact(step)))


def keeps_up(*, usual: Duration, slowest: Duration, every: int, step: Duration, workers: int) -> bool:
    """Whether each worker keeps up with its own share, when one batch in ``every`` takes ``slowest``.

    Batch i is worker ``i % workers``'s, so the worker that has a slow one has the next after
    ``lcm(every, workers) / workers`` of its batches, and each of those is due ``workers`` steps after the one before.

    >>> [keeps_up(usual=20, slowest=80, every=4, step=10, workers=n) for n in (3, 4, 5)]
    [False, False, True]
    """
    for name, value in (("usual", usual), ("slowest", slowest)):
        positive(name, value, whole=False, zero=True)
    positive("step", step, whole=False)
    positive("every", every)
    positive("workers", workers)
    own = math.lcm(every, workers) // workers
    takes = Fraction(exact(slowest)) + (own - 1) * Fraction(exact(usual))
    return takes <= own * workers * Fraction(exact(step))


def prefetch_needed(*, slowest: Duration, step: Duration, workers: int) -> int:
    """The least ``prefetch`` with which a batch that takes ``slowest`` makes nobody wait, if each worker ``keeps_up``.

    Where one does not, no prefetch helps: of four workers one has all the slow batches if every fourth is slow.

    Little's law, in flight = throughput × time in the system, asked backwards: batch i is issued when batch
    ``i - workers * prefetch`` is handed out, so it has that many steps of time.

    >>> prefetch_needed(slowest=330, step=20, workers=4)
    5
    """
    positive("workers", workers)
    return math.ceil(Fraction(workers_needed(batch=slowest, step=step), workers))


def input_bytes_per_s(*, samples_per_s: Duration, sample_bytes: int) -> Exact:
    """Bytes a second that a model eats.

    >>> input_bytes_per_s(samples_per_s=2500, sample_bytes=224 * 224 * 3)
    376320000
    """
    positive("samples_per_s", samples_per_s, whole=False)
    positive("sample_bytes", sample_bytes)
    return exact(Fraction(exact(samples_per_s)) * sample_bytes)


def shared_memory_bytes(*, batch_bytes: int, workers: int, prefetch: int = 2, exchange: bool = True) -> int:
    """Bytes of batches in shared memory when the workers are ahead: those in flight and the one in the loop's hands.

    With ``exchange`` also the one more that is made while the loop, asking for the next, still holds the last. A busy
    machine may take a moment to let go of one: leave room.

    >>> shared_memory_bytes(batch_bytes=64 * 224 * 224 * 3 * 4, workers=8) / 10**6
    693.633024
    """
    for name, value in (("batch_bytes", batch_bytes), ("workers", workers), ("prefetch", prefetch)):
        positive(name, value)
    return batch_bytes * (workers * prefetch + 1 + exchange)


def batch_sizes(samples: int, batch: int, *, streams: int = 1, drop_last: bool = False) -> list[int]:
    """Sizes of an epoch's batches when the samples are dealt to ``streams`` that are batched separately.

    A map-style dataset is one stream, whatever the workers. An iterable dataset divided among workers is one stream
    a worker, and each has a last batch of its own. In the order in which the DataLoader hands them out: in turns.

    >>> batch_sizes(10, 4), batch_sizes(10, 4, streams=2), batch_sizes(10, 4, streams=2, drop_last=True)
    ([4, 4, 2], [4, 4, 1, 1], [4, 4])
    """
    for name, value in (("samples", samples), ("batch", batch), ("streams", streams)):
        positive(name, value)
    parts = [len(range(stream, samples, streams)) for stream in range(streams)]
    cut = [[min(batch, part - at) for at in range(0, part, batch)] for part in parts]
    kept = [[size for size in sizes if size == batch or not drop_last] for sizes in cut]
    rounds = max(map(len, kept), default=0)
    return [sizes[turn] for turn in range(rounds) for sizes in kept if turn < len(sizes)]
