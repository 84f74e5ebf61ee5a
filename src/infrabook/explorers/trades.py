"""What a gigabyte costs in seconds, recomputed or moved, for one model on one card and link."""

from __future__ import annotations

from fractions import Fraction
from html import escape

from .. import checkpointing, hardware, memory, models, recipes
from ..errors import InfrabookError
from ..explore import Choice, Number, explore, number
from ..units import Exact, show
from .ledger import GPUS
from .views import an

LINKS = {
    "PCIe 3 x16": "pcie3-x16", "PCIe 4 x16": "pcie4-x16", "PCIe 5 x16": "pcie5-x16", "PCIe 6 x16": "pcie6-x16",
    "NVLink 4": "nvlink4",
}  # fmt: skip


def steps(
    model: str, gpu: str, link: str, batch: int, sequence: int, recipe: str, percent: int
) -> dict[str, checkpointing.Step]:
    """A step under each policy, by name; the first keeps everything."""
    shape = models.get(model)
    states = recipes.states(shape, recipe).total
    activations = memory.activations(shape, batch=batch, sequence=sequence).total
    trades = (
        None,
        checkpointing.recompute(shape, batch=batch, sequence=sequence, early_stop=True),
        checkpointing.recompute(shape, segments=_middle(shape.layers), batch=batch, sequence=sequence, early_stop=True),
        checkpointing.offload_activations(shape, batch=batch, sequence=sequence),
        checkpointing.offload_optimizer(shape, recipe),
        checkpointing.offload_optimizer(shape, recipe, update="on the GPU"),
    )
    found = (
        checkpointing.step(
            shape, gpu, trade, states=states, activations=activations, batch=batch, sequence=sequence, link=link,
            utilization=Fraction(percent, 100),
        )
        for trade in trades
    )  # fmt: skip
    every = {one.name: one for one in found}
    everything, full, optimizer = (every[name] for name in ("everything kept", "full", "optimizer on the CPU"))
    together = checkpointing.both(everything, full, optimizer)
    return every | {together.name: together}


def _middle(layers: int) -> int:
    divisors = [count for count in range(1, layers + 1) if layers % count == 0]
    return min(divisors, key=lambda count: abs(count - layers**0.5))


@explore(
    model=Choice([name for name in models.names() if name.startswith(("llama", "qwen2.5", "mistral-7b", "gpt"))]),
    gpu=Choice(GPUS, label="GPU"),
    link=Choice(LINKS, label="link to the CPU"),
    batch=Number.doubling(1, 256, unit="sequences"),
    sequence=Number.doubling(128, 131_072, unit="tokens"),
    recipe=Choice(["bf16-adamw", "megatron", "fp32-accumulation", "pure-bf16", "adam-8bit"]),
    utilization=Number(5, 100, 5, label="arithmetic at", unit="% of peak"),
)
def what_it_costs(
    model: str = "llama-2-7b", gpu: str = "h100-sxm", link: str = "pcie5-x16", batch: int = 1, sequence: int = 2048,
    recipe: str = "bf16-adamw", utilization: int = 50,
) -> str:  # fmt: skip
    """Memory and time of a training step under each policy."""
    card = hardware.gpu(gpu)
    if not any(peak.dtype == "bf16" for peak in card.peaks):
        raise InfrabookError(f"{card.variant} has no bf16 units, and this account is in bf16; choose a later card")
    found = steps(model, gpu, link, batch, sequence, recipe, utilization)
    base = next(iter(found.values()))
    rows = []
    for name, one in found.items():
        saved = Fraction(base.memory_bytes) - one.memory_bytes
        slower = one.seconds / base.seconds
        price = f"{float(1000 * (one.seconds - base.seconds) / (saved / 10**9)):.1f} ms" if saved > 0 else "–"
        rows.append((name, one.memory_bytes, slower, price, one.memory_bytes <= card.memory_bytes))
    cheapest = min((row for row in rows if row[4]), key=lambda row: row[2], default=None)
    words = next(words for words, name in GPUS.items() if name == gpu)
    said = (
        f"Cheapest that fits {an(words)}: <b>{escape(cheapest[0])}</b>."
        if cheapest
        else f"None of these fits {an(words)}."
    )
    value: Exact = base.memory_bytes
    body = "".join(
        f'<tr class="{"fits" if fits else "too-large"}"><th scope="row">{escape(name)}</th>'
        f'<td class="amount">{show(held)}</td>'
        f'<td class="amount">× {float(slower):.2f}</td><td class="amount">{price}</td>'
        f'<td class="amount fit">{"yes" if fits else "no"}</td></tr>'
        for name, held, slower, price, fits in rows
    )
    head = "".join(
        f'<th scope="col"{align}>{words}</th>'
        for words, align in (
            ("policy", ""),
            ("memory", ' class="amount"'),
            ("step time", ' class="amount"'),
            ("a GB saved", ' class="amount"'),
            ("fits", ' class="amount fit"'),
        )
    )
    return (
        f'<p class="explorer-answer">{number(show(value), value)} with everything kept. {said}</p>'
        f'<table class="ledger policies"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        f'<p class="explorer-note">A GB saved: the time that a step takes longer, for each gigabyte less. '
        f"Policies in bold fit.</p>"
    )
