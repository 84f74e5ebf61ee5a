"""What a forward pass leaves behind for the backward pass, tensor by tensor.

The rows are the storages that PyTorch's autograd saves, parameters left out. With GPT's layer they sum to
Korthikanti et al.'s 34·sbh + 5·as²b (arXiv 2205.05198, equation 1), with Llama's to
(12 + 4·g/a + 8·f/h)·sbh + 4·asb. ``memory`` adds weights, gradients and optimizer states.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, TypeAlias, TypedDict, Unpack

from .errors import InfrabookError
from .ledger import Ledger, Row, ledger
from .models import Transformer
from .recipes import bits
from .shapes import Rank
from .units import Exact, exact, positive

Attention: TypeAlias = Literal["flash", "eager"]
RMSNorm: TypeAlias = Literal["fused", "fp32", "cast"]
Recomputation: TypeAlias = Literal["none", "selective", "full"]
Schedule: TypeAlias = Literal["1f1b", "gpipe", "interleaved"]
Logits: TypeAlias = Literal["fp32", "bf16", "fp32+bf16", "none"]
LayerKind: TypeAlias = Literal["own", "gpt"]

CHOICES: dict[str, tuple[str, ...]] = {
    "attention": ("flash", "eager"),
    "rmsnorm": ("fused", "fp32", "cast"),
    "recomputation": ("none", "selective", "full"),
    "schedule": ("1f1b", "gpipe", "interleaved"),
    "logits": ("fp32", "bf16", "fp32+bf16", "none"),
    "layer": ("own", "gpt"),
}

LOGITS = {"fp32": 4, "bf16": 2, "fp32+bf16": 6, "none": 0}


class Options(TypedDict, total=False):
    """The keyword arguments of ``activations``, as other accounts pass them on."""

    batch: int
    sequence: int
    dtype: str
    layer: LayerKind
    attention: Attention
    dropout: bool | None
    mask_bytes: int
    statistics_bytes: int
    rmsnorm: RMSNorm
    softmax: str | None
    logits: Logits
    rotary_tables: bool
    recomputation: Recomputation
    tensor_parallel: int
    sequence_parallel: bool
    keep_gathered: bool
    pipeline_parallel: int
    stage: int
    schedule: Schedule
    micro_batches: int | None
    virtual_stages: int
    stage_outputs: bool


@dataclass(frozen=True)
class Saved:
    """One tensor that one layer saves for one micro-batch.

    ``split``: whether tensor parallelism divides it always ("tensor"), only together with sequence
    parallelism ("sequence"), or, gathered for a matrix product, only if it is gathered a second time in
    backward instead of being kept ("gathered"). ``pieces``: a rank holds at least one of so many (heads of
    keys and values), 0 without a limit. ``core``: selective recomputation drops it.
    """

    name: str
    bytes: Exact
    formula: str
    split: Literal["tensor", "sequence", "gathered"] = "tensor"
    core: bool = False
    pieces: int = 0


def activations(
    model: Transformer,
    *,
    batch: int = 1,
    sequence: int = 2048,
    dtype: str = "bf16",
    layer: LayerKind = "own",
    attention: Attention = "flash",
    dropout: bool | None = None,
    mask_bytes: int = 1,
    statistics_bytes: int = 0,
    rmsnorm: RMSNorm = "fused",
    softmax: str | None = None,
    logits: Logits = "fp32",
    rotary_tables: bool = False,
    recomputation: Recomputation = "none",
    tensor_parallel: int = 1,
    sequence_parallel: bool = False,
    keep_gathered: bool = False,
    pipeline_parallel: int = 1,
    stage: int = 0,
    schedule: Schedule = "1f1b",
    micro_batches: int | None = None,
    virtual_stages: int = 1,
    stage_outputs: bool = False,
) -> Ledger:
    """Bytes saved for backward on one rank, a row for every tensor, at the moment when most of it is alive.

    Symbols: b ``batch`` sequences a micro-batch, s ``sequence`` tokens, h hidden, a heads, g key-value heads,
    d head_dim, f ffn, V vocabulary, L layers, t ``tensor_parallel``.

    - ``layer``: "own" follows the model; "gpt" puts the layer of Korthikanti et al. on the model's h and a
      (LayerNorm, GELU, 4h wide, as many key-value heads as heads), whatever the model has: 34 + 5·as/h.
    - ``attention``: "flash" keeps the log-sum-exp of every row (4 bytes), "eager" the matrix of scores.
      Grouped keys and values are expanded to all heads before eager attention, and not before flash.
    - ``dropout``: on the scores and on both outputs. None: as published, with LayerNorm and not with RMSNorm.
      ``mask_bytes``: 1 on CUDA; CPU's ``F.dropout`` keeps a mask in the activations' dtype.
    - ``statistics_bytes``: of a norm's saved mean and reciprocal deviation: 0 leaves them out as papers do,
      4 is CUDA, 2 is LayerNorm in bf16 on a CPU.
    - ``rmsnorm``: "fused" keeps its input, "fp32" is PyTorch without the fused kernel (two fp32 tensors),
      "cast" is Hugging Face's (one fp32 tensor and one cast back).
    - ``softmax``: dtype of eager attention's softmax, by default the activations'.
    - ``logits``: what the loss saves: fp32 log-probabilities, the bf16 ones, both, or nothing (fused loss).
    - ``rotary_tables``: count the cosines and sines that all layers share (they are buffers, not activations).
    - ``recomputation``: "selective" drops scores, mask and dropped scores; "full" keeps a layer's input alone.
    - ``sequence_parallel``: norms, dropouts and layer inputs are divided by t as well. ``keep_gathered``:
      PyTorch's tensor parallelism keeps gathered inputs that Megatron-LM gathers again.
    - ``pipeline_parallel``, ``stage`` (from 0), ``schedule``, ``micro_batches``, ``virtual_stages`` (model
      chunks a rank, interleaved): how many micro-batches are in flight on this stage. 1F1B holds p - i,
      GPipe all, interleaving 1 + (p - 1)/(p·v) times as much as 1F1B on the first stage.
    - ``stage_outputs``: the output sent to the next stage is kept (Korthikanti et al., appendix B: 2·sbh each).

    Left out: token ids (8·sb bytes), loss scalars, and the working memory of single operations. Layers with
    experts or latent attention follow their published forward pass and have no measured witness here.
    Sources: Korthikanti et al., sections 4.1 to 4.3 and 5; saved tensors of PyTorch 2.13, measured.

    >>> from infrabook import models
    >>> llama = models.get("llama-2-7b")
    >>> layers = activations(llama, layer="gpt", attention="eager", logits="none").where(
    ...     lambda row: row.name.startswith("layers"))
    >>> layers.total == 32 * (34 + 5 * 32 * 2048 // 4096) * 2048 * 4096
    True
    """
    given = locals()
    for field, allowed in CHOICES.items():
        if given[field] not in allowed:
            raise InfrabookError(f"{field} can be {' or '.join(allowed)}, and is {given[field]!r}")
    for field in ("batch", "sequence", "virtual_stages"):
        positive(field, given[field])
    for field in ("mask_bytes", "statistics_bytes"):
        positive(field, given[field], zero=True)
    rank = Rank(tensor_parallel, pipeline_parallel, stage)
    if model.layers % (pipeline_parallel * virtual_stages):
        chunks = f"{pipeline_parallel} × {virtual_stages}" if virtual_stages > 1 else f"{pipeline_parallel}"
        raise InfrabookError(f"{chunks} pipeline stages do not divide {model.layers} layers")
    width = exact(Fraction(bits(dtype), 8))
    if layer == "gpt":
        model = gpt_layer(model)
    how = _How(
        batch * sequence, sequence, width, attention, model.norm == "layernorm" if dropout is None else dropout,
        mask_bytes, statistics_bytes, rmsnorm, softmax,
    )  # fmt: skip

    def share(saved: Saved) -> Exact:
        whole = saved.split == "sequence" and not sequence_parallel
        whole = whole or (saved.split == "gathered" and (keep_gathered or not sequence_parallel))
        if whole:
            return saved.bytes
        pieces = saved.pieces or tensor_parallel
        return exact(Fraction(saved.bytes, pieces) * -(-pieces // tensor_parallel))

    flight = in_flight(
        pipeline_parallel=pipeline_parallel, stage=stage, schedule=schedule, micro_batches=micro_batches,
        virtual_stages=virtual_stages,
    )  # fmt: skip
    totals: dict[str, tuple[Exact, str]] = {}
    for layers, tensors in _layers(model, how, rank, recomputation):
        for saved in tensors:
            name, times = f"layers: {saved.name}", exact(layers * flight)
            before = totals.get(name, (0, ""))[0]
            label = saved.formula + (" / t" if share(saved) != saved.bytes else "")
            totals[name] = (exact(before + times * Fraction(share(saved))), f"{label} × {times}")
    rows = [Row(name, value, "activations", formula) for name, (value, formula) in totals.items()]
    for saved, times in _outside(model, how, rank, LOGITS[logits], flight, stage_outputs):
        value = exact(Fraction(share(saved)) * times)
        rows.append(Row(saved.name, value, "activations", saved.formula))
    if rotary_tables and model.positions == "rope":
        value = exact(2 * sequence * _rotary_dim(model) * width)
        rows.append(Row("rotary tables", value, "buffers", "cos and sin: 2·s·d each"))
    return ledger(f"{model.name}: saved for backward, {batch} × {sequence:,} tokens", rows)


def one_layer(model: Transformer, **options: Unpack[Options]) -> Ledger:
    """The same account for one layer and one micro-batch: no embedding, final norm or head.

    Takes the arguments of ``activations``, pipeline stages apart. The layer is the last one, the kind that
    most layers are.

    >>> from infrabook.models import Transformer
    >>> gpt = Transformer("22B", 48, 6144, 64, 64, 96, 24576, 51200, 2048, False, "layernorm")
    >>> one_layer(gpt, batch=4, attention="eager", tensor_parallel=8, sequence_parallel=True).total
    884998144
    """
    moe = model.moe
    if moe:  # its last layer has experts, unless all are dense
        moe = replace(moe, dense_layers=int(moe.dense_layers == model.layers))
    one = replace(model, layers=1, window=0, window_layers=0, moe=moe)
    alone: Options = {
        "pipeline_parallel": 1, "stage": 0, "schedule": "1f1b", "virtual_stages": 1, "stage_outputs": False,
        "rotary_tables": False,
    }  # fmt: skip
    options.update(alone)
    kept = activations(one, **options).where(lambda row: row.name.startswith("layers: "))
    rows = tuple(
        replace(row, name=row.name.removeprefix("layers: "), formula=row.formula.rsplit(" × ", 1)[0]) for row in kept
    )
    return Ledger(f"{model.name}: saved by one layer", rows)


def in_flight(
    *,
    pipeline_parallel: int = 1,
    stage: int = 0,
    schedule: Schedule = "1f1b",
    micro_batches: int | None = None,
    virtual_stages: int = 1,
) -> Exact:
    """How many micro-batches' activations a stage holds at most, in units of all its layers.

    1F1B: p - i on stage i. Interleaved with v chunks a rank: 2(p - i - 1) + (v - 1)p + 1 chunks of 1/v each,
    which on stage 0 is p·(1 + (p - 1)/(pv)). GPipe: all m. Never more than m, where it is given.
    Sources: Korthikanti et al., section 4.2.3; Narayanan et al., arXiv 2104.04473, section 2.2.

    >>> str(in_flight(pipeline_parallel=8, schedule="interleaved", virtual_stages=3))
    '31/3'
    """
    Rank(1, pipeline_parallel, stage)
    positive("virtual_stages", virtual_stages)
    if micro_batches is not None:
        positive("micro_batches", micro_batches)
    if schedule != "interleaved" and virtual_stages != 1:
        raise InfrabookError(f"{virtual_stages} virtual stages belong to the interleaved schedule, not {schedule}")
    if schedule == "gpipe":
        if micro_batches is None and pipeline_parallel > 1:
            raise InfrabookError("GPipe holds every micro-batch: say how many there are (micro_batches)")
        return micro_batches or 1
    if virtual_stages == 1:
        most: Exact = pipeline_parallel - stage
    else:
        chunks = 2 * (pipeline_parallel - stage - 1) + (virtual_stages - 1) * pipeline_parallel + 1
        most = exact(Fraction(chunks, virtual_stages))
    return most if micro_batches is None else min(most, micro_batches)


def gpt_layer(model: Transformer) -> Transformer:
    """The model with the layer that Korthikanti et al. count: LayerNorm, GELU, 4h, every head its own key.

    Embedding, head and number of layers stay.
    """
    return replace(
        model, norm="layernorm", norms_per_layer=2, gated=False, ffn=4 * model.hidden, kv_heads=model.heads,
        moe=None, mla=None, qk_norm="none", window=0, window_layers=0,
        head_dim=model.hidden // model.heads if model.hidden % model.heads == 0 else model.head_dim,
    )  # fmt: skip


# -- the rows ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _How:
    tokens: int  # s·b
    sequence: int
    width: Exact  # bytes of an activation's element
    attention: Attention
    dropout: bool
    mask_bytes: int
    statistics_bytes: int
    rmsnorm: RMSNorm
    softmax: str | None


def _layers(m: Transformer, how: _How, rank: Rank, recomputation: Recomputation) -> Iterator[tuple[int, list[Saved]]]:
    """(how many layers of this rank, what each saves): dense layers first, then those with experts."""
    here = rank.layers(m)
    dense_until = m.layers if m.moe is None else m.moe.dense_layers
    dense = max(0, min(here.stop, dense_until) - here.start)
    for count, experts in ((dense, False), (len(here) - dense, True)):
        if count:
            tensors = list(_layer(m, how, experts))
            if recomputation == "full":
                value = how.width * how.tokens * m.hidden
                tensors = [Saved("input, the rest recomputed", value, f"{how.width}·sbh", "sequence")]
            yield count, [t for t in tensors if not (recomputation == "selective" and t.core)]


def _layer(m: Transformer, how: _How, experts: bool) -> Iterator[Saved]:
    e, tokens = how.width, how.tokens
    stream = e * tokens * m.hidden
    parallel = m.norms_per_layer == 1  # attention and feed-forward read the same normalized input
    yield from _norm(m, how, "norm 1", tokens * m.hidden, tokens, "sbh")
    yield Saved("attention input", stream, f"{e}·sbh", "gathered")
    yield from _attention(m, how)
    if how.dropout:
        yield Saved("attention dropout mask", how.mask_bytes * tokens * m.hidden, f"{how.mask_bytes}·sbh", "sequence")
    if m.norms_per_layer > 2:  # Gemma 2 norms the outputs too
        yield from _norm(m, how, "norm after attention", tokens * m.hidden, tokens, "sbh")
    if not parallel:
        yield from _norm(m, how, "norm 2", tokens * m.hidden, tokens, "sbh")
        yield Saved("feed-forward input", stream, f"{e}·sbh", "gathered")
    yield from _experts(m, how) if experts else _feed_forward(m, how, m.ffn, 1, "sbf")
    if how.dropout:
        yield Saved(
            "feed-forward dropout mask", how.mask_bytes * tokens * m.hidden, f"{how.mask_bytes}·sbh", "sequence"
        )
    if m.norms_per_layer > 2:
        yield from _norm(m, how, "norm after feed-forward", tokens * m.hidden, tokens, "sbh")


def _norm(
    m: Transformer,
    how: _How,
    name: str,
    elements: int,
    vectors: int,
    symbol: str,
    split: Literal["tensor", "sequence"] = "sequence",
) -> Iterator[Saved]:
    if m.norm == "layernorm" or how.rmsnorm == "fused":
        yield Saved(f"{name} input", how.width * elements, f"{how.width}·{symbol}", split)
    else:
        yield Saved(f"{name} input in fp32", 4 * elements, f"4·{symbol}", split)
        other: Exact = 4 if how.rmsnorm == "fp32" else how.width
        yield Saved(f"{name} before its weight", other * elements, f"{other}·{symbol}", split)
    each = how.statistics_bytes * (2 if m.norm == "layernorm" else 1)
    if each:
        rows = "sb" if vectors == how.tokens else "sb·heads"
        yield Saved(f"{name} statistics", each * vectors, f"{each}·{rows}", split)


def _attention(m: Transformer, how: _How) -> Iterator[Saved]:
    e, tokens, eager = how.width, how.tokens, how.attention == "eager"
    queries = keys = m.heads * m.head_dim
    values, groups = queries, m.heads
    out = queries
    if m.mla:
        if m.mla.q_rank:
            yield from _norm(m, how, "query latent", tokens * m.mla.q_rank, tokens, "sb·r_q")
            yield Saved("query latent", e * tokens * m.mla.q_rank, f"{e}·sb·r_q", "sequence")
        yield from _norm(m, how, "key-value latent", tokens * m.mla.kv_rank, tokens, "sb·r")
        yield Saved("key-value latent", e * tokens * m.mla.kv_rank, f"{e}·sb·r", "sequence")
        queries = keys = m.heads * (m.mla.nope_dim + m.mla.rope_dim)
        values = out = m.heads * m.mla.value_dim
    elif not eager:
        groups = m.kv_heads
        keys = values = m.kv_heads * m.head_dim
    if m.qk_norm != "none" and not m.mla:
        kept = m.kv_heads * m.head_dim
        per_head = m.qk_norm == "head"
        yield from _norm(
            m, how, "query norm", tokens * queries, tokens * (m.heads if per_head else 1), "sb·ad", "tensor"
        )
        yield from _norm(m, how, "key norm", tokens * kept, tokens * (m.kv_heads if per_head else 1), "sb·gd", "tensor")
    heads = "a" if groups == m.heads else "g"
    yield Saved("queries", e * tokens * queries, f"{e}·sb·ad")
    yield Saved("keys", e * tokens * keys, f"{e}·sb·{heads}d", pieces=groups)
    yield Saved("values", e * tokens * values, f"{e}·sb·{heads}d", pieces=groups)
    if eager:
        yield from _scores(m, how)
    else:
        yield Saved("log-sum-exp", 4 * m.heads * tokens, "4·asb")
    yield Saved("attention output", e * tokens * out, f"{e}·sb·ad")


def _scores(m: Transformer, how: _How) -> Iterator[Saved]:
    e, elements = how.width, m.heads * how.sequence * how.tokens
    own = exact(Fraction(bits(how.softmax), 8)) if how.softmax else e
    yield Saved("softmax of the scores", own * elements, f"{own}·as²b", core=True)
    if how.dropout:
        yield Saved("mask of the scores", how.mask_bytes * elements, f"{how.mask_bytes}·as²b", core=True)
    if how.dropout or own != e:  # a copy of its own, where softmax is not itself what multiplies the values
        yield Saved("scores times values, left side", e * elements, f"{e}·as²b", core=True)


def _feed_forward(m: Transformer, how: _How, ffn: int, experts: int, symbol: str) -> Iterator[Saved]:
    each, formula = how.width * how.tokens * ffn * experts, f"{how.width}·{symbol}"
    if m.gated:
        yield Saved("gate before its activation", each, formula)
        yield Saved("gate after its activation", each, formula)
        yield Saved("up projection", each, formula)
        yield Saved("gate times up", each, formula)
    else:
        yield Saved("up projection", each, formula)
        yield Saved("after the activation function", each, formula)


def _experts(m: Transformer, how: _How) -> Iterator[Saved]:
    """Dispatch by copying each token once an expert, and outputs kept for the gradient of the router's weights."""
    assert m.moe is not None
    copies = how.width * how.tokens * m.hidden * m.moe.top_k
    yield Saved("router probabilities", 4 * how.tokens * m.moe.experts, "4·sb·E", "sequence")
    yield Saved("tokens as sent to experts", copies, f"{how.width}·k·sbh", "gathered")
    yield from _feed_forward(m, how, m.moe.ffn, m.moe.top_k + m.moe.shared, "(k + shared)·sb·f_e")
    yield Saved("experts' outputs", copies, f"{how.width}·k·sbh", "sequence")


def _outside(
    m: Transformer, how: _How, rank: Rank, logits: int, flight: Exact, outputs: bool
) -> Iterator[tuple[Saved, Exact]]:
    """What is saved before and after the layers, each with its number of micro-batches in flight."""
    e, stream = how.width, how.tokens * m.hidden
    if rank.first and how.dropout:
        formula = f"{how.mask_bytes}·sbh × {flight}"
        yield Saved("embedding dropout mask", how.mask_bytes * stream, formula, "sequence"), flight
    if outputs:
        yield Saved("stage outputs", e * stream, f"{e}·sbh × {flight}", "sequence"), flight
    if rank.last:
        for saved in _norm(m, how, "final norm", stream, how.tokens, "sbh"):
            yield saved, 1
        yield Saved("head input", e * stream, f"{e}·sbh", "gathered"), 1
        if logits:
            yield Saved("logits", logits * how.tokens * m.vocab, f"{logits}·sbV"), 1


def _rotary_dim(m: Transformer) -> int:
    return m.mla.rope_dim if m.mla else m.head_dim
