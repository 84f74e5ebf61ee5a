"""The errata of the field: every entry computes, and says what the reference data says."""

from __future__ import annotations

import re
from typing import Any

import pytest
from reference.cases import cases

from infrabook.errata import DISAGREEMENTS

SHOWN = {entry.who: entry for entry in DISAGREEMENTS}

# entry -> the quantities of a reference case that its computed text has to contain, in order
CASES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "QLoRA, section 1": ("memory", "mem-qlora-65b-fullft", ("12 bytes/param", "16 bytes/param")),
    "Hugging Face accelerate, estimate-memory, FP16 column": (
        "memory", "mem-bytesperparam-accelerate-fp16", ("model states of a 7e9-parameter model",),
    ),
    "Ultra-Scale Playbook": ("memory", "mem-usp-140gb-gib", ("weights GiB",)),
    "ZeRO, section 6.1": (
        "memory", "mem-zero-100b-checkpoints", ("activation checkpoints per GPU without P_a", "number of elements"),
    ),
    "ZeRO, section 3.2, footnote": (
        "memory", "mem-zero-gpt2-15b-activations", ("same config by Korthikanti Eq. 1 (34+5as/h)",),
    ),
    "ZeRO, table 1: a trillion parameters on 1,024 ranks": ("memory", "mem-zero-t1-1000b-n1024", ("P_os", "P_os+g")),
    "DeepSpeed's estimate of a node's memory for ZeRO-2 with offloading": (
        "memory", "mem-ds-zero2-cpu-multinode",
        ("CPU per node by the documentation (4*n_gpus)", "CPU by the code (4*total_gpus)"),
    ),
    "Korthikanti et al., section 4.3": (
        "memory", "mem-korthikanti-22b-extra-terms",
        ("extra (embedding dropout, last LN, logits) relative to 34+5as/h",),
    ),
    "Keras, parameters of an LSTM with 256 units over 128 inputs": (
        "rnn", "rnn-lstm-128-256", ("Keras 3.15 parameters", "PyTorch parameters"),
    ),
    "DeepSeek-V2, abstract": (
        "kv-cache", "kv-deepseek-v2-933",
        ("reduction at equal precision", "reduction with 6-bit V2 cache vs bf16 GQA 67B"),
    ),
    "EleutherAI cookbook, KV cache of Llama-2-70B at 4,097 tokens": (
        "kv-cache", "mem-cookbook-kv-llama2-70b", ("true KV cache",),
    ),
    "FlashAttention, figure 2, work": (
        "flash-attention", "fa-fig2-flops",
        ("standard fwd+bwd = 6 matmuls", "flash fwd+bwd = 7 matmuls (one recomputed)"),
    ),
    "llm-foundry, notes on utilization with FlashAttention": (
        "flash-attention", "fa-hfu-multiplier", ("with full activation checkpointing on top: total/forward",),
    ),
    "PyTorch's FlopCounterMode, fused attention on a CPU": (
        "flash-attention", "fa-flopcounter-pitfall", ("true 4*b*h*s^2*d",),
    ),
}  # fmt: skip


def expected(topic: str, case: str, quantity: str) -> float:
    """The value of one quantity of a case; "weights GiB" where a case has it in two units."""
    for entry in cases(topic)[case]["expected"]:
        if quantity in (entry["quantity"], f"{entry['quantity']} {entry['unit']}"):
            return float(entry["value"])
    raise LookupError(f"{case} has no quantity {quantity!r}")


def numbers(text: str) -> list[tuple[float, int]]:
    """(value, decimals) of the numbers in a text."""
    found = re.findall(r"(?<![\w.])(\d[\d,]*)(\.\d+)?", text)
    return [(float(whole.replace(",", "") + part), max(len(part) - 1, 0)) for whole, part in found]


@pytest.mark.parametrize("entry", DISAGREEMENTS, ids=lambda entry: entry.who)
def test_every_entry_computes_and_says_what_was_printed(entry: Any) -> None:
    assert re.search(r"\d", entry.computed())
    assert entry.computed() == entry.computed()
    assert re.search(r"\d", entry.printed)
    assert entry.reconciles.endswith(".")
    assert entry.printed not in entry.computed()


@pytest.mark.parametrize("who", CASES)
def test_computed_text_holds_the_numbers_of_the_reference_case(who: str) -> None:
    topic, case, quantities = CASES[who]
    shown = numbers(SHOWN[who].computed())
    for quantity in quantities:
        wanted = expected(topic, case, quantity)
        near = [value for value, decimals in shown if abs(value - wanted) <= 0.5 * 10**-decimals + 0.005 * abs(wanted)]
        assert near, f"{quantity}: {wanted} is not in {SHOWN[who].computed()!r}"


def test_printed_text_holds_what_the_reference_case_says_was_published() -> None:
    for who, (topic, case, _) in CASES.items():
        values = [number for row in cases(topic)[case].get("published", []) for number, _ in numbers(str(row["value"]))]
        printed = [number for number, _ in numbers(SHOWN[who].printed)]
        if values and who != "ZeRO, section 3.2, footnote":  # there the case quotes the rule, the entry its result
            assert set(values) & set(printed), f"{who}: {values} against {printed}"


def test_conventions_of_deepspeeds_estimators_and_of_gpt_2() -> None:
    states = numbers(SHOWN["DeepSpeed's estimators for ZeRO-2 and ZeRO-3"].computed())
    assert [value for value, _ in states[:2]] == [20 * 7, 18 * 7]
    gpt2 = [value for value, _ in numbers(SHOWN["GPT-2's paper"].computed())]
    params = [expected("params", f"params-{name}", "total parameters") for name in ("gpt2", "gpt2-medium")]
    assert gpt2 == params
    per_token = expected("kv-cache", "kv-opt-13b", "bytes per token")
    assert SHOWN["vLLM paper"].computed().startswith(f"{per_token / 1024:,.0f} KiB")


def test_words_are_about_numbers_and_never_about_people() -> None:
    for entry in DISAGREEMENTS:
        words = entry.reconciles.lower()
        assert not re.search(
            r"\b(wrong|mistake\w*|sloppy|careless|error|fail\w*|bug|they forgot|incorrect)\b", words
        ), words
