"""How much work a model is, matrix product by matrix product: forward, training, recomputation, and MFU.

A product of m × k by k × n is 2mkn FLOP. ``forward`` is the whole list; ``per_token`` states the shortcuts that people
quote, each by name, so that a disagreement is a difference of two functions. ``roofline`` turns work into time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, TypeAlias

from . import parameters
from .errors import InfrabookError
from .ledger import Ledger, Row, ledger
from .models import Transformer
from .units import Exact, exact, positive

Causal: TypeAlias = Literal["full", "half", "exact"]
Recomputation: TypeAlias = Literal["none", "selective", "full"]

SCORES, VALUES = "attention scores", "attention values"


def matmul(m: int, k: int, n: int) -> int:
    """FLOP of an m × k by k × n product: a multiplication and an addition for each of m·k·n pairs.

    >>> matmul(2, 3, 4)
    48
    """
    for name, size in (("m", m), ("k", k), ("n", n)):
        positive(name, size)
    return 2 * m * k * n


def forward(
    model: Transformer, *, batch: int = 1, sequence: int, context: int = 0, causal: Causal = "full", head: bool = True,
    logits: Literal["all", "last"] = "all",
) -> Ledger:  # fmt: skip
    """Every matrix product of a forward pass over ``batch`` × ``sequence`` tokens, in FLOP.

    ``context`` tokens are in the KV cache already (decoding: sequence 1). Attention's two products with s² scores are
    rows of their own: 2·b·s·(context + s)·a·d each a layer. ``causal`` says how they are counted: "full" computes every
    score, as most published counts and PyTorch's counter do; "half" divides by two; "exact" counts the scores below and
    on the diagonal alone. A layer with a sliding window scores at most ``window`` keys a token (never more than full).
    The embedding look-up, norms, biases, softmax and activation functions are no matrix products and count nothing.
    ``head=False`` leaves the logits out, ``logits="last"`` computes them for the last position of each sequence only.

    >>> from infrabook.models import get
    >>> forward(get("gpt2"), sequence=1024).total
    291648307200
    """
    positive("batch", batch)
    positive("sequence", sequence)
    positive("context", context, zero=True)
    if causal not in ("full", "half", "exact"):
        raise InfrabookError(f"causal can be full, half or exact, and is {causal!r}")
    if logits not in ("all", "last"):
        raise InfrabookError(f"logits can be all or last, and is {logits!r}")
    tokens = batch * sequence
    rows = []
    for matrix in parameters.matrices(model):
        if matrix.name == parameters.HEAD:
            continue
        work = 2 * tokens * matrix.used * matrix.inputs * matrix.outputs
        formula = matrix.formula.replace("E·", "k·") if matrix.used != matrix.copies else matrix.formula
        rows.append(Row(matrix.name, work, "weights", f"2·b·s · {formula}"))
        if matrix.name == "attention value" or matrix.name.endswith("value up"):
            rows += _attention(model, batch, sequence, context, causal)
    if not any(row.name == SCORES for row in rows):
        rows += _attention(model, batch, sequence, context, causal)
    if head:
        positions = tokens if logits == "all" else batch
        rows.append(Row("head", 2 * positions * model.hidden * model.vocab, "weights", "2·b·s·h·V"))
    return ledger(f"{model.name}: forward pass, {batch} × {sequence:,} tokens", rows, unit="FLOP")


def training(
    model: Transformer, *, batch: int = 1, sequence: int, causal: Causal = "full", head: bool = True,
    recomputation: Recomputation = "none",
) -> Ledger:  # fmt: skip
    """Forward, backward and recomputation of one step, in FLOP.

    Backward is two products for each of forward's: twice the work. "full" recomputation repeats the layers' forward
    pass, "selective" attention's scores and values alone (Korthikanti et al., arXiv 2205.05198, appendix A).

    >>> from infrabook.models import get
    >>> ledger = training(get("gpt2"), sequence=1024, recomputation="full")
    >>> ledger["backward"] == 2 * ledger["forward"]
    True
    """
    if recomputation not in ("none", "selective", "full"):
        raise InfrabookError(f"recomputation can be none, selective or full, and is {recomputation!r}")
    once = forward(model, batch=batch, sequence=sequence, causal=causal, head=head)
    again: Exact = 0
    if recomputation == "full":
        again = exact(Fraction(once.total) - (once["head"] if head else 0))
    elif recomputation == "selective":
        again = exact(Fraction(once[SCORES]) + once[VALUES])
    rows = (
        Row("forward", once.total, "forward"),
        Row("backward", exact(2 * Fraction(once.total)), "backward_input"),
        Row("recomputation", again, "idle"),
    )
    return ledger(f"{model.name}: one training step, {batch} × {sequence:,} tokens", rows, unit="FLOP")


# -- what people quote -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Shortcut:
    """A formula for FLOP a token of training, by its users. ``work(model, sequence)`` evaluates it."""

    name: str
    formula: str
    work: Callable[[Transformer, int], Exact]
    source: str


def _n(model: Transformer) -> int:
    return int(parameters.active(model).total)


def _in_matrices(model: Transformer) -> int:
    return sum(x.used * x.inputs * x.outputs for x in parameters.matrices(model))


def _attention_width(model: Transformer) -> int:
    return model.layers * model.heads * model.head_dim


SHORTCUTS: dict[str, Shortcut] = {
    s.name: s
    for s in (
        Shortcut("6N", "6·N", lambda m, s: 6 * _n(m), "Kaplan et al. 2020, arXiv 2001.08361; Hoffmann et al. 2022"),
        Shortcut(
            "6N, no embeddings",
            "6·(N without embedding and head)",
            lambda m, s: 6 * int(parameters.active(m, embedding=False, head=False).total),
            "Kaplan et al. 2020, section 2.1",
        ),
        Shortcut(
            "PaLM", "6·N + 12·L·a·d·s", lambda m, s: 6 * _n(m) + 12 * _attention_width(m) * s,
            "Chowdhery et al., PaLM, arXiv 2204.02311, appendix B; MosaicML llm-foundry",
        ),
        Shortcut(
            "torchtitan", "6·(N without embedding) + 12·L·a·d·s",
            lambda m, s: 6 * (_n(m) - (0 if m.tied else m.vocab * m.hidden)) + 12 * _attention_width(m) * s,
            "pytorch/torchtitan, get_nparams_and_flops",
        ),
        Shortcut(
            "Megatron-LM", "6·(N in matrices) + 6·L·a·d·s",
            lambda m, s: 6 * _in_matrices(m) + 6 * _attention_width(m) * s,
            "NVIDIA/Megatron-LM, num_floating_point_operations: causal attention halved",
        ),
        Shortcut(
            "Kaplan, with attention", "6·(N without embedding and head) + 6·L·a·d·s",
            lambda m, s: 6 * int(parameters.active(m, embedding=False, head=False).total) + 6 * _attention_width(m) * s,
            "Kaplan et al. 2020, table 1: 2·L·n_ctx·d forward, one of the two products",
        ),
        Shortcut(
            "every product", "3 × the list of products, a token",
            lambda m, s: exact(3 * Fraction(forward(m, sequence=s).total) / s),
            "this library: forward() and backward = 2 × forward",
        ),
    )
}  # fmt: skip
"""FLOP of training a token, as public code and papers count it."""


def per_token(model: Transformer, *, sequence: int, convention: str = "every product") -> Exact:
    """FLOP of training on one token by a named shortcut.

    >>> from infrabook.models import get
    >>> per_token(get("llama-3-8b"), sequence=8192, convention="PaLM")
    61066469376
    """
    positive("sequence", sequence)
    if convention not in SHORTCUTS:
        raise InfrabookError(f"there is no convention {convention!r}; there are {', '.join(SHORTCUTS)}")
    return SHORTCUTS[convention].work(model, sequence)


def megatron_step(
    *, batch: int, sequence: int, layers: int, hidden: int, vocab: int,
    recomputation: Literal["none", "selective", "selective, as printed", "full"] = "none",
) -> Fraction:  # fmt: skip
    """FLOP of a step by the closed form for GPT's layer: 72·B·L·s·h²·(1 + s/6h + V/12hL), ``batch`` the global one.

    Full recomputation: 96·B·s·L·h²·(1 + s/6h + V/16Lh), the head not repeated (Narayanan et al., arXiv 2104.04473,
    equation 3). Selective: attention's two products once more, 1 + 2s/9h in the brackets. Korthikanti et al. (arXiv
    2205.05198, appendix A) print 1 + s/3h there, as if their backward pass were repeated too; "selective, as printed"
    reproduces the hardware utilizations of their table 5.

    >>> megatron_step(batch=4, sequence=2048, layers=48, hidden=6144, vocab=51200) == 1143560812363776
    True
    """
    sizes = {"batch": batch, "sequence": sequence, "layers": layers, "hidden": hidden, "vocab": vocab}
    for name, size in sizes.items():
        positive(name, size)
    passes = {"none": (3, 3), "selective": (3, 4), "selective, as printed": (3, 6), "full": (4, 4)}
    if recomputation not in passes:
        raise InfrabookError(f"recomputation can be {' or '.join(passes)}, and is {recomputation!r}")
    layer_passes, attention_passes = passes[recomputation]
    products = 24 * batch * layers * sequence * hidden**2
    attention = Fraction(products * sequence, 6 * hidden)
    return layer_passes * products + attention_passes * attention + 6 * batch * sequence * hidden * vocab


# -- time and utilization --------------------------------------------------------------------------------------
def utilization(
    flop_per_token: Exact | float, *, tokens_per_s: Exact | float, gpus: int, peak_flop_per_s: Exact | float
) -> Fraction:
    """Work done over work that the peaks allow.

    It is the MFU if ``flop_per_token`` leaves recomputation out, and the HFU if it counts it.

    >>> float(utilization(6 * 540 * 10**9, tokens_per_s=238_300, gpus=6144, peak_flop_per_s=275 * 10**12))
    0.45696732954545455
    """
    positive("gpus", gpus)
    for name, value in (("tokens_per_s", tokens_per_s), ("peak_flop_per_s", peak_flop_per_s)):
        positive(name, value, whole=False)
    return Fraction(flop_per_token) * Fraction(tokens_per_s) / (gpus * Fraction(peak_flop_per_s))


def training_seconds(flop: Exact | float, *, gpus: int, flop_per_s_per_gpu: Exact | float) -> Fraction:
    """Seconds that ``flop`` of work take at an achieved rate a GPU.

    >>> round(training_seconds(8 * 300 * 10**9 * 175 * 10**9, gpus=1024, flop_per_s_per_gpu=140 * 10**12) / 86400)
    34
    """
    positive("gpus", gpus)
    positive("flop_per_s_per_gpu", flop_per_s_per_gpu, whole=False)
    return Fraction(flop) / (gpus * Fraction(flop_per_s_per_gpu))


def crossover(model: Transformer) -> Fraction:
    """The length at which attention's s² products, counted in full, equal all other products of the layers.

    >>> from infrabook.models import get
    >>> crossover(get("gpt2-xl")) / 1600
    Fraction(6, 1)
    """
    one = forward(replace(model, window=0, window_layers=0), sequence=1, head=False)
    quadratic = Fraction(one[SCORES]) + one[VALUES]
    return (Fraction(one.total) - quadratic) / quadratic


def _attention(model: Transformer, batch: int, sequence: int, context: int, causal: Causal) -> list[Row]:
    """The two products with as many columns as there are keys, summed over layers."""
    if model.mla:
        score_width = model.heads * (model.mla.nope_dim + model.mla.rope_dim)
        value_width = model.heads * model.mla.value_dim
    else:
        score_width = value_width = model.heads * model.head_dim
    sliding = model.window_layers if model.window else 0
    pairs = (model.layers - sliding) * _pairs(sequence, context, causal, 0)
    pairs += sliding * _pairs(sequence, context, causal, model.window) if sliding else 0
    how = {"full": "s·(c + s)", "half": "½·s·(c + s)", "exact": "s·c + s·(s + 1)/2"}[causal]
    return [
        Row(SCORES, exact(2 * batch * pairs * score_width), "activations", f"2·L·b·{how}·a·d"),
        Row(VALUES, exact(2 * batch * pairs * value_width), "activations", f"2·L·b·{how}·a·d"),
    ]


def _pairs(sequence: int, context: int, causal: Causal, window: int) -> Fraction:
    """(query, key) pairs of one layer and one sequence."""
    keys = context + sequence
    if window and causal == "exact":
        return Fraction(sum(min(window, context + i + 1) for i in range(sequence)))
    if window:
        full = Fraction(sequence * min(keys, window))
        return full if causal == "full" or keys > window else full / 2
    if causal == "exact":
        return Fraction(sequence * context) + Fraction(sequence * (sequence + 1), 2)
    full = Fraction(sequence * keys)
    return full if causal == "full" else full / 2
