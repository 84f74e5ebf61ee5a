"""The live ledger of a model: what training it takes, by kind, held against one GPU's memory."""

from __future__ import annotations

from html import escape

from .. import hardware, memory, models, recipes
from ..activations import Attention, Recomputation
from ..explore import Choice, Number, Text, explore, number
from ..models import Transformer
from ..units import show
from .views import account_table, meter

KINDS = ("weights", "gradients", "optimizer", "activations")
GPUS = {gpu.variant.split(" in ")[0]: gpu.name for gpu in hardware.gpus() if gpu.memory_bytes}


@explore(
    model=Choice(models.names()),
    gpu=Choice(GPUS, label="GPU"),
    batch=Number.doubling(1, 256, unit="sequences"),
    sequence=Number.doubling(128, 131_072, unit="tokens"),
    recipe=Choice(recipes.names()),
    attention=Choice(["flash", "eager"]),
    recomputation=Choice(["none", "selective", "full"]),
    config=Text(
        label="another model: paste its config.json",
        rows=7,
        placeholder='{"model_type": "llama", "hidden_size": 4096, …',
    ),
)
def model_ledger(
    model: str = "llama-2-7b",
    gpu: str = "h100-sxm",
    batch: int = 1,
    sequence: int = 2048,
    recipe: str = "bf16-adamw",
    attention: Attention = "flash",
    recomputation: Recomputation = "none",
    config: str = "",
) -> str:
    """The memory that training a model takes, and whether one GPU has it."""
    shape = Transformer.from_hf_config(config, name="the pasted model") if config else models.get(model)
    account = memory.training(
        shape, recipe, batch=batch, sequence=sequence, attention=attention, recomputation=recomputation
    )
    card = hardware.gpu(gpu)
    fit = memory.fits(account, card)
    words = next(words for words, name in GPUS.items() if name == gpu)
    room = show(max(fit.headroom, -fit.headroom)).replace(" ", "\u00a0")
    verdict = f"<b>It fits</b>, with {room} to spare" if fit else f"<b>It does not fit</b>: {room} are missing"
    length = f"{batch:,} {'sequence' if batch == 1 else 'sequences'} of {sequence:,} tokens"
    return (
        f'<p class="explorer-answer">{number(show(account.total), account.total)} to train {escape(shape.name)} '
        f"on {length}. {verdict}.</p>"
        + meter(account.by_kind(), card.memory_bytes, f"{words}: {show(card.memory_bytes)}")
        + account_table(account, KINDS, room=(f"memory of one {words}, as it reports it", card.memory_bytes))
        + f'<p class="explorer-note">Largest: {escape(fit.largest.name)}. What makes it smaller: '
        f"{escape(fit.advice)}.</p>"
    )
