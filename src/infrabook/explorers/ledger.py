"""The live ledger of a model: what training it takes, by kind, held against one GPU's memory."""

from __future__ import annotations

from html import escape

from .. import hardware, memory, models, recipes
from ..activations import Attention, Recomputation
from ..errors import InfrabookError
from ..explore import Choice, Number, Text, explore, number
from ..models import Transformer
from ..units import show
from .views import account_table, meter

KINDS = ("weights", "gradients", "optimizer", "activations")
LIGHTER = ("adam-8bit", "pure-bf16", "adafactor", "lora", "qlora")  # the least change of training first
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
    said = [f"Largest: {fit.largest.name}."]
    if fit:
        said.append(f"What makes it smaller: {fit.advice}.")
    else:
        said.append(_way_out(shape, card, recipe, recomputation, batch, sequence, attention))
    if sequence > shape.context:
        said.append(f"{shape.name} was made for {shape.context:,} tokens, and these sequences are longer.")
    if recomputation == "selective" and attention == "flash":
        said.append("Selective recomputation changes nothing here: flash attention keeps no scores to drop.")
    return (
        f'<p class="explorer-answer">{number(show(account.total), account.total)} to train {escape(shape.name)} '
        f"on {length}. {verdict}.</p>"
        + meter(account.by_kind(), card.memory_bytes, f"{words}: {show(card.memory_bytes)}")
        + account_table(account, KINDS, room=(f"memory of one {words}, as it reports it", card.memory_bytes))
        + f'<p class="explorer-note explorer-tips">{escape(" ".join(said))}</p>'
    )


def _way_out(
    shape: Transformer, card: hardware.Gpu, recipe: str, recomputation: Recomputation, batch: int, sequence: int,
    attention: Attention,
) -> str:  # fmt: skip
    """The first change of a control with which the total fits, or that there is none."""
    single: list[tuple[str, Recomputation]] = [(recipe, "full"), *((name, recomputation) for name in LIGHTER)]
    double: list[tuple[str, Recomputation]] = [(name, "full") for name in LIGHTER]
    for name, how in (*single, *double):
        try:
            total = memory.training(
                shape, name, batch=batch, sequence=sequence, attention=attention, recomputation=how
            ).total
        except InfrabookError:  # no adapters for this model
            continue
        if total <= card.memory_bytes:
            changed = [f"recipe {name}"] if name != recipe else []
            changed += [f"recomputation {how}"] if how != recomputation else []
            return f"With {' and '.join(changed)} it would take {show(total)} and fit."
    fewer = "fewer sequences at a time, or " if batch > 1 else ""
    return f"No recipe here makes it fit, even with full recomputation: it takes {fewer}sharding over several GPUs."
