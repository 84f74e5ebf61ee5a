"""Training loops that are slow for one reason each, a recipe that finds it, and the traps of DataLoader's workers.

    python -m infrabook.programs.data_loading megabytes=8 workers=2

hands batches of that size from workers to this process through /dev/shm and says how much of it that took;
``run_with_shm`` does so where /dev/shm is small.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from ..errors import InfrabookError
from ..measure import ranks
from ..measure.loader import loader, private_bytes, sleep
from ..units import MIB, positive


# -- a recipe ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Program:
    """A training loop in three parts, each of which takes so many ms of sleep; ``workers`` do the first two."""

    load: float
    transform: float
    step: float
    workers: int = 2


PREPARED = {
    "A": Program(60, 4, 10), "B": Program(4, 60, 10), "C": Program(4, 10, 60), "D": Program(30, 30, 30),
}  # fmt: skip
NEAR = 0.8  # of the loop's time, or more: as slow as the loop
HALF = 0.5  # of the time of the data, or more: most of it


class Files(Dataset[torch.Tensor]):
    """Samples that are loaded, then transformed unless told not to."""

    def __init__(self, program: Program, batches: int, *, transformed: bool = True) -> None:
        self.program, self.batches, self.transformed = program, batches, transformed

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, index: int) -> torch.Tensor:
        sleep(self.program.load)
        if self.transformed:
            sleep(self.program.transform)
        return torch.full((4,), float(index))


class Diagnosis(NamedTuple):
    """Seconds a batch of four loops, and what they say: ``model``, ``balanced``, ``transform`` or ``load``."""

    whole: float
    model_alone: float
    data_alone: float
    loading_alone: float
    verdict: str


def diagnose(program: Program, batches: int = 12) -> Diagnosis:
    """Which part to work on, by leaving parts out: the data, then the model, then the transform."""
    positive("batches", batches)
    if batches < 2:
        raise InfrabookError("one batch has no time from one to the next: take 2 or more")

    def data(*, transformed: bool = True) -> Iterable[torch.Tensor]:
        return loader(Files(program, batches, transformed=transformed), workers=program.workers, batch_size=None)

    kept = torch.zeros(4)  # one batch that is there already
    loops: tuple[Callable[[], float], ...] = (
        lambda: per_batch(data(), program.step),
        lambda: per_batch(repeat(kept, batches), program.step),
        lambda: per_batch(data(), 0),
        lambda: per_batch(data(transformed=False), 0),
    )
    # the better of two: other programs can only make it slower
    whole, model_alone, data_alone, loading_alone = (min(loop(), loop()) for loop in loops)
    word = verdict(whole, model_alone, data_alone, loading_alone)
    return Diagnosis(whole, model_alone, data_alone, loading_alone, word)


def profiled(program: Program, batches: int = 16) -> dict[str, float]:
    """The rows of PyTorch's profiler, each as a part of the loop's time, the longest first."""
    data = loader(Files(program, batches), workers=program.workers, batch_size=None)
    with silent(), profile(activities=[ProfilerActivity.CPU], acc_events=True) as trace, record_function("loop"):
        for _ in data:
            with record_function("step"):
                sleep(program.step)
    rows = {row.key: row.cpu_time_total for row in trace.key_averages()}
    return {key: spent / rows["loop"] for key, spent in sorted(rows.items(), key=lambda row: -row[1])}


def waiting(rows: dict[str, float]) -> float:
    """The part of the loop's time inside the loader's ``__next__``, of ``profiled``'s rows."""
    return sum(part for key, part in rows.items() if key.startswith("enumerate(DataLoader)"))


@contextmanager
def silent() -> Iterator[None]:
    """Without what the profiler's C++ says on standard error when it starts and stops."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def verdict(whole: float, model_alone: float, data_alone: float, loading_alone: float) -> str:
    """What four times say. Without data as slow as with it: the model, or, if without model as well, neither alone.

    Else without transform at least half as slow as with it: loading.

    >>> verdict(62, 60, 9, 4), verdict(31, 30, 30, 15), verdict(33, 10, 32, 30), verdict(33, 10, 32, 3)
    ('model', 'balanced', 'load', 'transform')
    """
    if model_alone > NEAR * whole:
        return "balanced" if data_alone > NEAR * whole else "model"
    return "load" if loading_alone > HALF * data_alone else "transform"


def per_batch(batches: Iterable[Any], step: float) -> float:
    """Seconds a batch of a loop over ``batches``, in its second half: workers that start are in the first."""
    moments = []
    for _ in batches:
        sleep(step)
        moments.append(time.perf_counter())
    moments = moments[(len(moments) - 1) // 2 :]
    return (moments[-1] - moments[0]) / (len(moments) - 1)


# -- the same random numbers -------------------------------------------------------------------------------------
SOURCES = ("own generator", "global")


class Noise(Dataset[float]):
    """One random number a sample, from a generator of the dataset's own or from NumPy's global one."""

    def __init__(self, samples: int, source: str) -> None:
        if source not in SOURCES:
            raise InfrabookError(f"source has to be one of {', '.join(SOURCES)}, and is {source!r}")
        self.samples, self.source = samples, source
        self.generator = np.random.default_rng(0)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> float:
        return float(self.generator.random() if self.source == "own generator" else np.random.random())


def reseed(worker: int) -> None:
    """A generator of its own for each worker and epoch, from the seed that PyTorch draws for both."""
    info = get_worker_info()
    if info is not None:
        info.dataset.generator = np.random.default_rng(info.seed)  # type: ignore[attr-defined]


def reseed_by_number(worker: int) -> None:
    """The cure of many posts: different in each worker, the same in each epoch."""
    np.random.seed(worker)


def draws(
    source: str, *, workers: int = 2, samples: int = 8, epochs: int = 2, persistent: bool = False,
    init: Callable[[int], None] | None = None, start: str = "",
) -> list[float]:  # fmt: skip
    """The random numbers of all samples and epochs, from workers started by ``start``."""
    torch.manual_seed(0)
    data = loader(
        Noise(samples, source), workers=workers, start=start, batch_size=None, worker_init_fn=init,
        persistent_workers=persistent,
    )  # fmt: skip
    return [float(value) for _ in range(epochs) for value in data]


# -- every worker has everything ---------------------------------------------------------------------------------
class Stream(IterableDataset[int]):
    """The numbers below ``samples``, all of them from each worker, or, ``divided``, each from one."""

    def __init__(self, samples: int, *, divided: bool = False) -> None:
        self.samples, self.divided = samples, divided

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        if info is None or not self.divided:
            yield from range(self.samples)
        else:
            yield from range(info.id, self.samples, info.num_workers)


def batches_of(
    dataset: Dataset[Any], batch: int, *, workers: int, drop_last: bool = False, start: str = ""
) -> list[list[int]]:
    """An epoch's batches as the DataLoader hands them out."""
    data = loader(dataset, workers=workers, start=start, batch_size=batch, drop_last=drop_last)
    return [found.tolist() for found in data]


# -- reading is writing ------------------------------------------------------------------------------------------
class Names(Dataset[int]):
    """File names as Python strings or in one array; an item reads ``chunk`` of them, and says how much is private."""

    def __init__(self, count: int, *, array: bool, chunk: int = 5_000) -> None:
        names = [f"images/train/{i:012d}.jpg" for i in range(count)]
        packed = np.array(names, dtype="S")
        self.names: Any = packed if array else names
        self.count, self.chunk = count, chunk
        self.nbytes = packed.nbytes if array else sum(map(sys.getsizeof, names))

    def __len__(self) -> int:
        return self.count // self.chunk

    def __getitem__(self, index: int) -> int:
        before = private_bytes()
        for i in range(index * self.chunk, (index + 1) * self.chunk):
            _ = self.names[i]
        return private_bytes() - before


def copied_by_reading(dataset: Names) -> int:
    """Bytes that a forked worker makes its own by reading every name once."""
    return sum(loader(dataset, workers=1, batch_size=None))


# -- shared memory -----------------------------------------------------------------------------------------------
class Zeros(Dataset[torch.Tensor]):
    """Batches of ``megabytes`` MiB."""

    def __init__(self, batches: int, megabytes: int) -> None:
        self.batches, self.megabytes = batches, megabytes

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(self.megabytes * MIB, dtype=torch.uint8)


def through_shared_memory(
    megabytes: int = 8, workers: int = 1, prefetch: int = 2, batches: int = 12, step: float = 60, patience: float = 0
) -> dict[str, Any]:
    """Batches received by a loop that steps slowly, MiB in /dev/shm during most steps, and what the loop complained of.

    ``patience`` is DataLoader's ``timeout`` in seconds; with 0 it waits for ever.
    """
    positive("megabytes", megabytes)
    data = loader(
        Zeros(batches, megabytes), workers=workers, batch_size=None, prefetch_factor=prefetch, timeout=patience
    )
    held, complaint = [], ""
    try:
        for _ in data:
            sleep(step)
            room = os.statvfs("/dev/shm")
            held.append((room.f_blocks - room.f_bfree) * room.f_frsize // MIB)
    except RuntimeError as error:
        complaint = str(error).strip().splitlines()[-1]
    return {"received": len(held), "usual_mib": statistics.mode(held or [0]), "complaint": complaint}


# Twelve batches of 4 MiB, two workers, prefetch 2, where /dev/shm has room for so many of them: whether the loop got
# all. Kept for machines that give nobody a /dev/shm of his own; the tests compare it with what they measure.
RECORDED = {
    "date": "2026-11-29", "on": "Linux, PyTorch 2.13", "in_use": {(2, 2): 5, (2, 4): 9},
    "complete": {5: False, 8: True},
}  # fmt: skip


def run_with_shm(size: str, **settings: float) -> dict[str, Any] | None:
    """``through_shared_memory(**settings)`` where /dev/shm holds ``size`` ("20m"), and the last line a worker printed.

    None where that cannot be had, and nothing has run. A namespace of its own gets a small file system mounted there,
    as a container does; nothing outside it notices.
    """
    unshare = shutil.which("unshare")
    if unshare is None:
        return None
    inside = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && echo mounted && exec "$@"'
    words = [f"{name}={value}" for name, value in settings.items()]
    command = [unshare, "--user", "--map-root-user", "--mount", "sh", "-c", inside, "sh",
               sys.executable, "-m", "infrabook.programs.data_loading", *words]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    mounted, _, said_so = done.stdout.partition("\n")
    if mounted != "mounted":
        return None
    if not said_so:
        raise InfrabookError(f"the program with a /dev/shm of {size} failed: {done.stderr.strip()[-300:]}")
    found: dict[str, Any] = json.loads(said_so.partition(": ")[2])
    said = [line for line in done.stderr.splitlines() if "Error: " in line]
    return found | {"worker_said": said[-1] if said else ""}


# -- copies to the GPU -------------------------------------------------------------------------------------------
def copies(megabytes: int = 256, repeats: int = 10) -> dict[str, Any]:
    """Copies to this machine's GPU, from pageable and from pinned memory, on the stream of the step and on one apart.

    GB/s of each memory. Then a copy is asked for just after matmuls that take as long as a pinned copy: ``returned``
    is the part of the time of both after which Python had the call back, ``hidden`` the part of the shorter of the two
    that does not show.
    """
    target = torch.empty(megabytes * MIB, dtype=torch.uint8, device="cuda")
    host = {"pageable": torch.ones(megabytes * MIB, dtype=torch.uint8)}
    host["pinned"] = host["pageable"].pin_memory()
    square = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    streams = {"same": torch.cuda.current_stream(), "apart": torch.cuda.Stream()}  # type: ignore[no-untyped-call]

    def copy(kind: str) -> None:
        target.copy_(host[kind], non_blocking=True)

    def compute(times: int) -> None:
        for _ in range(times):
            square @ square

    def both(kind: str, stream: str, times: int) -> None:
        compute(times)
        with torch.cuda.stream(streams[stream]):
            copy(kind)

    def timed(work: Callable[..., None], *arguments: Any) -> tuple[float, float]:
        """Seconds until all is done, the best of several, and the part of them until the call came back."""
        found = []
        for _ in range(repeats + 1):
            torch.cuda.synchronize()
            start = time.perf_counter()
            work(*arguments)
            returned = time.perf_counter() - start
            torch.cuda.synchronize()
            seconds = time.perf_counter() - start
            found.append((seconds, returned / seconds))
        return min(found[1:])

    times = max(1, round(10 * timed(copy, "pinned")[0] / timed(compute, 10)[0]))
    computing, _ = timed(compute, times)
    found: dict[str, Any] = {}
    for kind, memory in host.items():
        alone, _ = timed(copy, kind)
        found[f"{kind}_gb_per_s"] = round(memory.nbytes / alone / 1e9, 2)
        for stream in streams:
            together, returned = timed(both, kind, stream, times)
            found[f"{kind}_{stream}_returned"] = round(returned, 2)
            found[f"{kind}_{stream}_hidden"] = round((alone + computing - together) / min(alone, computing), 2)
    return found


if __name__ == "__main__":
    ranks.main(through_shared_memory)
