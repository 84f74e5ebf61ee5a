"""One model, one card, twice: what serving it needs, and what the worst moment of a training step needs."""

from __future__ import annotations

from html import escape

from .. import hardware, kv_cache, memory, models, recipes
from ..activations import Recomputation
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
) -> str:
    """Whether one GPU serves a model, and whether it trains it."""
    shape, card = models.get(model), hardware.gpu(gpu)
    words = next(words for words, name in GPUS.items() if name == gpu)
    dtype, scales = FOUR_BIT[weights]
    serving = memory.inference(shape, batch=batch, context=tokens, weights=dtype, weight_scales=scales)
    worst = memory.peak(
        shape, recipe, batch=batch, sequence=tokens, recomputation=recomputation, optimizer_step=optimizer_step
    )
    name = f"{words}: {show(card.memory_bytes)}"
    parts = []
    for title, account, figure in (
        ("Serving", serving, show(serving.total)),
        (
            f"Training, at its worst moment: {worst.name}",
            worst.ledger,
            number(show(worst.ledger.total), worst.ledger.total),
        ),
    ):
        fit = memory.fits(account, card)
        room = show(max(fit.headroom, -fit.headroom))
        verdict = f"fits, {room} to spare" if fit else f"does not fit, {room} missing"
        parts.append(
            f'<p class="explorer-answer">{escape(title)}. {figure}: <b>{verdict}</b>.</p>'
            + meter(account.by_kind(), card.memory_bytes, name)
        )
    parts.append(legend(("weights", "kv_cache", "gradients", "optimizer", "activations", "buffers")))
    room_for_cache = card.memory_bytes - serving.of("weights")
    longest = kv_cache.max_context(shape, max(room_for_cache, 0), batch=batch)
    parts.append(
        f'<p class="explorer-note">Beside the weights there is room for the keys and values of {longest:,} tokens '
        f"in each of {batch:,} {'sequence' if batch == 1 else 'sequences'}.</p>"
    )
    return "".join(parts)
