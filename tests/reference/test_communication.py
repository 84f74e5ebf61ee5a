"""Reference cases of communication: nccl-tests' factors, ZeRO's volumes, tensor parallelism's counts, playbooks."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from infrabook import collectives, models, recipes
from infrabook.models import Transformer
from infrabook.parallel import ddp, pipeline, tensor, zero
from infrabook.units import MIB, TB, TIB

from .cases import cases, passes

CASES = cases("communication")
Inputs = dict[str, Any]
Found = dict[str, Any]
OPS = {"all_reduce": "all-reduce", "all_gather": "all-gather", "reduce_scatter": "reduce-scatter",
       "alltoall": "all-to-all", "broadcast": "broadcast", "reduce": "reduce"}  # fmt: skip


def bus(i: Inputs) -> Found:
    return {f"busbw/algbw n={n}": collectives.bus_factor(OPS[i["op"]], ranks=n) for n in i["n"]}


def ring(i: Inputs) -> Found:
    done = collectives.plan("all-reduce", ranks=i["n"])
    sent = collectives.run(done, [[1.0] * i["elements"]] * i["n"]).sent
    assert len(set(sent)) == 1
    return {"steps": len(done.steps), "elements sent per rank": sent[0]}


def defaults(i: Inputs) -> Found:
    return {"first bucket": ddp.FIRST_BUCKET, "bucket_cap_mb default": ddp.BUCKET_CAP // MIB, "bytes": ddp.BUCKET_CAP}


def gpt2_buckets(i: Inputs) -> Found:
    sizes = [bucket.nbytes for bucket in ddp.buckets(ddp.gradients(models.get("gpt2")))]
    return {
        "number of buckets": len(sizes), "first bucket": sizes[0], "typical bucket": sizes[1],
        "last bucket (contains wte 50257x768)": sizes[-1], "sum = 4*124,439,808": sum(sizes),
    }  # fmt: skip


def gpt2_sent(i: Inputs) -> Found:
    sent = collectives.bytes_sent("all-reduce", size_bytes=i["params"] * i["bytes"], ranks=i["n"])
    return {"bytes sent per GPU per step (ring)": sent}


def volume(stage: int) -> Callable[[Inputs], Found]:
    """In elements of the model: bytes over two bytes an element. The limit of many ranks is ``PASSES``."""

    def found(i: Inputs) -> Found:
        psi = 64 * 10**6
        sent = zero.traffic(psi, zero.Sharding(stage, ranks=64)).total
        return {"volume per rank": zero.PASSES[stage], "exact for n=64": Fraction(sent) / 2 / psi}

    return found


def zero_r(i: Inputs) -> Found:
    """Six all-reduces of b·s·h; partitioned activations add one all-gather. In units of s·h, for many ranks."""
    gpt = Transformer("gpt", 1, 64, 8, 8, 8, 256, 100, 32, gated=False, norm="layernorm")
    calls = tensor.layer_calls(gpt, sequence=32, dtype="fp8", recomputation="full")
    limit = {"all-reduce": 2, "all-gather": 1}
    total = sum(limit[call.op] * Fraction(call.nbytes) for call in calls) / (32 * 64)
    return {"total per block": total, "P_a overhead (one all-gather)": 100 * limit["all-gather"] / total}


def tensor_counts(i: Inputs) -> Found:
    calls = tensor.layer_calls(
        Transformer("a layer", 1, 128, 8, 8, 16, 512, 100, 64, gated=False), batch=2, sequence=64, dtype="fp32"
    )
    (size,) = {call.nbytes for call in calls}
    return {
        "all-reduce forward": tensor.counted(calls, "forward")["all-reduce"],
        "all-reduce forward+backward": tensor.counted(calls)["all-reduce"],
        "bytes per all-reduce (b=2,s=64,h=128,fp32)": size,
    }


def sequence_counts(i: Inputs) -> Found:
    calls = tensor.layer_calls(
        Transformer("a layer", 1, 128, 8, 8, 16, 512, 100, 64, gated=False), sequence=64, sequence_parallel=True
    )
    once, both = tensor.counted(calls, "forward"), tensor.counted(calls)
    return {
        "all-gather forward": once["all-gather"], "reduce-scatter forward": once["reduce-scatter"],
        "all-gather fwd+bwd": both["all-gather"], "reduce-scatter fwd+bwd": both["reduce-scatter"],
    }  # fmt: skip


def gpt3_bytes(i: Inputs) -> Found:
    gpt3 = Transformer("gpt-3", 96, i["h"], 96, 96, 128, 4 * i["h"], 51200, 2048, gated=False, norm="layernorm")
    sent = tensor.bytes_sent(tensor.layer_calls(gpt3, batch=i["b"], sequence=i["s"]), i["t"])
    return {"elements": sent / i["bytes_per_element"], "bytes": sent}


def between_stages(i: Inputs) -> Found:
    whole = pipeline.message_bytes(hidden=i["h"], sequence=i["s"], batch=i["b"], element_bytes=i["bytes"])
    return {
        "per microbatch per boundary per direction": whole,
        "with scatter/gather over t=8": Fraction(whole, i["t"]),
    }


def experts(i: Inputs) -> Found:
    """Every rank sends its tokens to their experts and back, forward and backward: four all-to-alls."""
    size = i["tokens_per_rank"] * i["top_k"] * i["h"] * i["bytes"]
    once = collectives.bytes_sent("all-to-all", size_bytes=size, ranks=i["ep"])
    return {"dispatch bytes sent per rank": once, "dispatch+combine forward": 2 * once, "forward+backward": 4 * once}


def checkpoint(i: Inputs) -> Found:
    kept = recipes.states(1_008 * 10**9)
    whole = Fraction(kept.total) - kept.of("gradients")
    return {"checkpoint of the 1T model at 14 bytes/param": whole / TB, "in TiB": whole / TIB}


def playbook_dp(i: Inputs) -> Found:
    size = int(i["num_params"] * i["bytes_per_grad"])
    travel = collectives.time_s(
        "all-reduce", size_bytes=size, ranks=i["dp"], bandwidth_bytes_per_s=int(i["bus_bw_bytes_per_s"])
    )
    work = Fraction(4 * i["tokens_per_gpu"] * int(i["num_params"]), int(i["peak_flops"]))
    return {
        "t_comm = 2 P b (n-1)/n / bw": 1000 * travel,
        "t_compute backward = 4 T P / F": 1000 * work,
        "t_comm/t_compute = bytes/(2T) x (n-1)/n x F/bw": travel / work,
    }


def playbook_block(i: Inputs) -> Found:
    elements = 16 * i["h"] ** 2
    one = collectives.bytes_sent("all-gather", size_bytes=elements, ranks=i["dp"])
    block = zero.traffic(elements, zero.Sharding(3, ranks=i["dp"])).total
    printed = Fraction(3 * elements, i["dp"])
    return {
        "elements in one all-gather received per rank, 16h^2 (n-1)/n": one,
        "bytes": one * i["bytes"],
        "per block: 2 all-gathers + 1 reduce-scatter": block,
        "the printed 3*16h^2/DP": printed,
        "ratio true/printed in elements = n-1": Fraction(block) / i["bytes"] / printed,
    }


def playbook_zero3(i: Inputs) -> Found:
    """One layer's all-gather against its forward pass: 2 FLOP a weight and token."""
    weights, tokens = 10**6, i["seq"] * i["mbs"]

    def ratio(size: int) -> Fraction:
        travel = collectives.time_s(
            "all-gather", size_bytes=weights * size, ranks=i["dp"], bandwidth_bytes_per_s=int(i["bus_bw_bytes_per_s"])
        )
        return travel / Fraction(2 * weights * tokens, int(i["peak_flops"]))

    return {"t_comm/t_compute with bytes = 2": ratio(i["bytes"]), "as printed (element = 1 byte)": ratio(1)}


def playbook_tp(i: Inputs) -> Found:
    def ratio(dtype: str) -> Fraction:
        return tensor.exposure(
            i["h"], degree=i["tp"], peak_flop_per_s=int(i["peak_flops"]),
            bandwidth_bytes_per_s=int(i["bus_bw_bytes_per_s"]), op="all-gather", dtype=dtype,
        )  # fmt: skip

    return {
        "all-gather / next linear (h^2) with 2-byte elements": ratio("bf16"),
        "as printed: (TP-1)/(2h) x F/bw": ratio("fp8"),
    }


HOW: dict[str, Callable[[Inputs], Found]] = {
    **{name: bus for name in CASES if name.startswith("comm-nccl-busbw")},
    "comm-ring-allreduce-simulated": ring, "comm-ddp-defaults": defaults, "comm-ddp-gpt2-buckets": gpt2_buckets,
    "comm-ddp-allreduce-gpt2": gpt2_sent, "comm-zero-volume-dp": volume(0), "comm-zero-volume-zero1-2": volume(2),
    "comm-zero-volume-zero3": volume(3), "comm-zero-r-block": zero_r, "comm-tp-allreduce-count": tensor_counts,
    "comm-tp-sp-count": sequence_counts, "comm-tp-bytes-gpt3-t8": gpt3_bytes, "comm-pp-p2p": between_stages,
    "comm-moe-all2all": experts, "comm-megatron-bisection": checkpoint, "comm-usp-dp-overlap": playbook_dp,
    "comm-usp-zero3-per-block": playbook_block, "comm-usp-zero3-overlap": playbook_zero3,
    "comm-usp-tp-overlap": playbook_tp,
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    found = HOW[name](CASES[name]["inputs"])
    for expected in CASES[name]["expected"]:
        assert passes(expected, found[expected["quantity"]]), (expected, found)


def test_every_case_is_expressed() -> None:
    assert set(HOW) == set(CASES)
