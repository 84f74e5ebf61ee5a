"""Every matrix and vector of a model, where it stands and how tensor parallelism cuts it.

``parameters`` counts a model by what it is for; this list is for accounts that depend on shapes: adapters,
factored moments, the share of one tensor- or pipeline-parallel rank. A test holds the two to the same total.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

from .errors import InfrabookError
from .models import Transformer
from .units import positive

Place: TypeAlias = Literal["embedding", "layer", "head"]
Cut: TypeAlias = Literal["columns", "rows", "none"]


@dataclass(frozen=True)
class Shape:
    """A tensor of shape (``rows``, ``columns``), or a vector of ``rows`` with ``columns`` 0.

    ``layers``: which layers have it, or none if it stands before (``place`` "embedding") or after them
    ("head"). ``copies`` a layer: one an expert. ``cut``: the side that tensor parallelism divides.
    ``pieces``: into how many parts at most (heads of keys and values), 0 without a limit.
    """

    name: str
    rows: int
    columns: int = 0
    place: Place = "layer"
    layers: range = range(0)
    copies: int = 1
    cut: Cut = "none"
    pieces: int = 0
    linear: bool = False

    @property
    def elements(self) -> int:
        """Elements of one copy."""
        return self.rows * (self.columns or 1)

    @property
    def count(self) -> int:
        """Copies in the whole model."""
        return self.copies * (len(self.layers) if self.place == "layer" else 1)

    def share(self, tensor_parallel: int) -> int:
        """Elements of one copy that one of ``tensor_parallel`` ranks holds."""
        if self.cut == "none":
            return self.elements
        side = self.columns if self.cut == "columns" and self.columns else self.rows
        pieces = self.pieces or side
        return self.elements // pieces * -(-pieces // tensor_parallel)


@lru_cache(maxsize=64)
def shapes(model: Transformer) -> tuple[Shape, ...]:
    """All tensors of ``model``, in the order of a forward pass.

    Cuts are Megatron-LM's: attention and feed-forward by columns and then by rows, embedding and head by the
    vocabulary, norms and routers on every rank (Shoeybi et al., arXiv 1909.08053, section 3).
    """
    return tuple(_shapes(model))


@dataclass(frozen=True)
class Rank:
    """One rank of ``tensor_parallel`` in pipeline stage ``stage``, counted from 0."""

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    stage: int = 0

    def __post_init__(self) -> None:
        positive("tensor_parallel", self.tensor_parallel)
        positive("pipeline_parallel", self.pipeline_parallel)
        positive("stage", self.stage, zero=True)
        if self.stage >= self.pipeline_parallel:
            raise InfrabookError(
                f"stage {self.stage} does not exist: {self.pipeline_parallel} stages are counted from 0"
            )

    @property
    def first(self) -> bool:
        """Whether it has the embedding."""
        return self.stage == 0

    @property
    def last(self) -> bool:
        """Whether it has the final norm and the head."""
        return self.stage == self.pipeline_parallel - 1

    def layers(self, model: Transformer) -> range:
        """Its layers, when all stages have as many; refuses degrees that do not divide what they cut."""
        tensor, pipeline = self.tensor_parallel, self.pipeline_parallel
        if model.heads % tensor:
            raise InfrabookError(f"{tensor} tensor-parallel ranks do not divide {model.heads} heads")
        if model.layers % pipeline:
            raise InfrabookError(f"{pipeline} pipeline stages do not divide {model.layers} layers")
        each = model.layers // self.pipeline_parallel
        return range(self.stage * each, (self.stage + 1) * each)


ALONE = Rank()


def elements(model: Transformer, rank: Rank = ALONE, wanted: Callable[[Shape], bool] = lambda shape: True) -> int:
    """Parameters that ``rank`` holds, of the shapes ``wanted``.

    A tied head on another stage than the embedding is a second copy, as in Megatron-LM.
    """
    here, total = rank.layers(model), 0
    for shape in shapes(model):
        if not wanted(shape):
            continue
        if shape.place == "layer":
            low, high = max(here.start, shape.layers.start), min(here.stop, shape.layers.stop)
            count = max(0, high - low) * shape.copies
        elif shape.place == "embedding":
            second = model.tied and shape.name == "embedding" and rank.last
            count = int(rank.first or second)
        else:
            count = int(rank.last)
        total += count * shape.share(rank.tensor_parallel)
    return total


def _shapes(m: Transformer) -> Iterator[Shape]:
    every = range(m.layers)
    yield Shape("embedding", m.vocab, m.hidden, "embedding", cut="rows")
    if m.positions == "learned":
        yield Shape("positions", m.context, m.hidden, "embedding")
    if m.embedding_norm:
        yield from _norm(m, "embedding norm", "embedding", range(0), 1)
    yield from _norm(m, "norms", "layer", every, m.norms_per_layer)
    yield from _latent_attention(m, every) if m.mla else _attention(m, every)
    yield from _feed_forward(m, every)
    yield from _norm(m, "final norm", "head", range(0), 1)
    if not m.tied:
        yield Shape("head", m.vocab, m.hidden, "head", cut="rows")
    if m.head_bias:
        yield Shape("head, bias", m.vocab, 0, "head", cut="rows")


def _norm(m: Transformer, name: str, place: Place, layers: range, copies: int) -> Iterator[Shape]:
    yield Shape(name, m.hidden, 0, place, layers, copies)
    if m.norm_bias:
        yield Shape(f"{name}, bias", m.hidden, 0, place, layers, copies)


def _attention(m: Transformer, layers: range) -> Iterator[Shape]:
    widths = {"q": m.heads * m.head_dim, "k": m.kv_heads * m.head_dim, "v": m.kv_heads * m.head_dim}
    for name, width in widths.items():
        pieces = m.heads if name == "q" else m.kv_heads
        yield Shape(name, m.hidden, width, "layer", layers, 1, "columns", pieces, True)
        if m.qkv_bias:
            yield Shape(f"{name}, bias", width, 0, "layer", layers, 1, "columns", pieces)
        if m.qk_norm != "none" and name != "v":
            yield Shape(f"{name} norm", m.head_dim if m.qk_norm == "head" else width, 0, "layer", layers)
    yield Shape("o", m.heads * m.head_dim, m.hidden, "layer", layers, 1, "rows", m.heads, True)
    if m.out_bias:
        yield Shape("o, bias", m.hidden, 0, "layer", layers)


def _latent_attention(m: Transformer, layers: range) -> Iterator[Shape]:
    mla = m.mla
    assert mla is not None
    queries = m.heads * (mla.nope_dim + mla.rope_dim)
    if mla.q_rank:
        yield Shape("q latent", m.hidden, mla.q_rank, "layer", layers, linear=True)
        yield Shape("q latent norm", mla.q_rank, 0, "layer", layers)
    yield Shape("q", mla.q_rank or m.hidden, queries, "layer", layers, 1, "columns", m.heads, True)
    yield Shape("kv latent", m.hidden, mla.kv_rank + mla.rope_dim, "layer", layers, linear=True)
    yield Shape("kv latent norm", mla.kv_rank, 0, "layer", layers)
    keys_values = m.heads * (mla.nope_dim + mla.value_dim)
    yield Shape("kv", mla.kv_rank, keys_values, "layer", layers, 1, "columns", m.heads, True)
    yield Shape("o", m.heads * mla.value_dim, m.hidden, "layer", layers, 1, "rows", m.heads, True)


def _feed_forward(m: Transformer, layers: range) -> Iterator[Shape]:
    moe = m.moe
    dense = layers[: moe.dense_layers] if moe else layers
    if dense:
        yield from _mlp(m, m.ffn, dense, 1, "")
    if moe:
        sparse = layers[moe.dense_layers :]
        yield Shape("router", m.hidden, moe.experts, "layer", sparse)
        if moe.router_bias:
            yield Shape("router, bias", moe.experts, 0, "layer", sparse)
        yield from _mlp(m, moe.ffn, sparse, moe.experts + moe.shared, "expert ")


def _mlp(m: Transformer, ffn: int, layers: range, copies: int, prefix: str) -> Iterator[Shape]:
    for name in ("gate", "up") if m.gated else ("up",):
        yield Shape(prefix + name, m.hidden, ffn, "layer", layers, copies, "columns", 0, True)
        if m.ffn_bias:
            yield Shape(f"{prefix}{name}, bias", ffn, 0, "layer", layers, copies, "columns")
    yield Shape(f"{prefix}down", ffn, m.hidden, "layer", layers, copies, "rows", 0, True)
    if m.ffn_bias:
        yield Shape(f"{prefix}down, bias", m.hidden, 0, "layer", layers, copies)
