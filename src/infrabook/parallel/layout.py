"""Which layout: data × tensor × pipeline × context × expert parallelism, its memory and its step, and a search.

Memory comes from ``activations`` and ``recipes``, messages from ``collectives``, the bubble from ``pipeline``'s closed
form; here they meet on one cluster. A forecast has no measurement in it but one: the share of the peak that kernels
sustain, which the caller gives. ``published`` has runs to hold it against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any, Literal, TypeAlias

from .. import activations, collectives, flops, hardware, models, recipes, shapes
from ..errors import InfrabookError
from ..ledger import Ledger, Row, ledger
from ..lookup import toml
from ..models import Transformer
from ..units import positive

Recomputation: TypeAlias = Literal["none", "selective", "full"]

AXES = ("tensor", "context", "data", "pipeline")
"""Innermost first: neighbours in ``tensor`` are neighbours in a node. Megatron Core's default order."""

CROSSINGS = 5
"""How often a saved byte crosses the GPU's memory border: written and read forward, read backward, and its gradient
written and read. Recomputed ones are written and read once more. Norms, dropouts and softmax wait for this."""

GB = 10**9


@dataclass(frozen=True)
class Cluster:
    """``gpus`` cards in nodes of ``per_node``; each has its own link ``inside`` the node and ``across`` nodes.

    ``sustained`` is the share of the peak that matrix products and attention reach, ``reserved_bytes`` what CUDA, NCCL
    and fragments take. Neither has a formula: they are yours to measure, and the defaults are assumptions.
    """

    gpu: hardware.Gpu
    gpus: int
    per_node: int = 8
    inside: hardware.Link | None = None
    across: hardware.Link | None = None
    sustained: float = 0.6
    reserved_bytes: int = 4 * GB

    def __post_init__(self) -> None:
        for name in ("gpus", "per_node"):
            positive(name, getattr(self, name))
        positive("sustained", self.sustained, whole=False)
        if self.sustained > 1:
            raise InfrabookError(f"sustained is a share of the peak, at most 1, and is {self.sustained}")
        if self.inside is None and self.gpu.nvlink:
            object.__setattr__(self, "inside", hardware.link(self.gpu.nvlink))
        if self.inside is None or self.across is None:
            raise InfrabookError(f"say which links {self.gpu.name} has inside a node and across nodes")


@dataclass(frozen=True)
class Job:
    """What is trained: ``batch`` sequences of ``sequence`` tokens a step, over all ranks."""

    model: Transformer
    batch: int
    sequence: int
    recipe: str = "bf16-adamw"
    attention: activations.Attention = "flash"
    sequence_parallel: bool = True

    def __post_init__(self) -> None:
        positive("batch", self.batch)
        positive("sequence", self.sequence)


@dataclass(frozen=True)
class Layout:
    """How a job is spread over GPUs.

    ``expert`` ranks are among the ``data`` ranks; ``chunks`` are the virtual stages of a rank (interleaved 1F1B, or
    plain 1F1B with 1); ``zero`` shards over data and context ranks together.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    micro_batch: int = 1
    chunks: int = 1
    zero: int = 1
    recomputation: Recomputation = "none"

    def __post_init__(self) -> None:
        if min(self.data, self.tensor, self.pipeline, self.context, self.expert, self.micro_batch, self.chunks) < 1:
            raise InfrabookError(f"every degree of a layout has to be 1 or more, and {self} has a smaller one")

    @property
    def gpus(self) -> int:
        """GPUs it takes."""
        return self.data * self.tensor * self.pipeline * self.context

    def __str__(self) -> str:
        degrees = {"dp": self.data, "tp": self.tensor, "pp": self.pipeline, "cp": self.context, "ep": self.expert}
        words = [f"{name} {degree}" for name, degree in degrees.items() if degree > 1 or name == "dp"]
        words.append(f"micro-batch {self.micro_batch}")
        if self.chunks > 1:
            words.append(f"{self.chunks} chunks")
        words.append(f"ZeRO-{self.zero}")
        if self.recomputation != "none":
            words.append(f"{self.recomputation} recomputation")
        return ", ".join(words)


@dataclass(frozen=True)
class Forecast:
    """A layout's memory on its fullest rank, in bytes by kind, and its step, in seconds by what they go to."""

    job: Job
    cluster: Cluster
    layout: Layout
    held: Mapping[str, float]
    seconds: Mapping[str, float]

    @property
    def memory_bytes(self) -> float:
        """On the fullest rank, all at once."""
        return sum(self.held.values())

    @property
    def room_bytes(self) -> int:
        """What the card has for it."""
        return self.cluster.gpu.memory_bytes - self.cluster.reserved_bytes

    @property
    def fits(self) -> bool:
        """Whether it fits."""
        return self.memory_bytes <= self.room_bytes

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return sum(self.seconds.values())

    @property
    def tokens_per_s(self) -> float:
        """Over all GPUs."""
        return self.job.batch * self.job.sequence / self.step_s

    def mfu(self, convention: str = "every product") -> float:
        """Model FLOP utilization, by a convention of ``flops.SHORTCUTS``."""
        work = flops.per_token(self.job.model, sequence=self.job.sequence, convention=convention)
        peak = self.cluster.gpu.peak("bf16") * self.layout.gpus
        return float(work) * self.tokens_per_s / peak

    def memory(self) -> Ledger:
        """``held`` as a ledger, in bytes."""
        rows = [Row(kind, round(value), kind) for kind, value in self.held.items()]
        return ledger(f"{self.job.model.name}: the fullest rank of {self.layout}", rows)

    def spans(self) -> Iterator[tuple[str, float]]:
        """(what, seconds) of all that takes time, the longest first."""
        yield from sorted(((name, s) for name, s in self.seconds.items() if s), key=lambda item: -item[1])


# -- what is valid -----------------------------------------------------------------------------------------------
def why_not(job: Job, cluster: Cluster, layout: Layout) -> str:
    """Why the job cannot be laid out so, or nothing: degrees that do not divide what they cut."""
    m = job.model
    if layout.zero not in recipes.ZERO:
        return f"ZeRO has the stages 0, 1, 2 and 3, and not {layout.zero!r}"
    if layout.gpus != cluster.gpus:
        return f"{layout.data} × {layout.tensor} × {layout.pipeline} × {layout.context} is not {cluster.gpus} GPUs"
    if m.heads % layout.tensor or m.kv_heads % min(layout.tensor, m.kv_heads):
        return f"{layout.tensor} tensor-parallel ranks do not divide {m.heads} heads"
    if job.sequence % (2 * layout.context if layout.context > 1 else 1):
        return f"{layout.context} context-parallel ranks need twice as many equal pieces of {job.sequence:,} tokens"
    if layout.expert > 1 and (m.moe is None or m.moe.experts % layout.expert or layout.data % layout.expert):
        return f"{layout.expert} expert-parallel ranks divide neither experts nor data-parallel ranks"
    if job.batch % (layout.data * layout.micro_batch):
        return f"{layout.data} ranks with micro-batches of {layout.micro_batch} do not divide a batch of {job.batch:,}"
    if not 0 <= -m.layers % (layout.pipeline * layout.chunks) <= min(2, layout.pipeline - 1):
        return f"{layout.pipeline} × {layout.chunks} stages do not divide {m.layers} layers"
    if layout.chunks > 1 and (layout.pipeline == 1 or micro_batches(job, layout) % layout.pipeline):
        return f"interleaving needs micro-batches in multiples of {layout.pipeline} stages"
    return ""


def micro_batches(job: Job, layout: Layout) -> int:
    """Micro-batches that a rank works through in a step."""
    return job.batch // (layout.data * layout.micro_batch)


def axis_links(cluster: Cluster, layout: Layout, order: Sequence[str] = AXES) -> dict[str, hardware.Link]:
    """The link of each axis: inside the node as long as the axes up to it divide a node, else across.

    A group that spans nodes is as slow as its slowest message.
    """
    found, span = {}, 1
    inside, across = cluster.inside, cluster.across
    assert inside is not None
    assert across is not None
    for axis in order:
        span *= getattr(layout, axis)
        found[axis] = across if cluster.per_node % span else inside
    expert = layout.tensor * layout.context * layout.expert  # the data ranks next to each other share experts
    found["expert"] = across if cluster.per_node % expert else inside
    return found


# -- the pieces, each computed once a search ------------------------------------------------------------------------
@dataclass(frozen=True)
class _Pieces:
    """Costs that many layouts share, by the few numbers they depend on."""

    job: Job
    cluster: Cluster
    overlap: bool
    order: Sequence[str] = AXES
    layer: Callable[..., int] = field(init=False)
    ends: Callable[..., tuple[int, int, int]] = field(init=False)
    sizes: Callable[..., tuple[int, int, int, int]] = field(init=False)
    work: Callable[..., tuple[float, float, float]] = field(init=False)
    exchange: Callable[..., float] = field(init=False)
    flight: Callable[..., float] = field(init=False)
    per_parameter: Mapping[str, float] = field(init=False)

    def __post_init__(self) -> None:
        job, model = self.job, self.job.model
        sequence_parallel = job.sequence_parallel

        @cache
        def layer(tensor: int, context: int, batch: int, recomputation: Recomputation) -> int:
            """Bytes that a layer saves of a micro-batch."""
            return int(
                activations.one_layer(
                    model, batch=batch, sequence=job.sequence // context, attention=job.attention,
                    recomputation=recomputation, tensor_parallel=tensor,
                    sequence_parallel=sequence_parallel and tensor > 1,
                ).total
            )  # fmt: skip

        @cache
        def ends(tensor: int, context: int, batch: int) -> tuple[int, int, int]:
            """Bytes saved before the first layer and after the last, and the loss's two gradients."""
            two = replace(model, layers=2, moe=None if model.moe is None else replace(model.moe, dense_layers=0))
            outside = [
                sum(
                    int(row.value)
                    for row in activations.activations(
                        two, batch=batch, sequence=job.sequence // context, attention=job.attention,
                        recomputation="full", tensor_parallel=tensor, pipeline_parallel=2, stage=stage,
                        micro_batches=1, sequence_parallel=sequence_parallel and tensor > 1,
                    )
                    if not row.name.startswith("layers: ")
                )
                for stage in (0, 1)
            ]  # fmt: skip
            loss = 2 * 4 * batch * (job.sequence // context) * model.vocab // tensor
            return outside[0], outside[1], loss

        @cache
        def sizes(tensor: int, expert: int) -> tuple[int, int, int, int]:
            """Parameters a rank holds: of a layer outside experts and in them, of the embedding, of the head."""
            rank = shapes.Rank(tensor)
            inside = shapes.elements(model, rank, lambda s: s.place == "layer" and not s.name.startswith("expert "))
            experts = shapes.elements(model, rank, lambda s: s.place == "layer" and s.name.startswith("expert "))
            before = shapes.elements(model, rank, lambda s: s.place == "embedding")
            after = shapes.elements(model, rank, lambda s: s.place == "head")
            if model.tied:
                after += shapes.shapes(model)[0].share(tensor)
            return inside // model.layers, experts // model.layers // expert, before, after

        rate = self.cluster.gpu.peak("bf16") * self.cluster.sustained

        @cache
        def work(batch: int) -> tuple[float, float, float]:
            """Seconds of one GPU for a layer's forward pass, its scores and values alone, and the head."""
            causal: flops.Causal = "half" if job.attention == "flash" else "full"
            found = flops.forward(model, batch=batch, sequence=job.sequence, causal=causal)
            core = float(found[flops.SCORES] + found[flops.VALUES])
            head = float(found["head"])
            return (float(found.total) - head) / model.layers / rate, core / model.layers / rate, head / rate

        @cache
        def exchange(op: str, size: int, ranks: int, link: hardware.Link) -> float:
            """Seconds of a collective, by the quicker of a ring and recursive halving."""
            if ranks == 1 or size == 0:
                return 0.0
            ways = ["ring"]
            if ranks & (ranks - 1) == 0 and op in collectives.ALGORITHMS["halving-doubling"]:
                ways.append("halving-doubling")
            return min(
                float(collectives.time_s(op, size_bytes=size, ranks=ranks, link=link, algorithm=way)) for way in ways
            )

        @cache
        def flight(pipeline: int, stage: int, count: int, chunks: int) -> float:
            """Micro-batches in flight, in units of a rank's layers."""
            if pipeline == 1:
                return 1.0
            schedule: activations.Schedule = "interleaved" if chunks > 1 else "1f1b"
            return float(
                activations.in_flight(
                    pipeline_parallel=pipeline, stage=stage, micro_batches=count, schedule=schedule,
                    virtual_stages=chunks,
                )
            )  # fmt: skip

        for piece in (layer, ends, sizes, work, exchange, flight):
            object.__setattr__(self, piece.__name__, piece)
        kinds: tuple[recipes.Kind, ...] = ("weights", "gradients", "optimizer")
        each: dict[str, float] = {kind: float(recipes.bytes_per_parameter(job.recipe, kind=kind)) for kind in kinds}
        object.__setattr__(self, "per_parameter", each)


def _stages(model: Transformer, layout: Layout) -> tuple[int, int, int]:
    """Layers of the first, of a middle and of the last stage; what does not divide is missing at the ends."""
    full = -(-model.layers // (layout.pipeline * layout.chunks)) * layout.chunks
    missing = full * layout.pipeline - model.layers
    return full - missing // 2, full, full - (missing + 1) // 2


def _held(pieces: _Pieces, layout: Layout) -> dict[str, float]:
    """Memory of the fullest of the first and the last stage."""
    job, t, c, b = pieces.job, layout.tensor, layout.context, layout.micro_batch
    first, _, last = _stages(job.model, layout)
    inside, experts, before, after = pieces.sizes(t, layout.expert)
    kept = pieces.layer(t, c, b, layout.recomputation)
    again = 0 if layout.recomputation == "none" else pieces.layer(t, c, b, "none") - (
        kept if layout.recomputation == "selective" else 0
    )  # fmt: skip
    lead, tail, loss = pieces.ends(t, c, b)
    group = layout.data * c
    count = micro_batches(job, layout)
    found = []
    for stage in {0, layout.pipeline - 1}:
        is_first, is_last = stage == 0, stage == layout.pipeline - 1
        layers = first if is_first and not is_last else last if is_last and not is_first else job.model.layers
        dense = layers * inside + before * is_first + after * is_last
        if job.model.tied and is_first and is_last:
            dense -= before
        sparse = layers * experts
        held = {}
        for kind, size in pieces.per_parameter.items():
            divided = kind in recipes.ZERO[layout.zero]
            held[kind] = size * (dense + sparse * layout.expert) / group if divided else size * (dense + sparse)
        flight = pieces.flight(layout.pipeline, stage, count, layout.chunks)
        held["activations"] = flight * layers * kept + again + lead * is_first * flight + (tail + loss) * is_last
        if layout.zero == 3:
            width = pieces.per_parameter["weights"]
            held["buffers"] = width * (2 * (inside + experts) + before * is_first + after * is_last)
        found.append(held)
    return max(found, key=lambda held: sum(held.values()))


def _seconds(pieces: _Pieces, layout: Layout) -> dict[str, float]:
    """A step's seconds, by what they go to; see ``forecast``."""
    job, cluster, m = pieces.job, pieces.cluster, pieces.job.model
    t, c, b, v, p = layout.tensor, layout.context, layout.micro_batch, layout.chunks, layout.pipeline
    links = axis_links(cluster, layout, pieces.order)
    _, middle, last = _stages(m, layout)
    layer, core, head = (one / (t * c) for one in pieces.work(b))
    middle_s, last_s = middle * layer, last * layer + head
    slow_layers, slow_head = (last, head) if last_s >= middle_s or p == 1 else (middle, 0.0)
    if p == 1:
        slow_layers = m.layers
    count = micro_batches(job, layout)

    compute = 3 * (slow_layers * layer + slow_head)
    whole, kept = pieces.layer(t, c, b, "none"), pieces.layer(t, c, b, layout.recomputation)
    elementwise = slow_layers * (CROSSINGS * whole + 2 * (whole - kept)) / cluster.gpu.bandwidth_bytes_per_s
    again = {"none": 0.0, "selective": slow_layers * core, "full": slow_layers * layer}[layout.recomputation]

    width = 2 * b * (job.sequence // c) * m.hidden  # bytes of one activation of the residual stream
    passes = 6 if layout.recomputation == "full" else 4
    tensor = slow_layers * passes * pieces.exchange("all-reduce", width, t, links["tensor"])

    keys = 2 * 2 * b * job.sequence * m.kv_heads * m.head_dim // t
    context = slow_layers * (3 if layout.recomputation != "full" else 4) * pieces.exchange(
        "all-gather", keys, c, links["context"]
    )  # fmt: skip

    expert = 0.0
    if layout.expert > 1 and m.moe is not None:
        sent = width * m.moe.top_k // t
        expert = 4 * slow_layers * pieces.exchange("all-to-all", sent, layout.expert, links["expert"])

    message = 0.0
    if p > 1:
        link = links["pipeline"]
        message = 2 * v * (float(link.latency_s) + width / t / link.bytes_per_s)

    every = compute + again + elementwise + tensor + context + expert + message
    bubble = (p - 1) / v * every

    inside, experts, before, after = pieces.sizes(t, layout.expert)
    held = slow_layers * (inside + experts) + max(before, after)
    group = layout.data * c
    gradient = pieces.per_parameter["gradients"]
    weight = pieces.per_parameter["weights"]
    across = links["data"]
    backward = 2 / 3 * compute + again
    if layout.zero == 3:
        gathers = pieces.exchange("all-gather", int(weight * held), group, across)
        reduces = pieces.exchange("reduce-scatter", int(gradient * held), group, across)
        exposed = count * max(0.0, 2 * gathers + reduces - pieces.overlap * (every - tensor))
    else:
        wanted = pieces.exchange("all-reduce", int(gradient * held), group, across)
        if layout.zero:
            wanted = pieces.exchange("reduce-scatter", int(gradient * held), group, across)
            wanted += pieces.exchange("all-gather", int(weight * held), group, across)
        hidden = pieces.overlap * backward / (p if p > 1 else 1)
        exposed = max(0.0, wanted - hidden)
    owned = held / group if layout.zero else held
    moved = owned * (2 * pieces.per_parameter["optimizer"] + gradient + weight)
    return {
        "compute": count * compute, "recomputation": count * again, "memory traffic": count * elementwise,
        "tensor parallel": count * tensor,
        "context parallel": count * context, "expert parallel": count * expert, "pipeline messages": count * message,
        "bubble": bubble, "gradients": exposed, "optimizer": moved / cluster.gpu.bandwidth_bytes_per_s,
    }  # fmt: skip


# -- forecast and search -----------------------------------------------------------------------------------------
def forecast(
    job: Job, cluster: Cluster, layout: Layout, *, overlap: bool = True, order: Sequence[str] = AXES
) -> Forecast:
    """Memory of the fullest rank and seconds of a step.

    Memory: states by ``recipes``, sharded by ``zero`` over data and context ranks (experts over data ranks that share
    them); activations of the micro-batches in flight on the first stage, or of one and the loss's gradients on the
    last; the layer being recomputed; with ZeRO-3 two gathered layers, embedding and head.

    Time: the slowest stage (with the head, if it is the last) decides, for every micro-batch; the bubble is
    (p − 1)/v of them. Norms, dropout and softmax wait for memory, whose border every saved byte crosses ``CROSSINGS``
    times. Tensor parallelism waits for four exchanges a layer, six with full recomputation; context
    parallelism gathers keys and values and scatters their gradients; experts exchange tokens four times; pipeline
    messages wait. Gradients hide behind a backward pass of the slowest stage if ``overlap``: with ZeRO-3 behind every
    micro-batch, otherwise behind the last. Attention's scores count half where flash attention skips the masked ones.

    Left out: load imbalance among experts and among packed documents, stragglers, contention on the network, kernels
    slower on smaller pieces, checkpoints and data.
    """
    if reason := why_not(job, cluster, layout):
        raise InfrabookError(reason)
    return _forecast(_Pieces(job, cluster, overlap, order), layout)


def _forecast(pieces: _Pieces, layout: Layout) -> Forecast:
    return Forecast(pieces.job, pieces.cluster, layout, _held(pieces, layout), _seconds(pieces, layout))


def layouts(
    job: Job, cluster: Cluster, *, zero: Sequence[int] = (1,),
    recomputation: Sequence[Recomputation] = ("none", "full"), micro_batch: Sequence[int] = (1, 2, 4, 8),
    chunks: Sequence[int] = (1, 2, 3, 4, 6, 8), tensor_limit: int = 0, context: bool = True,
) -> Iterator[Layout]:  # fmt: skip
    """Every valid layout of the job on the cluster: all degrees that divide, and the choices named.

    ``tensor_limit`` is the largest tensor-parallel degree, by default the GPUs of a node. A sequence is cut by
    context parallelism into pieces of at least 1,024 tokens.
    """
    m, gpus = job.model, cluster.gpus
    limit = tensor_limit or cluster.per_node
    tensors = [t for t in _divisors(gpus) if t <= limit and m.heads % t == 0]
    pipelines = [p for p in _divisors(gpus) if p <= m.layers]
    experts = [1] if m.moe is None else [e for e in _divisors(m.moe.experts) if e <= gpus]
    for t, p in product(tensors, pipelines):
        if gpus % (t * p):
            continue
        rest = gpus // (t * p)
        for c in _divisors(rest):
            if c > 1 and (not context or job.sequence // c < 1024):
                continue
            for b, v, z, r, e in product(micro_batch, chunks, zero, recomputation, experts):
                one = Layout(rest // c, t, p, c, e, b, v, z, r)
                if (v == 1 or p > 1) and (z == 0 or rest > 1 or z == min(zero)) and not why_not(job, cluster, one):
                    yield one


def search(
    job: Job, cluster: Cluster, *, overlap: bool = True, order: Sequence[str] = AXES, **choices: Any
) -> list[Forecast]:
    """Forecasts of all ``layouts``: those that fit by their step, the quickest first, then those that do not.

    ``choices`` are those of ``layouts``.
    """
    pieces = _Pieces(job, cluster, overlap, order)
    found = [_forecast(pieces, one) for one in layouts(job, cluster, **choices)]
    return sorted(found, key=lambda one: (not one.fits, one.step_s if one.fits else one.memory_bytes))


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


# -- what was published ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Run:
    """A published run: its job, its cluster, its layout as far as it was told, and the utilization it reached.

    ``utilization`` is the published rate over the peak, counted by ``formula``, with recomputed work if ``counts`` is
    "hardware". ``told`` are the fields of the layout that the source gives.
    """

    name: str
    job: Job
    cluster: Cluster
    layout: Layout
    told: tuple[str, ...]
    utilization: float
    counts: str
    formula: str
    cite: str

    def predicted(self, found: Forecast) -> float:
        """The utilization of a forecast, by the source's own count of work."""
        m, job = self.job.model, self.job
        convention, _, passes = self.formula.partition(", ")
        if convention == "megatron":
            work = flops.megatron_step(
                batch=job.batch, sequence=job.sequence, layers=m.layers, hidden=m.hidden, vocab=m.vocab,
                recomputation="full" if passes == "full" else "none",
            )  # fmt: skip
        else:
            work = Fraction(flops.per_token(m, sequence=job.sequence, convention=convention)) * job.batch * job.sequence
        return float(work) / found.step_s / (self.cluster.gpus * self.cluster.gpu.peak("bf16"))


def published(sustained: float = 0.6) -> tuple[Run, ...]:
    """The runs of ``data/layouts.toml``, on clusters whose kernels sustain this share of the peak.

    >>> [run.name for run in published()][-1]
    'llama-3-405b-131k'
    """
    table = toml("layouts")
    return tuple(_run(row, table["source"][row["name"].partition("-")[0]], sustained) for row in table["run"])


@dataclass(frozen=True)
class Placement:
    """Where a search puts a published run's degrees among all degrees that fit, each with its best micro-batch.

    ``position`` counts from 1, or is 0 if they do not fit by the account; ``behind`` is the share by which the first
    is quicker.
    """

    run: Run
    position: int
    among: int
    forecast: Forecast
    first: Forecast

    @property
    def behind(self) -> float:
        """How much longer the published degrees' step is than the first one's, as a share."""
        return self.forecast.step_s / self.first.step_s - 1

    @property
    def ratio(self) -> float:
        """Predicted utilization over the published one."""
        return self.run.predicted(self.forecast) / self.run.utilization


def place(run: Run) -> Placement:
    """Search the run's job on its cluster, with its recipe, stage of ZeRO and recomputation; find its degrees."""
    found = search(
        run.job, run.cluster, zero=(run.layout.zero,), recomputation=(run.layout.recomputation,),
        context=run.layout.context > 1,
    )  # fmt: skip
    mine = next((one for one in found if _agree(one.layout, run.layout, run.told)), None)
    if mine is None:
        raise InfrabookError(f"{run.name}: no layout with the published degrees is valid")
    first_of: dict[tuple[int, ...], Forecast] = {}
    for one in found:
        if one.fits:
            first_of.setdefault(_degrees(one.layout), one)
    order = list(first_of)
    position = order.index(_degrees(run.layout)) + 1 if mine.fits else 0
    return Placement(run, position, len(order), mine, first_of[order[0]])


def sustained_by(run: Run) -> float:
    """The share of the peak at which the forecast of ``run`` reaches its published utilization: the one fitted number.

    The run has to be told with its micro-batch and chunks.
    """
    low, high = 0.05, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        cluster = replace(run.cluster, sustained=middle)
        if run.predicted(forecast(run.job, cluster, run.layout)) < run.utilization:
            low = middle
        else:
            high = middle
    return low


def _run(row: dict[str, Any], source: dict[str, Any], sustained: float) -> Run:
    gpu = hardware.gpu(source["gpu"])
    if "model" in row:
        model = models.get(row["model"])
    else:
        heads, hidden = row["heads"], row["hidden"]
        model = replace(
            models.get("gpt3-175b"), name=row["name"], layers=row["layers"], hidden=hidden, heads=heads,
            kv_heads=heads, head_dim=hidden // heads, ffn=4 * hidden, vocab=51200,
        )  # fmt: skip
    degrees = {name: row.get(name, 1) for name in ("tensor", "pipeline", "context", "chunks", "micro_batch")}
    data = row["gpus"] // (degrees["tensor"] * degrees["pipeline"] * degrees["context"])
    layout = Layout(data=data, zero=source["zero"], recomputation=source["recomputation"], **degrees)
    job = Job(
        model, row["batch"], row.get("sequence", 2048), source["recipe"], source["attention"],
        source["sequence_parallel"],
    )  # fmt: skip
    cluster = Cluster(gpu, row["gpus"], across=hardware.link(source["across"]), sustained=sustained)
    reached = Fraction(row["tflops"] * 10**12, gpu.peak("bf16")) if "tflops" in row else row["mfu_percent"] / 100
    told = ("tensor", "pipeline", "context", "data", *(name for name in ("micro_batch", "chunks") if name in row))
    return Run(
        row["name"], job, cluster, layout, told, float(reached), source["counts"], source["formula"], source["cite"]
    )


def _degrees(layout: Layout) -> tuple[int, ...]:
    return layout.data, layout.tensor, layout.pipeline, layout.context


def _agree(one: Layout, other: Layout, names: Sequence[str]) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in names)
