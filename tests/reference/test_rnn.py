"""Reference cases of recurrent layers: PyTorch's own parameters and counted work."""

from __future__ import annotations

from typing import Any

import pytest

from infrabook import recurrent

from .cases import cases, passes

CASES = cases("rnn")
MODULES: dict[str, Any] = {  # what the case says in PyTorch's words
    "LSTM(512,512,num_layers=2)": {"inputs": 512, "hidden": 512, "layers": 2},
    "LSTM(128,256,bias=False)": {"inputs": 128, "hidden": 256, "biases": 0},
    "LSTM(650,650,2) PTB-medium": {"inputs": 650, "hidden": 650, "layers": 2},
}


def counted(inputs: dict[str, Any]) -> dict[str, Any]:
    """Parameters of the layer that a case names."""
    if "module" in inputs:
        total = recurrent.parameters("lstm", **MODULES[inputs["module"]]).total
        return {"parameters": total}
    kind = {1: "rnn", 3: "gru", 4: "lstm"}[inputs["gates"]]
    two = recurrent.parameters(kind, inputs["input"], inputs["hidden"]).total  # type: ignore[arg-type]
    one = recurrent.parameters(kind, inputs["input"], inputs["hidden"], biases=1).total  # type: ignore[arg-type]
    keras = two if kind == "gru" else one  # its GRU needs the second bias of the candidate
    return {
        "PyTorch parameters": two, "closed form g*(i*h+h*h+2h)": two, "Keras 3.15 parameters": keras,
        "single-bias textbook count g*(i*h+h*h+h)": one,
    }  # fmt: skip


def work(inputs: dict[str, Any]) -> dict[str, Any]:
    sizes = {"steps": inputs["T"], "batch": inputs["B"]}
    return {
        name: recurrent.flop(kind, inputs["input"], inputs["hidden"], **sizes).total  # type: ignore[arg-type]
        for name, kind in (("RNN forward", "rnn"), ("GRU forward", "gru"), ("LSTM forward (2*T*B*4h*(i+h))", "lstm"))
    }


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    given = CASES[name]["inputs"]
    found = work(given) if "T" in given else counted(given)
    assert {expected["quantity"] for expected in CASES[name]["expected"]} == found.keys()
    for expected in CASES[name]["expected"]:
        assert passes(expected, found[expected["quantity"]]), expected["quantity"]
