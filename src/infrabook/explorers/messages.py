"""Collectives: who holds what after each step, and what each algorithm costs at each size."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from html import escape
from typing import Any

from .. import charts, collectives, hardware, palette
from ..errors import InfrabookError
from ..explore import Choice, Number, explore, number
from ..units import Exact, exact
from .views import plain

OPS = {op: op for op in ("all-reduce", "reduce-scatter", "all-gather", "broadcast", "reduce", "all-to-all")}
NAMES = {
    "ring": "ring",
    "tree": "tree",
    "double-tree": "double tree",
    "halving-doubling": "halving and doubling",
    "doubling": "doubling, the whole buffer",
    "scatter-gather": "scatter and gather",
    "hierarchical": "hierarchical, nodes of 2",
}
PIECES = 4  # of a chain or of half a double tree, where steps are shown


# -- step by step ------------------------------------------------------------------------------------------------
@explore(
    op=Choice(OPS, label="operation"),
    algorithm=Choice({words: name for name, words in NAMES.items()}),
    ranks=Number(2, 8),
    done=Number(0, 24, label="steps taken"),
)
def collective_steps(op: str = "all-reduce", algorithm: str = "ring", ranks: int = 4, done: int = 2) -> str:
    """A collective, step by step: which rank holds what."""
    plan = _plan(op, algorithm, ranks)
    steps = plan.steps[:done]
    state = collectives.start(plan, _buffers(plan))
    before = state
    for step in steps:
        before, state = state, collectives.after(state, step)
    sent = max(_sent(plan, len(steps)))
    shown = min(done, len(plan.steps))
    following = plan.steps[shown] if shown < len(plan.steps) else ()
    words = number(_share(sent), sent)
    answer = f"After {shown} of {len(plan.steps)} steps the busiest rank has sent {words} of the buffer."
    return (
        f'<p class="explorer-answer">{answer}</p><div class="chunks-room">{_grid(plan, before, state, following)}</div>'
        f'<p class="explorer-note explorer-tips">{escape(_remark(plan, shown))}</p>'
    )


def _plan(op: str, algorithm: str, ranks: int) -> collectives.Plan:
    """The plan shown: chains in pieces, nodes of two."""
    chained = algorithm == "ring" and op in ("broadcast", "reduce")
    pieces = PIECES if chained else 2 if algorithm == "double-tree" else 1
    each = 2 if algorithm == "hierarchical" else 0
    if each and ranks % each:
        raise InfrabookError(f"nodes of 2 do not divide {ranks} ranks")
    return collectives.plan(op, ranks=ranks, algorithm=algorithm, pieces=pieces, ranks_per_node=each)


def _buffers(plan: collectives.Plan) -> list[list[float]]:
    """Each rank begins with its own bit in every chunk, so that a sum says whose parts are in it."""
    length = 1 if plan.op == "all-gather" else math.lcm(plan.parts, plan.ranks)
    return [[2.0**rank] * length for rank in range(plan.ranks)]


def _sent(plan: collectives.Plan, steps: int) -> list[Exact]:
    """Buffers that each rank has sent after so many steps."""
    sent = [Fraction()] * plan.ranks
    for step in plan.steps[:steps]:
        for send in step:
            sent[send.source] += Fraction(len(send.chunks), plan.parts)
    return [exact(part) for part in sent]


def _share(part: Exact) -> str:
    """1 3/4 of a buffer, as people write it."""
    whole, rest = divmod(Fraction(part), 1)
    words = f"{rest.numerator}/{rest.denominator}" if rest else ""
    return f"{whole} {words}".strip() if whole else words or "0"


def _grid(
    plan: collectives.Plan, before: list[collectives.Chunks], state: list[collectives.Chunks],
    following: collectives.Step,
) -> str:  # fmt: skip
    n = plan.ranks
    columns = n if plan.op == "all-to-all" else max(plan.parts, 1)
    head = "".join(f'<th scope="col">{column}</th>' for column in range(columns))
    rows = []
    for rank in range(n):
        cells = []
        for column in range(columns):
            held, new = _cell(plan, before, state, rank, column)
            full = _complete(plan, state, rank, column)
            tone = 0.0 if full else 0.55
            fill = palette.tint("gradients", tone) if held else "none"
            colour = f"background:{fill};color:{palette.ink(fill)}" if held else ""
            edge = ";outline:2px solid currentColor;outline-offset:-2px" if new else ""
            cells.append(f'<td class="chunk" style="{colour}{edge}">{held}</td>')
        sends = [send for send in following if send.source == rank]
        cells.append(f'<td class="next">{escape(" ".join(_message(plan, send) for send in sends)) or "–"}</td>')
        rows.append(f'<tr><th scope="row">{rank}</th>{"".join(cells)}</tr>')
    what = "from or to rank" if plan.op == "all-to-all" else "chunk"
    return (
        f'<table class="ledger chunks"><caption>What each rank holds</caption><thead><tr><th scope="col">rank</th>'
        f'<th scope="colgroup" colspan="{columns}">{what}</th><th scope="col">sends next, to rank</th></tr>'
        f"<tr><td></td>{head}<td></td></tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _cell(
    plan: collectives.Plan, before: list[collectives.Chunks], state: list[collectives.Chunks], rank: int, column: int
) -> tuple[str, bool]:  # fmt: skip
    """What stands in a cell, and whether the last step put it there."""
    if plan.op == "all-to-all":
        got, own = column * plan.ranks + rank, rank * plan.ranks + column
        if got in state[rank]:
            return f"{column}→{rank}", got not in before[rank]
        return f"{rank}→{column}" if own in state[rank] else "", False
    if column not in state[rank]:
        return "", False
    return _whose(state[rank][column][0], plan.ranks), state[rank][column] != before[rank].get(column)


def _whose(value: float, ranks: int) -> str:
    """The ranks whose parts a sum has."""
    parts = [str(rank) for rank in range(ranks) if int(value) >> rank & 1]
    if len(parts) == ranks:
        return "all"
    return f"{len(parts)}/{ranks}" if len(parts) > 3 else ("+" if ranks <= 4 else "").join(parts)


def _complete(plan: collectives.Plan, state: list[collectives.Chunks], rank: int, column: int) -> bool:
    """Whether a cell is what the operation promises this rank."""
    if plan.op == "all-to-all":
        return column * plan.ranks + rank in state[rank]
    if column not in state[rank]:
        return False
    if plan.op in ("all-gather", "broadcast"):
        return True
    done = state[rank][column][0] == 2.0**plan.ranks - 1
    return done and (plan.op != "reduce" or rank == plan.root) and (plan.op != "reduce-scatter" or rank == column)


def _message(plan: collectives.Plan, send: collectives.Send) -> str:
    chunks = send.chunks
    if plan.op == "all-to-all":
        return f"→ {send.target}"
    span = f"{chunks[0]}" if len(chunks) == 1 else ", ".join(map(str, chunks)) if len(chunks) < 4 else "all"
    return f"{span} → {send.target}"


def _remark(plan: collectives.Plan, shown: int) -> str:
    n = plan.ranks
    if plan.op == "all-reduce" and plan.algorithm in ("ring", "halving-doubling", "hierarchical"):
        half = len(plan.steps) // 2
        if shown == half:
            return (
                f"Half way. Every rank holds one finished chunk: this is what a reduce-scatter gives. An optimizer "
                f"could update 1/{n} of the weights here; what follows is an all-gather."
            )
        parts = "" if n <= 4 else " 023 is the sum of the parts of ranks 0, 2 and 3, 5/8 that of five."
        return "Adding up to the middle, passing on after it." + parts if shown < half else "Nothing is added any more."
    if plan.op == "all-reduce":
        return {
            "tree": "A reduce to rank 0, then a broadcast from it: half way, one rank has everything.",
            "double-tree": "Half of the chunks go up and down one tree, half the other, two pieces each.",
            "doubling": "Each rank exchanges all it has with another and adds: few steps, many bytes.",
        }[plan.algorithm]
    if plan.op == "all-to-all":
        return "Each rank has a part for every other; its own stays. Nothing is added and nothing can be passed on."
    if plan.op == "reduce":
        return "Only rank 0 is promised anything. What the others end with is an unfinished sum."
    rest = "A chunk is what it should be where its colour is full."
    return rest if shown < len(plan.steps) else f"Done: {len(plan.steps)} steps, each as long as its longest message."


# -- size against time -------------------------------------------------------------------------------------------
LINKS = {
    "NVLink 3": "nvlink3", "NVLink 4": "nvlink4", "NVLink 5": "nvlink5", "PCIe 4 x16": "pcie4-x16",
    "PCIe 5 x16": "pcie5-x16", "InfiniBand HDR": "infiniband-hdr", "InfiniBand NDR": "infiniband-ndr",
}  # fmt: skip
COLOURS = {
    "ring": "#0072B2", "tree": "#E69F00", "double-tree": "#009E73", "halving-doubling": "#CC79A7",
    "doubling": "#56B4E9", "scatter-gather": "#CC79A7", "hierarchical": "#D55E00",
}  # fmt: skip
DASHES = {"tree": "7 4", "double-tree": "2 3", "doubling": "10 3 2 3", "hierarchical": "4 2"}
SIZES = [2**power for power in range(10, 33)]


@explore(
    op=Choice(OPS, label="operation"),
    size=Number.doubling(1024, 2**32, unit="bytes", label="size of the buffer"),
    ranks=Number.among([2**power for power in range(1, 8)]),
    link=Choice(LINKS, label="link inside a node"),
    each=Number.among([1, 2, 4, 8, 16, 32, 64, 128], label="ranks in a node"),
    across=Choice(LINKS, label="link between nodes"),
    latency=Number.among((0.1, 0.2, 0.5, 1, 2, 5, 10), label="latencies, times NCCL's"),
)
def collective_time(
    op: str = "all-reduce", size: int = 2**20, ranks: int = 64, link: str = "nvlink4", each: int = 8,
    across: str = "infiniband-ndr", latency: float = 1,
) -> str:  # fmt: skip
    """What each algorithm takes at each size, and where they cross."""
    if each > ranks:
        raise InfrabookError(f"a node of {each} ranks is larger than the group of {ranks}")
    curves = {name: [_seconds(op, name, at, ranks, link, each, across, latency) for at in SIZES]
              for name in _able(op, each, ranks)}  # fmt: skip
    here = {name: _seconds(op, name, size, ranks, link, each, across, latency) for name in curves}
    best = min(here, key=lambda name: here[name])
    longest = max(here.values())
    rows = "".join(
        f'<tr><th scope="row"><span class="swatch" style="background:{COLOURS[name]}" aria-hidden="true"></span>'
        f'{escape(_name(name))}</th><td class="bar"><i style="width:{100 * here.get(name, 0) / longest:.2f}%"></i></td>'
        f'<td class="amount">{_time(here[name]) if name in here else "–"}</td></tr>'
        for name in NAMES  # all of them, so that the table keeps its height
    )
    return (
        f'<p class="explorer-answer">{number(_time(here[best]), f"{here[best]:.9g}")} by {escape(_name(best))}, '
        f"for {_size(size)} among {ranks} ranks.</p>"
        f'<table class="ledger shares"><caption>Time by algorithm</caption><tbody>{rows}</tbody></table>'
        f"{_chart(curves, size)}"
        f'<p class="explorer-note explorer-tips">{escape(_ranges(curves))}</p>'
    )


def _able(op: str, each: int, ranks: int) -> list[str]:
    """The algorithms that do ``op`` here; a hierarchy needs several nodes of several ranks."""
    return [
        name for name, ops in collectives.ALGORITHMS.items()
        if op in ops and (name != "hierarchical" or 1 < each < ranks)
    ]  # fmt: skip


def _seconds(
    op: str, algorithm: str, size: int, ranks: int, link: str, each: int, across: str, latency: float
) -> float:  # fmt: skip
    near, far = (
        replace(one, latency_s=one.latency_s * exact(latency)) for one in (hardware.link(link), hardware.link(across))
    )
    given: dict[str, Any] = {"size_bytes": size, "ranks": ranks, "link": near, "ranks_per_node": each, "across": far}
    pieces = collectives.best_pieces(op, algorithm=algorithm, **given)
    return float(collectives.time_s(op, algorithm=algorithm, pieces=pieces, **given))


def _name(algorithm: str) -> str:
    return "hierarchical" if algorithm == "hierarchical" else NAMES[algorithm]


def _ranges(curves: dict[str, list[float]]) -> str:
    """Which algorithm is the fastest from which size on."""
    fastest = [min(curves, key=lambda name: curves[name][i]) for i in range(len(SIZES))]
    words = []
    for i, name in enumerate(fastest):
        if i == 0 or name != fastest[i - 1]:
            words.append(f"{_name(name)} from {_size(SIZES[i])}" if i else _name(name))
    said = "Fastest by size: " + ", ".join(words) + "."
    return (
        said
        + " Chains and double trees are cut into as many pieces, up to 32, as is best. Every link is its rank's own."
    )


def _size(nbytes: int) -> str:
    for size, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if nbytes >= size:
            return f"{plain(nbytes / size)} {unit}"
    return f"{nbytes} B"


def _time(seconds: float) -> str:
    return f"{plain(1e6 * seconds)} µs" if seconds < 1e-3 else f"{plain(1e3 * seconds)} ms"


def _chart(curves: dict[str, list[float]], size: int) -> str:
    """Time over size, both logarithmic, a line an algorithm and a mark at the chosen size."""
    left, right, top, bottom = 62.0, charts.WIDTH - 12.0, 14.0, 250.0
    every = [seconds for curve in curves.values() for seconds in curve]
    low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))

    def x(nbytes: float) -> float:
        share = (math.log2(nbytes) - math.log2(SIZES[0])) / (math.log2(SIZES[-1]) - math.log2(SIZES[0]))
        return left + min(max(share, 0.0), 1.0) * (right - left)

    def y(seconds: float) -> float:
        return bottom - (math.log10(seconds) - low) / (high - low) * (bottom - top)

    body = []
    for decade in range(low, high + 1):
        at = y(10.0**decade)
        body.append(f'<path d="M{left} {at:.1f}H{right}" stroke="currentColor" stroke-opacity="0.15" fill="none"/>')
        body.append(charts.text(left - 6, at + 4, _time(10.0**decade), anchor="end", size=13))
    for nbytes in SIZES[::5]:
        body.append(
            charts.text(
                x(nbytes), bottom + 18, _size(nbytes), anchor="middle" if nbytes > SIZES[0] else "start", size=13
            )
        )
    body.append(f'<path d="M{x(size):.1f} {top}V{bottom}" stroke="currentColor" stroke-dasharray="4 3" fill="none"/>')
    for name, curve in curves.items():
        line = "L".join(f"{x(at):.1f} {y(seconds):.1f}" for at, seconds in zip(SIZES, curve, strict=True))
        dash = f' stroke-dasharray="{DASHES[name]}"' if name in DASHES else ""
        body.append(f'<path d="M{line}" stroke="{COLOURS[name]}" stroke-width="2.5" fill="none"{dash}/>')
    return charts.svg(charts.WIDTH, bottom + 26, body, "Time of each algorithm against the size of the buffer")
