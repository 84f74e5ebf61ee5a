"""What FSDP2 has gathered when: the moments of a step that can be its peak, term by term.

A unit is what one ``fully_shard`` call covers: here each layer, and the root's for all that is outside them (embedding,
final norm, head). ``zero`` says what the shards are; a step also needs whole weights and whole gradients, for a while.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Unpack

from .. import memory, recipes, shapes
from ..activations import Options, one_layer
from ..ledger import Ledger, Row, ledger
from ..memory import Moment, OptimizerStep
from ..models import Transformer
from ..recipes import Recipe
from ..units import Exact, exact


def moments(
    model: Transformer,
    recipe: str | Recipe = "bf16-adamw",
    *,
    ranks: int,
    reshard_after_forward: bool = True,
    root_reshards: bool = True,
    optimizer_step: OptimizerStep = "for-loop",
    gathered: str = "bf16",
    reduced: str = "bf16",
    **options: Unpack[Options],
) -> tuple[Moment, ...]:
    """What one of ``ranks`` holds at each moment of a step that can be its peak, in the order of the step.

    ``gathered`` is the dtype of gathered weights, ``reduced`` that of gradients in the reduce-scatter. Beside its
    shards and what it saved for backward, a rank has:

    - the root's weights, gathered while layers run;
    - all layers' weights, without ``reshard_after_forward``; else those of the layer that runs;
    - an all-gather's output, a layer long: in forward the last one, held until the next has been copied out (so
      that for a moment there are two), in backward the next layer's, fetched ahead;
    - in backward the gradients of head and final norm, whole, until the root's turn comes at the very end; the
      gradients of the layer that runs; the input of the reduce-scatter that was started last.

    ``root_reshards``: whether the root's weights, too, are let go between forward and backward (by default they are
    not; the peak is the same). Working memory of single operations is counted where it makes a peak: in the loss,
    in the feed-forward layer's backward pass and in that of a norm written out.
    Source: torch.distributed.fsdp, ``_fsdp_param_group.py`` and ``_fsdp_collectives.py`` of PyTorch 2.13.
    """
    recipe = recipes.get(recipe)
    base = memory.timeline(model, recipe, zero=3, data_parallel=ranks, optimizer_step=optimizer_step, **options)
    it = _Step(
        model, options, {moment.name: moment.ledger for moment in base}, recipes.bytes_of(gathered),
        recipes.bytes_of(reduced), reshard_after_forward, root_reshards,
    )  # fmt: skip
    return (it.moment("between steps"), *it.forward(), *it.backward(), it.moment("optimizer step"))


@dataclass(frozen=True)
class _Step:
    """One step of one rank: ``base`` has what it holds without gathering, ``wide`` and ``sums`` are bytes."""

    model: Transformer
    options: Options
    base: dict[str, Ledger]
    wide: Fraction
    sums: Fraction
    reshards: bool
    root_reshards: bool

    # -- sizes -----------------------------------------------------------------------------------------------
    @property
    def rank(self) -> shapes.Rank:
        """Which part of the model this rank has."""
        given = self.options
        degrees = given.get("tensor_parallel", 1), given.get("pipeline_parallel", 1), given.get("stage", 0)
        return shapes.Rank(*degrees)

    @property
    def layers(self) -> int:
        """Layers of this rank."""
        return len(self.rank.layers(self.model))

    @property
    def layer(self) -> Fraction:
        """Parameters of one layer."""
        return Fraction(self.elements("layer"), self.layers)

    def elements(self, *places: str) -> int:
        """Parameters in these places."""
        return shapes.elements(self.model, self.rank, lambda shape: shape.place in places)

    @property
    def outside(self) -> int:
        """Parameters of the root's unit."""
        return self.elements("embedding", "head")

    @property
    def late(self) -> int:
        """Parameters after the layers, whose gradients come first: the final norm and the head, tied or not."""
        return self.elements("head") + (self.model.vocab * self.model.hidden if self.model.tied else 0)

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.options.get("batch", 1) * self.options.get("sequence", 2048)

    @property
    def stream(self) -> Fraction:
        """Elements of the residual stream between layers: sequence parallelism divides it."""
        split = self.rank.tensor_parallel if self.options.get("sequence_parallel", False) else 1
        return Fraction(self.tokens * self.model.hidden, split)

    @property
    def recomputes(self) -> bool:
        """Whether a layer keeps its input alone."""
        return self.options.get("recomputation", "none") == "full"

    # -- rows ------------------------------------------------------------------------------------------------
    def gathered(self, layers: int) -> list[Row]:
        """The root's weights and those of so many layers."""
        return [
            _buffer("gathered embedding and head", self.outside * self.wide),
            _buffer("gathered layers", layers * self.layer * self.wide, f"{layers} × {self.wide}·N of a layer"),
        ]

    def output(self, parameters: Exact) -> Row:
        """What all-gathers have put out and nobody has let go."""
        return _buffer("all-gather output", parameters * self.wide)

    def saved(self, layers: int, more: Exact = 0) -> Row:
        """What so many layers keep for backward, and ``more``."""
        kept = self.base["after the forward pass"].where(lambda row: row.name.startswith("layers: "))
        return Row("saved for backward", exact(Fraction(kept.total) * layers / self.layers + more), "activations")

    def shards(self, parameters: Exact) -> list[Row]:
        """Shards of the gradients of so many parameters."""
        whole = self.layer * self.layers + self.outside
        rows = [row for row in self.base["optimizer step"] if row.kind == "gradients"]
        return [replace(row, value=exact(Fraction(row.value) * Fraction(parameters) / whole)) for row in rows]

    @property
    def tables(self) -> list[Row]:
        """Rotary tables, alive as long as a layer needs them."""
        return [row for row in self.base["after the forward pass"] if row.name == "rotary tables"]

    # -- moments ---------------------------------------------------------------------------------------------
    def moment(self, name: str, *rows: Row, of: str = "") -> Moment:
        """A moment of ``memory.timeline``, or the one called ``of``, with more rows."""
        return Moment(name, ledger(f"{self.model.name}: {name}", [*self.base[of or name], *rows]))

    def at(self, name: str, *rows: Row) -> Moment:
        """A moment of our own: states, what the recipe keeps until backward, and ``rows``."""
        states, forward = self.base["between steps"], self.base["after the forward pass"]
        copies = [row for row in forward if row.kind == "weights" and row.name not in states]
        return Moment(name, ledger(f"{self.model.name}: {name}", [*states, *copies, *rows]))

    def forward(self) -> Iterator[Moment]:
        """The moments of the forward pass."""
        keep = 0 if self.reshards else self.layers
        stream = self.stream * self.wide
        first = self.output(self.layer + self.outside)
        yield self.at("gathering the first layer", *self.gathered(1), first, self.saved(0, stream), *self.tables)
        last = [*self.gathered(keep or 1), self.output(2 * self.layer), self.saved(self.layers - 1, stream)]
        yield self.at("gathering the last layer", *last, *self.tables)
        name = "the loss, at the end of the forward pass"
        yield self.moment(
            name, *self.gathered(keep), self.output(self.layer), *self._logits(), of="after the forward pass"
        )
        root = self.gathered(keep) if keep or not self.root_reshards else []
        yield self.moment("after the forward pass", *root)

    def _logits(self) -> list[Row]:
        """The logits as the head made them, and in fp32: the loss saves neither."""
        if self.options.get("logits", "fp32") != "fp32":
            return []
        elements = Fraction(self.tokens * self.model.vocab, self.rank.tensor_parallel)
        return [_buffer("logits, and logits in fp32", elements * (self.wide + 4), f"{self.wide}·sbV + 4·sbV")]

    def backward(self) -> Iterator[Moment]:
        """The moments of the backward pass; those of a layer are the last but one's, which are the highest."""
        keep = 0 if self.reshards else self.layers
        ahead = [self.output(self.layer)] if self.reshards else []
        yield self.moment("start of the backward pass", *self.gathered(keep), *ahead)
        head = _buffer("gradients of head and final norm, whole", self.late * self.wide)
        sent = _buffer("reduce-scatter input", self.layer * self.sums, "one layer")
        ahead = ahead if self.layers > 2 else []  # with two layers nothing is left to fetch
        running = [*self.shards(self.layer), *self.gathered(keep - 1 if keep else 1), *ahead, head, sent, *self.tables]
        yield self.at("backward pass of a feed-forward layer", *running, *self._feed_forward())
        yield self.at("backward pass at a feed-forward layer's input", *running, *self._feed_forward_input())
        whole = _buffer("gradients of the layer, whole", self.layer * self.wide)
        kept = self.saved(self.layers - (1 if self.recomputes else 2))
        yield self.at("end of a layer's backward pass", *running, whole, kept, *self._norm())
        done = self.shards(self.layer * self.layers)
        table = self.elements("embedding") * self.wide * (2 if self.model.tied else 1)
        embedding = _buffer("gradient of the embedding, whole", table, "twice if tied: its own and the sum")
        yield self.at("the embedding's backward pass", *done, *self.gathered(0), head, embedding, sent)
        root = self.outside * self.wide, self.outside * self.sums
        last = _buffer("gradients of the root, whole", root[0]), _buffer("reduce-scatter input", root[1])
        yield self.at("reduction of the root's gradients", *done, *last)

    @property
    def _inner(self) -> Fraction:
        """Bytes of one tensor inside the feed-forward layer, 2·sbf, of this rank."""
        return Fraction(self.tokens * self._ffn, self.rank.tensor_parallel) * self.wide

    @property
    def _ffn(self) -> int:
        """Width of the feed-forward layers that a token passes through."""
        moe = self.model.moe
        return moe.ffn * (moe.top_k + moe.shared) if moe else self.model.ffn

    @property
    def _recomputed(self) -> Fraction:
        """What the layer at work saves while it is recomputed."""
        everything: Options = {**self.options, "recomputation": "none"}
        return Fraction(one_layer(self.model, **everything).total) if self.recomputes else Fraction()

    def _feed_forward(self) -> list[Row]:
        """A feed-forward layer in its backward pass: what the layer saved, and what backward has made of it.

        The product of gate and up is gone; its gradient and those of its two factors are there, and so are the
        gradient of the residual stream and that of the down projection's weight.
        """
        tensors, stream = 3 if self.model.gated else 2, self.stream * self.wide
        whole = self.tokens * self.model.hidden * self.wide
        stream += whole if stream != whole else 0  # gathered for the down projection
        down = Fraction(self.model.hidden * self._ffn, self.rank.tensor_parallel) * self.wide
        return [
            self.saved(self.layers - 1, self._recomputed - self._inner),
            _buffer("gradients in the feed-forward", tensors * self._inner + stream, f"{tensors} × 2·sbf + 2·sbh"),
            _buffer("gradient of the down projection", down, "2·hf"),
        ]

    def _feed_forward_input(self) -> list[Row]:
        """A little later: all that the feed-forward layer saved inside is gone, its weights' gradients are there.

        Gate and up have each made a gradient of their input, whole on every tensor-parallel rank.
        """
        matrices = 3 if self.model.gated else 2
        weights = Fraction(matrices * self.model.hidden * self._ffn, self.rank.tensor_parallel) * self.wide
        made = (matrices - 1) * self.tokens * self.model.hidden * self.wide + self._inner + self.stream * self.wide
        return [
            self.saved(self.layers - 1, self._recomputed - (matrices + 1 if matrices == 3 else 2) * self._inner),
            _buffer("gradients of the feed-forward's input", made, "2 × 2·sbh + 2·sbf + 2·sbh"),
            _buffer("gradients of the feed-forward's weights", weights, "6·hf"),
        ]

    def _norm(self) -> list[Row]:
        """RMSNorm's backward pass written out: six tensors as long as the residual stream in fp32, one more not."""
        if self.options.get("rmsnorm", "fused") == "fused" or self.model.norm != "rmsnorm":
            return []
        return [_buffer("backward pass of a norm", self.stream * (24 + self.wide), "6 × 4·sbh + 2·sbh")]


def _buffer(name: str, value: Exact, formula: str = "") -> Row:
    return Row(name, exact(value), "buffers", formula)
