"""Does it fit: what a GPU holds to train or to serve a model, by row, and when in a step it holds most.

States come from ``recipes``, saved tensors from ``activations``, the cache from ``kv_cache``; here they meet
a capacity. How long a step takes is ``roofline``'s question.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, Protocol, TypeAlias, Unpack

from . import kv_cache, recipes, shapes
from .activations import Options, activations, one_layer
from .errors import InfrabookError
from .ledger import Ledger, Row, ledger
from .models import Transformer
from .recipes import Recipe
from .units import Exact, exact, positive, show

__all__ = [
    "Fit", "Moment", "activations", "buckets", "fits", "gathered", "inference", "one_layer", "peak", "timeline",
    "training",
]  # fmt: skip

OptimizerStep: TypeAlias = Literal["for-loop", "foreach", "fused"]
Sizes: TypeAlias = Mapping[str, Exact]


class HasMemory(Protocol):
    """Anything with a name and a capacity, such as ``hardware.Gpu``."""

    @property
    def name(self) -> str: ...
    @property
    def memory_bytes(self) -> int: ...


# -- training ------------------------------------------------------------------------------------------------


def training(
    model: Transformer,
    recipe: str | Recipe = "bf16-adamw",
    *,
    zero: int = 0,
    data_parallel: int = 1,
    buffers: Sizes | None = None,
    **options: Unpack[Options],
) -> Ledger:
    """What one rank needs to train: states, everything saved for backward, and the buffers that are named.

    ``options`` are those of ``activations`` (``batch``, ``sequence``, ``attention``, ``recomputation``,
    ``tensor_parallel`` ...), ``zero`` and ``data_parallel`` those of ``recipes.states``. ``buffers`` adds rows
    by name and bytes, for example ``buckets(...)`` or ``gathered(...)``; none are assumed. Where layers are
    recomputed, the one layer that is being recomputed is a row.

    The sum is a budget: not all of it is alive at once. ``timeline`` says when, and ``peak`` how much.

    >>> from infrabook import models
    >>> llama = models.get("llama-2-7b")
    >>> print(training(llama, batch=1, sequence=2048).by_kind())
    llama-2-7b: training, 1 × 2,048 tokens a micro-batch
    ------------------------------------
    weights              13.48 GB  11.4%
    gradients            13.48 GB  11.4%
    optimizer states     80.86 GB  68.4%
    activations          10.37 GB   8.8%
    ------------------------------------
    total               118.19 GB
    """
    kept = recipes.states(model, recipe, zero=zero, data_parallel=data_parallel, **_degrees(options))
    rows = [*kept, *activations(model, **options), *_recomputed(model, options), *_rows(buffers)]
    batch, sequence = options.get("batch", 1), options.get("sequence", 2048)
    return ledger(f"{model.name}: training, {batch} × {sequence:,} tokens a micro-batch", rows)


def buckets(model: Transformer, recipe: str | Recipe = "bf16-adamw", **degrees: int) -> dict[str, Exact]:
    """DDP's buckets: a second home for every gradient, unless they are made views of the buckets.

    For ``buffers`` of ``training``; ``degrees`` as ``recipes.states`` has them (``tensor_parallel`` ...).
    Source: torch.nn.parallel.DistributedDataParallel, ``gradient_as_bucket_view``.
    """
    return {"gradient buckets": recipes.states(model, recipe, **degrees).of("gradients")}


def gathered(
    model: Transformer, *, units: int = 1, dtype: str = "bf16", root: bool = True, tensor_parallel: int = 1
) -> dict[str, Exact]:
    """What ZeRO-3 or FSDP has unsharded at once: ``units`` layers' weights, and with ``root`` all outside them.

    FSDP2 leaves the root module's own parameters (embedding, final norm, head) gathered from forward to
    backward. The next layer, fetched ahead, is a second unit. For ``buffers`` of ``training``.
    """
    positive("units", units, zero=True)
    rank = shapes.Rank(tensor_parallel)
    inside = shapes.elements(model, rank, lambda shape: shape.place == "layer")
    outside = shapes.elements(model, rank, lambda shape: shape.place != "layer") if root else 0
    size = recipes.bytes_of(dtype)
    layers = exact(Fraction(inside, model.layers) * units * size)
    return {"gathered layers": layers, "gathered embedding and head": exact(outside * size)}


# -- when ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moment:
    """A named moment of a training step and what is alive then."""

    name: str
    ledger: Ledger


def timeline(
    model: Transformer,
    recipe: str | Recipe = "bf16-adamw",
    *,
    zero: int = 0,
    data_parallel: int = 1,
    optimizer_step: OptimizerStep = "for-loop",
    buffers: Sizes | None = None,
    **options: Unpack[Options],
) -> tuple[Moment, ...]:
    """What is alive at six moments of the second or a later step, when optimizer states exist.

    Gradients are freed between steps (``zero_grad(set_to_none=True)``, PyTorch's default). Included: the
    gradients by the log-probabilities and by the logits when backward starts (both fp32, if the loss is), and
    the temporaries of Adam's step: ``"foreach"`` (the default on CUDA) makes a square root of every second
    moment at once, ``"for-loop"`` two tensors as large as the largest parameter, ``"fused"`` none.
    Left out: logits that the caller keeps (Hugging Face's models return them), working memory of single
    operations, the allocator's rounding and fragments, the CUDA context.
    ``buffers`` are alive throughout.

    From the last layer's backward to the first's, activations fall and gradients rise by as much for every
    layer, so that the moments between lie between.
    """
    recipe = recipes.get(recipe)
    if optimizer_step not in ("for-loop", "foreach", "fused"):
        raise InfrabookError(f"optimizer_step can be for-loop, foreach or fused, and is {optimizer_step!r}")
    states = recipes.states(model, recipe, zero=zero, data_parallel=data_parallel, **_degrees(options))
    passing = {tensor.name for tensor in recipe.tensors if tensor.until_backward}
    extra = _rows(buffers)
    rest = [row for row in states if row.kind != "gradients" and row.name not in passing] + extra
    copies = [row for row in states if row.name in passing]
    gradients = [row for row in states if row.kind == "gradients"]
    saved = list(activations(model, **options))
    inside = [row for row in saved if row.name.startswith("layers: ")]
    again = _recomputed(model, options)
    loss = _loss(model, options)
    head, early = _shares(model, options)
    late = [replace(row, value=exact(row.value * (1 - early))) for row in gradients]
    few = [replace(row, value=exact(row.value * head)) for row in gradients if head]
    moments = (
        ("between steps", rest),
        ("after the forward pass", [*rest, *copies, *saved]),
        ("start of the backward pass", [*rest, *copies, *saved, *loss]),
        ("backward pass of the last layer", [*rest, *copies, *few, *inside, *again]),
        ("backward pass of the first layer", [*rest, *copies, *late, *_one_layer(model, options)]),
        ("optimizer step", [*rest, *gradients, *_temporaries(model, recipe, states, optimizer_step)]),
    )
    return tuple(Moment(name, ledger(f"{model.name}: {name}", rows)) for name, rows in moments)


def peak(
    model: Transformer,
    recipe: str | Recipe = "bf16-adamw",
    *,
    zero: int = 0,
    data_parallel: int = 1,
    optimizer_step: OptimizerStep = "for-loop",
    buffers: Sizes | None = None,
    **options: Unpack[Options],
) -> Moment:
    """The moment of ``timeline`` that holds most, the first of them if several do.

    >>> from infrabook import models
    >>> llama = models.get("llama-2-7b")
    >>> peak(llama, "pure-bf16", sequence=4096, rmsnorm="fp32").name
    'start of the backward pass'
    >>> peak(llama, "pure-bf16", sequence=4096, recomputation="full").name
    'optimizer step'
    """
    moments = timeline(
        model, recipe, zero=zero, data_parallel=data_parallel, optimizer_step=optimizer_step, buffers=buffers,
        **options,
    )  # fmt: skip
    return max(moments, key=lambda moment: moment.ledger.total)


# -- inference -----------------------------------------------------------------------------------------------


def inference(
    model: Transformer,
    *,
    batch: int = 1,
    context: int,
    weights: str | int = "bf16",
    weight_scales: tuple[tuple[str, int], ...] = (),
    cache: str | int = "bf16",
    cache_scales: tuple[tuple[str, int], ...] = (),
    workspace: Exact = 0,
    mla: kv_cache.Latent = "latent",
    windows: bool = True,
    tensor_parallel: int = 1,
) -> Ledger:
    """What one rank needs to serve ``batch`` sequences of ``context`` tokens: weights, KV cache, workspace.

    ``weights`` and ``cache`` are dtypes or numbers of bits. With ``weight_scales`` only the blocks' linear
    layers are quantized and the rest stays bf16, as in the usual 4-bit formats; without, everything is in one
    dtype. ``workspace`` is in bytes and yours to give (``prefill_workspace`` estimates one).

    >>> from infrabook import models
    >>> llama = models.get("llama-2-7b")
    >>> print(inference(llama, context=4096))
    llama-2-7b: inference, 1 × 4,096 tokens
    -----------------------------------------------------------------------
    weights                          2 × N                  13.48 GB  86.3%
    keys and values, full attention  2·g·d·b·s × 32 layers   2.15 GB  13.7%
    -----------------------------------------------------------------------
    total                                                   15.62 GB
    """
    positive("workspace", workspace, whole=False, zero=True)
    rank = shapes.Rank(tensor_parallel)
    size = recipes.bytes_of(weights, weight_scales)
    if weight_scales:
        linear = shapes.elements(model, rank, lambda shape: shape.linear)
        other = shapes.elements(model, rank, lambda shape: not shape.linear)
        rows = [
            Row("weights of linear layers", exact(size * linear), "weights", f"{float(size):.4g} × N in linear layers"),
            Row("other weights", 2 * other, "weights", "2 × N elsewhere"),
        ]  # fmt: skip
    else:
        whole = shapes.elements(model, rank)
        rows = [Row("weights", exact(size * whole), "weights", f"{size} × N")]
    rows += kv_cache.cache(
        model, batch=batch, context=context, dtype=cache, scales=cache_scales, mla=mla, windows=windows,
        tensor_parallel=tensor_parallel,
    )  # fmt: skip
    rows.append(Row("workspace", workspace, "buffers"))
    return ledger(f"{model.name}: inference, {batch} × {context:,} tokens", rows)


def prefill_workspace(model: Transformer, *, tokens: int, dtype: str = "bf16", logits_for: int = 1) -> Exact:
    """An estimate of the largest moment inside a forward pass without gradients, over ``tokens`` tokens at once.

    The residual stream, a feed-forward layer's input and its two or three inner tensors, or the fp32 logits of
    ``logits_for`` positions if they are more. Engines reserve their own amounts: measure yours.
    """
    positive("tokens", tokens)
    positive("logits_for", logits_for, zero=True)
    ffn = model.ffn if model.moe is None else model.moe.ffn * (model.moe.top_k + model.moe.shared)
    inner = (3 if model.gated else 2) * ffn
    return max(exact(recipes.bytes_of(dtype) * tokens * (2 * model.hidden + inner)), 4 * logits_for * model.vocab)


# -- fits or not ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """An account held against a capacity. ``headroom`` is negative by as much as is missing."""

    ledger: Ledger
    capacity: Exact
    reserved: Exact
    where: str

    @property
    def fits(self) -> bool:
        """Whether the total fits what is left after ``reserved``."""
        return self.headroom >= 0

    @property
    def headroom(self) -> Exact:
        """Bytes left, or missing if negative."""
        return exact(Fraction(self.capacity) - self.reserved - self.ledger.total)

    @property
    def largest(self) -> Row:
        """The largest kind of row: what to attack first."""
        return max(self.ledger.by_kind(), key=lambda row: row.value)

    @property
    def advice(self) -> str:
        """What makes the largest kind smaller."""
        kind = max({row.kind for row in self.ledger}, key=self.ledger.of)
        return ADVICE.get(kind, "look at the largest row")

    def __bool__(self) -> bool:
        return self.fits

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, unit: str = "GB") -> str:
        """One or two sentences for a person."""
        room = show(self.headroom if self.fits else -self.headroom, unit)
        total = show(self.ledger.total, unit)
        if self.fits:
            return f"{total} fits {self.where}, with {room} to spare."
        share = show(self.largest.value, unit)
        return (
            f"{total} does not fit {self.where}: {room} are missing. "
            f"Most of it is {self.largest.name} ({share}): {self.advice}."
        )


ADVICE = {
    "weights": "fewer bits a weight, or weights divided among GPUs (tensor parallelism, ZeRO-3)",
    "gradients": "gradients in 16 bits, or divided among data-parallel ranks (ZeRO-2)",
    "optimizer": "states divided among data-parallel ranks (ZeRO-1), kept in 8 bits, or on the CPU",
    "activations": "a smaller micro-batch, flash attention, or recomputation",
    "kv_cache": "a smaller batch or context, fewer key-value heads, or an 8-bit cache",
    "buffers": "smaller buckets, or fewer layers gathered ahead",
}


def fits(account: Ledger, gpu: HasMemory | Exact, *, reserved: Exact = 0) -> Fit:
    """Whether ``account`` fits ``gpu`` (anything with ``memory_bytes``, or a number of bytes).

    ``reserved`` bytes are not available: the CUDA context, the allocator's fragments, another process. They
    are yours to measure; none are assumed.

    >>> from infrabook import models
    >>> llama = models.get("llama-2-7b")
    >>> print(fits(inference(llama, context=4096), 24 * 10**9))
    15.62 GB fits 24.00 GB, with 8.38 GB to spare.
    >>> print(fits(training(llama), 80 * 10**9))
    118.19 GB does not fit 80.00 GB: 38.19 GB are missing. \
Most of it is optimizer states (80.86 GB): states divided among data-parallel ranks (ZeRO-1), kept in 8 bits, or \
on the CPU.
    """
    if account.unit != "bytes":
        raise InfrabookError(f"only bytes fit a GPU, and {account.title!r} counts {account.unit}")
    name, capacity = ("", gpu) if isinstance(gpu, int | Fraction) else (gpu.name, gpu.memory_bytes)
    positive("the GPU's memory", capacity, whole=False)
    positive("reserved", reserved, whole=False, zero=True)
    return Fit(account, capacity, reserved, f"{name} ({show(capacity)})" if name else show(capacity))


# -- pieces --------------------------------------------------------------------------------------------------


def _degrees(options: Options) -> dict[str, int]:
    return {
        "tensor_parallel": options.get("tensor_parallel", 1),
        "pipeline_parallel": options.get("pipeline_parallel", 1),
        "stage": options.get("stage", 0),
    }


def _rows(buffers: Sizes | None) -> list[Row]:
    for name, size in (buffers or {}).items():
        positive(f"the buffer {name!r}", size, whole=False, zero=True)
    return [Row(name, exact(size), "buffers") for name, size in (buffers or {}).items()]


def _recomputed(model: Transformer, options: Options) -> list[Row]:
    """The layer being recomputed: what it saves beyond what recomputation keeps of it."""
    if options.get("recomputation", "none") == "none":
        return []
    everything: Options = {**options, "recomputation": "none"}
    missing = Fraction(one_layer(model, **everything).total)
    if options["recomputation"] == "selective":
        missing -= one_layer(model, **options).total
    return [Row("one layer, recomputed", exact(missing), "activations", "what one layer saves, once")]


def _one_layer(model: Transformer, options: Options) -> list[Row]:
    everything: Options = {**options, "recomputation": "none"}
    return [Row("one layer", one_layer(model, **everything).total, "activations", "what one layer saves, once")]


def _shares(model: Transformer, options: Options) -> tuple[Fraction, Fraction]:
    """The parts of a rank's parameters after its last layer, and in and before its first one."""
    rank = shapes.Rank(**_degrees(options))
    total = shapes.elements(model, rank)
    head = shapes.elements(model, rank, lambda shape: shape.place == "head")
    before = shapes.elements(model, rank, lambda shape: shape.place == "embedding")
    layers = Fraction(total - head - before, len(rank.layers(model)))
    return Fraction(head, total), (before + layers) / total


def _loss(model: Transformer, options: Options) -> list[Row]:
    """What the loss's backward pass makes: a gradient by the log-probabilities and one by the logits, both wide."""
    kind = options.get("logits", "fp32")
    rank = shapes.Rank(**_degrees(options))
    if kind == "none" or not rank.last:
        return []
    tokens = options.get("batch", 1) * options.get("sequence", 2048)
    vocab = Fraction(tokens * model.vocab, rank.tensor_parallel)
    wide = 4 if kind.startswith("fp32") else 2
    return [
        Row("gradient of the log-probabilities", exact(wide * vocab), "buffers", f"{wide}·sbV"),
        Row("gradient of the logits", exact(wide * vocab), "buffers", f"{wide}·sbV"),
    ]


def _temporaries(model: Transformer, recipe: Recipe, states: Ledger, step: OptimizerStep) -> list[Row]:
    """Adam's square root of the second moment and its quotient, as torch.optim makes them."""
    if step == "fused" or "second moment" not in states:
        return []
    if step == "foreach":
        return [Row("square roots of all second moments", states["second moment"], "buffers", "torch._foreach_sqrt")]
    tensor = next(tensor for tensor in recipe.tensors if tensor.name == "second moment")
    largest = max(shape.elements for shape in shapes.shapes(model))
    share = Fraction(states["second moment"]) / (shapes.elements(model) * tensor.bytes_per_element)
    size = exact(2 * largest * tensor.bytes_per_element * share)
    return [Row("square root and quotient of one tensor", size, "buffers", "the largest parameter, twice")]
