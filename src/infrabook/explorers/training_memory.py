"""The whole ledger of Llama-2-7B, with every convention that moves it as a control."""

from __future__ import annotations

from .. import activations, hardware, memory, models, recipes
from ..explore import Check, Choice, Number, explore, number
from ..units import show
from .ledger import GPUS, KINDS
from .views import account_table, an, meter


@explore(
    layer=Choice({"GPT's, as posts count it": "gpt", "Llama's own": "own"}, label="layer"),
    attention=Choice({"scores stored": "eager", "flash": "flash"}),
    batch=Number.doubling(1, 256, unit="sequences"),
    sequence=Number.doubling(128, 131_072, unit="tokens"),
    recipe=Choice(recipes.names()),
    recomputation=Choice(["none", "selective", "full"]),
    rmsnorm=Choice({"fused": "fused", "written out": "fp32"}, label="RMSNorm"),
    head=Check(label="count the head's logits"),
    gpu=Choice(GPUS, label="GPU"),
)
def seven_billion(
    layer: activations.LayerKind = "gpt",
    attention: activations.Attention = "eager",
    batch: int = 1,
    sequence: int = 2048,
    recipe: str = "bf16-adamw",
    recomputation: activations.Recomputation = "none",
    rmsnorm: activations.RMSNorm = "fused",
    head: bool = True,
    gpu: str = "h100-sxm",
) -> str:
    """What training Llama-2-7B takes, under conventions of your choice."""
    account = memory.training(
        models.get("llama-2-7b"), recipe, batch=batch, sequence=sequence, layer=layer, attention=attention,
        recomputation=recomputation, rmsnorm=rmsnorm, logits="fp32" if head else "none",
    )  # fmt: skip
    card = hardware.gpu(gpu)
    fit = memory.fits(account, card)
    words = next(words for words, name in GPUS.items() if name == gpu)
    states = account.total - account.of("activations")
    alone = "Its states alone do not fit either." if states > card.memory_bytes else "Its states alone would fit."
    verdict = f"<b>It fits</b> {an(words)}." if fit else f"<b>It does not fit</b> {an(words)}. {alone}"
    return (
        f'<p class="explorer-answer">{number(show(account.total), account.total)}, of which '
        f"{show(account.of('activations'))} are activations. {verdict}</p>"
        + meter(account.by_kind(), card.memory_bytes, f"{words}: {show(card.memory_bytes)}")
        + account_table(account, KINDS, room=(f"memory of one {words}", card.memory_bytes))
    )
