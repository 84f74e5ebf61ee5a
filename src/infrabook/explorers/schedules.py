"""Ten pipeline schedules under the same times: one as a chart, all of them in a table."""

from __future__ import annotations

from fractions import Fraction
from html import escape

from ..charts import gantt
from ..errors import InfrabookError
from ..explore import Check, Choice, Number, explore, number
from ..parallel import pipeline
from ..parallel.pipeline import Schedule, Timeline, Times
from ..units import GB, Exact, exact, percent, show
from .views import plain

HELD = {"DualPipe": 2}  # copies of the model's weights, over all ranks


@explore(
    schedule=Choice(tuple(pipeline.SCHEDULES)),
    ranks=Number(2, 8, label="ranks p"),
    micro_batches=Number(1, 32, label="micro-batches m"),
    chunks=Number(1, 4, label="stages a rank v, where it can be chosen"),
    forward=Number(1, 100, 1, "ms", label="forward of a rank's layers"),
    input_gradient=Number(1, 100, 1, "ms", label="backward by input"),
    weight_gradient=Number(1, 100, 1, "ms", label="backward by weight"),
    message=Number(0, 20, 0.1, "ms", label="a message"),
    overlap=Number(0, 100, 5, "%", label="of a forward paired with a backward is hidden"),
    activations=Number(0.1, 500, 0.1, "GB", label="a micro-batch keeps, over all layers"),
    kept=Number(0, 200, 5, "%", label="of that, between the two halves"),
    waits=Check(label="the optimizer waits for all ranks"),
)
def pipeline_schedule(
    schedule: str = "ZB-H2", ranks: int = 4, micro_batches: int = 8, chunks: int = 2, forward: float = 20,
    input_gradient: float = 20, weight_gradient: float = 20, message: float = 0, overlap: float = 0,
    activations: float = 20.7, kept: float = 100, waits: bool = True,
) -> str:  # fmt: skip
    """Pipeline schedules: time, bubble, memory and messages."""
    exacts = (Fraction(repr(value)) for value in (forward, input_gradient, weight_gradient))
    share = [exact(value) for value in exacts]
    setting = _Setting(share, exact(Fraction(repr(message))), Fraction(repr(overlap)) / 100, waits)
    plan = _plan(schedule, ranks, micro_batches, chunks)
    line = setting.line(plan)
    step, ideal = setting.step(plan, line), exact(Fraction(micro_batches) * sum(map(Fraction, share)))
    whole = exact(Fraction(repr(activations)) * GB)
    part = Fraction(repr(kept)) / 100
    most = _fullest(plan, whole, part)
    how = "" if waits else ", step after step"
    answer = (
        f"{number(f'{plain(float(step), 4)} ms', step)} a step with {schedule}{how}: "
        f"{percent(abs(Fraction(step) - ideal), ideal)} {'more' if step >= ideal else 'less'} than the work of a rank "
        f"takes one piece after another. The fullest rank keeps {show(most, 'GB', 1)}, and "
        f"{sum(pipeline.messages(plan)):,} messages are sent."
    )
    picture = gantt(
        line.chart(halves=True), unit="ms",
        title=f"{schedule}, {ranks} ranks, {micro_batches} micro-batches: {plain(float(line.makespan), 4)} ms",
    )  # fmt: skip
    rows = [
        _row(name, schedule, (ranks, micro_batches, chunks), setting, ideal, whole, part) for name in pipeline.SCHEDULES
    ]
    head = "".join(
        f'<th scope="col"{side}>{words}</th>'
        for words, side in (("schedule", ""), ("ms", ' class="amount"'), ("over the work", ' class="amount"'),
                            ("fullest rank", ' class="amount"'), ("messages", ' class="amount fit"'))
    )  # fmt: skip
    return (
        f'<p class="explorer-answer">{answer}</p>{picture}<table class="ledger steps policies"><caption>the same work '
        f"under each schedule</caption><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        f'<p class="explorer-note">{_note(schedule, plan, line, waits)}</p>'
    )


class _Setting:
    """The times of a rank's layers for one micro-batch, and how a schedule's stages share them."""

    def __init__(self, share: list[Exact], message: Exact, overlap: Fraction, waits: bool) -> None:
        self.share, self.message, self.overlap, self.waits = share, message, overlap, waits

    def line(self, plan: Schedule) -> Timeline:
        """``plan`` with times: each of a rank's stages takes its part, unless it holds whole copies."""
        parts = plan.chunks // plan.routes
        f, i, w = (exact(Fraction(value) / parts) for value in self.share)
        paired = exact(Fraction(f) + i + w - self.overlap * min(f, exact(Fraction(i) + w)))
        return pipeline.simulate(plan, Times(f, i, w, message=self.message, paired=paired))

    def step(self, plan: Schedule, line: Timeline) -> Exact:
        """One step, or, where nobody waits for the optimizer, what a second one adds to the first."""
        if self.waits:
            return line.makespan
        return exact(Fraction(self.line(pipeline.repeated(plan, 2)).makespan) - line.makespan)


def _plan(name: str, ranks: int, micro_batches: int, chunks: int) -> Schedule:
    return pipeline.build(name, ranks, micro_batches=micro_batches, chunks=chunks)


def _fullest(plan: Schedule, whole: Exact, part: Fraction) -> Exact:
    stage = exact(Fraction(whole) * plan.routes / plan.stages)
    kept = exact(stage * part)
    return max(pipeline.peak_activations(plan, activations=stage, kept_for_weights=kept))


def _row(
    name: str, chosen: str, size: tuple[int, int, int], setting: _Setting, ideal: Exact, whole: Exact, part: Fraction
) -> str:
    words = f"<b>{escape(name)}</b>" if name == chosen else escape(name)
    try:
        plan = _plan(name, *size)
    except InfrabookError:
        cells = ["–"] * 4
    else:
        step = setting.step(plan, setting.line(plan))
        cells = [
            plain(float(step), 4), percent(Fraction(step) - ideal, ideal).replace("-", "−"),
            show(_fullest(plan, whole, part), "GB", 1), f"{sum(pipeline.messages(plan)):,}",
        ]  # fmt: skip
    kinds = ("amount", "amount", "amount", "amount fit")  # on a phone there is no room for the last
    row = "".join(f'<td class="{kind}">{cell}</td>' for kind, cell in zip(kinds, cells, strict=True))
    mark = ' class="fits"' if name == chosen else ""
    return f'<tr{mark}><th scope="row">{words}</th>{row}</tr>'


def _note(name: str, plan: Schedule, line: Timeline, waits: bool) -> str:
    said = []
    if name in HELD:
        said.append(f"{name} holds two copies of the model: each rank has two stages' weights.")
    elif plan.chunks > 1:
        said.append(f"{plan.chunks} stages a rank, told apart by their tone.")
    idle = max(Fraction(line.span(rank)) - line.busy(rank) for rank in range(plan.ranks))
    if waits and idle < Fraction(line.makespan) - line.ideal:
        most = f"for more than {plain(float(idle), 3)} ms" if idle else "at all"
        said.append(f"Between its own first and last action no rank is idle {most}: the rest lies between steps.")
    if not waits:
        said.append("Steps follow without a pause: a rank begins the next one while others finish.")
    said.append("A dash: the schedule does not exist for these numbers; choose it to read why.")
    return " ".join(said)
