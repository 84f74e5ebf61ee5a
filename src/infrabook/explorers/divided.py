"""Tensor parallelism: what one rank of a divided model holds, computes and waits for."""

from __future__ import annotations

from fractions import Fraction
from html import escape
from typing import Any

from .. import charts, flops, hardware, models, shapes
from ..activations import Recomputation
from ..charts import Span
from ..errors import InfrabookError
from ..explore import Check, Choice, Number, explore, number
from ..models import Transformer
from ..parallel import tensor
from ..units import percent, show
from .ledger import GPUS
from .messages import LINKS
from .views import account_table, plain

KINDS = ("weights", "gradients", "optimizer", "activations")
MODELS = [name for name in models.names() if name.startswith(("llama", "qwen2.5", "mistral-7b", "gpt"))]


@explore(
    model=Choice(MODELS),
    gpu=Choice(GPUS, label="GPU"),
    degree=Number(1, 64, label="tensor-parallel ranks"),
    link=Choice(LINKS, label="link in a node"),
    each=Number.among([1, 2, 4, 8, 16, 32, 64], label="ranks in a node"),
    across=Choice(LINKS, label="link between nodes"),
    algorithm=Choice({"inside nodes first": "hierarchical", "one ring": "ring"}, label="sums over nodes"),
    batch=Number.doubling(1, 256, unit="sequences"),
    sequence=Number.doubling(128, 131_072, unit="tokens"),
    sequence_parallel=Check(label="sequence parallelism"),
    parallel_loss=Check(label="loss divided by the vocabulary"),
    recomputation=Choice(["none", "full"]),
    utilization=Number(5, 100, 5, label="products at", unit="% of peak"),
)
def tensor_split(
    model: str = "llama-2-7b", gpu: str = "h100-sxm", degree: int = 8, link: str = "nvlink4", each: int = 8,
    across: str = "infiniband-ndr", algorithm: str = "hierarchical", batch: int = 1, sequence: int = 4096,
    sequence_parallel: bool = False, parallel_loss: bool = True, recomputation: Recomputation = "none",
    utilization: int = 50,
) -> str:  # fmt: skip
    """A model divided inside its layers: memory, time, and the share spent communicating."""
    shape, card = models.get(model), hardware.gpu(gpu)
    if not any(peak.dtype == "bf16" for peak in card.peaks):
        raise InfrabookError(f"{card.variant} has no bf16 units, and this account is in bf16; choose a later card")
    nodes: Any = {"ranks_per_node": min(each, degree), "across": across, "algorithm": algorithm}
    if degree > each and degree % each:
        raise InfrabookError(f"nodes of {each} ranks do not divide {degree} tensor-parallel ranks")
    options: Any = {
        "batch": batch, "sequence": sequence, "sequence_parallel": sequence_parallel, "recomputation": recomputation,
        "keep_gathered": True,
    }  # fmt: skip
    rate = Fraction(utilization, 100)
    one = tensor.step(
        shape, card, degree=degree, link=link, utilization=rate, parallel_loss=parallel_loss, **nodes, **options
    )
    options_alone: Any = options | {"sequence_parallel": False}
    alone = tensor.step(shape, card, degree=1, link=link, utilization=rate, **options_alone)
    words = next(words for words, name in GPUS.items() if name == gpu)
    head = (
        f"{number(percent(one.share, 1), f'{float(one.share):.9g}')} of a step of {_ms(one.seconds)} is spent "
        f"communicating. {degree} {'rank is' if degree == 1 else 'ranks are'} "
        f"{plain(float(alone.seconds / one.seconds))} times as fast as one."
    )
    layer = tensor.layer_calls(
        shape, batch=batch, sequence=sequence, sequence_parallel=sequence_parallel, recomputation=recomputation
    )
    a_layer = tensor.bytes_sent(layer, degree)
    sent = f"A rank sends {show(one.sent_bytes)} a step, {show(a_layer, 'MB', 1)} a layer"
    picture = charts.gantt(
        [("", _layer(shape, card, one, rate, link, nodes, options))], title="One layer, forward and backward", unit="ms"
    )
    return (
        f'<p class="explorer-answer">{head}</p>'
        f"{picture}{account_table(one.memory, KINDS, room=(words, card.memory_bytes))}"
        f'<p class="explorer-note explorer-tips">{escape(sent)}, and a whole layer\'s weights have '
        f"{escape(show(_layer_weights(shape), 'MB', 1))}. {escape(_limits(shape, degree))}</p>"
    )


def _layer(
    shape: Transformer, card: hardware.Gpu, one: tensor.Step, rate: Fraction, link: str, nodes: dict[str, Any],
    options: dict[str, Any],
) -> list[Span]:  # fmt: skip
    """One layer on one rank, in ms: products and, between them, collectives, each in its place."""
    batch, sequence, degree = options["batch"], options["sequence"], one.degree
    work = flops.forward(shape, batch=batch, sequence=sequence, head=False)
    work_a_ms = shape.layers * degree * card.peak("bf16") * rate / 1000

    def half_ms(half: str) -> Fraction:
        return sum((Fraction(row.value) for row in work if row.name.startswith(half)), Fraction()) / work_a_ms

    halves = {half: half_ms(half) for half in ("attention", "feed-forward")}
    calls = tensor.layer_calls(
        shape, batch=batch, sequence=sequence, sequence_parallel=options["sequence_parallel"],
        recomputation=options["recomputation"],
    )  # fmt: skip
    spans: list[Span] = []
    clock = Fraction()

    def add(length: Fraction, kind: str, label: str) -> None:
        nonlocal clock
        if length:
            spans.append(Span(clock, clock + length, kind, label))
            clock += length

    def said(when: str, place: str, again: int = 0) -> None:
        found = [call for call in calls if call.when == when and call.where == place]
        seconds = tensor.communication_s(found[again : again + 1], degree, link=link, **nodes)
        add(1000 * seconds, "communication", "")

    def forward(when: str) -> None:
        for half in halves:
            said(when, f"before {half}")
            add(halves[half], "forward", "attention" if half == "attention" else "MLP")
            said(when, f"after {half}")

    forward("forward")
    if options["recomputation"] == "full":
        forward("backward")
    for half in reversed(halves):
        said("backward", f"gradient after {half}")
        add(2 * halves[half], "backward", "attention" if half == "attention" else "MLP")
        said("backward", f"gradient before {half}")
    return spans


def _layer_weights(shape: Transformer) -> int:
    return 2 * sum(one.elements * one.copies for one in shapes.shapes(shape) if one.place == "layer")


def _limits(shape: Transformer, degree: int) -> str:
    most = max(tensor.degrees(shape))
    if degree > shape.kv_heads:
        copies = degree // shape.kv_heads
        return f"Each of {shape.kv_heads} key and value heads stands on {copies} ranks; {most} ranks are the most."
    return f"{shape.heads} heads, {shape.kv_heads} of keys and values: {most} ranks are the most."


def _ms(seconds: Fraction) -> str:
    return f"{plain(float(1000 * seconds))} ms" if seconds < 10 else f"{plain(float(seconds))} s"
