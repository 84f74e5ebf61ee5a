"""The roof above an operation: which of a GPU's two limits it meets, and where it stands below them."""

from __future__ import annotations

from fractions import Fraction
from html import escape

from .. import charts, hardware, models, roofline
from ..errors import InfrabookError
from ..explore import Choice, Number, explore, number
from ..units import percent, scaled
from .ledger import GPUS
from .views import an, plain

OPERATIONS = {
    "feed-forward product": "gemm",
    "attention": "attention",
    "RMSNorm": "norm",
    "look-up of the embedding": "embedding",
    "optimizer step": "adam",
}
DTYPES = ("bf16", "fp16", "fp8", "tf32", "fp32")


def kernel(operation: str, model: str, tokens: int, batch: int, context: int, dtype: str) -> roofline.Kernel:
    """The operation of one layer of ``model``, for ``batch`` sequences of ``tokens`` new tokens each."""
    m = models.get(model)
    if operation == "gemm":
        return roofline.gemm(batch * tokens, m.hidden, m.ffn, dtype=dtype)
    if operation == "attention":
        return roofline.attention(
            batch=batch, queries=tokens, keys=context + tokens, heads=m.heads, kv_heads=m.kv_heads,
            head_dim=m.head_dim, dtype=dtype,
        )  # fmt: skip
    if operation == "norm":
        return roofline.norm(batch * tokens, m.hidden, dtype=dtype)
    if operation == "embedding":
        return roofline.embedding(batch * tokens, m.hidden, dtype=dtype)
    return roofline.adam_step(m.hidden * m.ffn)


@explore(
    operation=Choice(OPERATIONS),
    gpu=Choice(GPUS, label="GPU"),
    dtype=Choice(list(DTYPES)),
    model=Choice([name for name in models.names() if name.startswith(("gpt", "llama", "qwen2.5", "mistral"))]),
    batch=Number.doubling(1, 1024, unit="sequences"),
    tokens=Number.doubling(1, 32_768, label="new tokens in each", unit="tokens"),
    context=Number.doubling(1, 131_072, label="tokens in the cache", unit="tokens"),
)
def roof(
    operation: str = "gemm", gpu: str = "h100-sxm", dtype: str = "bf16", model: str = "llama-3-8b", batch: int = 12,
    tokens: int = 1, context: int = 4096,
) -> str:  # fmt: skip
    """The roof above an operation of one layer."""
    card = hardware.gpu(gpu)
    if not any(peak.dtype == dtype for peak in card.peaks):
        have = ", ".join(dict.fromkeys(peak.dtype for peak in card.peaks if peak.dtype in DTYPES))
        raise InfrabookError(f"{card.variant} has no {dtype} units; it has {have}")
    accumulate = "fp32" if any(p.dtype == dtype and p.accumulate == "fp32" for p in card.peaks) else "fp16"
    one = kernel(operation, model, tokens, batch, context, "fp32" if dtype == "tf32" else dtype)
    found = roofline.bound(one, card, dtype=dtype, accumulate=accumulate)
    words = next(words for words, name in GPUS.items() if name == gpu)
    said = next(said for said, name in OPERATIONS.items() if name == operation)
    waits = "the memory" if found.limit == "memory" else "the arithmetic"
    share = percent(found.peak_share, 1, 2 if found.peak_share < Fraction(1, 50) else 1)
    needed = found.peak_flop_per_s / Fraction(found.bandwidth_bytes_per_s)
    title = f"{said}: {plain(float(one.intensity))} FLOP a byte, below the roof of {an(words)}"
    plot = charts.roofline(
        float(found.peak_flop_per_s), float(found.bandwidth_bytes_per_s), {said: float(one.intensity)}, title=title,
        note=f"{dtype}, FLOP/s",
    )  # fmt: skip
    return (
        f'<p class="explorer-answer">{number(share, found.peak_share)} of the peak of {escape(an(words))} is the most '
        f"that this {escape(said)} can reach. It waits for {waits}.</p>{plot}"
        f'<p class="explorer-note">{scaled(one.flop, "FLOP")} and {scaled(one.nbytes, "B")} moved: '
        f"{plain(float(one.intensity))} FLOP a byte, where {plain(float(needed))} would be needed to keep the "
        "arithmetic busy.</p>"
    )
