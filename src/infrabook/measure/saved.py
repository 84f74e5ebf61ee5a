"""What autograd keeps for the backward pass, tensor by tensor, as autograd itself reports it.

``saved_for_backward`` watches a forward pass through ``torch.autograd.graph.saved_tensors_hooks`` and charges each
new storage to the module that was running. ``peak`` asks when in a step all of it is alive at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks


@dataclass(frozen=True)
class Saved:
    """One storage kept for backward: the module that was running, the tensor's shape and dtype, its bytes."""

    module: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


@dataclass
class SavedTensors:
    """What a forward pass kept, in order, each storage once, parameters left out."""

    rows: list[Saved] = field(default_factory=list)
    views: int = 0  # bytes if every saved tensor were counted, shared storages and parameters too

    @property
    def total(self) -> int:
        """Bytes of all unique storages."""
        return sum(row.nbytes for row in self.rows)

    def by(self, key: Callable[[Saved], Any]) -> dict[Any, int]:
        """Bytes by ``key(row)``, in the order of first appearance."""
        sums: Counter[Any] = Counter()
        for row in self.rows:
            sums[key(row)] += row.nbytes
        return dict(sums)


@contextmanager
def fake_tensors(dtype: torch.dtype = torch.bfloat16) -> Iterator[None]:
    """Inside, tensors have shape, dtype and storage size and no data; new parameters are of ``dtype``.

    >>> with fake_tensors():
    ...     nn.Linear(10**6, 10**6, bias=False).weight.nbytes
    2000000000000
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with FakeTensorMode():
            yield
    finally:
        torch.set_default_dtype(before)


def _own(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, and what a collective under way will be; any other tensor as it is."""
    tensor = getattr(tensor, "_local_tensor", tensor)
    return getattr(tensor, "elem", tensor)


def _storage(tensor: Tensor) -> int:
    return int(_own(tensor).untyped_storage()._cdata)


@contextmanager
def saved_for_backward(model: nn.Module) -> Iterator[SavedTensors]:
    """Record what autograd saves while ``model`` runs inside the block.

    Works on real and on fake tensors; of a DTensor, this rank's part counts. A storage that several operations save
    counts once, for the first of them.

    >>> layer = nn.Linear(4, 3)
    >>> with saved_for_backward(layer) as saved:
    ...     out = layer(torch.ones(2, 4))
    >>> [(row.shape, row.nbytes) for row in saved.rows]
    [((2, 4), 32)]
    """
    saved, stack = SavedTensors(), [""]
    seen = {_storage(parameter) for parameter in model.parameters()}
    alive: list[torch.UntypedStorage] = []  # a storage freed early could lend its address to another

    def pack(tensor: Tensor) -> Tensor:
        mine = _own(tensor)
        storage = mine.untyped_storage()
        saved.views += mine.numel() * mine.element_size()
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            alive.append(storage)
            dtype = str(mine.dtype).removeprefix("torch.")
            saved.rows.append(Saved(stack[-1], tuple(mine.shape), dtype, storage.nbytes()))
        return tensor

    def enter(name: str) -> Callable[..., None]:
        return lambda *_: stack.append(name)

    def leave(*_: Any) -> None:
        stack.pop()

    hooks = []
    for name, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(enter(name)))
        hooks.append(module.register_forward_hook(leave, always_call=True))
    try:
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            yield saved
    finally:
        for hook in hooks:
            hook.remove()


def _is_number(tensor: Tensor) -> bool:
    """Whether autograd shows a plain Python number as a tensor: the hooks never see those."""
    return tensor.dim() == 0 and tensor.dtype in (torch.float64, torch.int64)


def graph_bytes(output: Tensor, model: nn.Module) -> int:
    """The same total by another road: walk the graph behind ``output`` and add up its ``_saved_*`` fields.

    >>> layer = nn.Linear(4, 3)
    >>> graph_bytes(layer(torch.ones(2, 4)).sum(), layer)
    32
    """
    seen = {_storage(parameter) for parameter in model.parameters()}
    total, visited, waiting = 0, set(), [output.grad_fn]
    alive: list[torch.UntypedStorage] = []
    while waiting:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        waiting += [following for following, _ in node.next_functions]
        for name in dir(node):
            if not name.startswith("_saved_"):
                continue
            value = getattr(node, name)
            for tensor in value if isinstance(value, tuple | list) else (value,):
                if isinstance(tensor, Tensor) and not _is_number(tensor) and _storage(tensor) not in seen:
                    storage = tensor.untyped_storage()
                    seen.add(storage._cdata)
                    alive.append(storage)
                    total += storage.nbytes()
    return total
