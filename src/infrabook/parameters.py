"""How many parameters a model has, matrix by matrix, and which of them a token uses.

``count`` is the whole account; ``per_layer``, ``active`` and ``non_embedding`` are the parts that people quote.
Buffers (rotary tables, a router's balancing bias) are not parameters and never count. ``memory`` turns counts
into bytes, ``flops`` turns ``matrices`` into work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from .errors import InfrabookError
from .ledger import Ledger, Row, ledger
from .models import Transformer, whole

Mode = Literal["without embedding and head", "without embedding", "without positions"]

EMBEDDING, POSITIONS, HEAD = "embedding", "positions", "head"


@dataclass(frozen=True)
class Matrix:
    """A matrix of weights that a token is multiplied by: ``inputs`` × ``outputs``.

    The model holds ``copies`` of it (one a layer, or one an expert and layer), and a token passes through
    ``used`` of them. ``biased`` adds ``outputs`` to each copy. ``formula`` counts all copies.
    """

    name: str
    inputs: int
    outputs: int
    copies: int
    used: int
    formula: str
    biased: bool = False
    bias_formula: str = ""


def count(model: Transformer, *, tied: bool | None = None, positions: bool = True, final_norm: bool = True) -> Ledger:
    """Every parameter of ``model``, a row for each kind of matrix, exact.

    Conventions: ``tied`` overrules the model's own (a tied head has no row); ``positions=False`` leaves learned
    positions out, as nanoGPT does; ``final_norm=False`` leaves the last norm out, as Narayanan et al. 2021
    (arXiv:2104.04473), equation 2, does. For another vocabulary use ``dataclasses.replace(model, vocab=...)``.

    >>> from infrabook.models import get
    >>> count(get("llama-2-7b")).total, count(get("gpt2"))["positions"]
    (6738415616, 786432)
    """
    has_head = not (model.tied if tied is None else tied)
    rows = [
        *_ends(model, positions=positions),
        *(row for m in matrices(model) for row in _rows(m) if row.name != HEAD or has_head),
        *_norms(model, final_norm=final_norm),
    ]
    return ledger(f"{model.name}: parameters", rows, unit="parameters")


def per_layer(model: Transformer, *, layer: int = -1) -> Ledger:
    """The parameters of one layer, the last by default; layers are numbered from 0.

    Only where the first layers of a mixture of experts are dense does it matter which.

    >>> from infrabook.models import get
    >>> per_layer(get("llama-2-7b")).total, per_layer(get("deepseek-v3"), layer=0)["feed-forward up"]
    (202383360, 132120576)
    """
    if isinstance(layer, bool) or not isinstance(layer, int) or not -model.layers <= layer < model.layers:
        raise InfrabookError(f"{model.name} has layers 0 to {model.layers - 1}, and no layer {layer!r}")
    index = layer % model.layers
    moe = model.moe
    if moe:
        moe = None if index < moe.dense_layers else replace(moe, dense_layers=0)
    one = replace(model, layers=1, window=0, window_layers=0, moe=moe)
    rows = count(one, tied=True, positions=False, final_norm=False)
    outside = (EMBEDDING, "embedding norm", "head bias")
    kept = tuple(replace(row, formula=row.formula.removeprefix("L·")) for row in rows if row.name not in outside)
    return Ledger(f"{model.name}: parameters of layer {index}", kept, "parameters")


def active(model: Transformer, *, embedding: bool = True, head: bool = True, tied: bool | None = None) -> Ledger:
    """The parameters that one token uses: of the routed experts ``top_k`` a layer, of the rest all.

    ``embedding`` (with learned positions) and ``head`` say whether the two ends count: published "active" figures
    differ in just that. A tied matrix counts once, if either end counts. Routers count: every token uses them.

    >>> from infrabook.models import get
    >>> active(get("mixtral-8x7b")).total, active(get("deepseek-v3"), embedding=False).total
    (12879925248, 36625603584)
    """
    tied = model.tied if tied is None else tied
    every = count(model, tied=tied)
    used = {m.name: m for m in matrices(model)}
    ends = {EMBEDDING: embedding or (head and tied), POSITIONS: embedding, "embedding norm": embedding}
    ends |= {HEAD: head, "head bias": head}
    parts = "".join(f", without {end}" for end, kept in (("embedding", embedding), ("head", head)) if not kept)
    return Ledger(
        f"{model.name}: active parameters a token{parts}",
        tuple(_share(row, used) for row in every if ends.get(row.name, True)),
        "parameters",
    )


def non_embedding(model: Transformer, mode: Mode = "without embedding and head") -> Ledger:
    """The parameters that are left when embeddings do not count; ``mode`` says what that means.

    - "without embedding and head" (the default): Kaplan et al. 2020, Pythia and Qwen. Learned positions go too.
    - "without embedding": only the look-ups go, token and position; the head stays, tied or not, since it is
      a matrix that a token is multiplied by.
    - "without positions": nanoGPT's ``get_num_params``, where the tied embedding serves as the head.

    >>> from infrabook.models import get
    >>> [non_embedding(get("gpt2"), mode).total for mode in MODES]
    [85056000, 123653376, 123653376]
    """
    gone: dict[str, tuple[str, ...]] = {
        "without embedding and head": (EMBEDDING, POSITIONS, HEAD, "head bias"),
        "without embedding": (POSITIONS,) if model.tied else (EMBEDDING, POSITIONS),
        "without positions": (POSITIONS,),
    }
    if mode not in gone:
        raise InfrabookError(f"mode is {mode!r}, and can be {' or '.join(map(repr, gone))}")
    left = count(model).where(lambda row: row.name not in gone[mode])
    return left.named(f"{model.name}: parameters {mode}")


MODES: tuple[Mode, ...] = ("without embedding and head", "without embedding", "without positions")


def padded_vocab(vocab: int, multiple: int, tensor_parallel: int = 1) -> int:
    """``vocab`` rounded up to a multiple of ``multiple`` × ``tensor_parallel`` rows.

    Megatron-LM pads to 128 a tensor-parallel rank (``--make-vocab-size-divisible-by``), nanoGPT to 64.

    >>> padded_vocab(50257, 64), padded_vocab(50257, 128, tensor_parallel=8)
    (50304, 51200)
    """
    for name, value in (("vocab", vocab), ("multiple", multiple), ("tensor_parallel", tensor_parallel)):
        whole(name, value)
    step = multiple * tensor_parallel
    return -(-vocab // step) * step


def matrices(model: Transformer) -> tuple[Matrix, ...]:
    """The matrices that tokens are multiplied by, in order, the head last (tied or not: the work is the same).

    >>> from infrabook.models import get
    >>> [m.name for m in matrices(get("gpt2"))][:4]
    ['attention query', 'attention key', 'attention value', 'attention output']
    """
    head = Matrix(HEAD, model.hidden, model.vocab, 1, 1, "V·h", biased=model.head_bias, bias_formula="V")
    return (*(_latent_attention(model) if model.mla else _attention(model)), *_feed_forward(model), head)


# -- the pieces --------------------------------------------------------------------------------------------------
def _attention(model: Transformer) -> Iterator[Matrix]:
    layers, hidden = model.layers, model.hidden
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    for name, width, symbol in (("query", queries, "a·d"), ("key", keys, "g·d"), ("value", keys, "g·d")):
        formula, bias = f"L·h·{symbol}", f"L·{symbol}"
        yield Matrix(f"attention {name}", hidden, width, layers, layers, formula, model.qkv_bias, bias)
    yield Matrix("attention output", queries, hidden, layers, layers, "L·a·d·h", model.out_bias, "L·h")


def _latent_attention(model: Transformer) -> Iterator[Matrix]:
    """DeepSeek-V2 (arXiv:2405.04434), section 2.1: r_q and r the ranks of the latents, d_n, d_r and d_v the parts
    of a head without positions, with rotary positions, and of its values. Biases as transformers has them: on the
    projections into the latents."""
    mla = model.mla
    assert mla is not None  # the caller looked
    layers, hidden, heads, bias = model.layers, model.hidden, model.heads, model.qkv_bias
    queries = heads * (mla.nope_dim + mla.rope_dim)

    def matrix(name: str, inputs: int, outputs: int, formula: str, biased: bool = False, of_bias: str = "") -> Matrix:
        return Matrix(f"attention {name}", inputs, outputs, layers, layers, formula, biased, of_bias)

    if mla.q_rank:
        yield matrix("query down", hidden, mla.q_rank, "L·h·r_q", bias, "L·r_q")
        yield matrix("query up", mla.q_rank, queries, "L·r_q·a·(d_n + d_r)")
    else:
        yield matrix("query", hidden, queries, "L·h·a·(d_n + d_r)")
    yield matrix("key-value down", hidden, mla.kv_rank + mla.rope_dim, "L·h·(r + d_r)", bias, "L·(r + d_r)")
    yield matrix("key-value up", mla.kv_rank, heads * (mla.nope_dim + mla.value_dim), "L·r·a·(d_n + d_v)")
    yield matrix("output", heads * mla.value_dim, hidden, "L·a·d_v·h", model.out_bias, "L·h")


def _feed_forward(model: Transformer) -> Iterator[Matrix]:
    """K dense layers come first where there are experts: E of them, k a token, of width f_e; S shared ones."""
    moe = model.moe
    dense = moe.dense_layers if moe else model.layers
    if dense:
        yield from _mlp(model, "feed-forward", model.ffn, dense, dense, ("K" if moe else "L", "f"))
    if moe is None or model.layers == dense:
        return
    sparse = model.layers - dense
    at = "(L − K)" if dense else "L"
    router = Matrix("router", model.hidden, moe.experts, sparse, sparse, f"{at}·h·E")
    yield replace(router, biased=moe.router_bias, bias_formula=f"{at}·E")
    yield from _mlp(model, "experts", moe.ffn, sparse * moe.experts, sparse * moe.top_k, (f"{at}·E", "f_e"))
    if moe.shared:
        shared = sparse * moe.shared
        yield from _mlp(model, "shared experts", moe.ffn, shared, shared, (f"{at}·S", "f_e"))


def _mlp(
    model: Transformer, name: str, width: int, copies: int, used: int, symbols: tuple[str, str]
) -> Iterator[Matrix]:
    times, f = symbols
    for part in ("gate", "up") if model.gated else ("up",):
        formula, bias = f"{times}·h·{f}", f"{times}·{f}"
        yield Matrix(f"{name} {part}", model.hidden, width, copies, used, formula, model.ffn_bias, bias)
    formula, bias = f"{times}·{f}·h", f"{times}·h"
    yield Matrix(f"{name} down", width, model.hidden, copies, used, formula, model.ffn_bias, bias)


def _rows(matrix: Matrix) -> Iterator[Row]:
    yield Row(matrix.name, matrix.inputs * matrix.outputs * matrix.copies, "weights", matrix.formula)
    if matrix.biased:
        yield Row(f"{matrix.name} bias", matrix.outputs * matrix.copies, "weights", matrix.bias_formula)


def _ends(model: Transformer, *, positions: bool) -> Iterator[Row]:
    yield Row(EMBEDDING, model.vocab * model.hidden, "weights", "V·h")
    if positions and model.positions == "learned":
        yield Row(POSITIONS, model.context * model.hidden, "weights", "s·h")


def _norms(model: Transformer, *, final_norm: bool) -> Iterator[Row]:
    each = 2 if model.norm_bias else 1  # numbers a channel: a weight, and perhaps a bias
    times = "2·" if model.norm_bias else ""
    layers, hidden = model.layers, model.hidden
    if model.embedding_norm:
        yield Row("embedding norm", each * hidden, "weights", f"{times}h")
    per = model.norms_per_layer
    yield Row("layer norms", layers * per * each * hidden, "weights", f"L·{per}·{times}h")
    if model.qk_norm == "head":
        yield Row("query and key norms", layers * 2 * model.head_dim, "weights", "L·2·d")
    elif model.qk_norm == "width":
        width = (model.heads + model.kv_heads) * model.head_dim
        yield Row("query and key norms", layers * width, "weights", "L·(a + g)·d")
    if model.mla:
        latents = model.mla.q_rank + model.mla.kv_rank
        formula = "L·(r_q + r)" if model.mla.q_rank else "L·r"
        yield Row("latent norms", layers * latents, "weights", formula)
    if final_norm:
        yield Row("final norm", each * hidden, "weights", f"{times}h")


def _share(row: Row, used: dict[str, Matrix]) -> Row:
    """``row`` with what one token uses of it."""
    matrix = used.get(row.name) or used.get(row.name.removesuffix(" bias"))
    if matrix is None or matrix.used == matrix.copies:
        return row
    value = row.value * matrix.used // matrix.copies
    return replace(row, value=int(value), formula=row.formula.replace("·E·", "·k·"))
