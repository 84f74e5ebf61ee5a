"""Every layout of a job on a cluster: what fits, what is quickest, and how near to each other the best are."""

from __future__ import annotations

from html import escape

from .. import flops, hardware, models, recipes
from ..errors import InfrabookError
from ..explore import Choice, Number, Text, explore, number
from ..models import Transformer
from ..palette import tint
from ..parallel.layout import Cluster, Forecast, Job, search
from ..units import GB
from .views import plain

CARDS = {
    gpu.variant.split(" in ")[0]: gpu.name
    for gpu in hardware.gpus()
    if gpu.nvlink and gpu.memory_bytes and any(peak.dtype == "bf16" for peak in gpu.peaks)
}
RECIPES = [name for name in recipes.names() if name in ("bf16-adamw", "megatron", "fp32-accumulation", "pure-bf16")]
PARTS = {  # what takes time -> (its colour, its words)
    "compute": ("forward", "computing"),
    "recomputation": ("backward_weight", "computing again"),
    "memory traffic": ("backward_input", "norms and the like"),
    "tensor parallel": ("communication", "tensor parallel"),
    "other messages": ("other", "other messages"),
    "bubble": ("bubble", "bubble"),
}
SHOWN = 8


@explore(
    model=Choice(models.names()),
    gpu=Choice(CARDS, label="GPU"),
    gpus=Number.among([8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384], label="GPUs"),
    across=Choice([link.name for link in hardware.links() if link.name.startswith("inf")], label="link between nodes"),
    per_node=Number.among([1, 2, 4, 8, 16, 32, 64], label="GPUs a node"),
    sequence=Number.doubling(1024, 131_072, unit="tokens"),
    batch=Number.among([2**k for k in range(3, 14)], unit="sequences", label="batch, over all GPUs"),
    sustained=Number(20, 100, unit="%", label="of the peak sustained"),
    recipe=Choice(RECIPES),
    zero=Choice({"1": 1, "2": 2, "3": 3, "none": 0}, label="ZeRO"),
    recomputation=Choice({"none or full": "both", "none": "none", "full": "full"}),
    config=Text(
        label="another model: paste its config.json",
        rows=7,
        placeholder='{"model_type": "llama", "hidden_size": 4096, …',
    ),
)
def layout_search(
    model: str = "llama-2-70b", gpu: str = "h100-sxm", gpus: int = 512, across: str = "infiniband-ndr",
    per_node: int = 8, sequence: int = 4096, batch: int = 1024, sustained: int = 65, recipe: str = "bf16-adamw",
    zero: int = 1, recomputation: str = "both", config: str = "",
) -> str:  # fmt: skip
    """All layouts of a training job, the quickest first."""
    shape = Transformer.from_hf_config(config, name="the pasted model") if config else models.get(model)
    job = Job(shape, batch, sequence, recipe)
    where = Cluster(hardware.gpu(gpu), gpus, per_node, across=hardware.link(across), sustained=sustained / 100)
    again = ("none", "full") if recomputation == "both" else (recomputation,)
    found = search(job, where, zero=(zero,), recomputation=again, micro_batch=(1, 2, 4), chunks=(1, 2, 4))
    if not found:
        raise InfrabookError(
            f"no layout of {shape.name} divides {gpus:,} GPUs and a batch of {batch:,}: try a larger batch"
        )
    fitting = [one for one in found if one.fits]
    if not fitting:
        least = found[0]
        return (
            f'<p class="explorer-answer">None of {len(found):,} layouts fits: the smallest holds '
            f"{number(f'{least.memory_bytes / GB:.0f} GB', _known(least.memory_bytes))} on its fullest GPU, and there "
            f"is room for {least.room_bytes / GB:.0f}.</p>" + _table([least])
        )
    first = fitting[0]
    near = sum(one.step_s <= 1.05 * first.step_s for one in fitting)
    quickest = number(f"{plain(first.step_s)} s", _known(first.step_s))
    work = float(flops.per_token(shape, sequence=sequence, convention="Megatron-LM"))
    return (
        f'<p class="explorer-answer">{quickest} a step is the quickest, an MFU of '
        f"{100 * first.mfu('Megatron-LM'):.0f}%. Of {len(found):,} layouts {len(fitting):,} fit, and {near:,} of those "
        f'come within 5% of it.</p>{_table(fitting[:SHOWN])}<p class="legend">{_legend()}</p>'
        f'<p class="explorer-note">{first.tokens_per_s / 1e6:.2f} million tokens a second. '
        f"{work / 1e9:,.0f} GFLOP a token.</p>"
    )


def _known(value: float) -> float:
    """Nine digits: ``sum`` adds floats with more care from Python 3.12 on, and the last ones differ."""
    return float(f"{value:.9g}")


def _parts(one: Forecast) -> dict[str, float]:
    seconds = dict(one.seconds)
    named = {name: seconds.pop(name) for name in PARTS if name in seconds}
    return {name: named.get(name, 0.0) for name in PARTS} | {"other messages": sum(seconds.values())}


def _paint(kind: str, classes: str = "") -> str:
    """The end of a ``style`` attribute, and the class: a colour, or the hatching of idle time."""
    if kind == "bubble":
        return f'" class="{classes}gantt-idle"'
    colour = tint("communication", 0.55) if kind == "other" else tint(kind, 0)
    return f';background:{colour}" class="{classes}"'


def _bar(one: Forecast, longest: float) -> str:
    parts = _parts(one)
    said = ", ".join(f"{PARTS[name][1]} {plain(100 * value / one.step_s)}%" for name, value in parts.items() if value)
    inner = "".join(
        f'<i style="width:{100 * value / longest:.2f}%{_paint(PARTS[name][0])}></i>'
        for name, value in parts.items()
        if value
    )
    return f'<div class="layout-bar" role="img" aria-label="{escape(said)}">{inner}</div>'


def _legend() -> str:
    return "".join(
        f'<span><span style="{_paint(kind, "swatch ")} aria-hidden="true"></span>{escape(words)}</span>'
        for kind, words in PARTS.values()
    )


def _table(rows: list[Forecast]) -> str:
    longest = max(one.step_s for one in rows)
    names = ("dp", "tp", "pp", "cp", "ep")
    head = "".join(f'<th scope="col" class="amount">{name}</th>' for name in names)
    body = ""
    for one in rows:
        lay = one.layout
        degrees = (lay.data, lay.tensor, lay.pipeline, lay.context, lay.expert)
        cells = "".join(f'<td class="amount">{degree}</td>' for degree in degrees)
        rest = f"micro-batch {lay.micro_batch}" + (f", {lay.chunks} chunks" if lay.chunks > 1 else "")
        rest += f", {lay.recomputation} recomputation" if lay.recomputation != "none" else ""
        body += (
            f'<tr>{cells}<td class="amount">{plain(one.step_s)}</td>'
            f'<td class="amount">{one.memory_bytes / GB:.0f}</td></tr>'
            f'<tr class="layout-parts"><td colspan="7"><small>{rest}</small>{_bar(one, longest)}</td></tr>'
        )
    return (
        f'<table class="ledger layouts"><thead><tr>{head}<th scope="col" class="amount">s a step</th>'
        f'<th scope="col" class="amount">GB</th></tr></thead><tbody>{body}</tbody></table>'
    )
