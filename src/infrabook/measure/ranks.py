"""Real ranks: a function in several processes of ``torch.distributed``, from a notebook or under ``torchrun``.

``launch`` starts ranks on this machine and gives back what each returned: no ports, a deadline, the failing rank's
own traceback, no process left behind. ``main`` is the other door: a program that ends with it runs the same
function under ``torchrun``, on one node or many, with NCCL where every rank has a GPU and gloo elsewhere.
``wire`` counts what ranks send.
"""

from __future__ import annotations

import ast
import inspect
import io
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from multiprocessing import connection
from pathlib import Path
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from .. import processes
from ..errors import InfrabookError
from ..units import positive

PRELOAD = (
    "torch", "torch.distributed", "torch.distributed.tensor.parallel", "torch.distributed.fsdp",
    "torch.distributed.pipelining", "torch.distributed.optim", "infrabook.measure.ranks", "infrabook.measure.wire",
)  # fmt: skip


class RankError(RuntimeError):
    """A rank failed, died or gave no answer in time; the message has its own traceback."""


# -- inside a rank -----------------------------------------------------------------------------------------------
def device() -> torch.device:
    """Where this rank computes: its own GPU under NCCL, else the CPU."""
    if dist.is_initialized() and dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


@contextmanager
def joined(backend: str | None = None, store: str | None = None) -> Iterator[None]:
    """Inside, this process is a rank of the default group that the environment describes.

    ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK`` and ``LOCAL_WORLD_SIZE`` as ``torchrun`` sets them. Without ``backend``
    it is NCCL if this machine has a GPU for each of its ranks, and gloo otherwise. ``store`` is a file to meet at.
    """
    rank, ranks, local = (int(os.environ.get(name, default)) for name, default in
                          (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")))  # fmt: skip
    if backend is None:
        here = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
        backend = "nccl" if torch.cuda.is_available() and torch.cuda.device_count() >= here else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(local)
    address = f"file://{store}" if store else "env://"
    dist.init_process_group(backend, init_method=address, rank=rank, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def main(function: Callable[..., Any], arguments: list[str] | None = None) -> None:
    """Run ``function`` in every rank that ``torchrun`` started and print each result, in order, from rank 0.

    ``arguments`` are ``key=value`` as typed at the shell. Plain ``python -m`` is a world of one rank.
    """
    settings = _settings(function, sys.argv[1:] if arguments is None else arguments)
    if "MASTER_ADDR" not in os.environ:  # not under torchrun
        with tempfile.TemporaryDirectory() as folder, joined(store=str(Path(folder, "store"))):
            print(_line(0, function(**settings)))
        return
    with joined():
        result = function(**settings)
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, result)
        if dist.get_rank() == 0:
            for rank, value in enumerate(gathered):
                print(_line(rank, value), flush=True)


def _settings(function: Callable[..., Any], words: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise SystemExit(f"{word!r} is not a setting; write it as name=value")
        try:
            found[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[key] = value
    names = inspect.signature(function).parameters
    if unknown := sorted(set(found) - set(names)):
        raise SystemExit(f"there is no setting {unknown[0]!r}; there are {', '.join(names) or 'none'}")
    return found


def _line(rank: int, value: Any) -> str:
    return f"rank {rank}: {json.dumps(value, default=str)}"


# -- ranks on this machine ---------------------------------------------------------------------------------------
def launch(
    function: Callable[..., Any], ranks: int, *args: Any, timeout: float = 120.0, threads: int = 1, seed: int = 0,
    backend: str = "gloo", **kwargs: Any,
) -> list[Any]:  # fmt: skip
    """``function(*args, **kwargs)`` in ``ranks`` new processes that form one group; what each returned, by rank.

    A function of an importable module travels by name, one defined in a notebook with its code. Each rank starts
    with ``torch.manual_seed(seed)`` and ``threads`` threads. What it prints appears here when all are done, rank
    by rank. If one fails, the rest are ended and ``RankError`` has the first failure's traceback; so does a
    deadline of ``timeout`` seconds.
    """
    positive("ranks", ranks)
    positive("timeout", timeout, whole=False)
    positive("threads", threads)
    if backend == "nccl" and torch.cuda.device_count() < ranks:
        raise InfrabookError(
            f"nccl needs a GPU for each rank: {ranks} ranks, and {torch.cuda.device_count()} GPUs here"
        )
    work = cloudpickle.dumps((function, args, kwargs))
    context = processes.context(PRELOAD)
    with tempfile.TemporaryDirectory() as folder, processes.plain_main():
        started, ends = [], {}
        try:
            for rank in range(ranks):
                ours, theirs = context.Pipe(duplex=False)
                options = (rank, ranks, folder, threads, seed, backend)
                child = context.Process(target=_rank, args=(theirs, work, options), daemon=True)
                child.start()
                theirs.close()
                started.append(child)
                ends[ours] = rank
            results = _collect(ends, timeout, started, folder)
            for child in started:
                child.join(10)
        finally:
            for child in started:
                if child.is_alive():
                    child.kill()
                child.join()
            for end in ends:
                end.close()
    for rank, (_, printed) in enumerate(results):
        for line in printed.splitlines():
            print(f"rank {rank}: {line}")
    return [value for value, _ in results]


def _rank(end: connection.Connection, work: bytes, options: tuple[int, int, str, int, int, str]) -> None:
    rank, ranks, folder, threads, seed, backend = options
    log = os.open(Path(folder, f"rank{rank}.log"), os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)  # what C++ prints is of interest only if the rank dies
    os.dup2(log, 2)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks))
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    printed = io.StringIO()
    try:
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        function, args, kwargs = pickle.loads(work)
        with joined(backend, str(Path(folder, "store"))):
            try:
                with redirect_stdout(printed):
                    result = function(*args, **kwargs)
                # plain pickle: torch's own reducer would pass file descriptors that end with this process
                end.send_bytes(pickle.dumps((True, time.monotonic(), (result, printed.getvalue()))))
            except BaseException:  # said before the group ends, so that this failure comes before its neighbours'
                _say_failure(end)
                raise
            dist.barrier()  # nobody leaves while a neighbour still talks
    except BaseException:
        _say_failure(end)
    finally:
        end.close()


def _say_failure(end: connection.Connection) -> None:
    with suppress(OSError):  # nobody listens any more
        end.send_bytes(pickle.dumps((False, time.monotonic(), traceback.format_exc())))


def _collect(ends: dict[Any, int], timeout: float, started: list[Any], folder: str) -> list[tuple[Any, str]]:
    """Every rank's (result, printed text); after a failure, the earliest one that comes within half a second."""
    results: dict[int, tuple[Any, str]] = {}
    failures: list[tuple[float, int, str]] = []
    deadline = time.monotonic() + timeout
    waiting = dict(ends)
    while waiting:
        ready = connection.wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for end in ready:
            rank = waiting.pop(end)
            try:
                well, at, value = pickle.loads(end.recv_bytes())  # type: ignore[union-attr]
            except EOFError:
                started[rank].join(5)
                words = f"it died with exit code {started[rank].exitcode}\n{_tail(folder, rank)}"
                well, at, value = False, float("-inf"), words  # before whatever its neighbours then complain of
            if well:
                results[rank] = value
            else:
                failures.append((at, rank, value))
                deadline = min(deadline, time.monotonic() + 0.5)
    if failures:
        _, rank, words = min(failures)
        raise RankError(f"rank {rank} failed: {words.strip()}")
    if waiting:
        late = ", ".join(map(str, sorted(waiting.values())))
        raise RankError(f"no answer from rank {late} within {timeout:g} s: does every rank call each collective?")
    return [results[rank] for rank in range(len(ends))]


def _tail(folder: str, rank: int, lines: int = 8) -> str:
    path = Path(folder, f"rank{rank}.log")
    return "\n".join(path.read_text("utf-8", "replace").splitlines()[-lines:]) if path.exists() else ""


# -- the real torchrun -------------------------------------------------------------------------------------------
def torchrun(program: str, *arguments: str, ranks: int = 2, nodes: int = 1, timeout: float = 180.0) -> str:
    """What ``torchrun -m program arguments`` prints, with ``ranks`` ranks on each of ``nodes`` nodes.

    All nodes are this machine: one agent for each, meeting at a port, as on two machines. Returns node 0's output.
    """
    positive("ranks", ranks)
    positive("nodes", nodes)
    base = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    meet = [f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=book"]
    commands = [
        [*base, *(["--standalone"] if nodes == 1 else [*meet, f"--node-rank={node}", "--local-addr=127.0.0.1"]), "-m",
         program, *arguments]
        for node in range(nodes)
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    agents = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
            start_new_session=True,
        )
        for command in commands
    ]  # fmt: skip
    try:
        outputs = [agent.communicate(timeout=timeout) for agent in agents]
    except subprocess.TimeoutExpired:
        raise RankError(f"torchrun gave no answer within {timeout:g} s") from None
    finally:
        for agent in agents:
            if agent.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(agent.pid, signal.SIGKILL)
                agent.communicate()
    for agent, (_, errors) in zip(agents, outputs, strict=True):
        if agent.returncode:
            raise RankError(f"torchrun ended with {agent.returncode}:\n{errors.strip()[-2000:]}")
    return "".join(out for out, _ in outputs)


def require(ranks: int, *, multiple_of: int = 1) -> None:
    """Refuse a group of another size than the program was written for, in the words of its user."""
    world = dist.get_world_size()
    if ranks and world != ranks:
        raise InfrabookError(f"this program is written for {ranks} ranks, and runs on {world}")
    if world % multiple_of:
        raise InfrabookError(f"{world} ranks cannot be divided into groups of {multiple_of}")
