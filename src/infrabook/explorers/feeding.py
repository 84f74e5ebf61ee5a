"""Batches on their way to a training loop: the time chart, what the device does, and every other number of workers."""

from __future__ import annotations

import math
from fractions import Fraction

from .. import data_loading
from ..charts import gantt
from ..data_loading import Timeline
from ..explore import Choice, Number, explore, number
from ..units import Exact, exact, percent
from .views import plain

LOOPS = {
    "waits for each step": "waits",
    "runs ahead, pageable memory": "runs ahead",
    "runs ahead, pinned memory": "pinned",
    "runs ahead, pinned, copies on a stream": "copy stream",
}
SHOWN = 16  # batches in the chart


@explore(
    load=Number(0, 1000, 0.5, "ms", label="load of a batch"),
    transform=Number(0, 1000, 0.5, "ms", label="transform of a batch"),
    copy=Number(0, 200, 0.5, "ms", label="copy to the device"),
    step=Number(0.5, 1000, 0.5, "ms", label="step"),
    workers=Number(0, 8),
    prefetch=Number(1, 16, label="prefetch, each worker"),
    slow=Number(1, 20, 0.5, "times", label="a slow batch's load takes"),
    every=Number(1, 16, label="slow is one batch in"),
    loop=Choice(LOOPS, label="the loop"),
)
def loader_timeline(
    load: float = 12, transform: float = 8, copy: float = 2, step: float = 8, workers: int = 4, prefetch: int = 2,
    slow: float = 6, every: int = 4, loop: str = "waits",
) -> str:  # fmt: skip
    """How a training loop is fed."""
    loads = [exact(load)] * every
    loads[0] = exact(Fraction(exact(load)) * exact(slow))

    def at(count: int) -> Timeline:
        period = math.lcm(every, max(count, 1))
        half = period * math.ceil((192 + 8 * count * prefetch) / period)  # the queue has filled or emptied by then
        return data_loading.simulate(
            2 * half, load=loads, transform=transform, copy=copy, step=step, workers=count,
            prefetch=prefetch, loop=loop,
        )  # fmt: skip

    lines = {count: at(count) for count in range(9)}
    line = lines[workers]
    device = data_loading.interval(load=0, copy=copy, step=step, workers=1, loop=loop)
    answer = (
        f"{number(f'{plain(float(line.interval))} ms', line.interval)} a step, of which the device computes "
        f"{plain(step)}: it is busy for {percent(line.utilization, 1, 0)}."
    )
    first = line.batches[len(line.batches) // 2]
    last = line.batches[len(line.batches) // 2 + SHOWN - 1]
    picture = gantt(
        line.chart(first.stepping, last.stepped), unit="ms", rest="waiting",
        title=f"{SHOWN} batches with {workers} workers: {plain(float(line.interval))} ms a step, the device busy for "
        f"{percent(line.utilization, 1, 0)}",
    )  # fmt: skip
    note = _note(line, loads, transform, device)
    return f'<p class="explorer-answer">{answer}</p>{picture}{_table(lines, workers)}{note}'


def _table(lines: dict[int, Timeline], chosen: int) -> str:
    head = "".join(
        f'<th scope="col"{side}>{words}</th>'
        for words, side in (
            ("workers", ""), ("ms a step", ' class="amount"'), ("device busy", ' class="amount"'),
            ("batches in flight", ' class="amount"'),
        )
    )  # fmt: skip

    def row(count: int, line: Timeline) -> str:
        begin, end = ("<strong>", "</strong>") if count == chosen else ("", "")
        cells = (plain(float(line.interval)), percent(line.utilization, 1, 0), str(count * line.prefetch))
        amounts = "".join(f'<td class="amount">{begin}{cell}{end}</td>' for cell in cells)
        shown = ' aria-current="true"' if count == chosen else ""
        return f'<tr{shown}><th scope="row">{begin}{count}{end}</th>{amounts}</tr>'

    rows = "".join(row(count, line) for count, line in lines.items())
    return (
        f'<table class="ledger steps"><caption>the same batches with other numbers of workers</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _note(line: Timeline, loads: list[Exact], transform: float, device: Exact) -> str:
    """What the mean promises, and what the slowest batch needs."""
    if not line.workers:
        return '<p class="explorer-note">Without workers nothing is in flight: the loop loads each batch itself.</p>'
    mean = sum(map(Fraction, loads)) / len(loads) + exact(transform)
    pace = mean / line.workers
    said = f"On average a batch takes a worker {plain(float(mean))} ms, so {line.workers} could make one every "
    said += f"{plain(float(pace))} ms. "
    slowest = Fraction(max(loads)) + exact(transform)
    if slowest:
        usual = Fraction(min(loads)) + exact(transform)
        needed = data_loading.prefetch_needed(slowest=slowest, step=device, workers=line.workers)
        said += f"The slowest takes {plain(float(slowest))} ms. "
        if data_loading.keeps_up(usual=usual, slowest=slowest, every=len(loads), step=device, workers=line.workers):
            said += f"To hide it from the device takes {plain(float(slowest / Fraction(device)))} batches in flight, "
            said += f"a prefetch of {needed}."
        else:
            said += "The worker that has it does not keep up with its share, and then no prefetch hides it."
    return f'<p class="explorer-note">{said}</p>'
