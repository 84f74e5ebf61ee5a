"""Other processes, started cleanly: the caller's script is not run again, and an interrupt leaves nobody behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.pool import Pool
from typing import Any


def context(preload: Sequence[str] = ()) -> Any:
    """How processes are started: from a server that has imported ``preload``, or afresh where there is none.

    Never by forking this process, which may hold threads and locks.
    """
    if not hasattr(os, "fork"):
        return multiprocessing.get_context("spawn")
    found = multiprocessing.get_context("forkserver")
    if preload:
        found.set_forkserver_preload(list(preload))
    return found


@contextmanager
def plain_main() -> Iterator[None]:
    """Inside, new processes do not import the caller's script again: without a guard it would start them anew.

    What they run has to come from a module, or travel with its code.
    """
    script = sys.modules["__main__"]
    hidden = {name: getattr(script, name) for name in ("__file__", "__spec__") if getattr(script, name, None)}
    for name in hidden:
        setattr(script, name, None)
    try:
        yield
    finally:
        for name, value in hidden.items():
            setattr(script, name, value)


@contextmanager
def pool(
    workers: int, *, preload: Sequence[str] = (), initializer: Callable[..., object] | None = None,
    arguments: Sequence[Any] = (),
) -> Iterator[Pool]:  # fmt: skip
    """A pool of ``workers`` that ends with the block, also on an interrupt, which is left to this process."""
    with plain_main():
        with _no_interrupt():  # until every process is there; those started inside never see one
            found = context(preload).Pool(workers, _begin, (initializer, *arguments))
        with found:
            yield found


@contextmanager
def _no_interrupt() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(initializer: Callable[..., object] | None, *arguments: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if initializer is not None:
        initializer(*arguments)
