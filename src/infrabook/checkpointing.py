"""What a byte of activations or optimizer states costs if it is computed again, or kept on the other side of a link.

``recompute`` and ``offload_activations`` trade activations, ``offload_optimizer`` trades states; each says what stays
on the GPU, how much work is added and what crosses the link in each direction. ``step`` turns that into a step's time
under named assumptions. ``memory`` has the accounts, ``flops`` the work, ``hardware`` the links.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias, Unpack

from . import flops, hardware, memory, recipes
from .activations import Options
from .errors import InfrabookError
from .models import Transformer
from .units import Exact, exact, positive

Update: TypeAlias = Literal["on the CPU", "on the GPU"]


@dataclass(frozen=True)
class Trade:
    """What a policy keeps and costs, for one step of one GPU.

    ``kept`` bytes stay on the GPU (activations for the first two, states for the last), ``flop`` are done again,
    ``out_bytes`` leave for the CPU and ``in_bytes`` come back. ``cpu_bytes`` are then in the CPU's memory.
    """

    name: str
    kept: Exact
    flop: Exact = 0
    out_bytes: Exact = 0
    in_bytes: Exact = 0
    cpu_bytes: Exact = 0


def recompute(
    model: Transformer,
    *,
    segments: int = 0,
    selective: bool = False,
    early_stop: bool = False,
    **options: Unpack[Options],
) -> Trade:
    """Activation checkpointing: every layer (``segments`` = 0 or L), in ``segments`` equal groups, or selective.

    A segment keeps its input, and while it runs backward everything that its layers save: with c segments of L/c layers
    c·2sbh bytes and one segment's activations. That is least at c = √L if a layer saves as much as its input (Chen et
    al., arXiv 1604.06174), and at √(L·x/2) if it saves x·sbh bytes.

    Work added: the layers' forward pass; selective: scores and values only. ``early_stop``: what PyTorch does, the
    last product of each segment is not repeated, since nothing needs its output. Options as ``activations``.

    >>> from infrabook.models import get
    >>> full = recompute(get("llama-2-7b"), sequence=2048)
    >>> full.kept < recompute(get("llama-2-7b"), sequence=2048, segments=1).kept
    True
    """
    batch, sequence = options.get("batch", 1), options.get("sequence", 2048)
    nothing: Options = {**options, "recomputation": "none"}
    every = memory.activations(model, **nothing)
    outside = sum((Fraction(row.value) for row in every if not row.name.startswith("layers")), Fraction())
    inside = Fraction(every.total) - outside
    work = flops.forward(model, batch=batch, sequence=sequence, head=False)
    if selective:
        some: Options = {**options, "recomputation": "selective"}
        kept = memory.activations(model, **some)
        again = Fraction(work[flops.SCORES]) + work[flops.VALUES]
        one = (inside - (Fraction(kept.total) - outside)) / model.layers
        return Trade("selective", exact(Fraction(kept.total) + one), exact(again))
    count = segments or model.layers
    positive("segments", count)
    if model.layers % count:
        raise InfrabookError(f"{model.layers} layers do not divide into {count} equal segments")
    inputs = recipes.bytes_of(options.get("dtype", "bf16")) * batch * sequence * model.hidden
    kept_bytes = outside + count * inputs + inside / count
    saved_work = Fraction(work["feed-forward down"], model.layers) * count if early_stop else 0
    name = "full" if count == model.layers else f"{count} segments"
    return Trade(name, exact(kept_bytes), exact(Fraction(work.total) - saved_work))


def best_segments(model: Transformer, **options: Unpack[Options]) -> int:
    """The number of equal segments that keeps fewest bytes.

    >>> from infrabook.models import get
    >>> best_segments(get("llama-2-7b"), sequence=2048)
    32
    """
    divisors = [count for count in range(1, model.layers + 1) if model.layers % count == 0]
    return min(divisors, key=lambda count: Fraction(recompute(model, segments=count, **options).kept))


def offload_activations(model: Transformer, **options: Unpack[Options]) -> Trade:
    """Every layer's saved tensors go to the CPU in the forward pass and come back in the backward pass.

    On the GPU stay what is saved outside the layers, the layer being sent and the one being used.
    """
    nothing: Options = {**options, "recomputation": "none"}
    every = memory.activations(model, **nothing)
    inside = sum((Fraction(row.value) for row in every if row.name.startswith("layers")), Fraction())
    kept = Fraction(every.total) - inside + 2 * inside / model.layers
    return Trade("activations offloaded", exact(kept), 0, exact(inside), exact(inside), exact(inside))


def offload_optimizer(
    model: Transformer, recipe: str | recipes.Recipe = "bf16-adamw", *, update: Update = "on the CPU"
) -> Trade:
    """Optimizer states live on the CPU.

    Updated there, gradients go out and new weights come back (ZeRO-Offload, arXiv 2101.06840: 2 + 2 bytes a parameter
    in 16 bits). Updated on the GPU, every state comes in and goes out again, layer by layer.
    """
    states = recipes.states(model, recipe)
    optimizer, weights, gradients = (states.of(kind) for kind in ("optimizer", "weights", "gradients"))
    kept = exact(Fraction(weights) + gradients)
    if update == "on the CPU":
        return Trade("optimizer on the CPU", kept, 0, gradients, weights, optimizer)
    if update == "on the GPU":
        return Trade("states streamed through the GPU", kept, 0, optimizer, optimizer, optimizer)
    raise InfrabookError(f"the update can be on the CPU or on the GPU, and is {update!r}")


# -- time ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Step:
    """A step's time in seconds, and how it is made up."""

    name: str
    memory_bytes: Exact
    compute_s: Fraction
    link_s: Fraction
    hidden_s: Fraction

    @property
    def seconds(self) -> Fraction:
        """Computing, and what of the traffic nothing hides."""
        return self.compute_s + self.link_s - self.hidden_s


def step(
    model: Transformer, gpu: str | hardware.Gpu, trade: Trade | None, *, states: Exact, activations: Exact,
    batch: int = 1, sequence: int = 2048, link: str = "pcie4-x16", utilization: Fraction = Fraction(1, 2),
    dtype: str = "bf16", cpu_bytes_per_s: Exact = 0,
) -> Step:  # fmt: skip
    """The time of a step under ``trade`` (None: everything kept), with named assumptions.

    Work runs at ``utilization`` of the dense peak. Traffic of activations overlaps with the pass it belongs to: out
    with forward, in with backward. An optimizer's traffic overlaps with itself alone, both directions at once.
    ``cpu_bytes_per_s``: an update on the CPU reads and writes its states at this rate (0: left out).
    """
    card = hardware.gpu(gpu) if isinstance(gpu, str) else gpu
    if not 0 < utilization <= 1:
        raise InfrabookError(f"utilization is a share of the peak, above 0 and at most 1, and is {utilization}")
    rate = card.peak(dtype) * Fraction(utilization)
    forward = Fraction(flops.forward(model, batch=batch, sequence=sequence).total) / rate
    backward = 2 * forward
    wire = Fraction(hardware.link(link).bytes_per_s)
    if trade is None:
        return Step("everything kept", exact(Fraction(states) + activations), 3 * forward, Fraction(), Fraction())
    again = Fraction(trade.flop) / rate
    out, back = Fraction(trade.out_bytes) / wire, Fraction(trade.in_bytes) / wire
    if trade.name.startswith(("optimizer", "states")):
        update = 2 * Fraction(trade.cpu_bytes) / cpu_bytes_per_s if cpu_bytes_per_s else Fraction()
        held = exact(Fraction(trade.kept) + activations)
        return Step(trade.name, held, 3 * forward, max(out, back) + update, Fraction())
    held = exact(Fraction(states) + trade.kept)
    hidden = min(out, forward) + min(back, backward)
    return Step(trade.name, held, forward + backward + again, out + back, hidden)


def both(base: Step, one: Step, other: Step) -> Step:
    """Two trades of different things in one step: their savings and their costs add up."""
    return Step(
        f"{one.name}, {other.name}",
        exact(Fraction(one.memory_bytes) + other.memory_bytes - base.memory_bytes),
        one.compute_s + other.compute_s - base.compute_s,
        one.link_s + other.link_s,
        one.hidden_s + other.hidden_s,
    )


def tokens_to_hide(model: Transformer, gpu: str | hardware.Gpu, *, link: str, utilization: Fraction) -> float:
    """The sequence length from which a forward pass takes longer than sending what its layers save.

    Both grow with the length, work also with its square; below it (infinity: never) offloading shows.
    """
    card = hardware.gpu(gpu) if isinstance(gpu, str) else gpu
    wire = hardware.link(link).bytes_per_s
    for power in range(7, 21):
        sequence = 2**power
        work = Fraction(flops.forward(model, sequence=sequence).total) / (card.peak("bf16") * Fraction(utilization))
        if Fraction(offload_activations(model, sequence=sequence).out_bytes) / wire <= work:
            return float(sequence)
    return math.inf
