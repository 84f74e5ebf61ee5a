"""Who keeps what and who waits for whom: data-parallel ranks under each of ZeRO's stages."""

from __future__ import annotations

from fractions import Fraction
from html import escape

from .. import hardware, memory, models, parameters, recipes
from ..activations import Recomputation
from ..charts import Span, gantt
from ..errors import InfrabookError
from ..explore import Choice, Number, explore, number
from ..ledger import Ledger
from ..memory import Moment
from ..parallel import zero
from ..parallel.zero import Sharding
from ..units import GB, percent, show
from .ledger import GPUS
from .views import an, plain

WAYS = {
    "DDP": "ddp", "ZeRO-1": "1", "ZeRO-2": "2", "ZeRO-3 (FSDP2)": "3", "FSDP2, weights kept after forward": "kept",
    "FSDP2, hybrid: shards in a node": "hybrid",
}  # fmt: skip
SHORT = {"ddp": "DDP", "1": "ZeRO-1", "2": "ZeRO-2", "3": "ZeRO-3", "kept": "kept", "hybrid": "hybrid"}
KINDS = ("weights", "gradients", "optimizer", "activations", "buffers")
RECIPES = [
    name for name in recipes.names() if not any(t.per in ("adapter", "factor") for t in recipes.get(name).tensors)
]


def sharding(way: str, ranks: int, node: int) -> Sharding:
    """One of ``WAYS`` on so many ranks, ``node`` of them in each node."""
    if way == "kept":
        return Sharding(3, ranks, reshard_after_forward=False)
    if way == "hybrid":
        return Sharding(3, min(node, ranks), replicas=max(1, ranks // node))
    return Sharding(0 if way == "ddp" else int(way), ranks)


@explore(
    model=Choice(models.names()),
    way=Choice(WAYS, label="shared as"),
    ranks=Number.doubling(1, 1024, unit="GPUs", label="data-parallel ranks"),
    node=Number.among([1, 2, 4, 8, 16], unit="GPUs", label="in one node"),
    inside=Choice([link.name for link in hardware.links()], label="link in a node"),
    across=Choice([link.name for link in hardware.links()], label="port between nodes"),
    gpu=Choice(GPUS, label="GPU"),
    batch=Number.doubling(1, 64, unit="sequences", label="batch of one rank"),
    sequence=Number.doubling(128, 32_768, unit="tokens"),
    recipe=Choice(RECIPES),
    recomputation=Choice(["none", "full"]),
    utilization=Number(5, 100, 5, label="arithmetic at", unit="% of peak"),
)
def who_keeps_what(
    model: str = "llama-2-7b", way: str = "2", ranks: int = 8, node: int = 8, inside: str = "nvlink4",
    across: str = "infiniband-ndr", gpu: str = "h100-sxm", batch: int = 1, sequence: int = 2048,
    recipe: str = "bf16-adamw", recomputation: Recomputation = "none", utilization: int = 50,
) -> str:  # fmt: skip
    """The memory of one rank at its worst moment, and the time of a step, under each way of sharing."""
    shape, card = models.get(model), hardware.gpu(gpu)
    if ranks > node and ranks % node:
        raise InfrabookError(f"{ranks} data-parallel ranks do not fill nodes of {node} GPUs")
    if not any(peak.dtype == "bf16" for peak in card.peaks):
        raise InfrabookError(f"{card.variant} has no bf16 units, and this account is in bf16; choose a later card")
    rate = Fraction(card.peak("bf16") * utilization, 100)
    worst: dict[str, Moment] = {}
    times: dict[str, Ledger] = {}
    for each in WAYS.values():
        how = sharding(each, ranks, node)
        moments = zero.timeline(shape, how, recipe, batch=batch, sequence=sequence, recomputation=recomputation)
        worst[each] = max(moments, key=lambda moment: moment.ledger.total)
        times[each] = zero.step_time(
            shape, how, flop_per_s=rate, link=inside, across=across, ranks_per_node=node, batch=batch,
            sequence=sequence, recomputation=recomputation,
        )  # fmt: skip
    words = next(words for words, name in GPUS.items() if name == gpu)
    mine, time = worst[way].ledger, times[way]
    waits = time.of("communication")
    fit = memory.fits(mine, card)
    room = show(max(fit.headroom, -fit.headroom))
    verdict = f"It fits</b> {an(words)}, {room} to spare" if fit else f"It does not fit</b> {an(words)}: {room} missing"
    ms = {each: 1000 * float(one.total) for each, one in times.items()}
    return (
        f'<p class="explorer-answer">{number(show(mine.total), mine.total)} on each rank at the worst moment, '
        f"{escape(worst[way].name)}. <b>{verdict}. A step takes {plain(ms[way])} ms, "
        f"{percent(waits, time.total)} of it waiting for other ranks.</p>"
        f'<p class="meter-title">Memory of one rank, GB</p>{_memory(worst, float(card.memory_bytes / GB))}'
        f'<p class="meter-title">One step, ms</p>{_time(times)}'
        f'<p class="explorer-note">Sent by one rank in a step: '
        f"{_sent(shape, sharding(way, ranks, node))}. At best, what can hide behind arithmetic does; "
        f"what stages 1 and 2 gather after the update is in the open.</p>"
    )


def _memory(worst: dict[str, Moment], capacity: float) -> str:
    rows = []
    for each, moment in worst.items():
        at, spans = 0.0, []
        for kind in KINDS:
            size = float(moment.ledger.of(kind) / GB)
            if size:
                spans.append(Span(at, at + size, kind))
            at += size
        rows.append((SHORT[each], spans))
    said = "; ".join(f"{SHORT[each]} {show(one.ledger.total)}" for each, one in worst.items())
    fits = all(one.ledger.total <= capacity * GB for one in worst.values())
    return gantt(rows, title=said, unit="GB", end=capacity, rest="free on the card" if fits else "not needed")


def _time(times: dict[str, Ledger]) -> str:
    rows = []
    for each, one in times.items():
        at, spans = 0.0, []
        for row in one:
            end = at + 1000 * float(row.value)
            spans.append(Span(at, end, row.kind))
            at = end
        rows.append((SHORT[each], spans))
    said = "; ".join(f"{SHORT[each]} {plain(1000 * float(one.total))} ms" for each, one in times.items())
    return gantt(rows, title=said, unit="ms", rest="done")


def _sent(shape: models.Transformer, how: Sharding) -> str:
    sent = zero.traffic(parameters.count(shape).total, how)
    return ", ".join(f"{row.name} {show(row.value)}" for row in sent) or "nothing"
