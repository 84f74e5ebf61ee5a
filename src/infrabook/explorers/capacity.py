"""One model, one card, twice: what serving it needs, and what the worst moment of a training step needs."""

from __future__ import annotations

from html import escape

from .. import hardware, kv_cache, memory, models, recipes
from ..activations import Recomputation, RMSNorm
from ..explore import Choice, Number, explore, number
from ..units import show
from .ledger import GPUS
from .views import legend, meter

FOUR_BIT = {"bf16": ("bf16", ()), "int8": ("int8", ()), "4 bits in groups of 128": ("int4", (("fp16", 128),))}


@explore(
    model=Choice(models.names()),
    gpu=Choice(GPUS, label="GPU"),
    batch=Number.doubling(1, 256, unit="sequences"),
    tokens=Number.doubling(128, 131_072, label="length", unit="tokens"),
    weights=Choice(list(FOUR_BIT), label="weights when serving"),
    recipe=Choice(recipes.names(), label="recipe when training"),
    recomputation=Choice(["none", "selective", "full"]),
    optimizer_step=Choice(["for-loop", "foreach", "fused"], label="optimizer's step"),
    rmsnorm=Choice({"fused": "fused", "written out": "fp32"}, label="RMSNorm when training"),
)
def serve_or_train(
    model: str = "llama-2-7b",
    gpu: str = "rtx-4090",
    batch: int = 1,
    tokens: int = 2048,
    weights: str = "bf16",
    recipe: str = "pure-bf16",
    recomputation: Recomputation = "none",
    optimizer_step: memory.OptimizerStep = "foreach",
    rmsnorm: RMSNorm = "fused",
) -> str:
    """Whether one GPU serves a model, and whether it trains it."""
    shape, card = models.get(model), hardware.gpu(gpu)
    words = next(words for words, name in GPUS.items() if name == gpu)
    dtype, scales = FOUR_BIT[weights]
    workspace = memory.prefill_workspace(shape, tokens=tokens)  # one prompt at a time, logits of its last position
    serving = memory.inference(
        shape, batch=batch, context=tokens, weights=dtype, weight_scales=scales, workspace=workspace
    )
    worst = memory.peak(
        shape, recipe, batch=batch, sequence=tokens, recomputation=recomputation, optimizer_step=optimizer_step,
        rmsnorm=rmsnorm,
    )  # fmt: skip
    training = worst.ledger
    longest = max(serving.total, training.total)
    name = f"{words}: {show(card.memory_bytes)}"
    verdicts = []
    for account in (training, serving):
        fit = memory.fits(account, card)
        room = show(max(fit.headroom, -fit.headroom))
        verdicts.append(f"<b>it fits</b>, {room} to spare" if fit else f"<b>it does not fit</b>, {room} missing")
    room_for_cache = card.memory_bytes - serving.of("weights") - serving.of("buffers")
    cached = kv_cache.max_context(shape, max(room_for_cache, 0), batch=batch)
    return (
        f'<p class="explorer-answer">{number(show(training.total), training.total)} ({show(training.total, "GiB")}) '
        f"to train, at the worst moment, {escape(worst.name)}: {verdicts[0]}. "
        f"{show(serving.total)} to serve: {verdicts[1]}.</p>"
        f'<p class="meter-title">Serving</p>{meter(serving.by_kind(), card.memory_bytes, name, longest=longest)}'
        f'<p class="meter-title">Training</p>{meter(training.by_kind(), card.memory_bytes, name, longest=longest)}'
        + legend(("weights", "kv_cache", "gradients", "optimizer", "activations", "buffers"))
        + f'<p class="explorer-note">Serving reads one prompt at a time, with {show(workspace)} of buffers. '
        f"Beside them and the weights there is room for the keys and values of {cached:,} tokens in "
        f"{'one sequence' if batch == 1 else f'each of {batch:,} sequences'}.</p>"
    )
