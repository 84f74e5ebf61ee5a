"""What ranks send: collectives as PyTorch's dispatcher sees them, and bytes as the kernel counts them.

``collectives`` sees calls and their payload, whatever the backend does with it; ``sent_bytes`` sees what left this
process's TCP sockets, whoever asked. ``infrabook.collectives`` predicts both.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed._tools.fake_collectives import CollectiveOp, collective_ops, sync_ops
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NAMES = (  # part of an operator's name -> the field's word; the first that matches
    ("all_reduce", "all-reduce"), ("allreduce", "all-reduce"),
    ("all_gather", "all-gather"), ("allgather", "all-gather"),
    ("reduce_scatter", "reduce-scatter"), ("broadcast", "broadcast"), ("all_to_all", "all-to-all"),
    ("alltoall", "all-to-all"), ("gather", "gather"), ("scatter", "scatter"), ("reduce", "reduce"),
    ("send", "send"), ("recv", "receive"), ("p2p", "send and receive"),
)  # fmt: skip


@dataclass(frozen=True)
class Call:
    """One collective: its name, the ranks that take part, and the bytes of the whole buffer (S of the formulas).

    The whole buffer is the larger side: an all-gather's output, a reduce-scatter's input.
    """

    op: str
    ranks: int
    nbytes: int


@dataclass
class Calls:
    """Collectives in the order in which they were called."""

    rows: list[Call] = field(default_factory=list)

    def count(self, op: str, ranks: int | None = None) -> int:
        """How many calls of ``op`` there were (in groups of ``ranks``)."""
        return sum(row.op == op and ranks in (None, row.ranks) for row in self.rows)

    def nbytes(self, op: str, ranks: int | None = None) -> int:
        """Bytes of their whole buffers together."""
        return sum(row.nbytes for row in self.rows if row.op == op and ranks in (None, row.ranks))

    def summary(self) -> dict[str, tuple[int, int]]:
        """op -> (calls, bytes of the whole buffers)."""
        calls: Counter[str] = Counter(row.op for row in self.rows)
        return {op: (count, self.nbytes(op)) for op, count in calls.items()}


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not type its subclass hook
    def __init__(self, calls: Calls) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(one, DTensor) for one in types):
            return NotImplemented  # its local tensors will come by
        result = func(*args, **(kwargs or {}))
        if func in collective_ops and func not in sync_ops:
            name = func._schema.name.split("::")[1]
            word = next(word for part, word in NAMES if part in name)
            group = CollectiveOp.get_process_group(func, args)
            sides = (args[0], args[1] if len(args) > 1 else None, result, kwargs)
            self.calls.rows.append(Call(word, group.size(), max(map(_bytes, sides))))
        return result


def _bytes(side: Any) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(side) if isinstance(leaf, torch.Tensor))


@contextmanager
def collectives() -> Iterator[Calls]:
    """Inside, every collective that this rank calls through Python or autograd is noted.

    DDP's own all-reduces start in C++ and are not seen: give it a communication hook.
    Source: ``torch.distributed._tools.fake_collectives``.
    """
    calls = Calls()
    with _Counter(calls):
        yield calls


def sent_bytes(settle: float = 0.02) -> int | None:
    """Bytes of payload that this process's TCP sockets have sent since they were opened; None if nobody counts.

    Waits until the count has stood still for ``settle`` seconds, since a backend sends from threads of its own.
    Source: Linux, ``struct tcp_info``, ``tcpi_bytes_sent`` less ``tcpi_bytes_retrans``.
    """
    before = _tcp_bytes()
    while before is not None:
        time.sleep(settle)
        now = _tcp_bytes()
        if now == before:
            break
        before = now
    return before


def _tcp_bytes() -> int | None:
    if sys.platform != "linux":
        return None
    total, counted = 0, False
    for name in os.listdir("/proc/self/fd"):
        try:
            copy = os.dup(int(name))
        except OSError:
            continue
        try:
            one = socket.socket(fileno=copy)
        except OSError:  # a file or a pipe
            os.close(copy)
            continue
        with one, suppress(OSError):
            if one.type == socket.SOCK_STREAM and one.family in (socket.AF_INET, socket.AF_INET6):
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                if len(info) >= 216:  # since Linux 4.19
                    sent, again = struct.unpack_from("=QQ", info, 200)
                    total, counted = total + sent - again, True
    return total if counted else None
