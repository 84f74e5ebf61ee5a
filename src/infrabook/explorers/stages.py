"""One step of a pipeline: its time chart, its bubble in both conventions, and what each rank keeps."""

from __future__ import annotations

from fractions import Fraction

from ..charts import gantt
from ..explore import Choice, Number, explore, number
from ..parallel import pipeline
from ..parallel.pipeline import Schedule, Timeline, Times
from ..units import GB, Exact, exact, percent, show
from .views import plain

CHOICES = {"GPipe": "gpipe", "1F1B": "1f1b", "eager 1F1B": "eager"}


@explore(
    schedule=Choice(CHOICES),
    ranks=Number(1, 16, label="ranks p"),
    micro_batches=Number(1, 64, label="micro-batches m"),
    forward=Number(0.5, 100, 0.5, "ms", label="forward of one stage"),
    backward=Number(0.5, 200, 0.5, "ms", label="backward of one stage"),
    message=Number(0, 20, 0.1, "ms", label="a message"),
    head=Number(0, 300, 5, "%", label="last stage takes longer by"),
    activations=Number(0.1, 500, 0.1, "GB", label="a micro-batch keeps, over all layers"),
)
def pipeline_step(
    schedule: str = "1f1b", ranks: int = 4, micro_batches: int = 8, forward: float = 20, backward: float = 40,
    message: float = 0, head: float = 0, activations: float = 20.7,
) -> str:  # fmt: skip
    """One step of a pipeline: time, bubble and activation memory."""
    half = exact(Fraction(repr(backward)) / 2)
    scale = (*[1] * (ranks - 1), exact(1 + Fraction(repr(head)) / 100))
    times = Times(forward, half, half, message=message, scale=scale)
    plans = {name: _plan(name, ranks, micro_batches) for name in CHOICES.values()}
    lines = {name: pipeline.simulate(plan, times) for name, plan in plans.items()}
    chosen, line = plans[schedule], lines[schedule]
    stage = exact(Fraction(repr(activations)) * GB / ranks)
    kept = pipeline.peak_activations(chosen, activations=stage)
    words = next(words for words, name in CHOICES.items() if name == schedule)
    answer = (
        f"{number(f'{plain(float(line.makespan), 4)} ms', line.makespan)} a step with {words}. The ranks are idle for "
        f"{percent(line.bubble_of_total, 1)} of it, which is {percent(line.bubble_of_ideal, 1)} of the time that the "
        f"work alone would take. The fullest rank keeps {show(max(kept), 'GB', 1)}."
    )
    picture = gantt(
        line.chart(), unit="ms",
        title=f"{words}, {ranks} ranks, {micro_batches} micro-batches: {plain(float(line.makespan), 4)} ms, "
        f"{percent(line.bubble_of_total, 1)} idle",
    )  # fmt: skip
    return (
        f'<p class="explorer-answer">{answer}</p>{picture}{_table(chosen, line, kept)}'
        f'<p class="explorer-note">{_others(schedule, plans, lines, stage)}</p>'
    )


def _plan(name: str, ranks: int, micro_batches: int) -> Schedule:
    if name == "gpipe":
        return pipeline.gpipe(ranks, micro_batches)
    return pipeline.one_f_one_b(ranks, micro_batches, eager=name == "eager")


def _table(schedule: Schedule, line: Timeline, kept: tuple[Exact, ...]) -> str:
    head = "".join(
        f'<th scope="col"{side}>{words}</th>'
        for words, side in (
            ("rank", ""), ("micro-batches kept", ' class="amount"'), ("activations", ' class="amount"'),
            ("idle", ' class="amount"'), ("messages sent", ' class="amount"'),
        )
    )  # fmt: skip
    rows = "".join(
        f'<tr><th scope="row">{rank}</th><td class="amount">{held}</td><td class="amount">{show(size, "GB", 1)}</td>'
        f'<td class="amount">{percent(line.makespan - line.busy(rank), line.makespan)}</td>'
        f'<td class="amount">{sent}</td></tr>'
        for rank, (held, size, sent) in enumerate(
            zip(pipeline.in_flight(schedule), kept, pipeline.messages(schedule), strict=True)
        )
    )
    return (
        f'<table class="ledger steps"><caption>what each rank keeps and sends</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _others(chosen: str, plans: dict[str, Schedule], lines: dict[str, Timeline], stage: Exact) -> str:
    """What the other schedules would take for the same work."""
    said = []
    for words, name in CHOICES.items():
        if name != chosen:
            time = plain(float(lines[name].makespan), 4)
            most = show(max(pipeline.in_flight(plans[name])) * Fraction(stage), "GB", 1)
            said.append(f"{words}: {time} ms, {most} on the fullest rank.")
    return "The same work otherwise. " + " ".join(said)
