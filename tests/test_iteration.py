"""Every moment of an iteration, predicted, is what PyTorch's memory tracker finds then."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from infrabook import iteration, memory, models
from infrabook.errors import InfrabookError
from infrabook.explorers import one_iteration
from infrabook.iteration import moments

LLAMA = models.get("llama-2-7b")
SMALL = replace(
    LLAMA, name="small", layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=172, vocab=500, context=128
)
CPU = {"rmsnorm": "fp32", "statistics_bytes": 4, "rotary_tables": True}


def alive(**options: object) -> dict[str, int]:
    return {moment.name: int(moment.ledger.total) for moment in moments(LLAMA, sequence=4096, **options)}  # type: ignore[arg-type]


@pytest.mark.parametrize("optimizer", iteration.STATES)
@pytest.mark.parametrize("zero_grad", iteration.CLEARED)
@pytest.mark.parametrize(("micro_batches", "tied"), [(1, False), (2, True)])
def test_every_moment_is_the_trackers(optimizer: str, zero_grad: str, micro_batches: int, tied: bool) -> None:
    torch = pytest.importorskip("torch")
    from infrabook.measure.iteration import iterations
    from infrabook.nn.transformer import Llama

    model = replace(SMALL, tied=tied)
    make = {
        "sgd": partial(torch.optim.SGD, lr=0.1),
        "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        "adamw": torch.optim.AdamW,
    }
    options = {"micro_batches": micro_batches, "zero_grad": zero_grad, "batch": 2, "sequence": 64}
    measured = iterations(partial(Llama, model), model, make[optimizer], fake=False, dtype=torch.float32, **options)  # type: ignore[arg-type]
    for found, first in zip(measured, (True, False), strict=True):
        predicted = {m.name: m for m in moments(model, optimizer, dtype="fp32", first=first, **options, **CPU)}  # type: ignore[arg-type]
        for name, account in found.moments.items():
            left = account.total - predicted[name].ledger.total
            tokens = 16 * 2 * 64  # ids and targets
            counters = 4 * 39 if optimizer == "adamw" else 0  # one a tensor at most
            assert tokens <= left <= tokens + counters + 16, name


def test_foreach_and_both_dtypes_at_their_highest() -> None:
    torch = pytest.importorskip("torch")
    from infrabook.measure.iteration import iterations
    from infrabook.nn.transformer import Llama

    for dtype, name in ((torch.float32, "fp32"), (torch.bfloat16, "bf16")):
        for foreach in (False, True):
            make = partial(torch.optim.AdamW, foreach=foreach)
            found = iterations(partial(Llama, SMALL), SMALL, make, dtype=dtype, batch=2, sequence=64)[1]
            step = "foreach" if foreach else "for-loop"
            all_of = moments(SMALL, dtype=name, optimizer_step=step, batch=2, sequence=64, **CPU)  # type: ignore[arg-type]
            by_name = {m.name: m.ledger.total for m in all_of}
            left = [account.total - by_name[moment] for moment, account in found.moments.items()]
            assert 16 * 128 <= min(left) <= max(left) <= 16 * 128 + 4 * 39 + 16
            for phase in ("forward", "backward", "step"):
                words = {"forward": "loss forward", "backward": "loss backward", "step": "optimizer step"}[phase]
                predicted = by_name[words]
                rest = 16 * 128 + 4 * 39 + 64 + 4 * 64  # ids, counters, scalars, the last vector's denominator
                assert 0 <= found.highest(phase) - predicted <= rest, (name, phase)


def test_the_six_moments_of_the_timeline_are_among_them() -> None:
    every = {m.name: m.ledger.total for m in moments(LLAMA, sequence=4096)}
    six = {m.name: m.ledger.total for m in memory.timeline(LLAMA, "pure-bf16", sequence=4096)}
    assert every["start"] == six["between steps"]
    assert every["forward done"] == six["after the forward pass"]
    assert every["loss backward"] == six["start of the backward pass"]
    assert every["optimizer step"] == six["optimizer step"]


def test_the_first_iteration_lacks_exactly_the_states_until_its_step() -> None:
    first, later = alive(first=True), alive()
    states = 4 * 6_738_415_616
    for name, bytes_then in later.items():
        lacking = 0 if name in ("optimizer step", "step done", "end") else states
        assert bytes_then - first[name] == lacking, name


def test_clearing_late_costs_the_gradients_in_the_forward_pass_alone() -> None:
    early, late, never = alive(), alive(zero_grad="before backward"), alive(zero_grad="to zero")
    gradients = 2 * 6_738_415_616
    assert late["loss forward"] - early["loss forward"] == gradients
    assert late["loss backward"] == early["loss backward"]
    assert never["loss backward"] - early["loss backward"] == gradients
    assert max(late.values()) == late["loss forward"]


def test_the_backward_pass_falls_where_gradients_are_there_already() -> None:
    def steps(**options: object) -> list[int]:
        found = [size for name, size in alive(**options).items() if name.startswith("layer") and "backward" in name]
        return [after - before for before, after in pairwise(found)]

    assert len(set(steps())) == len(set(steps(zero_grad="to zero"))) == 1
    assert steps(zero_grad="to zero")[0] < steps()[0] < 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimizer": "adam"}, "the optimizer can be sgd, momentum, adamw, and is 'adam'"),
        ({"zero_grad": "never"}, "zero_grad can be after the step, before backward, to zero, and is 'never'"),
        ({"optimizer_step": "slow"}, "optimizer_step can be for-loop, foreach, fused, and is 'slow'"),
        ({"micro_batches": 0}, "micro_batches has to be greater than 0, and is 0"),
        ({"dtype": "bf17"}, "'bf17' is not a dtype the book knows"),
    ],
)
def test_nonsense_is_refused_in_words(options: dict[str, object], words: str) -> None:
    with pytest.raises(InfrabookError, match=words):
        moments(LLAMA, **options)  # type: ignore[arg-type]


def test_every_setting_of_the_explorer_moves_its_number() -> None:
    first = one_iteration()
    for change in (
        {"optimizer": "sgd"}, {"dtype": "fp32"}, {"micro_batches": 4}, {"zero_grad": "to zero"}, {"which": "later"},
        {"batch": 4}, {"sequence": 8192}, {"model": "llama-3-8b"},
    ):  # fmt: skip
        assert one_iteration(**change) != first, change
    small = {"batch": 1, "sequence": 512}
    assert one_iteration(**small, optimizer_step="foreach") != one_iteration(**small, optimizer_step="fused")
