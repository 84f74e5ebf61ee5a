"""Pipeline parallelism: who computes which micro-batch when, and what that costs in time, memory and messages.

A schedule is what each rank does, in order. Its builders know nothing of time; ``simulate`` gives it times. So one
list of actions answers for its bubble, its memory (``in_flight``, ``peak_activations``) and its messages, and can be
held against the list that PyTorch executes. ``parallel.layout`` chooses among schedules and other parallelisms.

Letters are those of ``torch.distributed.pipelining``: F forward, B backward, and B's two halves: I, the gradient of
the stage's input, which the previous stage waits for, and W, the gradients of its weights, for which nobody waits.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from ..charts import Span
from ..errors import InfrabookError
from ..units import Exact, exact, positive

WORDS = {"F": "forward", "B": "backward", "I": "backward by input", "W": "backward by weight"}
KINDS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}  # in ``palette.PHASES``
Row = tuple["Action", ...]
Result = tuple[bool, int, int]  # whether of a forward, stage, micro-batch
MOST = 400_000  # actions; more would keep a reader's browser busy for long


# -- actions and schedules ----------------------------------------------------------------------------------------
class Action(NamedTuple):
    """One stage's work on one micro-batch; ``paired`` runs at the same time as the rank's next action.

    >>> str(Action("F", 2, 0)), Action.read("3I11")
    ('2F0', Action(kind='I', stage=3, micro_batch=11, paired=False))
    """

    kind: str
    stage: int
    micro_batch: int
    paired: bool = False

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"

    @classmethod
    def read(cls, text: str) -> Action:
        """An action as PyTorch prints it: stage, letter, micro-batch."""
        match = re.fullmatch(r"(\d+)([FBIW])(\d+)", text)
        if not match:
            raise InfrabookError(f"{text!r} is not an action; write stage, F, B, I or W, and micro-batch, as in 0F3")
        return cls(match[2], int(match[1]), int(match[3]))


@dataclass(frozen=True)
class Schedule:
    """What each rank does, in order. ``placement[stage]`` is the stage's rank.

    With ``routes`` 2 the stages are two copies of the model, each with micro-batches of its own, as in DualPipe.
    """

    name: str
    rows: tuple[Row, ...]
    placement: tuple[int, ...]
    micro_batches: int
    routes: int = 1

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return len(self.rows)

    @property
    def stages(self) -> int:
        """How many stages there are, over all routes."""
        return len(self.placement)

    @property
    def chunks(self) -> int:
        """Stages on each rank."""
        return self.stages // self.ranks

    def before(self, stage: int) -> int | None:
        """The stage that sends activations to ``stage``; ``None`` for the first of a route."""
        return stage - 1 if stage % (self.stages // self.routes) else None

    def after(self, stage: int) -> int | None:
        """The stage that sends gradients to ``stage``; ``None`` for the last of a route."""
        return stage + 1 if (stage + 1) % (self.stages // self.routes) else None

    def local(self, stage: int) -> int:
        """Which of its rank's stages ``stage`` is, from 0."""
        return sum(self.placement[other] == self.placement[stage] for other in range(stage))

    def text(self) -> str:
        """One line a rank.

        >>> print(one_f_one_b(2, 2).text())
        0F0 0F1 0B0 0B1
        1F0 1B0 1F1 1B1
        """
        return "\n".join(" ".join(map(str, row)) for row in self.rows)


def read(text: str, *, name: str = "yours") -> Schedule:
    """A schedule written as lines of actions, one line a rank, checked.

    >>> read("0F0 0B0\\n1B0 1F0")
    Traceback (most recent call last):
    infrabook.errors.InfrabookError: rank 1 runs 1B0 before 1F0, whose result it needs
    """
    rows = tuple(tuple(map(Action.read, line.split())) for line in text.splitlines() if line.strip())
    if not any(rows):
        raise InfrabookError("the schedule has no actions")
    _bounded(sum(map(len, rows)))
    placement: dict[int, int] = {}
    for rank, row in enumerate(rows):
        for action in row:
            other = placement.setdefault(action.stage, rank)
            if other != rank:
                raise InfrabookError(f"stage {action.stage} is on rank {other} and on rank {rank}; it has one home")
    stages = max(placement) + 1
    if stages > len(placement):
        missing = next(stage for stage in range(stages) if stage not in placement)
        raise InfrabookError(f"no rank runs stage {missing}, and there is a stage {stages - 1}")
    micro_batches = 1 + max(action.micro_batch for row in rows for action in row)
    schedule = Schedule(name, rows, tuple(placement[stage] for stage in range(stages)), micro_batches)
    check(schedule)
    return schedule


def check(schedule: Schedule) -> None:
    """Refuse a schedule in which an action is missing, doubled, on a wrong rank, before what it needs, or stuck.

    A valid one has each micro-batch forward once and backward once (B, or I and later W) on every stage.
    """
    seen: set[tuple[str, int, int]] = set()
    for rank, row in enumerate(schedule.rows):
        for action in row:
            kind, stage, micro_batch, _ = action
            if kind not in WORDS:
                raise InfrabookError(f"{kind!r} is not a kind of action; use one of {', '.join(WORDS)}")
            if not (0 <= stage < schedule.stages and 0 <= micro_batch < schedule.micro_batches):
                raise InfrabookError(
                    f"rank {rank} has {action}, and there are {schedule.stages} stages and "
                    f"{schedule.micro_batches} micro-batches, counted from 0"
                )
            if schedule.placement[stage] != rank:
                raise InfrabookError(
                    f"rank {rank} has {action}, but stage {stage} is on rank {schedule.placement[stage]}"
                )
            key = (kind, stage, micro_batch)
            twice = {"B": "IW", "I": "B", "W": "B"}.get(kind, "")
            if key in seen or any((other, stage, micro_batch) in seen for other in twice):
                raise InfrabookError(
                    f"rank {rank} runs {WORDS[kind]} of micro-batch {micro_batch} on stage {stage} twice"
                )
            need = {"B": "F", "I": "F", "W": "I"}.get(kind)
            if need and (need, stage, micro_batch) not in seen:
                raise InfrabookError(
                    f"rank {rank} runs {action} before {stage}{need}{micro_batch}, whose result it needs"
                )
            seen.add(key)
    for stage in range(schedule.stages):
        for micro_batch in range(schedule.micro_batches):
            done = {kind for kind in WORDS if (kind, stage, micro_batch) in seen}
            if done not in ({"F", "B"}, {"F", "I", "W"}):
                lacks = "F" if "F" not in done else "W" if "I" in done else "B"
                raise InfrabookError(f"rank {schedule.placement[stage]} never runs {stage}{lacks}{micro_batch}")
    for _ in _run(schedule, lambda group: 1, 0, needs):
        pass


# -- the schedules ------------------------------------------------------------------------------------------------
def gpipe(ranks: int, micro_batches: int) -> Schedule:
    """All forwards, then all backwards. Source: Huang et al., arXiv 1811.06965; torch's ``ScheduleGPipe``.

    >>> print(gpipe(2, 2).text())
    0F0 0F1 0B0 0B1
    1F0 1F1 1B0 1B1
    """
    return _alternating("GPipe", ranks, micro_batches, lambda rank: micro_batches)


def one_f_one_b(ranks: int, micro_batches: int, *, eager: bool = False) -> Schedule:
    """1F1B: as soon as a stage can go backward it does, so stage i never keeps more than p - i micro-batches.

    ``eager`` runs twice as many forwards before the first backward and keeps 2(p - i) - 1, so that messages travel
    while their receiver has other work. Sources: PipeDream-Flush, Narayanan et al., arXiv 2104.04473, 2.2.1, and
    torch's ``Schedule1F1B``, which asks for m >= p; eager: Zhuang et al., arXiv 2211.05322.
    """
    factor = 2 if eager else 1
    name = "eager 1F1B" if eager else "1F1B"
    return _alternating(name, ranks, micro_batches, lambda rank: factor * (ranks - 1 - rank))


def looped_bfs(ranks: int, micro_batches: int, *, chunks: int = 2) -> Schedule:
    """GPipe over ``chunks`` stages a rank: each stage forward for all micro-batches, then all back, last one first.

    Source: Lamy-Poirier, arXiv 2211.05953; torch's ``ScheduleLoopedBFS``, for the order of the backwards too.
    """
    _sizes(ranks, micro_batches, chunks)
    rows = []
    for rank in range(ranks):
        mine = range(rank, ranks * chunks, ranks)
        there = [Action("F", stage, j) for stage in mine for j in range(micro_batches)]
        back = [Action("B", stage, j) for stage in reversed(mine) for j in reversed(range(micro_batches))]
        rows.append((*there, *back))
    return Schedule("LoopedBFS", tuple(rows), _looped(ranks, chunks), micro_batches)


def interleaved(ranks: int, micro_batches: int, *, chunks: int = 2) -> Schedule:
    """Interleaved 1F1B: ``chunks`` stages a rank, taken in turns of about p micro-batches; the bubble is 1/v as long.

    Source: Narayanan et al., arXiv 2104.04473, 2.2.2; torch's ``ScheduleInterleaved1F1B``, which also takes numbers
    of micro-batches that p does not divide, as long as they fall into rounds of equal size.
    """
    round_size = _round_size(ranks, micro_batches)
    return _alternating(
        "Interleaved1F1B", ranks, micro_batches, lambda rank: (chunks - 1) * round_size + 2 * (ranks - 1 - rank),
        chunks=chunks, round_size=round_size,
    )  # fmt: skip


def interleaved_zero_bubble(ranks: int, micro_batches: int, *, chunks: int = 2) -> Schedule:
    """Interleaved with backward split in two: rank r runs each W r turns late. Source: torch's class of that name."""
    round_size = _round_size(ranks, micro_batches)
    return _alternating(
        "InterleavedZeroBubble", ranks, micro_batches, lambda rank: (chunks - 1) * round_size + ranks - 1 - rank,
        chunks=chunks, round_size=round_size, delay=lambda rank: rank,
    )  # fmt: skip


def zb_h1(ranks: int, micro_batches: int) -> Schedule:
    """ZB-H1: 1F1B with backward split, W late enough that every rank keeps p micro-batches, none more than 1F1B's.

    Source: Qi et al., arXiv 2401.10241, 2.1 and figure 3, top.
    """
    return _alternating("ZB-H1", ranks, micro_batches, lambda rank: ranks - 1 - rank, delay=lambda rank: rank)


def zb_h2(ranks: int, micro_batches: int) -> Schedule:
    """ZB-H2: twice the forwards of ZB-H1 before the first backward, W twice as late; every rank keeps 2p - 1.

    Source: Qi et al., arXiv 2401.10241, 2.2 and figure 3, bottom.
    """
    return _alternating("ZB-H2", ranks, micro_batches, lambda rank: 2 * (ranks - 1 - rank), delay=lambda rank: 2 * rank)


def zb_v(ranks: int, micro_batches: int) -> Schedule:
    """ZB-V: two stages a rank, placed down and up again like a V, so that the first rank also computes the loss.

    Source: Qi et al., arXiv 2401.10241, section 6 and figure 8; torch's ``ScheduleZBVZeroBubble``, which runs the
    schedule of at least 2p - 1 micro-batches and leaves out those that there are not.
    """
    _sizes(ranks, micro_batches, 2)
    planned = max(2 * ranks - 1, micro_batches)
    rows = []
    for rank in range(ranks):
        row = _Numbered((rank, 2 * ranks - 1 - rank))
        row.run("F0", times=2 * (ranks - rank) - 1)
        row.run("F1 F0", times=rank)
        row.run("F1 I1 W1", times=ranks - rank)
        while row.count["F1"] < planned:
            row.run(("F0 " if row.count["F0"] < planned else "") + "I0 W0 F1 I1 W1")
        row.run("I0 I1", times=rank)
        row.run("I0 W0", times=ranks - rank)
        row.run("W1", times=planned - row.count["W1"])
        row.run("W0", times=planned - row.count["W0"])
        rows.append(tuple(action for action in row.actions if action.micro_batch < micro_batches))
    return Schedule("ZB-V", tuple(rows), _folded(ranks), micro_batches)


def dualpipe_v(ranks: int, micro_batches: int) -> Schedule:
    """DualPipeV: a V as in ZB-V, with forwards and backwards of different micro-batches overlapped in the middle.

    Source: DualPipe cut in half; torch's ``ScheduleDualPipeV``. Needs at least 2p micro-batches.
    """
    _sizes(ranks, micro_batches, 2)
    _enough("DualPipeV", micro_batches, 2 * ranks, "twice the number of ranks")
    rows = tuple(
        tuple(_dual_row(rank, ranks, micro_batches, stages=(rank, 2 * ranks - 1 - rank))) for rank in range(ranks)
    )
    return Schedule("DualPipeV", rows, _folded(ranks), micro_batches)


def dualpipe(ranks: int, micro_batches: int) -> Schedule:
    """DualPipe: two copies of the model run towards each other, half of the micro-batches in each direction.

    ``micro_batches`` counts both directions. Rank r holds stage r of one copy and stage p - 1 - r of the other:
    twice the weights. Source: DeepSeek-V3, arXiv 2412.19437, and github.com/deepseek-ai/DualPipe.
    """
    _sizes(ranks, micro_batches, 2)
    if ranks % 2 or micro_batches % 2:
        odd = f"{ranks} ranks" if ranks % 2 else f"{micro_batches} micro-batches"
        raise InfrabookError(f"DualPipe runs in two directions and halves everything: {odd} cannot be halved")
    _enough("DualPipe", micro_batches, 2 * ranks, "twice the number of ranks")
    placement = (*range(ranks), *reversed(range(ranks)))
    rows = []
    for rank in range(ranks):
        near = min(rank, ranks - 1 - rank)
        here, there = rank, 2 * ranks - 1 - rank  # of the copy that starts at rank 0, and of the other
        stages = (here, there) if rank < ranks // 2 else (there, here)
        rows.append(tuple(_dual_row(near, ranks // 2, micro_batches // 2, stages=stages)))
    return Schedule("DualPipe", tuple(rows), placement, micro_batches // 2, routes=2)


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "GPipe": gpipe, "1F1B": one_f_one_b, "LoopedBFS": looped_bfs, "Interleaved1F1B": interleaved, "ZB-H1": zb_h1,
    "InterleavedZeroBubble": interleaved_zero_bubble, "ZB-H2": zb_h2, "ZB-V": zb_v, "DualPipeV": dualpipe_v,
    "DualPipe": dualpipe,
}  # fmt: skip
LOOPED = ("LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble")  # those that take ``chunks``


def build(name: str, ranks: int, *, micro_batches: int, chunks: int = 1) -> Schedule:
    """The schedule called ``name``; ``chunks`` is the number of stages a rank where it can be chosen.

    >>> build("ZB-V", 2, micro_batches=3).stages
    4
    """
    if name not in SCHEDULES:
        raise InfrabookError(f"there is no schedule {name!r}; there are {', '.join(SCHEDULES)}")
    return SCHEDULES[name](ranks, micro_batches, **({"chunks": chunks} if name in LOOPED else {}))


def repeated(schedule: Schedule, steps: int) -> Schedule:
    """``steps`` training steps in a row with nothing between them: no rank waits for another's optimizer."""
    positive("steps", steps)
    m = schedule.micro_batches
    rows = tuple(
        tuple(action._replace(micro_batch=action.micro_batch + step * m) for step in range(steps) for action in row)
        for row in schedule.rows
    )
    return Schedule(schedule.name, rows, schedule.placement, m * steps, schedule.routes)


def _alternating(
    name: str, ranks: int, micro_batches: int, warmup: Callable[[int], int], *,
    chunks: int = 1, round_size: int = 1, delay: Callable[[int], int] | None = None,
) -> Schedule:  # fmt: skip
    """``warmup(rank)`` forwards, then forward and backward in turns, then the backwards that are left.

    With ``delay`` a backward is an I, and its W comes that many backwards later.
    """
    _sizes(ranks, micro_batches, chunks)
    rows = []
    for rank in range(ranks):
        turns = [
            (k // round_size % chunks, k // (round_size * chunks) * round_size + k % round_size)
            for k in range(micro_batches * chunks)
        ]
        forwards = [Action("F", chunk * ranks + rank, j) for chunk, j in turns]
        kind = "B" if delay is None else "I"
        backwards = [Action(kind, (chunks - 1 - chunk) * ranks + rank, j) for chunk, j in turns]
        first = min(warmup(rank), len(turns))
        row = forwards[:first]
        for k, backward in enumerate(backwards):
            row += [*forwards[first + k : first + k + 1], backward]
            if delay is not None and k >= delay(rank):
                row.append(backwards[k - delay(rank)]._replace(kind="W"))
        if delay is not None:
            row += [backward._replace(kind="W") for backward in backwards[max(len(turns) - delay(rank), 0) :]]
        rows.append(tuple(row))
    return Schedule(name, tuple(rows), _looped(ranks, chunks), micro_batches)


class _Numbered:
    """A row under construction from words such as ``F0``: the next forward of the rank's first stage."""

    def __init__(self, stages: tuple[int, int]) -> None:
        self.stages, self.actions, self.count = stages, list[Action](), Counter[str]()
        self.waiting: list[tuple[int, int]] = []  # (stage, micro-batch) whose W is still to come, oldest first

    def run(self, words: str, *, times: int = 1) -> None:
        """Append the actions ``words`` names, ``times`` over."""
        for _ in range(times):
            for word in words.split():
                kind, stage = word[0], self.stages[int(word[1])]
                self.actions.append(Action(kind, stage, self.count[word]))
                self.count[word] += 1

    def backward(self, local: int, *, split: bool) -> None:
        """The next backward of a stage, whole or its I alone."""
        kind, stage, key = ("I" if split else "B"), self.stages[local], f"back{local}"
        self.actions.append(Action(kind, stage, self.count[key]))
        if split:
            self.waiting.append((stage, self.count[key]))
        self.count[key] += 1

    def weight(self) -> None:
        """The oldest W that waits."""
        if self.waiting:
            stage, micro_batch = self.waiting.pop(0)
            self.actions.append(Action("W", stage, micro_batch))

    def pair(self, forward: int, backward: int) -> None:
        """A forward and a whole backward at the same time."""
        self.run(f"F{forward}")
        self.actions[-1] = self.actions[-1]._replace(paired=True)
        self.backward(backward, split=False)


def _dual_row(rank: int, ranks: int, micro_batches: int, *, stages: tuple[int, int]) -> list[Action]:
    """What a rank of DualPipe does in its eight steps; 0 is the stage its micro-batches reach first, 1 the other."""
    row, last = _Numbered(stages), ranks - 1 - rank
    row.run("F0", times=2 * last)
    row.run("F0 F1", times=rank + 1)
    for _ in range(last):
        row.backward(1, split=True)
        row.weight()
        row.run("F1")
    for turn in range(micro_batches - 2 * ranks + rank + 1):
        if turn == 0 and last == 0:  # the turn of the V: overlapping here would only wait
            row.run("F0")
            row.backward(1, split=False)
        else:
            row.pair(0, 1)
        row.pair(1, 0)
    for _ in range(last):
        row.backward(1, split=False)
        row.pair(1, 0)
    half, odd = (rank + 1) // 2, rank % 2 == 1
    for turn in range(rank + 1):
        row.backward(1, split=turn > half or (turn == half and odd))
        row.backward(0, split=turn >= half)
    for _ in range(last):
        row.weight()
        row.backward(0, split=True)
    while row.waiting:
        row.weight()
    return row.actions


def _looped(ranks: int, chunks: int) -> tuple[int, ...]:
    return tuple(range(ranks)) * chunks


def _folded(ranks: int) -> tuple[int, ...]:
    return (*range(ranks), *reversed(range(ranks)))


def _round_size(ranks: int, micro_batches: int) -> int:
    _sizes(ranks, micro_batches, 1)
    rounds = max(1, micro_batches // ranks)
    if micro_batches % rounds:
        raise InfrabookError(
            f"{micro_batches} micro-batches do not fall into {rounds} rounds of equal size, each about {ranks} long "
            f"as interleaving needs; take a multiple of {ranks}"
        )
    return micro_batches // rounds


def _sizes(ranks: int, micro_batches: int, chunks: int) -> None:
    positive("ranks", ranks)
    positive("micro_batches", micro_batches)
    positive("chunks", chunks)
    _bounded(3 * ranks * micro_batches * chunks)


def _bounded(actions: int) -> None:
    if actions > MOST:
        raise InfrabookError(f"the schedule would have {actions:,} actions, and {MOST:,} are the most")


def _enough(name: str, micro_batches: int, least: int, words: str) -> None:
    if micro_batches < least:
        raise InfrabookError(f"{name} needs at least {least} micro-batches, {words}, and has {micro_batches}")


# -- time ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Times:
    """How long a stage takes for one micro-batch, in any unit of time.

    ``message`` passes between the end of an action and the start of one that needs it on another rank; it occupies
    neither rank, as with copy engines of their own. A B takes ``input_gradient`` + ``weight_gradient``; a paired F
    and B together ``paired`` (or, without it, the sum of both). ``scale`` multiplies the times of each stage: an
    embedding, a head, layers that do not divide.
    """

    forward: Exact | float = 1
    input_gradient: Exact | float = 1
    weight_gradient: Exact | float = 1
    message: Exact | float = 0
    paired: Exact | float | None = None
    scale: tuple[Exact | float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("forward", "input_gradient", "weight_gradient"):
            positive(name, getattr(self, name), whole=False)
        positive("message", self.message, whole=False, zero=True)
        if self.paired is not None:
            positive("paired", self.paired, whole=False)
            longer = max(self.forward, self.input_gradient + self.weight_gradient)
            if self.paired < longer:
                raise InfrabookError(
                    f"a paired forward and backward cannot take {self.paired}, less than the longer one alone, {longer}"
                )
        for factor in self.scale:
            positive("scale", factor, whole=False)

    @property
    def micro_batch(self) -> Exact:
        """Forward and both halves of backward of one micro-batch on one stage."""
        return exact(Fraction(exact(self.forward)) + exact(self.input_gradient) + exact(self.weight_gradient))

    def of(self, action: Action, stages: int) -> Fraction:
        """How long ``action`` takes by itself."""
        parts = {"F": (self.forward,), "I": (self.input_gradient,), "W": (self.weight_gradient,)}
        plain = sum(map(_fraction, parts.get(action.kind, (self.input_gradient, self.weight_gradient))), Fraction(0))
        if self.scale and len(self.scale) != stages:
            raise InfrabookError(f"scale has {len(self.scale)} factors, and there are {stages} stages")
        return plain * _fraction(self.scale[action.stage]) if self.scale else plain


class Slot(NamedTuple):
    """An action and when it runs."""

    action: Action
    start: Exact
    end: Exact


@dataclass(frozen=True)
class Timeline:
    """A schedule with times: when each rank runs each action, each as early as its rank and its inputs allow."""

    schedule: Schedule
    times: Times
    rows: tuple[tuple[Slot, ...], ...]

    @property
    def makespan(self) -> Exact:
        """From the first action's start to the last one's end: a step in which all ranks wait for each other."""
        return max(row[-1].end for row in self.rows)

    def busy(self, rank: int) -> Exact:
        """How long ``rank`` computes; a pair counts once."""
        row = self.rows[rank]
        return sum((slot.end - slot.start for slot in row if not slot.action.paired), 0)

    def span(self, rank: int) -> Exact:
        """From the start of ``rank``'s first action to the end of its last."""
        return exact(self.rows[rank][-1].end - self.rows[rank][0].start)

    @property
    def ideal(self) -> Exact:
        """Time of the same work spread evenly over all ranks without a pause: m·(F + B) if stages are equal."""
        return exact(Fraction(sum(self.busy(rank) for rank in range(len(self.rows))), len(self.rows)))

    @property
    def bubble_of_ideal(self) -> Fraction:
        """Idle time per unit of ideal time, (p - 1)/m for GPipe and 1F1B. Megatron-LM's convention."""
        return Fraction(self.makespan) / Fraction(self.ideal) - 1

    @property
    def bubble_of_total(self) -> Fraction:
        """The share of the whole step that a rank is idle, (p - 1)/(m + p - 1). GPipe's convention."""
        return 1 - Fraction(self.ideal) / Fraction(self.makespan)

    @property
    def bubble_of_span(self) -> Fraction:
        """1 - ideal / the longest span, if no rank waits for another's optimizer. Qi et al.'s bubble rate."""
        return 1 - Fraction(self.ideal) / max(Fraction(self.span(rank)) for rank in range(len(self.rows)))

    def chart(self, *, halves: bool = False) -> list[tuple[str, list[Span]]]:
        """Rows for ``charts.gantt``; stages of one rank differ in tone. With ``halves`` a B shows its two parts."""
        tones = [0.55 * self.schedule.local(stage) / max(self.schedule.chunks - 1, 1)
                 for stage in range(self.schedule.stages)]  # fmt: skip
        return [(f"rank {rank}", list(self._spans(row, tones, halves))) for rank, row in enumerate(self.rows)]

    def _spans(self, row: tuple[Slot, ...], tones: Sequence[float], halves: bool) -> Iterator[Span]:
        until: Exact = 0
        for action, start, end in row:
            label, tone = str(action.micro_batch), tones[action.stage]
            if action.paired:  # one box for both: the forward's part first
                middle = exact((Fraction(start) + Fraction(end)) / 2)
                yield Span(start, middle, "forward", label, tone)
                until = middle
                continue
            start, until = max(start, until), 0
            if action.kind == "B" and halves:
                first, second = _fraction(self.times.input_gradient), _fraction(self.times.weight_gradient)
                middle = exact(start + (Fraction(end) - Fraction(start)) * first / (first + second))
                yield Span(start, middle, "backward_input", label, tone)
                yield Span(middle, end, "backward_weight", label, tone)
            else:
                yield Span(start, end, KINDS[action.kind], label, tone)


Needs = Callable[[Schedule, Row], "Iterator[tuple[Result, bool]]"]


def simulate(schedule: Schedule, times: Times = Times(), *, rule: Needs | None = None) -> Timeline:
    """``schedule`` with each action as early as its rank is free and what it needs has arrived.

    F needs the F of the stage before; B and I the I or B of the stage after, and on the last stage its own F; W its
    own I. ``rule`` is another idea of that, in the form of ``needs``. Each action is looked at once, and once more
    for each result that it had to wait for.

    >>> step = simulate(one_f_one_b(4, 8), Times(forward=1, input_gradient=1, weight_gradient=1))
    >>> step.makespan, step.bubble_of_ideal, step.bubble_of_total
    (33, Fraction(3, 8), Fraction(3, 11))
    """
    kinds = {
        (kind, stage): times.of(Action(kind, stage, 0), schedule.stages)
        for kind in WORDS
        for stage in range(schedule.stages)
    }
    message = _fraction(times.message)
    pairs = [_fraction(times.paired) * _fraction(factor) for factor in times.scale or (1,)] if times.paired else []
    tick = Fraction(1, math.lcm(*(time.denominator for time in (*kinds.values(), *pairs, message))))
    ticks = {key: int(time / tick) for key, time in kinds.items()}
    together = [int(time / tick) for time in pairs]  # by stage, or one for all

    def length(group: Row) -> int:
        if len(group) == 1 or not together:
            return sum(ticks[action.kind, action.stage] for action in group)
        return max(together[action.stage % len(together)] for action in group)

    rows: list[list[Slot]] = [[] for _ in schedule.rows]
    moments: dict[int, Exact] = {}  # tick -> time; ranks share most of them
    for rank, group, start, end in _run(schedule, length, int(message / tick), rule or needs):
        for moment in (start, end):
            if moment not in moments:
                moments[moment] = exact(moment * tick)
        rows[rank].extend(Slot(action, moments[start], moments[end]) for action in group)
    return Timeline(schedule, times, tuple(map(tuple, rows)))


def _run(
    schedule: Schedule, length: Callable[[Row], int], lag: int, rule: Needs
) -> Iterator[tuple[int, Row, int, int]]:
    """(rank, actions that run together, start, end) in an order in which nothing comes before what it needs."""
    done: dict[Result, int] = {}  # when it exists
    waiting: dict[Result, list[int]] = defaultdict(list)
    at, free = [0] * schedule.ranks, [0] * schedule.ranks
    ready = list(range(schedule.ranks))
    while ready:
        rank = ready.pop()
        row = schedule.rows[rank]
        while at[rank] < len(row):
            group = _group(row, at[rank])
            start, missing = free[rank], None
            for key, travels in rule(schedule, group):
                if key not in done:
                    missing = key
                    break
                start = max(start, done[key] + lag * travels)
            if missing is not None:
                waiting[missing].append(rank)
                break
            end = start + length(group)
            yield rank, group, start, end
            free[rank] = end
            at[rank] += len(group)
            for kind, stage, micro_batch, _ in group:
                if kind != "W":
                    key = (kind == "F", stage, micro_batch)
                    done[key] = end
                    ready += waiting.pop(key, ())
    stuck = next((rank for rank, row in enumerate(schedule.rows) if at[rank] < len(row)), None)
    if stuck is not None:
        raise InfrabookError(_stuck(schedule, stuck, at, waiting))


def _group(row: Row, at: int) -> Row:
    """The action at ``at``, with the next one if they are paired."""
    if not row[at].paired:
        return row[at : at + 1]
    if at + 1 == len(row) or row[at].kind + row[at + 1].kind not in ("FB", "FI"):
        raise InfrabookError(f"{row[at]} is paired, but no backward follows it on its rank")
    return row[at : at + 2]


def needs(schedule: Schedule, group: Row) -> Iterator[tuple[Result, bool]]:
    """What a group's actions wait for: (result, whether it comes from another rank)."""
    for kind, stage, micro_batch, _ in group:
        if kind == "W":
            continue  # its own I, earlier on the same rank
        source = schedule.before(stage) if kind == "F" else schedule.after(stage)
        if source is not None:
            yield (kind == "F", source, micro_batch), schedule.placement[source] != schedule.placement[stage]


def _stuck(schedule: Schedule, rank: int, at: list[int], waiting: dict[Result, list[int]]) -> str:
    """Who waits for whom, followed from ``rank`` until it closes."""
    wanted = {one: key for key, ranks in waiting.items() for one in ranks}
    words, seen = [], set[int]()
    while rank not in seen:
        seen.add(rank)
        forward, stage, micro_batch = wanted[rank]
        words.append(
            f"rank {rank} waits at {schedule.rows[rank][at[rank]]} for {stage}{'F' if forward else 'B'}{micro_batch}"
        )
        rank = schedule.placement[stage]
    return "the ranks wait for each other: " + ", ".join(words)


def _fraction(value: Exact | float) -> Fraction:
    return Fraction(exact(value))


# -- memory and messages ------------------------------------------------------------------------------------------
def in_flight(schedule: Schedule) -> tuple[int, ...]:
    """The most stage inputs that each rank keeps at once: one more after an F, one less after its B or W.

    In units of one stage's activations for one micro-batch; with v stages a rank each is 1/v of the rank's layers.

    >>> in_flight(one_f_one_b(4, 8)), in_flight(gpipe(4, 8))
    ((4, 3, 2, 1), (8, 8, 8, 8))
    """
    return tuple(int(peak) for peak in peak_activations(schedule))


def peak_activations(
    schedule: Schedule,
    *,
    activations: Exact | Sequence[Exact] = 1,
    kept_for_weights: Exact | Sequence[Exact] | None = None,
) -> tuple[Exact, ...]:
    """The most that each rank keeps for backward, in bytes if ``activations`` are the bytes of a micro-batch's stage.

    After an I only ``kept_for_weights`` of it stays until the W (all of it, if not given). Either may be a sequence
    over the stages. Qi et al. call them M_B and M_W.

    >>> peak_activations(zb_h1(4, 8), activations=10, kept_for_weights=4)
    (40, 34, 28, 22)
    """
    whole = _by_stage("activations", activations, schedule)
    rest = whole if kept_for_weights is None else _by_stage("kept_for_weights", kept_for_weights, schedule)
    peaks: list[Exact] = []
    for row in schedule.rows:
        now: Exact = 0
        most: Exact = 0
        for kind, stage, _, _ in row:
            now += {"F": whole[stage], "B": -whole[stage], "W": -rest[stage], "I": rest[stage] - whole[stage]}[kind]
            most = max(most, now)
        peaks.append(exact(most))
    return tuple(peaks)


def _by_stage(name: str, value: Exact | Sequence[Exact], schedule: Schedule) -> list[Exact]:
    values = list(value) if isinstance(value, Sequence) else [value] * schedule.stages
    if len(values) != schedule.stages:
        raise InfrabookError(f"{name} has {len(values)} values, and there are {schedule.stages} stages")
    for one in values:
        positive(name, one, whole=False, zero=True)
    return [exact(one) for one in values]


def messages(schedule: Schedule) -> tuple[int, ...]:
    """How many messages each rank sends: an activation after each F, a gradient after each B or I.

    None from the last stage of a route forwards, from the first backwards, and between stages of one rank.

    >>> messages(one_f_one_b(4, 8)), messages(zb_v(4, 8))
    ((8, 16, 16, 8), (16, 32, 32, 16))
    """
    sent = [0] * schedule.ranks
    for rank, row in enumerate(schedule.rows):
        for kind, stage, _, _ in row:
            if kind != "W":
                target = schedule.after(stage) if kind == "F" else schedule.before(stage)
                sent[rank] += target is not None and schedule.placement[target] != rank
    return tuple(sent)


def message_bytes(*, hidden: int, sequence: int, batch: int = 1, element_bytes: int = 2) -> int:
    """Bytes of one message, an activation or its gradient: sequence · batch · hidden elements.

    >>> message_bytes(hidden=4096, sequence=4096)
    33554432
    """
    for name, value in (("hidden", hidden), ("sequence", sequence), ("batch", batch), ("element_bytes", element_bytes)):
        positive(name, value)
    return sequence * batch * hidden * element_bytes


# -- what is published about them ---------------------------------------------------------------------------------
def bubble_formula(name: str, ranks: int, *, times: Times = Times()) -> Exact:
    """The idle time that a schedule's authors give a rank, ``times`` being those of one stage.

    GPipe, 1F1B and interleaving (its stages are 1/v as long): (p - 1)(F + I + W). ZB-H1 (p - 1)(F + I - W), ZB-H2
    (p - 1)(F + I - 2W), ZB-V 0 for equal times. DualPipe (p/2 - 1)(F&B + B - 3W), DualPipeV alike with p in place of
    p/2. Sources: Narayanan et al., arXiv 2104.04473, 2.2; Qi et al., arXiv 2401.10241, table 2; DeepSeek-V3, table 2.
    """
    positive("ranks", ranks)
    f, i, w = map(_fraction, (times.forward, times.input_gradient, times.weight_gradient))
    pair = f + i + w if times.paired is None else _fraction(times.paired)
    bubbles = {
        "GPipe": f + i + w, "1F1B": f + i + w, "Interleaved1F1B": f + i + w, "ZB-H1": f + i - w,
        "ZB-H2": f + i - 2 * w, "ZB-V": Fraction(0), "DualPipe": pair + i - 2 * w, "DualPipeV": pair + i - 2 * w,
    }  # fmt: skip
    if name not in bubbles:
        raise InfrabookError(f"nobody gives a formula for {name!r}; there are {', '.join(bubbles)}")
    hops = Fraction(ranks, 2) - 1 if name == "DualPipe" else Fraction(ranks - 1)
    return exact(hops * bubbles[name])


class Passes(NamedTuple):
    """FLOP of a layer's three passes, and bytes that the two halves of backward need, for one micro-batch."""

    forward: int
    input_gradient: int
    weight_gradient: int
    activations: int
    kept_for_weights: int


def gpt_passes(*, hidden: int, heads: int, sequence: int, batch: int = 1) -> Passes:
    """A GPT-3-like layer's F, I and W: sbh(24h + 4s), sbh(24h + 8s), 24·sbh² FLOP; sb(34h + 5as) and 32·sbh bytes.

    Attention's scores have no weights, so their backward belongs to I alone: W < F < I, and I + W = 2F.
    Source: Qi et al., arXiv 2401.10241, table 1.
    """
    for name, value in (("hidden", hidden), ("heads", heads), ("sequence", sequence), ("batch", batch)):
        positive(name, value)
    sbh = sequence * batch * hidden
    return Passes(
        sbh * (24 * hidden + 4 * sequence), sbh * (24 * hidden + 8 * sequence), sbh * 24 * hidden,
        sequence * batch * (34 * hidden + 5 * heads * sequence), 32 * sbh,
    )  # fmt: skip
