"""What a recurrent layer keeps is what PyTorch keeps; what fades, fades at the rate of an eigenvalue."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch")

import torch

from infrabook import formats, recurrent
from infrabook.errors import InfrabookError
from infrabook.explorers import gradient_reach
from infrabook.measure.saved import graph_bytes, saved_for_backward

MODULES = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize(("inputs", "hidden", "steps", "batch"), [(3, 5, 1, 1), (6, 10, 7, 3), (32, 16, 20, 2)])
def test_kept_bytes_are_pytorchs_by_two_roads(kind: str, inputs: int, hidden: int, steps: int, batch: int) -> None:
    net = MODULES[kind](inputs, hidden).double()
    with saved_for_backward(net) as kept:
        out = net(torch.zeros(steps, batch, inputs, dtype=torch.double))[0]
    account = recurrent.saved(kind, inputs, hidden, steps=steps, batch=batch, bits=64)  # type: ignore[arg-type]
    assert kept.total == account.total
    assert graph_bytes(out.sum(), net) == account.total


def test_a_normal_matrix_leaves_its_radius_a_step() -> None:
    turn = torch.linalg.qr(torch.randn(12, 12, dtype=torch.double, generator=torch.Generator().manual_seed(0)))[0]
    power = torch.linalg.matrix_power(0.8 * turn, 40)
    assert torch.linalg.matrix_norm(power, 2).item() == pytest.approx(0.8**40)
    assert recurrent.half_life(0.8) == pytest.approx(math.log(2) / -math.log(0.8))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.577, 0.99, 0.9999])
@pytest.mark.parametrize("left", [0.5, 1e-3, 2.0**-149])
def test_steps_until_are_the_first_that_suffice(rate: float, left: float) -> None:
    steps = recurrent.steps_until(rate, left)
    assert rate**steps <= left * (1 + 1e-9)
    assert rate ** (steps - 1) > left * (1 - 1e-9)


def test_nothing_fades_from_one_on() -> None:
    assert recurrent.half_life(1) == recurrent.half_life(1.2) == recurrent.steps_until(1.0, 0.5) == math.inf
    with pytest.raises(InfrabookError, match="rate has to be greater than 0, and is -1"):
        recurrent.half_life(-1)
    with pytest.raises(InfrabookError, match="left has to be a share between 0 and 1, and is 2"):
        recurrent.steps_until(0.5, 2)


def test_the_explorer_names_the_step_at_which_a_format_is_empty() -> None:
    view = gradient_reach(way="lstm", bias=0.0, dtype="fp16")
    gone = recurrent.steps_until(0.5, float(formats.get("fp16").min_subnormal))
    assert gone == 24
    assert f"FP16 can hold after {gone}" in view
    assert "nothing fades" in gradient_reach(radius=1.1)
    with pytest.raises(InfrabookError, match="beyond any number format: take fewer steps"):
        gradient_reach(radius=0.05, length=5000)
