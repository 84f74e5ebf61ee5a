"""Tensor parallelism: the matrix products themselves are divided, and activations travel instead of weights.

``calls`` lists every collective of a step, with or without sequence parallelism; ``training`` is what one rank holds,
``step`` what it computes and waits for. The cuts of each weight stand in ``shapes``, of each activation in
``activations``, the price of a collective in ``collectives``. Splitting by layers is ``pipeline``'s question.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, TypeAlias, Unpack

from .. import collectives, flops, hardware, memory, recipes
from ..activations import Options, Recomputation
from ..errors import InfrabookError
from ..ledger import Ledger, Row, ledger
from ..models import Transformer
from ..recipes import Recipe
from ..units import Exact, exact, positive

Pass: TypeAlias = Literal["forward", "backward"]


# -- how far ------------------------------------------------------------------------------------------------------
def check(model: Transformer, degree: int, *, sequence: int = 0, copy_kv: bool = True) -> None:
    """Refuse a ``degree`` that does not divide what it cuts, in a sentence that names the part.

    Attention is cut between heads, so the degree divides them. With more ranks than key-value heads each of these
    stands on several ranks, which ``copy_kv=False`` refuses. ``sequence`` is given where it is divided too.
    """
    positive("degree", degree)
    if model.heads % degree:
        raise InfrabookError(f"{degree} tensor-parallel ranks do not divide {model.name}'s {model.heads} heads")
    if model.kv_heads % degree and (degree % model.kv_heads or not copy_kv):
        raise InfrabookError(
            f"{degree} tensor-parallel ranks and {model.kv_heads} key-value heads of {model.name}: neither divides "
            "the other" if copy_kv else f"{model.name} has {model.kv_heads} key-value heads, which {degree} ranks do "
            "not divide without copies"
        )  # fmt: skip
    if model.ffn % degree:
        raise InfrabookError(f"{degree} tensor-parallel ranks do not divide {model.name}'s feed-forward of {model.ffn}")
    if sequence % degree:
        raise InfrabookError(f"sequence parallelism of {degree} does not divide a length of {sequence} tokens")


def degrees(model: Transformer, *, most: int = 64, copy_kv: bool = True) -> tuple[int, ...]:
    """The degrees up to ``most`` that ``check`` accepts.

    >>> from ..models import get
    >>> degrees(get("llama-2-7b")), degrees(get("llama-3-8b"), copy_kv=False)
    ((1, 2, 4, 8, 16, 32), (1, 2, 4, 8))
    """

    def possible(degree: int) -> bool:
        try:
            check(model, degree, copy_kv=copy_kv)
        except InfrabookError:
            return False
        return True

    return tuple(degree for degree in range(1, most + 1) if possible(degree))


# -- what is said -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Call:
    """One collective of a step: ``nbytes`` is the whole buffer, S in ``collectives``."""

    op: str
    nbytes: Exact
    when: Pass
    where: str


def layer_calls(
    model: Transformer, *, batch: int = 1, sequence: int = 2048, dtype: str = "bf16", sequence_parallel: bool = False,
    shared_input: bool = True, keep_gathered: bool = True, recomputation: Recomputation = "none",
) -> tuple[Call, ...]:  # fmt: skip
    """The collectives of one layer, in the order of a step. Each carries b·s·h elements.

    Attention and feed-forward are each a product by columns and one by rows: one sum at the end of forward (g), one
    of the input's gradient at the end of backward (f). Sequence parallelism makes each sum a reduce-scatter, with an
    all-gather where the whole is needed again.

    - ``shared_input``: query, key and value (gate and up) take one input, whose gradient is summed once. Without, each
      sums its own, as DTensor's ``ColwiseParallel`` does unless the input is prepared for all.
    - ``keep_gathered``: PyTorch keeps the gathered inputs of the first products; Megatron-LM keeps its own part and
      gathers again in backward, two more all-gathers a layer.
    - ``recomputation="full"`` repeats the forward pass, its collectives included.

    Source: Shoeybi et al., arXiv 1909.08053, section 3; Korthikanti et al., arXiv 2205.05198, section 4.2.

    >>> from ..models import get
    >>> [(call.op, call.when, call.where) for call in layer_calls(get("gpt2"))][:2]
    [('all-reduce', 'forward', 'after attention'), ('all-reduce', 'forward', 'after feed-forward')]
    >>> len(layer_calls(get("llama-2-7b"), shared_input=False)), len(layer_calls(get("gpt2"), shared_input=False))
    (7, 6)
    """
    if model.moe or model.mla:
        raise InfrabookError(f"{model.name} has experts or latent attention, whose collectives are not counted here")
    size = _stream(model, batch, sequence, dtype)
    halves: tuple[tuple[str, int], ...] = (("attention", 3), ("feed-forward", 2 if model.gated else 1))
    if model.norms_per_layer == 1:  # side by side behind one norm: one input, one sum
        halves = (("attention and feed-forward", sum(products for _, products in halves)),)

    def forward(when: Pass) -> Iterator[Call]:
        for half, _ in halves:
            if sequence_parallel:
                yield Call("all-gather", size, when, f"before {half}")
                yield Call("reduce-scatter", size, when, f"after {half}")
            else:
                yield Call("all-reduce", size, when, f"after {half}")

    def backward() -> Iterator[Call]:
        if recomputation == "full":
            yield from forward("backward")
        for half, products in reversed(halves):
            if sequence_parallel:
                yield Call("all-gather", size, "backward", f"gradient after {half}")
                if not keep_gathered:
                    yield Call("all-gather", size, "backward", f"input of {half}, again")
            summed = "reduce-scatter" if sequence_parallel else "all-reduce"
            for _ in range(1 if shared_input else products):
                yield Call(summed, size, "backward", f"gradient before {half}")

    return (*forward("forward"), *backward())


def outer_calls(
    model: Transformer, *, batch: int = 1, sequence: int = 2048, dtype: str = "bf16", sequence_parallel: bool = False,
    parallel_loss: bool = True, keep_gathered: bool = True,
) -> tuple[Call, ...]:  # fmt: skip
    """The collectives of embedding, head and loss, all divided by the vocabulary.

    A rank looks up the tokens it has, and a sum brings all together. ``parallel_loss`` leaves the logits where they
    are: three FP32 numbers a token are reduced instead, the largest logit, the sum of exponentials, and the target's
    logit (Megatron-LM; ``torch.distributed.tensor.parallel.loss_parallel``). Without it all logits are gathered.

    >>> from ..models import get
    >>> found = outer_calls(get("llama-2-7b"), sequence=4096)
    >>> [(call.op, int(call.nbytes)) for call in found if call.where == "loss"]
    [('all-reduce', 16384), ('all-reduce', 16384), ('all-reduce', 16384)]
    """
    size, tokens = _stream(model, batch, sequence, dtype), batch * sequence
    summed = "reduce-scatter" if sequence_parallel else "all-reduce"
    found = [Call(summed, size, "forward", "embedding")]
    if sequence_parallel:
        found.append(Call("all-gather", size, "forward", "before head"))
    if parallel_loss:
        found += [Call("all-reduce", 4 * tokens, "forward", "loss")] * 3
    else:
        found.append(Call("all-gather", exact(recipes.bytes_of(dtype) * tokens * model.vocab), "forward", "logits"))
    if sequence_parallel and not keep_gathered:
        found.append(Call("all-gather", size, "backward", "input of head, again"))
    found.append(Call(summed, size, "backward", "gradient before head"))
    if sequence_parallel:
        found.append(Call("all-gather", size, "backward", "gradient after embedding"))
    return tuple(found)


def calls(
    model: Transformer, *, sequence_parallel: bool = False, keep_gathered: bool = True, parallel_loss: bool = True,
    shared_input: bool = True, recomputation: Recomputation = "none", **given: Any,
) -> tuple[Call, ...]:  # fmt: skip
    """All collectives of a step: ``layer_calls`` for every layer, and ``outer_calls``. ``given`` as there."""
    both: dict[str, Any] = {"sequence_parallel": sequence_parallel, "keep_gathered": keep_gathered, **given}
    inside = layer_calls(model, shared_input=shared_input, recomputation=recomputation, **both)
    return inside * model.layers + outer_calls(model, parallel_loss=parallel_loss, **both)


def counted(found: Iterable[Call], when: Pass | None = None) -> dict[str, int]:
    """How many calls of each operation there are (in one pass)."""
    return dict(Counter(call.op for call in found if when in (None, call.when)))


def bytes_sent(found: Iterable[Call], degree: int) -> Exact:
    """Bytes that each of ``degree`` ranks sends for these calls, around a ring.

    >>> from ..models import Transformer
    >>> gpt3 = Transformer("gpt-3", 96, 12288, 96, 96, 128, 49152, 51200, 2048, gated=False, norm="layernorm")
    >>> bytes_sent(layer_calls(gpt3, sequence=2048), 8)
    352321536
    """
    sent = (Fraction(collectives.bytes_sent(c.op, size_bytes=c.nbytes, ranks=degree)) for c in found)
    return exact(sum(sent, Fraction()))


def communication_s(found: Iterable[Call], degree: int, **links: Any) -> Fraction:
    """Seconds of these calls one after another; ``links`` as ``collectives.time_s`` takes them."""
    alike = Counter((call.op, call.nbytes) for call in found)
    return sum(
        (times * collectives.time_s(op, size_bytes=size, ranks=degree, **links) for (op, size), times in alike.items()),
        Fraction(),
    )


def exposure(
    width: int, *, degree: int, peak_flop_per_s: Exact, bandwidth_bytes_per_s: Exact, op: str = "all-reduce",
    dtype: str = "bf16",
) -> Fraction:  # fmt: skip
    """Time of a collective over time of the divided product that it belongs to, without latency.

    The sum (``op`` "all-reduce") of an m × n result whose inner ``width`` is divided by ``degree``; or the gathering
    ("all-gather") of an m × k input for a product with ``width`` columns in all. m, n and k cancel. Above 1, the ranks
    wait longer than they compute.
    Source: the scaling book, "roofline", for two chips; the Ultra-Scale Playbook, appendix A3, which leaves out the
    bytes of an element.

    >>> round(float(exposure(8192, degree=8, peak_flop_per_s=989 * 10**12, bandwidth_bytes_per_s=450 * 10**9,
    ...     op="all-gather")), 3)
    1.878
    """
    positive("width", width)
    positive("peak_flop_per_s", peak_flop_per_s, whole=False)
    positive("bandwidth_bytes_per_s", bandwidth_bytes_per_s, whole=False)
    sent = Fraction(collectives.bytes_sent(op, size_bytes=recipes.bytes_of(dtype), ranks=degree))
    return sent / bandwidth_bytes_per_s / (Fraction(2 * width, degree) / peak_flop_per_s)


# -- what a rank holds and how long it takes --------------------------------------------------------------------------
def training(
    model: Transformer, recipe: str | Recipe = "bf16-adamw", *, degree: int, parallel_loss: bool = True,
    **options: Unpack[Options],
) -> Ledger:  # fmt: skip
    """What one of ``degree`` ranks holds to train: ``memory.training``, and the logits that it gathers.

    ``options`` are those of ``activations``: ``sequence_parallel``, ``keep_gathered``, ``batch``, ``sequence`` ...

    >>> from ..models import get
    >>> llama = get("llama-2-7b")
    >>> whole, part = (training(llama, degree=degree).by_kind() for degree in (1, 8))
    >>> [round(float(w / p), 2) for (_, w, p, _) in whole.compare(part)]
    [8.0, 8.0, 8.0, 3.24]
    """
    batch, sequence = options.get("batch", 1), options.get("sequence", 2048)
    check(model, degree, sequence=sequence if options.get("sequence_parallel") else 0)
    options["tensor_parallel"] = degree
    whole = memory.training(model, recipe, **options)
    rest = () if parallel_loss else gathered_logits(model, degree=degree, batch=batch, sequence=sequence)
    return ledger(
        f"{model.name}: one of {degree} tensor-parallel ranks, {batch} × {sequence:,} tokens", (*whole, *rest)
    )


def gathered_logits(
    model: Transformer, *, degree: int, batch: int = 1, sequence: int = 2048, times: int = 1
) -> tuple[Row, ...]:  # fmt: skip
    """The row of logits that are not a rank's own, in FP32, where the loss is not divided.

    ``times``: 1 as saved for backward, 3 when the backward pass starts, with the gradients by the log-probabilities
    and by the logits.
    """
    other = exact(Fraction(4 * times * batch * sequence * model.vocab * (degree - 1), degree))
    return (Row("logits gathered from other ranks", other, "activations", f"{4 * times}·sbV·(t-1)/t"),)


@dataclass(frozen=True)
class Step:
    """A training step on one of ``degree`` ranks: work, waiting, memory. Nothing overlaps."""

    degree: int
    compute_s: Fraction
    communication_s: Fraction
    sent_bytes: Exact
    memory: Ledger

    @property
    def seconds(self) -> Fraction:
        """Work and communication one after the other."""
        return self.compute_s + self.communication_s

    @property
    def share(self) -> Fraction:
        """The share of the step spent communicating."""
        return self.communication_s / self.seconds


def step(
    model: Transformer, gpu: str | hardware.Gpu, recipe: str | Recipe = "bf16-adamw", *, degree: int,
    link: str | hardware.Link, utilization: Exact | float = 1, parallel_loss: bool = True, ranks_per_node: int = 0,
    across: str | hardware.Link | None = None, algorithm: str = "ring", **options: Unpack[Options],
) -> Step:  # fmt: skip
    """The time of a step whose products are divided evenly among ``degree`` ranks, at ``utilization`` of the peak.

    Collectives are on the way from each product to the next, so nothing hides them here; kernels that overlap the two
    are not modelled. ``ranks_per_node``, ``across`` and ``algorithm`` as in ``collectives.time_s``.

    >>> from ..models import get
    >>> one = step(get("llama-2-7b"), "h100-sxm", degree=8, link="nvlink4", utilization=Fraction(1, 2), sequence=4096)
    >>> round(100 * float(one.share))
    33
    """
    if not 0 < utilization <= 1:
        raise InfrabookError(f"utilization has to be above 0 and at most 1, and is {utilization!r}")
    card = hardware.gpu(gpu) if isinstance(gpu, str) else gpu
    batch, sequence = options.get("batch", 1), options.get("sequence", 2048)
    recomputation = options.get("recomputation", "none")
    held = training(model, recipe, degree=degree, parallel_loss=parallel_loss, **options)
    work = Fraction(flops.training(model, batch=batch, sequence=sequence, recomputation=recomputation).total)
    found = calls(
        model, batch=batch, sequence=sequence, sequence_parallel=options.get("sequence_parallel", False),
        keep_gathered=options.get("keep_gathered", False), parallel_loss=parallel_loss,
        recomputation=recomputation, dtype=options.get("dtype", "bf16"),
    )  # fmt: skip
    return Step(
        degree,
        work / degree / (card.peak("bf16") * Fraction(exact(utilization))),
        communication_s(found, degree, link=link, ranks_per_node=ranks_per_node, across=across, algorithm=algorithm),
        bytes_sent(found, degree),
        held,
    )


def _stream(model: Transformer, batch: int, sequence: int, dtype: str) -> Exact:
    """Bytes of the residual stream: b·s·h elements."""
    positive("batch", batch)
    positive("sequence", sequence)
    return exact(recipes.bytes_of(dtype) * batch * sequence * model.hidden)
