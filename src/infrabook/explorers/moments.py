"""What is alive, from the start of an iteration to its end, and whether a GPU holds the worst of it."""

from __future__ import annotations

from html import escape

from .. import hardware, iteration, models
from ..charts import Span, gantt
from ..explore import Choice, Number, explore, number
from ..iteration import Optimizer, ZeroGrad
from ..memory import Moment, OptimizerStep
from ..units import GB, show
from .ledger import GPUS
from .views import an

MODELS = ("llama-3.2-1b", "llama-3.2-3b", "llama-2-7b", "llama-3-8b", "llama-2-13b")
OPTIMIZERS = {"SGD": "sgd", "SGD with momentum": "momentum", "AdamW": "adamw"}
CLEARED = {
    "set to None after the step": "after the step",
    "set to None only before backward": "before backward",
    "filled with zeros": "to zero",
}
KINDS = ("weights", "optimizer", "gradients", "activations", "buffers")


@explore(
    which=Choice({"the first": "first", "the second, and every later one": "later"}, label="iteration"),
    optimizer=Choice(OPTIMIZERS),
    zero_grad=Choice(CLEARED, label="gradients are"),
    micro_batches=Number.doubling(1, 64, label="micro-batches accumulated"),
    dtype=Choice({"BF16": "bf16", "FP32": "fp32"}, label="everything in"),
    optimizer_step=Choice(["for-loop", "foreach", "fused"], label="optimizer's step"),
    batch=Number.doubling(1, 64, unit="sequences", label="micro-batch"),
    sequence=Number.doubling(128, 32_768, unit="tokens"),
    model=Choice(MODELS),
    gpu=Choice(GPUS, label="GPU"),
)
def one_iteration(
    which: str = "first", optimizer: Optimizer = "adamw", zero_grad: ZeroGrad = "after the step",
    micro_batches: int = 1, dtype: str = "bf16", optimizer_step: OptimizerStep = "for-loop", batch: int = 2,
    sequence: int = 4096, model: str = "llama-2-7b", gpu: str = "h100-sxm",
) -> str:  # fmt: skip
    """One iteration of training as bytes: which moment holds most, and does a GPU hold that."""
    shape, card = models.get(model), hardware.gpu(gpu)
    every = iteration.moments(
        shape, optimizer, dtype=dtype, first=which == "first", micro_batches=micro_batches, zero_grad=zero_grad,
        optimizer_step=optimizer_step, batch=batch, sequence=sequence, rmsnorm="fp32",
    )  # fmt: skip
    worst = max(every, key=lambda moment: moment.ledger.total)
    room = card.memory_bytes - worst.ledger.total
    words = next(words for words, name in GPUS.items() if name == gpu)
    verdict = f"It fits {an(words)}, {show(room)} to spare" if room >= 0 else f"It does not fit {an(words)}"
    if room < 0:
        dies = next(moment.name for moment in every if moment.ledger.total > card.memory_bytes)
        verdict += f" and dies at: {escape(dies)}" if dies != "start" else ": it does not even begin"
    mark = worst.name[worst.name.index(" (") :] if " (" in worst.name else f" ({micro_batches})"
    rows = _rows(every, shape.layers, mark if micro_batches > 1 else "")
    said = "; ".join(f"{name} {show(moment.ledger.total)}" for name, moment in rows)
    of = f" Shown is micro-batch {mark.strip('() ')} of {micro_batches}." if micro_batches > 1 else ""
    picture = gantt(
        [(name, _spans(moment)) for name, moment in rows], title=said, unit="GB", end=float(card.memory_bytes / GB),
        rest="free on the card" if room >= 0 else "not needed",
    )  # fmt: skip
    return (
        f'<p class="explorer-answer">At most {number(show(worst.ledger.total), worst.ledger.total)}, at: '
        f"{escape(worst.name)}. <b>{verdict}.</b></p>"
        f'<p class="meter-title">Alive at each moment, GB; time runs down</p>{picture}'
        f'<p class="explorer-note">→ is forward, ← backward.{of} Norms are written out, as in most published code. '
        "Left out: the CUDA context, the allocator's rounding, the working memory of single operations.</p>"
    )


def _rows(every: tuple[Moment, ...], layers: int, mark: str) -> list[tuple[str, Moment]]:
    by_name = {moment.name: moment for moment in every}
    half = max(layers // 2, 1)
    wanted = {
        "start": "start",
        f"→ layer {half}": f"layer {half} forward{mark}",
        f"→ layer {layers}": f"layer {layers} forward{mark}",
        "→ loss": f"loss forward{mark}",
        "← loss": f"loss backward{mark}",
        f"← layer {layers}": f"layer {layers} backward{mark}",
        f"← layer {half}": f"layer {half} backward{mark}",
        "← embedding": f"embedding backward{mark}",
        "step": "optimizer step",
        "end": "end",
    }
    return [(short, by_name[name]) for short, name in wanted.items()]


def _spans(moment: Moment) -> list[Span]:
    at, spans = 0.0, []
    for kind in KINDS:
        size = float(moment.ledger.of(kind) / GB)
        if size:
            spans.append(Span(at, at + size, kind))
        at += size
    return spans
