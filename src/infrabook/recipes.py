"""Which tensors a training recipe keeps for every parameter, in which dtype, and so how many bytes.

16, 18, 20, 12, 10 and 8 bytes per parameter are all somebody's convention; ``CONVENTIONS`` names them.
``memory`` adds what a step needs besides these states: activations, buffers, a moment of peak.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

from . import shapes
from .errors import InfrabookError
from .ledger import Ledger, Row, ledger
from .models import Transformer
from .units import Exact, exact, positive

Kind: TypeAlias = Literal["weights", "gradients", "optimizer"]
Per: TypeAlias = Literal["parameter", "matrix", "vector", "linear", "product", "other", "adapter", "factor"]

BITS: dict[str, int] = {
    "fp64": 64, "fp32": 32, "tf32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "fp8_e4m3": 8, "fp8_e5m2": 8,
    "fp6": 6, "fp4": 4, "nf4": 4,
    "int64": 64, "int32": 32, "int16": 16, "int8": 8, "uint8": 8, "int6": 6, "int5": 5, "int4": 4, "int3": 3,
    "int2": 2, "bool": 8,
}  # fmt: skip
"""Bits an element takes in memory, scales apart. TF32 computes with 19 bits and is stored in 32."""

ALIASES = {
    "float64": "fp64", "float32": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16",
    "float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2", "float4_e2m1fn": "fp4",
}  # fmt: skip


def bits(dtype: str | int) -> int:
    """Bits of one element of ``dtype``; a number is taken as the bits themselves.

    >>> bits("bf16"), bits("float8_e4m3fn"), bits(6)
    (16, 8, 6)
    """
    if isinstance(dtype, int) and not isinstance(dtype, bool):
        positive("the number of bits", dtype)
        return dtype
    name = str(dtype).removeprefix("torch.")
    name = ALIASES.get(name, name)
    if name not in BITS:
        raise InfrabookError(f"{dtype!r} is not a dtype the book knows; use one of {', '.join(BITS)}")
    return BITS[name]


def bytes_of(dtype: str | int, scales: tuple[tuple[str, int], ...] = ()) -> Fraction:
    """Bytes of one element of ``dtype`` with its share of the scales, exact.

    ``scales`` lists (dtype of a scale, elements that share it).

    >>> bytes_of("bf16"), bytes_of("int8", (("fp32", 2048),))
    (Fraction(2, 1), Fraction(513, 512))
    """
    shares = (Fraction(bits(of), elements) for of, elements in scales)
    return (bits(dtype) + sum(shares, Fraction())) / 8


@dataclass(frozen=True)
class Tensor:
    """One tensor that a recipe keeps.

    ``per`` says for which elements: every ``parameter``; those in a ``matrix`` or a ``vector``; those of the
    blocks' ``linear`` layers or every ``other`` parameter; those of every matrix that multiplies (``product``: the
    head too, and not a table that is only looked up); those of the ``adapter``; one element a row and one a
    column of each matrix (``factor``). ``until_backward``: it lives only from the forward to the end
    of the backward pass. ``scales``: see ``bytes_of``.
    """

    name: str
    kind: Kind
    dtype: str
    per: Per = "parameter"
    scales: tuple[tuple[str, int], ...] = ()
    until_backward: bool = False

    @property
    def bytes_per_element(self) -> Fraction:
        """Bytes of one of its elements, scales included."""
        return bytes_of(self.dtype, self.scales)


@dataclass(frozen=True)
class Recipe:
    """A way to train, as the list of the tensors it keeps. ``targets`` and ``rank`` belong to adapters."""

    name: str
    title: str
    tensors: tuple[Tensor, ...]
    source: str = ""
    rank: int = 0
    targets: tuple[str, ...] = ()

    def of(self, kind: Kind) -> tuple[Tensor, ...]:
        """Its tensors of one kind."""
        return tuple(tensor for tensor in self.tensors if tensor.kind == kind)


# -- the recipes ---------------------------------------------------------------------------------------------

NF4_DOUBLE_QUANTIZED = (("int8", 64), ("fp32", 64 * 256))
"""QLoRA, arXiv 2305.14314, section 3: an int8 scale a block of 64, one in fp32 for 256 blocks: 4.127 bits."""


def _weights(dtype: str, per: Per = "parameter", name: str = "weights") -> Tensor:
    return Tensor(name, "weights", dtype, per)


def _gradients(dtype: str, per: Per = "parameter", name: str = "gradients") -> Tensor:
    return Tensor(name, "gradients", dtype, per)


def _state(name: str, dtype: str, per: Per = "parameter", scales: tuple[tuple[str, int], ...] = ()) -> Tensor:
    return Tensor(name, "optimizer", dtype, per, scales)


def _adam(dtype: str = "fp32", per: Per = "parameter", scales: tuple[tuple[str, int], ...] = ()) -> tuple[Tensor, ...]:
    return _state("first moment", dtype, per, scales), _state("second moment", dtype, per, scales)


MASTER = _state("master weights", "fp32")
ZERO_PAPER = "Rajbhandari et al., ZeRO, arXiv 1910.02054, section 3.1"


def adam_8bit(*, block: int = 2048, weights: str = "bf16", master: bool = True) -> Recipe:
    """Adam with block-wise 8-bit moments: one byte an element, one fp32 maximum a ``block``.

    The paper's block is 2048, bitsandbytes' today 256. Left out: tensors under 4,096 elements, which
    bitsandbytes keeps in fp32, and its two look-up tables of 256 values.
    Source: Dettmers et al., 8-bit Optimizers via Block-wise Quantization, arXiv 2110.02861.

    >>> bytes_per_parameter(adam_8bit(block=256), kind="optimizer") - 4
    Fraction(65, 32)
    """
    positive("block", block)
    moments = _adam("uint8", scales=(("fp32", block),))
    kept = (MASTER, *moments) if master else moments
    source = "Dettmers et al., arXiv 2110.02861"
    title = f"8-bit Adam in blocks of {block:,}"
    return Recipe("adam-8bit", title, (_weights(weights), _gradients(weights), *kept), source)


def lora(*, rank: int = 8, targets: tuple[str, ...] = ("q", "v"), base: str = "bf16", adapter: str = "fp32") -> Recipe:
    """A frozen base and two trained factors of ``rank`` beside each target matrix, with AdamW.

    ``targets``: any of q, k, v, o, gate, up, down. ``base`` is the dtype of the frozen weights; ``"nf4"`` is
    QLoRA: the blocks' linear layers in NF4 with double quantization (4.127 bits), embeddings, head and norms
    in bf16. Adapters and their gradients are in dtype ``adapter``, the moments in fp32.
    Sources: Hu et al., LoRA, arXiv 2106.09685, section 4; Dettmers et al., QLoRA, arXiv 2305.14314,
    section 3.
    """
    positive("rank", rank)
    if unknown := sorted(set(targets) - set(_TARGETS)):
        raise InfrabookError(f"LoRA cannot target {', '.join(unknown)}; it can target {', '.join(_TARGETS)}")
    if base == "nf4":
        frozen: tuple[Tensor, ...] = (
            Tensor("base weights, quantized", "weights", "nf4", "linear", NF4_DOUBLE_QUANTIZED),
            _weights("bf16", "other", "base weights, not quantized"),
        )
    else:
        frozen = (_weights(base, name="base weights"),)
    trained = (
        _weights(adapter, "adapter", "adapters"),
        _gradients(adapter, "adapter", "gradients of adapters"),
    )
    name = "qlora" if base == "nf4" else "lora"
    return Recipe(
        name,
        f"{'QLoRA' if base == 'nf4' else 'LoRA'}, rank {rank} on {', '.join(targets)}",
        (*frozen, *trained, *_adam("fp32", "adapter")),
        "Hu et al., arXiv 2106.09685; Dettmers et al., arXiv 2305.14314",
        rank,
        tuple(targets),
    )


_TARGETS = ("q", "k", "v", "o", "gate", "up", "down")

_ALL = (
    Recipe(
        "fp32-adamw",
        "everything in fp32, AdamW",
        (_weights("fp32"), _gradients("fp32"), *_adam()),
        "ml-engineering, training/performance: 4 + 4 + 8",
    ),
    Recipe(
        "bf16-adamw",
        "mixed precision with an fp32 master copy, AdamW",
        (_weights("bf16"), _gradients("bf16"), MASTER, *_adam()),
        ZERO_PAPER,
    ),
    Recipe(
        "megatron",
        "mixed precision with gradients kept in fp32, AdamW",
        (_weights("bf16"), _gradients("fp32"), MASTER, *_adam()),
        "Megatron-LM, theoretical_memory_usage.py: 18 bytes, 6 + 12/N with the distributed optimizer",
    ),
    Recipe(
        "fp32-accumulation",
        "mixed precision with an fp32 copy of the bf16 gradients, AdamW",
        (
            _weights("bf16"),
            _gradients("bf16"),
            _gradients("fp32", name="accumulated gradients"),
            MASTER,
            *_adam(),
        ),
        "DeepSpeed, estimate_zero2_model_states_mem_needs: 2 + 18; Hugging Face, Ultra-Scale Playbook",
    ),
    Recipe(
        "bf16-no-master",
        "bf16 weights and gradients, fp32 moments, no master copy",
        (_weights("bf16"), _gradients("bf16"), *_adam()),
        "Dettmers et al., QLoRA, arXiv 2305.14314, section 1",
    ),
    Recipe(
        "pure-bf16",
        "everything in bf16, AdamW",
        (_weights("bf16"), _gradients("bf16"), *_adam("bf16")),
        "torch.optim.AdamW over bf16 parameters: its moments take the parameter's dtype",
    ),
    Recipe(
        "torch-autocast",
        "torch.autocast over fp32 weights, AdamW",
        (
            _weights("fp32"),
            Tensor("bf16 copies of the weights", "weights", "bf16", "product", (), True),
            _gradients("fp32"),
            *_adam(),
        ),
        "PyTorch, torch.amp: autograd keeps the cast weights until backward",
    ),
    adam_8bit(block=256),
    Recipe(
        "adafactor",
        "bf16 weights, Adafactor with a factored second moment and no first",
        (
            _weights("bf16"),
            _gradients("bf16"),
            _state("row and column moments", "fp32", "factor"),
            _state("second moment of vectors", "fp32", "vector"),
        ),
        "Shazeer and Stern, Adafactor, arXiv 1804.04235, section 3",
    ),
    Recipe(
        "sgd-momentum",
        "everything in fp32, SGD with momentum",
        (_weights("fp32"), _gradients("fp32"), _state("momentum", "fp32")),
        "torch.optim.SGD(momentum=...)",
    ),
    Recipe(
        "sgd",
        "everything in fp32, SGD without momentum",
        (_weights("fp32"), _gradients("fp32")),
        "torch.optim.SGD",
    ),
    lora(),
    lora(rank=64, targets=_TARGETS, base="nf4", adapter="bf16"),
)

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _ALL}
"""By name. ``torch-autocast`` keeps 16 bytes a parameter between steps, as fp32, and 2 more in a step."""


def names() -> tuple[str, ...]:
    """The names ``get`` knows."""
    return tuple(RECIPES)


def get(name: str | Recipe) -> Recipe:
    """The recipe called ``name``; a ``Recipe`` is handed back as it is."""
    if isinstance(name, Recipe):
        return name
    if name not in RECIPES:
        raise InfrabookError(f"there is no recipe {name!r}; there are {', '.join(RECIPES)}")
    return RECIPES[name]


# -- whose convention ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Convention:
    """How somebody counts: ``components`` of (what, bytes a parameter).

    ``recipe`` is the one that keeps the same tensors, or empty.
    """

    who: str
    components: tuple[tuple[str, int], ...]
    recipe: str
    source: str
    remark: str = ""

    @property
    def bytes(self) -> int:
        """Bytes per parameter, all components."""
        return sum(size for _, size in self.components)


CONVENTIONS: tuple[Convention, ...] = (
    Convention(
        "ZeRO",
        (("fp16 weights", 2), ("fp16 gradients", 2), ("fp32 weights", 4), ("momentum", 4), ("variance", 4)),
        "bf16-adamw",
        "arXiv 1910.02054, section 3.1",
    ),
    Convention(
        "Full fp32",
        (("weights", 4), ("gradients", 4), ("moments", 8)),
        "fp32-adamw",
        "stas00/ml-engineering, training/performance",
    ),
    Convention(
        "Megatron-LM",
        (("weights", 2), ("fp32 main gradients", 4), ("fp32 weights and moments", 12)),
        "megatron",
        "NVIDIA/Megatron-LM, megatron/training/theoretical_memory_usage.py",
        "without the distributed optimizer; with it 6 + 12/N",
    ),
    Convention(
        "ml-engineering (from Hugging Face)",
        (("fp32 and 16-bit weights", 6), ("moments", 8), ("fp32 gradients", 4)),
        "megatron",
        "stas00/ml-engineering, training/performance",
    ),
    Convention(
        "EleutherAI cookbook",
        (("weights", 2), ("fp32 gradients", 4), ("fp32 weights and moments", 12)),
        "megatron",
        "EleutherAI/cookbook, calc/calc_transformer_mem.py",
    ),
    Convention(
        "DeepSpeed ZeRO-3 estimator",
        (("16-bit weights", 2), ("sharded weights, gradients and states", 16)),
        "megatron",
        "deepspeedai/DeepSpeed, estimate_zero3_model_states_mem_needs",
        "on one GPU; the 2 bytes of 16-bit weights are sharded too",
    ),
    Convention(
        "DeepSpeed ZeRO-2 estimator",
        (
            ("16-bit weights", 2),
            ("16-bit gradients", 2),
            ("fp32 gradients", 4),
            ("fp32 weights and moments", 12),
        ),
        "fp32-accumulation",
        "deepspeedai/DeepSpeed, estimate_zero2_model_states_mem_needs",
        "keeps a 16-bit copy of the gradients that ZeRO-3 drops",
    ),
    Convention(
        "Ultra-Scale Playbook",
        (
            ("weights", 2),
            ("gradients", 2),
            ("accumulated fp32 gradients", 4),
            ("fp32 weights", 4),
            ("moments", 8),
        ),
        "fp32-accumulation",
        "Hugging Face, Ultra-Scale Playbook, memory for weights/grads/optimizer states",
    ),
    Convention(
        "QLoRA's comparison",
        (("16-bit weights", 2), ("16-bit gradients", 2), ("fp32 moments", 8)),
        "bf16-no-master",
        "arXiv 2305.14314, section 1: more than 780 GB for 65B",
        "no fp32 master copy",
    ),
    Convention(
        "scaling-book",
        (("bf16 weights", 2), ("fp32 moments", 8)),
        "",
        "jax-ml/scaling-book, applied-training.md",
        "no gradients and no fp32 master copy",
    ),
    Convention(
        "accelerate estimate-memory, fp16",
        (("largest stage: the optimizer, 2 × the fp32 size", 8),),
        "",
        "huggingface/accelerate 1.15.0, commands/estimate.py",
        "its stages hold 4 (model), 6 (gradients), 8 (optimizer) and 8 (step); the largest is printed, not a sum",
    ),
)
"""Bytes per parameter as public sources count them."""


# -- ZeRO ----------------------------------------------------------------------------------------------------

ZERO: dict[int, frozenset[str]] = {
    0: frozenset(),
    1: frozenset({"optimizer"}),
    2: frozenset({"optimizer", "gradients"}),
    3: frozenset({"optimizer", "gradients", "weights"}),
}
"""Which kinds each ZeRO stage divides among the data-parallel ranks (ZeRO, section 5)."""


def shards(kind: str, *, zero: int = 0, data_parallel: int = 1) -> int:
    """Among how many ranks a tensor of this kind is divided."""
    if zero not in ZERO:
        raise InfrabookError(f"ZeRO has the stages 0, 1, 2 and 3, and not {zero!r}")
    positive("data_parallel", data_parallel)
    return data_parallel if kind in ZERO[zero] else 1


# -- accounts ------------------------------------------------------------------------------------------------


def bytes_per_parameter(
    recipe: str | Recipe,
    *,
    kind: Kind | None = None,
    zero: int = 0,
    data_parallel: int = 1,
    at_rest: bool = False,
) -> Fraction:
    """Bytes a rank keeps for each parameter, all kinds or one, exact.

    ``at_rest`` leaves out what lives only until the backward pass ends. A recipe whose bytes depend on the
    shapes of the matrices (LoRA, Adafactor) has no such number: use ``states`` with a model.

    >>> str(bytes_per_parameter("bf16-adamw"))
    '16'
    >>> str(bytes_per_parameter("bf16-adamw", zero=3, data_parallel=64))
    '1/4'
    """
    recipe = get(recipe)
    total = Fraction()
    for tensor in recipe.tensors:
        if kind in (None, tensor.kind) and not (at_rest and tensor.until_backward):
            size = tensor.bytes_per_element * _elements(recipe, tensor.per, 1)
            total += size / shards(tensor.kind, zero=zero, data_parallel=data_parallel)
    return total


def states(
    model: Transformer | int,
    recipe: str | Recipe = "bf16-adamw",
    *,
    zero: int = 0,
    data_parallel: int = 1,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    stage: int = 0,
) -> Ledger:
    """The bytes of weights, gradients and optimizer states on one rank.

    ``model`` is a ``Transformer`` or a bare count of parameters, then taken as matrices throughout and
    divided evenly. ``zero`` is ZeRO's stage and ``data_parallel`` the number of ranks it divides among (not
    all GPUs: tensor and pipeline ranks are no part of that group). A share is exact, as in the paper;
    engines round it up to whole elements. ``stage`` counts pipeline stages from 0.

    >>> print(states(7 * 10**9).by_kind())
    states, mixed precision with an fp32 master copy, AdamW
    ------------------------------------
    weights              14.00 GB  12.5%
    gradients            14.00 GB  12.5%
    optimizer states     84.00 GB  75.0%
    ------------------------------------
    total               112.00 GB
    """
    recipe = get(recipe)
    if not isinstance(model, Transformer):
        positive("the number of parameters", model)
    rank = shapes.Rank(tensor_parallel, pipeline_parallel, stage)
    rows = []
    for tensor in recipe.tensors:
        elements = _elements(recipe, tensor.per, model, rank)
        ranks = shards(tensor.kind, zero=zero, data_parallel=data_parallel)
        value = exact(elements * tensor.bytes_per_element / ranks)
        rows.append(Row(tensor.name, value, tensor.kind, _formula(tensor, ranks)))
    of = f"{model.name}: " if isinstance(model, Transformer) else ""
    return ledger(f"{of}states, {recipe.title}", rows)


def adapter_parameters(model: Transformer, *, rank: int, targets: tuple[str, ...] = ("q", "v")) -> int:
    """Parameters of LoRA's two factors: rank × (rows + columns) for every target matrix (LoRA, section 4.2).

    A target that the model has once an expert counts once an expert.
    """
    positive("rank", rank)
    found = {
        target: [s for s in shapes.shapes(model) if s.columns and s.name.split()[-1] == target] for target in targets
    }
    if missing := [target for target in targets if not found[target]]:
        raise InfrabookError(f"{model.name} has no matrix {', '.join(missing)} for an adapter to stand beside")
    return sum(s.count * rank * (s.rows + s.columns) for group in found.values() for s in group)


def _elements(recipe: Recipe, per: Per, model: Transformer | int, rank: shapes.Rank = shapes.ALONE) -> Exact:
    if not isinstance(model, Transformer):
        if per in ("adapter", "factor"):
            raise InfrabookError(f"{recipe.name} keeps tensors whose size depends on the matrices: give a model")
        parts = rank.tensor_parallel * rank.pipeline_parallel
        return 0 if per in ("vector", "other") else exact(Fraction(model, parts))
    if per in ("adapter", "factor"):
        if rank != shapes.ALONE:
            raise InfrabookError(f"{recipe.name} is not accounted for under tensor or pipeline parallelism")
        if per == "adapter":
            return adapter_parameters(model, rank=recipe.rank, targets=recipe.targets)
        return sum(s.count * (s.rows + s.columns) for s in shapes.shapes(model) if s.columns)
    found = shapes.elements(model, rank, _WANTED[per])
    if per == "product" and model.tied and rank.last:  # the embedding's matrix multiplies as the head
        found += shapes.shapes(model)[0].share(rank.tensor_parallel)
    return found


_WANTED: dict[Per, Callable[[shapes.Shape], bool]] = {
    "parameter": lambda shape: True,
    "matrix": lambda shape: shape.columns > 0,
    "vector": lambda shape: shape.columns == 0,
    "linear": lambda shape: shape.linear,
    "product": lambda shape: shape.columns > 0 and shape.place != "embedding",
    "other": lambda shape: not shape.linear,
}

_SYMBOLS: dict[Per, str] = {
    "parameter": "N", "matrix": "N in matrices", "vector": "N in vectors", "linear": "N in linear layers",
    "product": "N in products", "other": "N elsewhere", "adapter": "N of adapters", "factor": "(rows + columns)",
}  # fmt: skip


def _formula(tensor: Tensor, ranks: int) -> str:
    size = tensor.bytes_per_element
    each = str(size) if size.denominator == 1 else f"{float(size):.4g}"
    return f"{each} × {_SYMBOLS[tensor.per]}" + (f" / {ranks}" if ranks > 1 else "")
