"""The real ``torch.utils.data.DataLoader``, watched: when each batch was asked for, loaded and handed out, and by whom.

Loading, transforming and stepping sleep, so that neither the number of cores nor other programs matter much. Only
public interfaces: the sampler notes when indices are issued, the dataset notes its own times, and monotonic clocks
agree between processes. ``data_loading.simulate`` predicts the same ``Timeline``.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from ..data_loading import Batch, Timeline, durations
from ..errors import InfrabookError
from ..units import Exact, positive

Costs: TypeAlias = float | Sequence[float]  # ms of every batch; a sequence is repeated


def start_method() -> str:
    """How workers are started here: by forking where that is possible, since what is told about them is about forks."""
    return "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"


class Sleeping(Dataset[tuple[int, int, float, float, float]]):
    """Whole batches that take ``load`` and then ``transform`` ms, and say who made them and when."""

    def __init__(self, batches: int, *, load: Costs, transform: Costs = 0) -> None:
        self.batches, self.load, self.transform = batches, load, transform

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, index: int) -> tuple[int, int, float, float, float]:
        started = time.monotonic()
        sleep(cost(self.load, index))
        loaded = time.monotonic()
        sleep(cost(self.transform, index))
        worker = get_worker_info()
        return index, worker.id if worker else -1, started, loaded, time.monotonic()


class Noted(Sampler[int]):
    """0, 1, 2, ... with the moment at which each was drawn; the DataLoader draws an index when it issues it."""

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.drawn: list[float] = []

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[int]:
        for index in range(self.batches):
            self.drawn.append(time.monotonic())
            yield index


def cost(costs: Costs, index: int) -> float:
    """The cost of batch ``index``."""
    return costs[index % len(costs)] if isinstance(costs, Sequence) else costs


def sleep(ms: float) -> None:
    """Nothing, for so many milliseconds."""
    if ms:
        time.sleep(ms / 1000)


def watch(
    batches: int, *, load: Costs, transform: Costs = 0, step: Costs = 0, workers: int = 0, prefetch: int = 2,
    in_order: bool = True,
) -> tuple[Timeline, list[int]]:  # fmt: skip
    """A loop over the real DataLoader that waits for each step: its timeline in ms, and indices drawn at each batch.

    Time 0 is when the first index is issued. The second list has, for each batch handed out, how many indices had been
    drawn by then.
    """
    for name, count in (("batches", batches), ("prefetch", prefetch)):
        positive(name, count)
    for name, costs in (("load", load), ("transform", transform), ("step", step)):
        durations(name, costs)
    sampler = Noted(batches)
    source = loader(
        Sleeping(batches, load=load, transform=transform), workers=workers, batch_size=None, sampler=sampler,
        prefetch_factor=prefetch if workers else None, in_order=in_order,
    )  # fmt: skip
    found: list[tuple[Any, float, float, float]] = []
    drawn: list[int] = []
    batch_source = iter(source)
    while True:
        asked = time.monotonic()
        try:
            batch = next(batch_source)
        except StopIteration:
            break
        delivered = time.monotonic()
        drawn.append(len(sampler.drawn))
        sleep(cost(step, batch[0]))
        found.append((batch, asked, delivered, time.monotonic()))
    zero = min(sampler.drawn[0], found[0][1])

    def at(moment: float) -> Exact:
        return Fraction(max(round((moment - zero) * 10**6), 0), 1000)

    made = [
        Batch(
            index, worker, at(sampler.drawn[index]), at(started), at(loaded), at(ready), at(asked), at(delivered),
            at(delivered), at(delivered), at(delivered), at(stepped),
        )
        for (index, worker, started, loaded, ready), asked, delivered, stepped in found
    ]  # fmt: skip
    return Timeline(tuple(made), workers, prefetch), drawn


class Loader(DataLoader[Any]):
    """PyTorch's, without its warning about more workers than cores: ours sleep."""

    def check_worker_number_rationality(self) -> None:
        """Nothing to say."""


def loader(dataset: Dataset[Any], *, workers: int, start: str = "", **settings: Any) -> DataLoader[Any]:
    """PyTorch's DataLoader with its usual arguments, its workers started by ``start`` ("fork", "spawn", "forkserver").

    If nothing is said, by ``start_method``, and not by Python's default, which differs between versions and systems.
    """
    positive("workers", workers, zero=True)
    methods = multiprocessing.get_all_start_methods()
    if start and start not in methods:
        raise InfrabookError(f"start has to be one of {', '.join(methods)}, and is {start!r}")
    method = (start or start_method()) if workers else None
    if method == "forkserver":  # imports once what each worker would have to
        multiprocessing.get_context(method).set_forkserver_preload([type(dataset).__module__])
    return Loader(dataset, num_workers=workers, multiprocessing_context=method, **settings)


def device_beside(batches: int, *, load: Costs, copy: float, step: float, loop: str) -> float:
    """ms a step of a loop over the real DataLoader, without workers, beside a device that computes by itself.

    The device is two threads that sleep in the order of what they are given: its stream of work, and one for copies.
    ``loop`` is one of ``data_loading.LOOPS``.
    """
    ends: list[float] = []

    def run(copied: Future[None] | None, began: threading.Event) -> None:
        if copied:
            copied.result()
        began.set()
        sleep(step)
        ends.append(time.monotonic())

    with ThreadPoolExecutor(1) as computing, ThreadPoolExecutor(1) as copying:
        before: threading.Event | None = None
        for _ in loader(Sleeping(batches, load=load), workers=0, batch_size=None):
            began = threading.Event()
            if loop == "copy stream":
                copied = copying.submit(sleep, copy)
                computing.submit(run, copied, began)
                if before:
                    before.wait()  # one batch waits on the device, not more
                before = began
            elif loop == "pinned":
                computing.submit(sleep, copy)  # in line behind the step before it
                computing.submit(run, None, began)
                if before:
                    before.wait()
                before = began
            else:  # in line, and the loop waits for the copy
                computing.submit(sleep, copy).result()
                done = computing.submit(run, None, began)
                if loop == "waits":
                    done.result()
    second = ends[(len(ends) - 1) // 2 :]
    return 1000 * (second[-1] - second[0]) / (len(second) - 1)


def private_bytes() -> int:
    """Bytes of memory that this process has written to and shares with nobody, as the Linux kernel counts pages."""
    rows = Path("/proc/self/smaps_rollup").read_text("utf8").splitlines()
    return 1024 * next(int(row.split()[1]) for row in rows if row.startswith("Private_Dirty:"))
