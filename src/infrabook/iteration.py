"""One iteration of training, moment by moment: what is alive after every layer, forward and backward.

``memory.timeline`` gives six moments of a step among many. Here are all of them for one GPU and one dtype, for the
first iteration too, with gradients that are cleared early, late or never, and for several micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Literal, TypeAlias

from . import recipes, shapes
from .activations import Options, RMSNorm, activations, one_layer
from .errors import InfrabookError
from .ledger import Row, ledger
from .memory import Moment, OptimizerStep, _loss, _temporaries
from .models import Transformer
from .recipes import Recipe, Tensor
from .units import exact, positive

Optimizer: TypeAlias = Literal["sgd", "momentum", "adamw"]
ZeroGrad: TypeAlias = Literal["after the step", "before backward", "to zero"]

STATES: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("momentum",),
    "adamw": ("first moment", "second moment"),
}
"""What an optimizer keeps beside each parameter, one tensor of the parameter's size for each name."""

CLEARED = ("after the step", "before backward", "to zero")


def recipe(optimizer: Optimizer, dtype: str = "bf16") -> Recipe:
    """Weights, gradients and the optimizer's states, all in ``dtype``: ``torch.optim`` over a module as it is.

    >>> [float(recipes.bytes_per_parameter(recipe(name))) for name in STATES]
    [4.0, 6.0, 8.0]
    """
    if optimizer not in STATES:
        raise InfrabookError(f"the optimizer can be {', '.join(STATES)}, and is {optimizer!r}")
    kept = (Tensor(name, "optimizer", dtype) for name in STATES[optimizer])
    tensors = (Tensor("weights", "weights", dtype), Tensor("gradients", "gradients", dtype), *kept)
    return Recipe(f"{dtype}-{optimizer}", f"{optimizer}, everything in {dtype}", tensors, "torch.optim")


def moments(
    model: Transformer,
    optimizer: Optimizer = "adamw",
    *,
    dtype: str = "bf16",
    first: bool = False,
    micro_batches: int = 1,
    zero_grad: ZeroGrad = "after the step",
    optimizer_step: OptimizerStep = "for-loop",
    batch: int = 1,
    sequence: int = 2048,
    rmsnorm: RMSNorm = "fused",
    statistics_bytes: int = 0,
    rotary_tables: bool = False,
) -> tuple[Moment, ...]:
    """What is alive at each moment of one iteration, in order, over ``batch`` × ``sequence`` tokens a micro-batch.

    The moments: ``start``; of every micro-batch ``layer i forward`` for each layer, ``loss forward``, ``forward
    done``, ``loss backward``, ``layer i backward`` from the last to the first, ``embedding backward``, ``backward
    done``; then ``optimizer step``, ``step done`` and ``end``. With several micro-batches a name ends in ``(2)`` for
    the second.

    - ``first``: the optimizer makes its states in its first step, so that nothing of them is there before.
    - ``zero_grad``: gradients are set to None ``"after the step"`` (the same as before the forward pass), only
      ``"before backward"``, or filled ``"to zero"`` (``set_to_none=False``), which keeps their storage for ever.
    - A gradient that finds none is kept as it was made. One that finds another is added to it in place and freed:
      a moment it is there twice, the embedding's too.
    - ``optimizer_step``, ``rmsnorm``, ``statistics_bytes``, ``rotary_tables``: as ``memory.timeline`` and
      ``activations`` have them.

    Between layers the residual stream (forward) or its gradient (backward) is one tensor more.
    Left out, as in ``memory.timeline``: token ids, scalars, and the working memory of single operations.

    >>> from infrabook import models
    >>> llama = models.get("llama-2-7b")
    >>> for first in (True, False):
    ...     worst = max(moments(llama, first=first, sequence=4096), key=lambda moment: moment.ledger.total)
    ...     print(worst.name, f"{float(worst.ledger.total) / 2**30:.1f} GiB")
    optimizer step 50.7 GiB
    loss backward 57.9 GiB
    """
    for field, value, allowed in (
        ("zero_grad", zero_grad, CLEARED),
        ("optimizer_step", optimizer_step, ("for-loop", "foreach", "fused")),
    ):
        if value not in allowed:
            raise InfrabookError(f"{field} can be {', '.join(allowed)}, and is {value!r}")
    positive("micro_batches", micro_batches)
    plan = recipe(optimizer, dtype)
    states = recipes.states(model, plan)
    weights, states_of = ([row for row in states if row.kind == kind] for kind in ("weights", "optimizer"))
    gradients = [row for row in states if row.kind == "gradients"]
    before = weights if first else weights + states_of
    options: Options = {
        "batch": batch, "sequence": sequence, "dtype": dtype, "rmsnorm": rmsnorm,
        "statistics_bytes": statistics_bytes, "rotary_tables": rotary_tables,
    }  # fmt: skip

    def run() -> Iterator[tuple[str, list[Row]]]:
        kept = [] if first or zero_grad == "after the step" else gradients
        yield "start", before + kept
        for number in range(1, micro_batches + 1):
            mark = f" ({number})" if micro_batches > 1 else ""
            if number > 1:
                kept = gradients
            for name, rows in _pass(model, options, gradients, kept, clear=number == 1 and zero_grad != "to zero"):
                yield name + mark, before + rows
        yield "optimizer step", weights + states_of + gradients + _temporaries(model, plan, states, optimizer_step)
        yield "step done", weights + states_of + gradients
        yield "end", weights + states_of + ([] if zero_grad == "after the step" else gradients)

    return tuple(Moment(name, ledger(f"{model.name}: {name}", rows)) for name, rows in run())


def _pass(
    model: Transformer, options: Options, gradients: list[Row], kept: list[Row], *, clear: bool
) -> Iterator[tuple[str, list[Row]]]:
    """Forward and backward of one micro-batch over ``kept`` gradients, which ``clear`` drops between the two."""
    size = recipes.bytes_of(options["dtype"])
    everything = list(activations(model, **options))
    tables = [row for row in everything if row.kind == "buffers"]
    layer = one_layer(model, **options).total
    stream = exact(options["batch"] * options["sequence"] * model.hidden * size)

    def saved(layers: int) -> list[Row]:
        return [Row("layers", layers * layer, "activations"), *tables] if layers else []

    between = [Row("residual stream", stream, "activations")]
    if options["rmsnorm"] != "fused" and size < 4:  # the norm keeps a wider copy, and the caller still holds its input
        between.append(Row("input of the layer", stream, "activations"))
    for number in range(1, model.layers + 1):
        yield f"layer {number} forward", [*kept, *saved(number), *between]
    yield "loss forward", [*kept, *everything, *_logits(model, options)]
    yield "forward done", kept + everything
    if clear:
        kept = []
    yield "loss backward", [*kept, *everything, *_loss(model, options)]
    again = _embedding(model, size) if kept else []
    waiting = again if model.tied else []  # autograd adds both uses of a tensor before it hands on their sum
    for number in range(model.layers, 0, -1):
        made = kept or [replace(row, value=exact(row.value * _made(model, number))) for row in gradients]
        flowing = Row("gradient of the residual stream", stream, "buffers")
        yield f"layer {number} backward", [*made, *waiting, *saved(number - 1), flowing]
    yield "embedding backward", gradients + again
    yield "backward done", gradients


def _made(model: Transformer, layer: int) -> Fraction:
    """The part of all parameters whose gradient exists when the backward pass has left ``layer``, from 1."""
    rank = shapes.Rank()
    total = shapes.elements(model, rank)
    layers = shapes.elements(model, rank, lambda shape: shape.place == "layer")
    after = shapes.elements(model, rank, lambda shape: shape.place == ("embedding" if model.tied else "head"))
    after += shapes.elements(model, rank, lambda shape: shape.place == "head") if model.tied else 0
    return (after + Fraction(layers * (model.layers - layer + 1), model.layers)) / total


def _logits(model: Transformer, options: Options) -> list[Row]:
    """The logits as the head made them and, unless those are fp32, widened: the loss reads and does not save them."""
    size = recipes.bytes_of(options["dtype"])
    whole = size if size == 4 else size + 4
    value = exact(options["batch"] * options["sequence"] * model.vocab * whole)
    return [Row("logits before the loss", value, "buffers", f"{whole}·sbV")]


def _embedding(model: Transformer, size: Fraction) -> list[Row]:
    """The embedding's gradient, made a second time: it is dense, whatever tokens there were."""
    table = max(shape.elements for shape in shapes.shapes(model) if shape.place == "embedding")
    return [Row("a gradient before it is added", exact(table * size), "buffers", "the embedding's")]
