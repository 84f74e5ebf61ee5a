"""Data parallelism as PyTorch's DDP does it: which gradients share a bucket, and what of their travel hides.

``buckets`` predicts the buckets of ``torch.nn.parallel.DistributedDataParallel`` byte for byte; ``step`` lays one
training step on a time line, with ``collectives`` for the cost of each bucket. Who stores what is ``zero``'s question.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from .. import collectives, recipes, shapes
from ..errors import InfrabookError
from ..models import Transformer
from ..units import MIB, Exact, exact, positive

FIRST_BUCKET = MIB  # torch.distributed._DEFAULT_FIRST_BUCKET_BYTES
BUCKET_CAP = 25 * MIB  # DistributedDataParallel(bucket_cap_mb=25), which means MiB


@dataclass(frozen=True)
class Gradient:
    """A parameter's gradient: its name, its bytes, and the FLOP that its layer's backward pass spends a token."""

    name: str
    nbytes: int
    flop_per_token: int = 0
    dtype: str = ""


@dataclass(frozen=True)
class Bucket:
    """Gradients that travel together, in the order in which they were put in."""

    gradients: tuple[Gradient, ...]

    @property
    def nbytes(self) -> int:
        """What one all-reduce carries."""
        return sum(gradient.nbytes for gradient in self.gradients)

    def __len__(self) -> int:
        return len(self.gradients)


def gradients(model: Transformer, dtype: str = "fp32") -> tuple[Gradient, ...]:
    """The gradients of ``model`` in the order in which its parameters are registered, embedding first.

    A matrix's backward pass takes 4 FLOP an element and a token: 2 for its input's gradient, 2 for its own. The
    embedding's is a scatter; norms and biases are left out. Attention's scores have no parameter and are left out.
    A tied head works first and its gradient is ready last, with the embedding's: its work is the final norm's here.

    >>> from .. import models
    >>> found = gradients(models.get("gpt2"))
    >>> len(found), sum(gradient.nbytes for gradient in found) // 4
    (196, 124439808)
    """
    size = recipes.bytes_of(dtype)
    if model.moe is not None or model.mla is not None:
        raise InfrabookError(f"{model.name} has experts or latent attention, whose parameters have no order here")

    def gradient(shape: shapes.Shape, layer: str = "") -> Gradient:
        linear = shape.linear or (shape.name == "head")
        return Gradient(layer + shape.name, _whole(shape.elements * size), 4 * shape.elements * linear, dtype)

    found = shapes.shapes(model)
    inside = [shape for shape in found if shape.place == "layer"]
    norms = [shape for shape in inside if shape.copies > 1 for _ in range(shape.copies // 2)]  # half before each part
    others = [shape for shape in inside if shape.copies == 1]
    second = next(i for i, shape in enumerate(others) if shape.name in ("gate", "up"))
    order = [*norms, *others[:second], *norms, *others[second:]]
    each = [gradient(shape, f"layer {layer}: ") for layer in range(model.layers) for shape in order]
    before, after = ([gradient(shape) for shape in found if shape.place == place] for place in ("embedding", "head"))
    if model.tied:
        after[-1] = replace(after[-1], flop_per_token=4 * model.vocab * model.hidden)
    return (*before, *each, *after)


def _whole(value: Exact) -> int:
    """``value`` bytes of one tensor, which are whole."""
    if value != int(value):
        raise InfrabookError(f"a tensor of {float(value):g} bytes cannot be put in a bucket")
    return int(value)


# -- buckets -----------------------------------------------------------------------------------------------------
def buckets(
    registered: Sequence[Gradient],
    *,
    cap_bytes: int | None = None,
    first_bytes: int | None = None,
    rebuilt: bool = True,
) -> tuple[Bucket, ...]:
    """DDP's buckets in the order in which they are sent, from gradients in the order of registration.

    Gradients are filled in as they become ready, which is the reverse order; a bucket is closed by the gradient
    that takes it to its limit or past it, so none is ever split. Without ``cap_bytes`` the limits are DDP's defaults,
    1 MiB for the first bucket and 25 MiB for the others; a ``cap_bytes`` of one's own, or ``bucket_cap_mb``, holds for
    the first too, unless ``first_bytes`` says otherwise.
    ``rebuilt`` is DDP's state from the second iteration on. Without it (``find_unused_parameters=True``) buckets
    are cut in the order of registration and sent in reverse: the small one comes last, and the largest may come first.
    Dtypes do not share a bucket.
    Source: torch, ``csrc/distributed/c10d/reducer.cpp``, ``compute_bucket_assignment_by_size``, and
    ``nn/parallel/distributed.py`` for the limits.

    >>> from .. import models
    >>> [bucket.nbytes for bucket in buckets(gradients(models.get("gpt2")))][:3]
    [9446400, 28351488, 28351488]
    """
    if first_bytes is None:
        first_bytes = FIRST_BUCKET if cap_bytes is None else cap_bytes
    cap_bytes = BUCKET_CAP if cap_bytes is None else cap_bytes
    positive("cap_bytes", cap_bytes, zero=True)
    positive("first_bytes", first_bytes, zero=True)
    if not registered:
        raise InfrabookError("there are no gradients to put into buckets")
    done: list[list[Gradient]] = []
    filling: dict[str, list[Gradient]] = {}
    closed: dict[str, int] = {}
    for gradient in reversed(registered) if rebuilt else registered:
        bucket = filling.setdefault(gradient.dtype, [])
        bucket.append(gradient)
        limit = cap_bytes if closed.get(gradient.dtype) else first_bytes
        if sum(one.nbytes for one in bucket) >= limit:
            done.append(filling.pop(gradient.dtype))
            closed[gradient.dtype] = 1
    done += filling.values()
    return tuple(Bucket(tuple(bucket)) for bucket in (done if rebuilt else reversed(done)))


def one_bucket(registered: Sequence[Gradient]) -> tuple[Bucket, ...]:
    """All gradients in one: the first iteration of DDP, and the plan of whoever has not thought of overlap."""
    return (Bucket(tuple(reversed(registered))),)


# -- time --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Travel:
    """A bucket on its way: ready when its last gradient is, sent when the one before it has arrived. In seconds."""

    bucket: Bucket
    ready_s: Fraction
    start_s: Fraction
    end_s: Fraction


@dataclass(frozen=True)
class Step:
    """One training step of a rank: ``passes`` forward and backward passes, the last with its buckets under way."""

    passes: int
    forward_s: Fraction
    backward_s: Fraction
    travels: tuple[Travel, ...]

    @property
    def compute_s(self) -> Fraction:
        """Forward and backward passes alone."""
        return self.passes * (self.forward_s + self.backward_s)

    @property
    def communication_s(self) -> Fraction:
        """All buckets' travel, hidden or not."""
        return sum((travel.end_s - travel.start_s for travel in self.travels), Fraction())

    @property
    def step_s(self) -> Fraction:
        """Until gradients are everywhere; the optimizer comes after."""
        return max(self.compute_s, *(travel.end_s for travel in self.travels))

    @property
    def exposed_s(self) -> Fraction:
        """What communication adds to the step."""
        return self.step_s - self.compute_s

    @property
    def efficiency(self) -> Fraction:
        """The share of the step that computes: what N ranks have of N times one rank's speed."""
        return self.compute_s / self.step_s


def step(
    registered: Sequence[Gradient], cut: Iterable[Bucket], *, tokens: int, flop_per_s: Exact | float, ranks: int,
    accumulation: int = 1, overlap: bool = True, algorithm: str = "ring", latency_s: Exact | float = 0,
    bandwidth_bytes_per_s: Exact | float,
) -> Step:  # fmt: skip
    """One step on ``ranks`` data-parallel ranks, each with ``tokens`` tokens a pass at ``flop_per_s``.

    A forward pass takes half of the backward pass. A bucket is sent when its last gradient is ready and the bucket
    before has arrived: one communication stream, as DDP has. ``accumulation`` passes share one exchange
    (``no_sync``). Without ``overlap`` everything waits for the end of the backward pass.

    >>> from .. import models
    >>> grads = gradients(models.get("gpt2"))
    >>> one = step(grads, buckets(grads), tokens=8192, flop_per_s=100e12, ranks=8, bandwidth_bytes_per_s=25 * 10**9)
    >>> f"{float(one.communication_s):.4f} s, {float(one.exposed_s):.4f} s exposed"
    '0.0348 s, 0.0128 s exposed'
    """
    positive("tokens", tokens)
    positive("accumulation", accumulation)
    positive("ranks", ranks)
    positive("the rate of computing", flop_per_s, whole=False)
    rate = Fraction(exact(flop_per_s))
    work = {gradient.name: tokens * gradient.flop_per_token / rate for gradient in registered}
    backward = sum(work.values(), Fraction())
    forward = backward / 2
    began = accumulation * (forward + backward) - backward
    ready: dict[str, Fraction] = {}
    now = began
    for gradient in reversed(registered):
        now += work[gradient.name]
        ready[gradient.name] = now
    travels: list[Travel] = []
    free = began
    for bucket in cut:
        at = max(ready[gradient.name] for gradient in bucket.gradients) if overlap else now
        start = max(at, free)
        free = start + collectives.time_s(
            "all-reduce", size_bytes=bucket.nbytes, ranks=ranks, algorithm=algorithm, latency_s=latency_s,
            bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        )  # fmt: skip
        travels.append(Travel(bucket, at, start, free))
    return Step(accumulation, forward, backward, tuple(travels))


def tokens_to_hide(
    *, ranks: int, flop_per_s: Exact | float, bandwidth_bytes_per_s: Exact | float, bytes_per_gradient: Exact = 2,
    part: Literal["backward", "step"] = "backward",
) -> Fraction:  # fmt: skip
    """Tokens a rank needs between two exchanges so that a ring all-reduce lasts no longer than the backward pass.

    2·(n−1)/n·bytes / bandwidth for each parameter, against 4 FLOP a token; latency aside. The size of the model
    cancels. ``part="step"`` holds it against forward and backward pass, for those who overlap both.

    >>> round(float(tokens_to_hide(ranks=8, flop_per_s=989e12, bandwidth_bytes_per_s=450e9)))
    1923
    """
    positive("the rate of computing", flop_per_s, whole=False)
    positive("the bandwidth", bandwidth_bytes_per_s, whole=False)
    sent = Fraction(collectives.bytes_sent("all-reduce", size_bytes=bytes_per_gradient, ranks=ranks))
    work = {"backward": 4, "step": 6}[part]
    return sent / Fraction(exact(bandwidth_bytes_per_s)) * Fraction(exact(flop_per_s)) / work
