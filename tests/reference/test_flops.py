"""Reference cases of work and utilization: papers' tables, courses' lists, training codes' formulas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from infrabook import flops, models, parameters
from infrabook.models import Transformer

from .cases import cases, passes

CASES = cases("flops") | cases("mfu")
Inputs = dict[str, Any]
T = 10**12

EXCUSED: dict[str, str] = {
    "mfu-korthikanti-530b-2240": "a ratio of two measured iteration times; no work is computed",
    "mfu-korthikanti-appendix-c": "a subtraction of two printed percentages",
    "flops-deepseek-v3-cost": "GPU hours times dollars; no work is computed",
    "flops-mosaic-embed-bug": "reproduces a script that mixes a sequence's and a token's work",
}
EXCUSED_QUANTITIES: dict[tuple[str, str], str] = {
    ("mfu-llama3-t4-8k", "tp*cp*pp*dp"): "a product of a layout's sizes, which the layout search will have",
    ("mfu-llama3-t4-16k", "tp*cp*pp*dp"): "a product of a layout's sizes, which the layout search will have",
    ("mfu-llama3-t4-16k-131k", "tp*cp*pp*dp"): "a product of a layout's sizes, which the layout search will have",
    ("mfu-palm-540b", "HFU from 4.10/3.28 TFLOP/token"): "takes two printed roundings as its inputs",
}


def gpt(layers: int, hidden: int, heads: int, *, vocab: int = 50257, ffn: int = 0, context: int = 1024) -> Transformer:
    """A GPT of these dimensions."""
    return Transformer(
        "case", layers, hidden, heads, heads, hidden // heads, ffn or 4 * hidden, vocab, context, gated=False,
        norm="layernorm", norm_bias=True, positions="learned", tied=True, qkv_bias=True, out_bias=True, ffn_bias=True,
    )  # fmt: skip


def llama(i: Inputs) -> Transformer:
    """A Llama of a case's dimensions."""
    layers, hidden = i.get("n_layer") or i["num_layers"], i.get("d_model") or i["hidden"]
    heads, kv = i.get("n_head") or i["heads"], i.get("n_kv_head") or i["kv_heads"]
    ffn = i.get("d_ff") or i["ffn"]
    return Transformer("case", layers, hidden, heads, kv, hidden // heads, ffn, i["vocab"], i["seq"])


def share(account: Any, *names: str) -> Fraction:
    return 100 * sum((account.share(name) for name in names), Fraction())


SCORES = (flops.SCORES, flops.VALUES)
FFN = ("feed-forward gate", "feed-forward up", "feed-forward down")
PROJECTIONS = tuple(f"attention {name}" for name in ("query", "key", "value", "output"))


def gpt2(i: Inputs) -> Inputs:
    found = models.get({"GPT-2 medium": "gpt2-medium", "GPT-2 xl": "gpt2-xl"}[i["model"]])
    account = flops.forward(found, sequence=i["seq"])
    return {
        "forward": account.total,
        "forward+backward": flops.training(found, sequence=i["seq"]).total,
        "attention-score share (QK^T+AV)": share(account, *SCORES),
        "lm_head share": share(account, "head"),
    }


def nanogpt(i: Inputs) -> Inputs:
    found = models.get("gpt2")
    account = flops.forward(found, sequence=i["seq"])
    bare = replace(
        found, norm_bias=False, qkv_bias=False, out_bias=False, ffn_bias=False
    )  # nanoGPT's notebook counts without biases
    without_positions = parameters.count(bare, positions=False).total
    return {
        "QKV per layer": sum(account[name] for name in PROJECTIONS[:3]) // 12,
        "scores per layer": account[flops.SCORES] // 12,
        "values per layer": account[flops.VALUES] // 12,
        "proj per layer": account["attention output"] // 12,
        "mlp per layer": (account["feed-forward up"] + account["feed-forward down"]) // 12,
        "lm_head": account["head"],
        "forward": account.total,
        "forward+backward": flops.training(found, sequence=i["seq"]).total,
        "PaLM formula 6N+12LHQT (N without wpe)": 1024 * (6 * without_positions + 12 * 12 * 768 * 1024),
    }


def nanogpt_mfu(i: Inputs) -> Inputs:
    rate = Fraction(i["seqs"] * 1024) / Fraction(str(i["time_s"]))
    mfu = flops.utilization(
        Fraction(i["flops_per_seq"], 1024), tokens_per_s=rate, gpus=1, peak_flop_per_s=int(i["peak"])
    )
    seconds = flops.training_seconds(
        6 * 124_337_664 * 300 * 10**9, gpus=8, flop_per_s_per_gpu=Fraction(3, 10) * int(i["peak"])
    )
    return {"MFU": 100 * mfu, "6ND days: N=124,337,664 D=300e9 on 8 A100 at 30%": seconds / 86400}


def gpt2_long(i: Inputs) -> Inputs:
    found = models.get("gpt2-xl")
    long, short = (flops.forward(found, sequence=s) for s in (i["seq"], 1024))
    return {
        "forward": long.total,
        "ratio to seq 1024": Fraction(long.total, short.total),
        "attention-score share": share(long, *SCORES),
    }


def cs336(i: Inputs) -> Inputs:
    heads = i["d_model"] // 64
    found = Transformer("case", i["n_layer"], i["d_model"], heads, heads, 64, i["d_ff"], i["vocab"], i["seq"])
    account = flops.forward(found, sequence=i["seq"])
    layers = i["n_layer"]
    return {
        "forward": account.total,
        "FFN share": share(account, *FFN),
        "attention projections share": share(account, *PROJECTIONS),
        "per layer QKV": sum(account[name] for name in PROJECTIONS[:3]) // layers,
        "per layer output proj": account["attention output"] // layers,
        "per layer QK^T": account[flops.SCORES] // layers,
        "per layer SwiGLU FFN (3 matmuls)": sum(account[name] for name in FFN) // layers,
        "lm_head": account["head"],
    }


def cs336_days(i: Inputs) -> Inputs:
    def days(forward: int) -> Fraction:
        rate = Fraction(str(i["mfu"])) * int(i["peak"])
        work = 3 * forward * i["steps"] * i["batch"]
        return flops.training_seconds(work, gpus=1, flop_per_s_per_gpu=rate) / 86400

    return {
        "days (SwiGLU shape)": days(int(flops.forward(_cs336_xl(), sequence=1024).total)),
        "days (2-matrix MLP)": days(int(flops.forward(models.get("gpt2-xl"), sequence=1024).total)),
    }


def _cs336_xl() -> Transformer:
    return Transformer("case", 48, 1600, 25, 25, 64, 6400, 50257, 1024)


def llama3(i: Inputs) -> Inputs:
    found = llama(i)

    def by(name: str) -> Any:
        return flops.per_token(found, sequence=i["seq"], convention=name)

    return {
        "forward": flops.forward(found, batch=i["batch"], sequence=i["seq"]).total,
        "forward+backward per token": by("every product"),
        "6N per token (all parameters)": by("6N"),
        "torchtitan: 6(N-embedding)+6*L*H*(2*hd)*T": by("torchtitan"),
        "PaLM/llm-foundry: 6N+12LHQT": by("PaLM"),
        "Megatron-LM current code (causal half): 6*matmul weights + 6*L*h*S": by("Megatron-LM"),
    }


def crossovers(i: Inputs) -> Inputs:
    def at(**changes: Any) -> Fraction:
        base = Transformer("case", 4, 1024, 8, 8, 128, 4096, 1000, 1024, gated=False)
        return flops.crossover(replace(base, **changes)) / 1024

    one = flops.forward(Transformer("case", 1, 1024, 8, 8, 128, 4096, 1000, 1024), sequence=1, head=False)
    projections = sum(Fraction(one[name]) for name in PROJECTIONS)
    return {
        "GPT-2 style MLP (2 matrices, 4h): score FLOPs = projection+MLP FLOPs at T =": at(),
        "gated MLP with F=4D (3 matrices): T =": at(gated=True),
        "QKVO only: T =": projections / sum(Fraction(one[name]) for name in SCORES) / 1024,
        "Llama ratio F=3.5D, kv=1/4: T =": at(gated=True, ffn=3584, kv_heads=2),
    }


def kaplan(i: Inputs) -> Inputs:
    account = flops.forward(gpt(i["n_layer"], i["d_model"], 96, context=2048), sequence=i["n_ctx"])
    scores = Fraction(account[flops.SCORES], i["n_ctx"])
    return {
        "Kaplan C_fwd attention term 2*L*n_ctx*d": scores,
        "full QK^T + AV 4*L*n_ctx*d (PaLM/Megatron)": scores + Fraction(account[flops.VALUES], i["n_ctx"]),
    }


def palm(i: Inputs) -> Inputs:
    attention = 12 * i["L"] * i["H"] * i["Q"] * i["T"]
    machine = {"tokens_per_s": Fraction(i["tokens_per_s"]), "gpus": i["chips"], "peak_flop_per_s": int(i["peak"])}
    return {
        "MFU without attention": 100 * flops.utilization(6 * int(i["N"]), **machine),
        "MFU with attention": 100 * flops.utilization(6 * int(i["N"]) + attention, **machine),
        "attention FLOPs per token": attention,
    }


def mtnlg(i: Inputs) -> Inputs:
    rate = Fraction(1920 * 2048) / Fraction("60.1")
    attention = 12 * i["L"] * i["h"] * i["T"]
    machine = {"tokens_per_s": rate, "gpus": i["gpus"], "peak_flop_per_s": int(i["peak"])}
    return {
        "tokens/s": rate / 1000,
        "MFU without attention": 100 * flops.utilization(6 * int(i["N"]), **machine),
        "MFU with attention": 100 * flops.utilization(6 * int(i["N"]) + attention, **machine),
    }


def korthikanti(i: Inputs) -> Inputs:
    sizes = {"batch": i["global_batch"], "sequence": i["seq"], "layers": i["layers"], "hidden": i["hidden"]}
    possible = i["gpus"] * int(i["peak"]) * Fraction(str(i["iteration_time_s"]))
    work = flops.megatron_step(**sizes, vocab=i["vocab"])
    printed = flops.megatron_step(**sizes, vocab=i["vocab"], recomputation="selective, as printed")
    return {
        "MFU": 100 * work / possible,
        "HFU (selective recompute)": 100 * printed / possible,
        "model FLOPs per iteration": work,
    }


def megatron_full(i: Inputs) -> Inputs:
    sizes = {"batch": i["B"], "sequence": i["s"], "layers": i["l"], "hidden": i["h"], "vocab": i["V"]}
    full, none = (flops.megatron_step(**sizes, recomputation=how) for how in ("full", "none"))
    inside = full - 6 * i["B"] * i["s"] * i["h"] * i["V"]
    return {"FLOPs per iteration, 1T model": full, "share of recomputation": 100 * (full - none) / inside}


def megatron_time(i: Inputs) -> Inputs:
    work = 8 * int(i["tokens"]) * int(i["P"])
    return {"training time": flops.training_seconds(work, gpus=i["n"], flop_per_s_per_gpu=int(i["X"])) / 86400}


def megatron_table_2(i: Inputs) -> Inputs:
    """The days follow from the achieved rate and the formula of the whole step, full recomputation included."""
    sizes = {"sequence": 2048, "layers": i["layers"], "hidden": i["hidden"], "vocab": 51200}
    per_sequence = flops.megatron_step(batch=1, **sizes, recomputation="full")
    work = per_sequence * int(i["tokens"]) / 2048
    rate = i["tflops_per_gpu"] * T
    return {"days for 300B tokens": flops.training_seconds(work, gpus=i["gpus"], flop_per_s_per_gpu=rate) / 86400}


def gpt3_table(i: Inputs) -> Inputs:
    work = Fraction(str(i["params_M"])) * 10**6 * i["tokens_B"] * 10**9 * i["flops_per_param_token"]
    return {"training FLOPs": work, "PF-days (8.64e19)": work / Fraction(864, 10) / 10**18}


def chinchilla(i: Inputs) -> Inputs:
    """Appendix F's list: five products of h by a·k a layer (keys are projected from relative positions too)."""
    found = Transformer(
        "case", i["num_layers"], i["d_model"], i["heads"], i["heads"], i["kq"], i["ffw"], i["vocab_ASSUMED"],
        i["seq_ASSUMED"], gated=False, norm="rmsnorm", norms_per_layer=0, tied=True,
    )  # fmt: skip
    s = i["seq_ASSUMED"]
    softmax = 3 * i["heads"] * s * s * i["num_layers"]
    relative = i["num_layers"] * i["d_model"] * i["heads"] * i["kq"]
    account = flops.forward(found, sequence=s, head=False)
    count = parameters.count(found, final_norm=False).total + relative
    training = 3 * (Fraction(account.total) + softmax)
    ends = 3 * 4 * s * i["vocab_ASSUMED"] * i["d_model"]
    return {
        "FLOPs/(6ND), embedding and logits FLOPs EXCLUDED": training / (6 * Fraction(count) * s),
        "parameters incl. 32k embedding and one relative-position matrix per layer": count,
        "ratio if Appendix F is followed literally (2Vd embedding + 2Vd logits)": (training + ends)
        / (6 * Fraction(count) * s),
    }


def six_n_d(i: Inputs) -> Inputs:
    work = 6 * int(i["N"]) * int(i["D"])
    found: Inputs = {"6ND": work if "gopher" in i["id"] else Fraction(work, 10**21)}
    if i["id"] == "flops-llama3-405b":
        seconds = Fraction(i["gpu_hours"]) * 3600
        found = {
            "6ND": work,
            # the averages divide the printed 3.8e25, not 6ND
            "average model TFLOP/s per GPU over 30.84M h": 38 * 10**24 / seconds / T,
            "average MFU over all GPU hours": 38 * 10**26 / seconds / int(i["peak"]),
        }
    return found


def llama3_table_4(i: Inputs) -> Inputs:
    tokens = i["dp"] * i["batch_per_dp"] * i["seq"]
    if i["id"].endswith("131k"):
        tokens = i["dp"] * i["batch_per_dp"] * i["seq"]
    mfu = flops.utilization(1, tokens_per_s=i["tflops"] * T, gpus=1, peak_flop_per_s=int(i["peak_bf16"]))
    return {"tokens per batch": tokens, "MFU": 100 * mfu}


def deepseek(i: Inputs) -> Inputs:
    v3 = models.get("deepseek-v3")
    weights = 6 * int(parameters.active(v3, embedding=False).total)

    def attention(how: flops.Causal) -> Fraction:
        account = flops.forward(v3, sequence=i["seq"], causal=how)
        return 3 * (Fraction(account[flops.SCORES]) + account[flops.VALUES]) / i["seq"]

    return {
        "DeepSeek-V3 training FLOPs per token (causal half attention)": (weights + attention("half")) / 10**9,
        "with full attention": (weights + attention("full")) / 10**9,
    }


def scaling_book_deepseek(i: Inputs) -> Inputs:
    work = 6 * int(i["active"]) * int(i["tokens"])
    seconds = int(i["hours"]) * 3600

    def at(peak: int) -> Fraction:
        return Fraction(100 * work, seconds * peak)

    return {
        "utilisation with H800 PCIe FP8 peak 1.513e15 (their number)": at(1_513 * T),
        "with the SXM FP8 dense peak 1.979e15": at(1_979 * T),
        "with BF16 dense 989e12": at(989 * T),
    }


def vocabulary_row(i: Inputs) -> Inputs:
    return {"unembedding matmul train FLOPs": 3 * flops.matmul(i["B"] * i["T"], i["D"], i["V"])}


def mosaic(i: Inputs) -> Inputs:
    per_token = 6 * i["n_params"] + 12 * i["n_layer"] * i["d_model"] * i["seq"]
    machine = {"tokens_per_s": i["tokens_per_s"], "gpus": i["gpus"], "peak_flop_per_s": int(i["peak_bf16"])}
    mfu = 100 * flops.utilization(per_token, **machine)
    return {"MFU = (6N+12LdT)*tok/s/(gpus*peak)": mfu, "HFU": mfu * Fraction(4, 3)}


def nanotron(i: Inputs) -> Inputs:
    work = flops.training(llama(i), batch=i["batch"], sequence=i["seq"]).total
    return {"model FLOPs, forward+backward": work, "hardware FLOPs returned": work}


def playbook(i: Inputs) -> Inputs:
    block = Transformer("case", 1, i["h"], 32, 32, i["h"] // 32, 4 * i["h"], 1000, i["s"])
    account = flops.forward(block, sequence=i["s"], head=False)
    quadratic = sum(Fraction(account[name]) for name in SCORES)
    return {"12 L h s^2 / (6 s L 16 h^2) = s/(8h)": quadratic / (Fraction(account.total) - quadratic)}


HOW: tuple[tuple[str, Callable[[Inputs], Inputs]], ...] = (
    ("flops-gpt2-124m-nanogpt", nanogpt),
    ("flops-nanogpt-mfu", nanogpt_mfu),
    ("flops-gpt2-xl-16k", gpt2_long),
    ("flops-gpt2-", gpt2),
    ("flops-cs336-adamw", cs336_days),
    ("flops-cs336-", cs336),
    ("flops-llama3-405b", six_n_d),
    ("flops-llama3-", llama3),
    ("flops-attention-crossover", crossovers),
    ("flops-kaplan-", kaplan),
    ("mfu-palm-540b", palm),
    ("mfu-palm-mtnlg", mtnlg),
    ("mfu-korthikanti-", korthikanti),
    ("flops-megatron-eq3", megatron_full),
    ("time-megatron-t2-", megatron_table_2),
    ("time-megatron-", megatron_time),
    ("flops-gpt3-d1-", gpt3_table),
    ("flops-chinchilla-", chinchilla),
    ("flops-gopher-", six_n_d),
    ("flops-6nd-", six_n_d),
    ("mfu-llama3-t4-", llama3_table_4),
    ("flops-deepseek-insights", deepseek),
    ("mfu-scaling-book-deepseek", scaling_book_deepseek),
    ("flops-scaling-book-vocab", vocabulary_row),
    ("mfu-mosaic-", mosaic),
    ("flops-nanotron-", nanotron),
    ("flops-usp-", playbook),
)


@pytest.mark.parametrize("name", [name for name in CASES if name not in EXCUSED])
def test_case(name: str) -> None:
    case = CASES[name]
    how = next(how for start, how in HOW if name.startswith(start))
    found = how(case["inputs"] | {"id": name})
    for expected in case["expected"]:
        quantity = expected["quantity"]
        if (name, quantity) in EXCUSED_QUANTITIES:
            continue
        assert quantity in found, f"{name}: no {quantity!r} in {list(found)}"
        assert passes(expected, found[quantity]), f"{name}: {quantity} is {float(found[quantity])}, not {expected}"


def test_excused_cases_exist() -> None:
    assert set(EXCUSED) <= set(CASES)
    assert {name for name, _ in EXCUSED_QUANTITIES} <= set(CASES)
