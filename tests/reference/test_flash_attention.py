"""The reference cases on FlashAttention: accesses, work, what is kept, and what PyTorch's counter does not see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from infrabook import attention_io as io
from infrabook.measure.work import total

from .cases import Case, cases, passes

CASES = cases("flash-attention")
Answer = Callable[[Case], dict[str, Any]]
PRINTED = {"GFLOP": (66.6, 75.2), "GB": (40.3, 4.4), "ms": (41.7, 7.3)}  # figure 2 of the paper, standard and flash


def shape(case: Case) -> dict[str, int]:
    given = case["inputs"]
    return {"sequence": given["N"], "head_dim": given["d"]}


def accesses(case: Case) -> dict[str, Any]:
    blocks = io.paper_blocks(sram_elements=case["inputs"]["M_elements"], head_dim=case["inputs"]["d"])
    standard = io.standard_forward(**shape(case)).total
    flash = io.flash_forward(**shape(case), blocks=blocks).total
    return {
        "standard HBM accesses 4N^2+4Nd": standard,
        "B_c = ceil(M/4d)": blocks.columns,
        "T_c": -(-case["inputs"]["N"] // blocks.columns),
        "flash: K,V once + T_c x (read Q,O,l,m; write O,l,m)": flash,
        "ratio": standard / flash,
    }


def figure_2_work(case: Case) -> dict[str, Any]:
    given = {**shape(case), "heads": case["inputs"]["heads"], "batch": case["inputs"]["batch"], "passes": "both"}
    standard, flash = io.work(**given, scores_again=False) / 1e9, io.work(**given) / 1e9
    return {
        "one N^2 d matmul, batch 64": flash - standard,
        "standard fwd+bwd = 6 matmuls": standard,
        "flash fwd+bwd = 7 matmuls (one recomputed)": flash,
        "ratio 7/6": flash / standard,
        "printed ratio 75.2/66.6": PRINTED["GFLOP"][1] / PRINTED["GFLOP"][0],
    }


def figure_2_bytes(case: Case) -> dict[str, Any]:
    given = case["inputs"]
    kept = io.saved(
        **shape(case), heads=given["heads"], batch=given["batch"], element_bytes=given["bytes"], kind="eager"
    )
    matrix, linear = kept["probabilities"] / 1e9, kept["Q, K and V"] / 3e9
    return {
        "one N x N fp16 tensor": matrix,
        "printed 40.3 GB in N x N passes": PRINTED["GB"][0] / matrix,
        "one Q/K/V/O tensor": linear,
        "printed 4.4 GB in Q-sized passes": PRINTED["GB"][1] / linear,
        "runtime ratio 41.7/7.3": PRINTED["ms"][0] / PRINTED["ms"][1],
    }


def benchmark(case: Case) -> dict[str, Any]:
    given = case["inputs"]
    run = {
        "sequence": given["seqlen"], "head_dim": given["headdim"], "heads": given["nheads"], "batch": given["batch"],
        "causal": given["causal"],
    }  # fmt: skip
    return {
        "fwd": io.work(**run),
        "bwd = 2.5x": io.work(**run, passes="backward"),
        "fwd+bwd = 3.5x": io.work(**run, passes="both"),
    }


def multiplier(case: Case) -> dict[str, Any]:
    one = {"sequence": 1024, "head_dim": 64}
    total_work = io.work(**one, passes="both", checkpointed=True)
    return {
        "attention matmuls fwd, bwd without recompute, bwd with flash recompute": list(io.PRODUCTS.values()),
        "with full activation checkpointing on top: total/forward": total_work / io.work(**one),
    }


def linear_memory(case: Case) -> dict[str, Any]:
    given = {"sequence": max(case["inputs"]["N"]), "head_dim": 64, "heads": case["inputs"]["heads"]}
    return {
        "logsumexp saved, N=4096": io.saved(**given)["log-sum-exp"],
        "scores+probs that standard attention would save (fp16, softmax out only)": (
            io.saved(**given, kind="eager")["probabilities"]
        ),
    }


def counter(case: Case) -> dict[str, Any]:
    batch, heads, s, d = case["inputs"]["shape"]
    x = torch.randn(batch, heads, s, d)
    lstm = torch.nn.LSTM(8, 8)
    return {
        "FlopCounterMode for F.scaled_dot_product_attention on CPU": total(
            lambda: F.scaled_dot_product_attention(x, x, x)
        ),
        "true 4*b*h*s^2*d": io.work(sequence=s, head_dim=d, heads=heads, batch=batch),
        "FlopCounterMode for nn.LSTM on CPU": total(lambda: lstm(torch.randn(4, 1, 8))),
    }


ANSWERS: dict[str, Answer] = {
    "fa-fig2-flops": figure_2_work,
    "fa-fig2-hbm": figure_2_bytes,
    "fa-io-1k-d64-192KB": accesses,
    "fa-io-4k-d128-192KB": accesses,
    "fa-flops-bench-causal-2k": benchmark,
    "fa-hfu-multiplier": multiplier,
    "fa-memory-linear": linear_memory,
    "fa-flopcounter-pitfall": counter,
}


def test_every_case_has_an_answer() -> None:
    assert set(ANSWERS) == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_reference(name: str) -> None:
    computed = ANSWERS[name](CASES[name])
    for expected in CASES[name]["expected"]:
        assert passes(expected, computed[expected["quantity"]]), (expected, computed[expected["quantity"]])
