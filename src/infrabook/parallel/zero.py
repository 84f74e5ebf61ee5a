"""Who updates which parameter, and so who keeps what: ZeRO's stages, FSDP's gathering, hybrid sharding.

``recipes.states`` divides the bytes; this module says among whom, what the ranks send for it, and what a rank holds
at each moment of a step. Nothing here divides activations: they belong to the data, which no two ranks share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Unpack

from .. import collectives, flops, memory, recipes, shapes
from ..activations import Options
from ..errors import InfrabookError
from ..ledger import Ledger, Row, ledger
from ..memory import Moment, OptimizerStep
from ..models import Transformer
from ..recipes import Recipe
from ..units import Exact, exact, positive
from . import fsdp

NAMES = {0: "DDP", 1: "ZeRO-1", 2: "ZeRO-2", 3: "ZeRO-3"}
PASSES = {0: 2, 1: 2, 2: 2, 3: 3}
"""ZeRO, section 7: how often a step sends a tensor as large as the model, in the limit of many ranks."""


@dataclass(frozen=True)
class Sharding:
    """How data-parallel ranks share the work of keeping and updating parameters.

    ``stage`` is ZeRO's (0: every rank keeps everything, as in DDP). ``ranks`` form a shard group, which divides
    what the stage divides; ``replicas`` such groups hold the same (hybrid sharding, 1 without).
    ``reshard_after_forward`` is FSDP2's: whether stage 3 lets go of gathered weights after forward and gathers
    them again for backward, or keeps them in between.

    >>> Sharding(3, ranks=8, replicas=4).data_parallel, Sharding(2, ranks=8).divided("weights")
    (32, 1)
    """

    stage: int
    ranks: int
    replicas: int = 1
    reshard_after_forward: bool = True

    def __post_init__(self) -> None:
        recipes.shards("weights", zero=self.stage, data_parallel=self.ranks)  # refuses what is no stage
        positive("ranks", self.ranks)
        positive("replicas", self.replicas)
        if self.stage == 0 and self.replicas > 1:
            raise InfrabookError(f"stage 0 divides nothing, so {self.replicas} replicas are ranks like all others")

    @property
    def data_parallel(self) -> int:
        """All ranks that see different data."""
        return self.ranks * self.replicas

    @property
    def name(self) -> str:
        """What it is called."""
        hybrid = "" if self.replicas == 1 else f", hybrid {self.replicas} × {self.ranks}"
        kept = "" if self.reshard_after_forward or self.stage < 3 else " without resharding"
        return NAMES[self.stage] + kept + hybrid

    def divided(self, kind: str) -> int:
        """Among how many ranks the tensors of this kind are divided."""
        return recipes.shards(kind, zero=self.stage, data_parallel=self.ranks)


# -- who keeps what ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Component:
    """One tensor of a recipe: bytes per parameter, among how many ranks it is divided, how many copies exist."""

    name: str
    kind: str
    bytes_per_parameter: Fraction
    ranks: int
    copies: int

    @property
    def group(self) -> str:
        """The group over which it is divided, in words."""
        return f"divided in the shard group of {self.ranks}" if self.ranks > 1 else "whole on every rank"


def components(sharding: Sharding, recipe: str | Recipe = "bf16-adamw") -> tuple[Component, ...]:
    """Which component is sharded over which group.

    >>> for one in components(Sharding(2, ranks=8, replicas=2)):
    ...     print(f"{one.name}: {one.group}, {one.copies} copies")
    weights: whole on every rank, 16 copies
    gradients: divided in the shard group of 8, 2 copies
    master weights: divided in the shard group of 8, 2 copies
    first moment: divided in the shard group of 8, 2 copies
    second moment: divided in the shard group of 8, 2 copies
    """
    return tuple(
        Component(
            tensor.name, tensor.kind, tensor.bytes_per_element, sharding.divided(tensor.kind),
            sharding.data_parallel // sharding.divided(tensor.kind),
        )
        for tensor in recipes.get(recipe).tensors
    )  # fmt: skip


def bytes_per_parameter(sharding: Sharding, recipe: str | Recipe = "bf16-adamw") -> Fraction:
    """Bytes one rank keeps for each parameter: 4 + 12/N, 2 + 14/N, 16/N for the paper's recipe (section 5).

    >>> [str(bytes_per_parameter(Sharding(stage, ranks=64))) for stage in (0, 1, 2, 3)]
    ['16', '67/16', '71/32', '1/4']
    """
    return recipes.bytes_per_parameter(recipe, zero=sharding.stage, data_parallel=sharding.ranks)


def states(model: Transformer | int, sharding: Sharding, recipe: str | Recipe = "bf16-adamw") -> Ledger:
    """The bytes of weights, gradients and optimizer states on one rank, an even share of each."""
    found = recipes.states(model, recipe, zero=sharding.stage, data_parallel=sharding.ranks)
    return found.named(f"{found.title}, {sharding.name} on {sharding.data_parallel} ranks")


def host_memory(parameters: Exact, *, ranks_per_node: int, buffer_factor: Exact | float = Fraction(3, 2)) -> Exact:
    """Bytes of a node's own memory if gradients and states are offloaded to it, as DeepSpeed estimates them.

    Sixteen bytes a parameter; or, if that is more, four for each process of the node, since each builds the whole
    model in FP32 before it is divided. All times a factor for buffers.
    Source: DeepSpeed, docs/code-docs/source/memory.rst. Its code multiplies by the ranks of all nodes instead.

    >>> float(host_memory(2_851_000_000, ranks_per_node=8)) / 2**30
    127.449631690979
    """
    positive("parameters", parameters, whole=False)
    positive("ranks_per_node", ranks_per_node)
    positive("buffer_factor", buffer_factor, whole=False)
    return exact(Fraction(parameters) * max(4 * ranks_per_node, 16) * Fraction(exact(buffer_factor)))


# -- shares that are whole -----------------------------------------------------------------------------------


def whole_tensors(sizes: Sequence[int], ranks: int) -> list[list[int]]:
    """Which tensors each rank owns if none is cut: the largest first, each to the rank that has least so far.

    Source: torch.distributed.optim.ZeroRedundancyOptimizer, ``_partition_parameters``.

    >>> whole_tensors([4, 10, 3, 6], 2)
    [[1, 2], [3, 0]]
    """
    positive("ranks", ranks)
    owned: list[list[int]] = [[] for _ in range(ranks)]
    held = [0] * ranks
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        rank = held.index(min(held))
        owned[rank].append(index)
        held[rank] += sizes[index]
    return owned


def owned(model: Transformer, *, ranks: int, rank: int) -> int:
    """Parameters of ``model`` that ``rank`` updates if whole tensors have owners.

    >>> from .. import models
    >>> shares = [owned(models.get("llama-2-7b"), ranks=8, rank=rank) for rank in range(8)]
    >>> sum(shares), f"{8 * max(shares) / sum(shares):.3f}"
    (6738415616, '1.010')
    """
    sizes = [shape.elements for shape in shapes.shapes(model) for _ in range(shape.count)]
    if not 0 <= rank < ranks:
        raise InfrabookError(f"rank {rank} does not exist: {ranks} ranks are counted from 0")
    return sum(sizes[index] for index in whole_tensors(sizes, ranks)[rank])


def rows_of(rows: int, *, ranks: int, rank: int) -> int:
    """How many of a tensor's ``rows`` (its first dimension) FSDP2 gives to ``rank``: as torch.chunk cuts.

    >>> [rows_of(10, ranks=4, rank=rank) for rank in range(4)]
    [3, 3, 3, 1]
    """
    positive("rows", rows)
    each = -(-rows // ranks)
    return max(0, min(each, rows - rank * each))


def shard_elements(tensors: Iterable[Sequence[int]], *, ranks: int, rank: int = 0, padded: bool = False) -> int:
    """Elements of ``tensors`` (their shapes) that ``rank`` holds under FSDP2.

    ``padded``: with the rows that fill the last shards up to the size of the others, which weights in storage and
    every collective have; optimizer states have not.
    Source: torch.distributed.fsdp.fully_shard, ``FSDPParam._init_sharded_param``.

    >>> shard_elements([(10, 4), (5,)], ranks=4, rank=3), shard_elements([(10, 4), (5,)], ranks=4, padded=True)
    (4, 14)
    """
    total = 0
    for shape in tensors:
        rows, *rest = shape
        total += (-(-rows // ranks) if padded else rows_of(rows, ranks=ranks, rank=rank)) * prod(rest)
    return total


# -- what is sent --------------------------------------------------------------------------------------------


def traffic(
    parameters: Exact,
    sharding: Sharding,
    *,
    weights: str = "bf16",
    gradients: str = "bf16",
    kept: Exact = 0,
    micro_batches: int = 1,
    whole_updates: bool = False,
) -> Ledger:
    """Bytes that one rank sends in a step, a row a collective, by ring: each pass moves (n - 1)/n of its tensor.

    ``weights`` and ``gradients`` are the dtypes that travel. ``kept``: parameters that stay gathered between
    forward and backward although the rest is let go (FSDP2's root unit, by default). ``micro_batches``: stages 0
    and 1 accumulate whole gradients and reduce once; stages 2 and 3 have nowhere to keep them and reduce each
    time. ``whole_updates``: ``ZeroRedundancyOptimizer`` as PyTorch has it: DDP's all-reduce, and then each owner
    broadcasts the tensors that it updated, so that a rank sends the tensor on once along a chain.
    Source: ZeRO, section 7.

    >>> [round(float(traffic(10**9, Sharding(stage, ranks=64)).total / (2 * 10**9)), 4) for stage in (0, 1, 2, 3)]
    [1.9688, 1.9688, 1.9688, 2.9531]
    """
    positive("parameters", parameters, whole=False)
    positive("micro_batches", micro_batches)
    positive("kept", kept, whole=False, zero=True)
    if kept > parameters:
        raise InfrabookError(f"{kept:,} parameters cannot be kept gathered: there are {parameters:,}")
    stage, n = sharding.stage, sharding.ranks
    all_weights, all_gradients = parameters * recipes.bytes_of(weights), parameters * recipes.bytes_of(gradients)

    def row(name: str, op: str, size: Exact, times: int = 1, ranks: int = n) -> Row:
        sent = Fraction(collectives.bytes_sent(op, size_bytes=exact(size), ranks=ranks)) * times
        if op == "broadcast":  # of whole tensors by many owners: everybody but the last in a chain sends it on
            sent = Fraction(size) * (ranks - 1) / ranks
        return Row(name, exact(sent), "communication", f"{op} in {ranks}" + (f", {times} times" if times > 1 else ""))

    again = micro_batches if stage >= 2 else 1
    rows = []
    if stage == 0 or whole_updates:
        rows.append(row("all-reduce of gradients", "all-reduce", all_gradients))
    if whole_updates:
        if stage != 1:
            raise InfrabookError(f"updates of whole tensors are ZeRO-1's, and this is stage {stage}")
        rows.append(row("broadcast of updated weights", "broadcast", all_weights))
    elif stage in (1, 2):
        rows.append(row("reduce-scatter of gradients", "reduce-scatter", all_gradients, again))
        rows.append(row("all-gather of updated weights", "all-gather", all_weights))
    elif stage == 3:
        second = all_weights - kept * recipes.bytes_of(weights) if sharding.reshard_after_forward else 0
        rows += [
            row("all-gather for forward", "all-gather", all_weights, again),
            row("all-gather for backward", "all-gather", second, again),
            row("reduce-scatter of gradients", "reduce-scatter", all_gradients, again),
        ]
    if sharding.replicas > 1:
        rows.append(
            row("all-reduce of gradient shards among replicas", "all-reduce", Fraction(all_gradients) / n, again,
                sharding.replicas)
        )  # fmt: skip
    return ledger(f"sent by one rank in a step, {sharding.name}", rows)


# -- what is alive when --------------------------------------------------------------------------------------


def timeline(
    model: Transformer,
    sharding: Sharding,
    recipe: str | Recipe = "bf16-adamw",
    *,
    optimizer_step: OptimizerStep = "for-loop",
    gathered: str = "bf16",
    reduced: str = "bf16",
    bucket_views: bool = True,
    root_reshards: bool = True,
    owner: int | None = None,
    **options: Unpack[Options],
) -> tuple[Moment, ...]:
    """What one rank holds at the moments of a step that can be its peak.

    Stages 0 and 1 are DDP: ``memory.timeline``, and buckets as large as all gradients, which exist from the first
    moment to the last; with ``bucket_views`` the gradients are views of them. Stage 2 and one rank add nothing.
    ``owner``: the rank whose states count where whole tensors have owners (``whole_tensors``); even shares without.

    Stage 3 is FSDP2: ``fsdp.moments``, which says what ``gathered``, ``reduced`` and ``root_reshards`` are.
    """
    recipe = recipes.get(recipe)
    if sharding.stage == 3:
        return fsdp.moments(
            model, recipe, ranks=sharding.ranks, reshard_after_forward=sharding.reshard_after_forward,
            root_reshards=root_reshards, optimizer_step=optimizer_step, gathered=gathered, reduced=reduced, **options,
        )  # fmt: skip
    plain = memory.timeline(
        model, recipe, zero=sharding.stage, data_parallel=sharding.ranks, optimizer_step=optimizer_step, **options
    )
    if sharding.stage == 2 or sharding.data_parallel == 1:
        return plain
    buckets = recipes.states(model, recipe, **_degrees(options)).of("gradients")
    whole = Row("gradient buckets", buckets, "gradients", "as large as all gradients")
    uneven = Fraction(1)
    if owner is not None and sharding.stage == 1:
        uneven = Fraction(owned(model, ranks=sharding.ranks, rank=owner) * sharding.ranks, shapes.elements(model))
    return tuple(
        Moment(
            moment.name,
            ledger(
                moment.ledger.title,
                [
                    *(
                        replace(row, value=exact(row.value * (uneven if row.kind == "optimizer" else 1)))
                        for row in moment.ledger
                        if not (bucket_views and row.kind == "gradients")
                    ),
                    whole,
                ],
            ),
        )
        for moment in plain
    )


def peak(model: Transformer, sharding: Sharding, recipe: str | Recipe = "bf16-adamw", **how: Unpack[Options]) -> Moment:
    """The moment of ``timeline`` that holds most.

    >>> from .. import models
    >>> llama = models.get("llama-2-7b")
    >>> peak(llama, Sharding(3, ranks=8), sequence=4096).name
    'start of the backward pass'
    """
    return max(timeline(model, sharding, recipe, **how), key=lambda moment: moment.ledger.total)


# -- how long it takes ---------------------------------------------------------------------------------------


def step_time(
    model: Transformer,
    sharding: Sharding,
    *,
    flop_per_s: Exact | float,
    link: str,
    across: str = "",
    ranks_per_node: int = 0,
    weights: str = "bf16",
    gradients: str = "bf16",
    batch: int = 1,
    sequence: int = 2048,
    recomputation: flops.Recomputation = "none",
) -> Ledger:
    """Seconds of a step on one rank, in order, with communication hidden as far as it can be at best.

    Every layer and the rest are units. Gathering for forward hides behind forward, all but the first unit's;
    gathering for backward and reducing hide behind backward, all but the last unit's reduction. What stages 1 and
    2 gather after the update is in the open (an engine may hide it behind the next forward pass, as Megatron-LM
    can). Ranks of a shard group fill nodes of ``ranks_per_node`` with ``link`` inside, and one port of ``across``
    each between nodes; replicas of a shard stand on different nodes if a shard group fills one. Collectives are
    rings, and hierarchical where they leave a node. Left out: the optimizer's own time, and whatever else shares
    the wires. A lower bound, then; ``ddp`` says what is lost.
    """
    work = flops.training(model, batch=batch, sequence=sequence, recomputation=recomputation)
    rate = Fraction(exact(flop_per_s))
    forward = Fraction(work["forward"]) / rate
    backward = Fraction(work.total) / rate - forward
    rest = shapes.elements(model, wanted=lambda shape: shape.place != "layer")
    layer = Fraction(shapes.elements(model) - rest, model.layers)

    def unit(op: str, elements: Exact, dtype: str, ranks: int, spread: bool) -> Fraction:
        size = exact(Fraction(elements) * recipes.bytes_of(dtype))
        if spread:  # one rank in each node
            return collectives.time_s(op, size_bytes=size, ranks=ranks, link=across)
        if not ranks_per_node or ranks <= ranks_per_node:
            return collectives.time_s(op, size_bytes=size, ranks=ranks, link=link)
        return collectives.time_s(
            op, size_bytes=size, ranks=ranks, link=link, algorithm="hierarchical", ranks_per_node=ranks_per_node,
            across=across,
        )  # fmt: skip

    def all_units(op: str, dtype: str, ranks: int, spread: bool = False, part: int = 1) -> tuple[Fraction, Fraction]:
        """All units, and the rest's alone, which is first in forward and last in backward."""
        one, last = (unit(op, Fraction(size) / part, dtype, ranks, spread) for size in (layer, rest))
        return model.layers * one + last, last

    n, stage = sharding.ranks, sharding.stage
    reduced, last = all_units("all-reduce" if stage == 0 else "reduce-scatter", gradients, n)
    if sharding.replicas > 1:
        far = bool(across) and bool(ranks_per_node) and sharding.data_parallel > ranks_per_node
        more, end = all_units("all-reduce", gradients, sharding.replicas, far, n)
        reduced, last = reduced + more, last + end
    gathered, first = all_units("all-gather", weights, n) if stage else (Fraction(), Fraction())
    again = gathered if stage == 3 and sharding.reshard_after_forward else Fraction()
    before, after = (gathered, Fraction()) if stage == 3 else (Fraction(), gathered)
    rows = [
        Row("waiting for the first weights", exact(max(before - forward, first if before else Fraction())),
            "communication"),
        Row("forward", exact(forward), "forward"),
        Row("backward", exact(backward), "backward"),
        Row("waiting in and after backward", exact(max(again + reduced - backward, last)), "communication"),
        Row("gathering updated weights", exact(after), "communication"),
    ]  # fmt: skip
    return ledger(f"{model.name}: one step, {sharding.name}", rows, unit="s")


def _degrees(options: Options) -> dict[str, int]:
    return {
        "tensor_parallel": options.get("tensor_parallel", 1),
        "pipeline_parallel": options.get("pipeline_parallel", 1),
        "stage": options.get("stage", 0),
    }
