"""A recurrent layer's parameters and work are PyTorch's; its state in the explorer is a recurrent network's."""

from __future__ import annotations

import pytest

from infrabook import recurrent
from infrabook.errors import InfrabookError
from infrabook.explorers import hidden_strip, strips

torch = pytest.importorskip("torch")

MODULES = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize(("inputs", "hidden", "layers"), [(3, 5, 1), (16, 8, 3), (7, 7, 2)])
def test_parameters_are_pytorchs(kind: str, inputs: int, hidden: int, layers: int) -> None:
    for bias in (True, False):
        module = MODULES[kind](inputs, hidden, layers, bias=bias)
        account = recurrent.parameters(kind, inputs, hidden, layers=layers, biases=2 * bias)  # type: ignore[arg-type]
        assert account.total == sum(p.numel() for p in module.parameters())
        matrices = {name: p.numel() for name, p in module.named_parameters()}
        assert account["from the state"] == sum(n for name, n in matrices.items() if name.startswith("weight_hh"))
        assert account["biases"] == sum(n for name, n in matrices.items() if name.startswith("bias"))


@pytest.mark.parametrize("kind", MODULES)
def test_work_is_what_pytorch_counts(kind: str) -> None:
    """In double precision: in single, a CPU has one fused operation for an LSTM, which the counter does not know."""
    from torch.utils.flop_counter import FlopCounterMode

    module = MODULES[kind](6, 10).double()
    with FlopCounterMode(display=False) as counter:
        module(torch.randn(7, 3, 6, dtype=torch.double))
    assert counter.get_total_flops() == recurrent.flop(kind, 6, 10, steps=7, batch=3).total  # type: ignore[arg-type]


@pytest.mark.parametrize("squashed", [True, False])
@pytest.mark.parametrize("radius", [0.0, 0.95, 1.3])
def test_the_explorers_cell_is_a_cell(squashed: bool, radius: float) -> None:
    """Its matrices, read off by unit vectors, in ``nn.RNNCell`` or a plain product."""
    size = strips.HIDDEN
    silent = [strips.cell([float(i == j) for j in range(size)], 0, radius, squashed=False)[0] for i in range(size)]
    heard = strips.cell([0.0] * size, 1, radius, squashed=False)[0]
    w_hh, w_xh = torch.tensor(silent, dtype=torch.double).T, torch.tensor(heard, dtype=torch.double)[:, None]
    assert torch.linalg.eigvals(w_hh).abs().allclose(torch.full((size,), radius, dtype=torch.double))
    cell = torch.nn.RNNCell(1, size, bias=False).double()
    state, theirs = [0.0] * size, torch.zeros(1, size, dtype=torch.double)
    with torch.no_grad():
        cell.weight_hh.copy_(w_hh)
        cell.weight_ih.copy_(w_xh)
        for x in strips.INPUTS["up and down"]:
            state = strips.cell(state, x, radius, squashed=squashed)[0]
            step = torch.tensor([[x]], dtype=torch.double)
            theirs = cell(step, theirs) if squashed else step @ w_xh.T + theirs @ w_hh.T
            assert torch.tensor(state, dtype=torch.double).allclose(theirs[0], atol=1e-12)


def test_the_strip_shows_what_is_computed() -> None:
    for inputs in strips.INPUTS:
        for step in (1, strips.STEPS):
            view = hidden_strip(inputs=inputs, step=step, radius=1.3, squashed=False)
            assert view.count("fill-opacity") == strips.HIDDEN * step
            assert view.count("<rect") == strips.HIDDEN * strips.STEPS


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tree", 3, 5), "kind can be rnn, gru, lstm, and is 'tree'"),
        (("rnn", 0, 5), "inputs has to be"),
        (("rnn", 3, 2.5), "hidden has to be"),
    ],
)
def test_nonsense_is_refused(arguments: tuple[object, ...], words: str) -> None:
    with pytest.raises(InfrabookError, match=words):
        recurrent.parameters(*arguments)  # type: ignore[arg-type]
    with pytest.raises(InfrabookError, match="biases can be 0, 1 or 2 for each gate, and is 3"):
        recurrent.parameters("rnn", 3, 5, biases=3)


def test_a_scan_needs_as_many_rounds_as_doublings() -> None:
    for steps in range(1, 70):
        assert 2 ** recurrent.scan_levels(steps) >= steps > 2 ** (recurrent.scan_levels(steps) - 1) - (steps == 1)
