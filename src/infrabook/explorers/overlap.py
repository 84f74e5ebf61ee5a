"""When gradients travel while others are still being computed, and what is left to wait for."""

from __future__ import annotations

from html import escape

from .. import hardware, models
from ..charts import Span, gantt
from ..explore import Choice, Number, explore, number
from ..parallel import ddp
from ..units import MIB, percent, show
from .views import plain

DENSE = [
    name for name in models.names() if models.get(name).moe is None and models.get(name).mla is None
]  # experts have no order of registration here
ALGORITHMS = {"ring": "ring", "recursive halving and doubling": "halving-doubling"}


@explore(
    model=Choice(DENSE),
    dtype=Choice({"BF16": "bf16", "FP32": "fp32"}, label="gradients in"),
    tokens=Number.doubling(256, 131_072, unit="tokens", label="tokens a GPU and pass"),
    rate=Number(1, 2500, unit="TFLOP/s", label="rate of computing"),
    accumulation=Number(1, 64, label="passes a step"),
    ranks=Number.among([2, 4, 8, 16, 32, 64, 128, 256, 512, 1024], label="GPUs"),
    link=Choice([link.name for link in hardware.links()]),
    latency=Number(0, 100, 0.1, unit="µs", label="latency of one message"),
    algorithm=Choice(ALGORITHMS, label="all-reduce by"),
    cap=Number.among([1, 5, 25, 50, 100, 200, 400, 800, 1600, 16_000], unit="MiB", label="bucket"),
)
def overlapped(
    model: str = "llama-2-7b", dtype: str = "bf16", tokens: int = 16_384, rate: int = 495, accumulation: int = 1,
    ranks: int = 8, link: str = "infiniband-ndr", latency: float = 14.0, algorithm: str = "ring", cap: int = 25,
) -> str:  # fmt: skip
    """One training step under data parallelism."""
    registered = ddp.gradients(models.get(model), dtype)
    cuts = {
        "by bucket": ddp.buckets(registered, cap_bytes=None if cap * MIB == ddp.BUCKET_CAP else cap * MIB),
        "all at once": ddp.one_bucket(registered),
    }
    steps = {
        name: ddp.step(
            registered, cut, tokens=tokens, flop_per_s=rate * 10**12, ranks=ranks, accumulation=accumulation,
            algorithm=algorithm, latency_s=latency / 10**6, bandwidth_bytes_per_s=hardware.link(link).bytes_per_s,
        )
        for name, cut in cuts.items()
    }  # fmt: skip
    one, whole = steps["by bucket"], steps["all at once"]
    ms = {name: (1e3 * float(step.exposed_s), 1e3 * float(step.step_s)) for name, step in steps.items()}
    begin = one.compute_s - one.forward_s - one.backward_s
    before = [Span(0, 1e3 * float(begin), "forward", "passes before", 0.5)] if begin else []
    middle = 1e3 * float(begin + one.forward_s)
    compute = [
        *before,
        Span(1e3 * float(begin), middle, "forward", "forward"),
        Span(middle, 1e3 * float(one.compute_s), "backward", "backward"),
    ]
    rows = [("GPU", compute)] + [
        (name, [Span(1e3 * float(t.start_s), 1e3 * float(t.end_s), "communication") for t in step.travels])
        for name, step in steps.items()
    ]
    largest = max(one.travels, key=lambda travel: travel.bucket.nbytes).bucket
    exposed = plain(ms["by bucket"][0])
    picture = gantt(
        rows, title=f"{exposed} ms exposed by bucket, {plain(ms['all at once'][0])} ms all at once", unit="ms",
        end=max(end for _, end in ms.values()),
    )  # fmt: skip
    return (
        f'<p class="explorer-answer">{number(f"{exposed} ms", one.exposed_s)} of {plain(ms["by bucket"][1])} ms are '
        f"spent waiting for gradients: {percent(one.exposed_s, one.step_s)}. All at once, it would be "
        f"{plain(ms['all at once'][0])} of {plain(ms['all at once'][1])} ms.</p>{picture}"
        f'<p class="explorer-note">{len(one.travels):,} buckets, the largest {show(largest.nbytes, "MiB", 1)} '
        f"with {escape(largest.gradients[-1].name)} in it; {plain(1e3 * float(one.communication_s))} ms on the wire "
        f"by bucket, {plain(1e3 * float(whole.communication_s))} ms all at once.</p>"
    )
