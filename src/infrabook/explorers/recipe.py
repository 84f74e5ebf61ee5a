"""A recipe put together tensor by tensor: its bytes per parameter, and whose public number that is."""

from __future__ import annotations

from fractions import Fraction
from html import escape

from .. import hardware, models, recipes
from ..errors import InfrabookError
from ..explore import Check, Choice, Number, explore, number
from ..recipes import CONVENTIONS, Kind, Recipe, Tensor
from ..units import exact, show
from .ledger import GPUS
from .views import account_table, meter

BLOCK = 256  # elements that share an fp32 maximum in bitsandbytes
BY_COUNT = "none, a round number"
MOMENTS = {"FP32": "fp32", "BF16": "bf16", "8 bits, in blocks of 256": "uint8", "none": ""}
KINDS = ("weights", "gradients", "optimizer")


@explore(
    weights=Choice({"BF16": "bf16", "FP32": "fp32"}),
    gradients=Choice({"BF16": "bf16", "FP32": "fp32", "none": ""}),
    accumulated=Check(label="an FP32 sum of the gradients besides"),
    master=Check(label="FP32 master copy of the weights"),
    first=Choice(MOMENTS, label="first moment"),
    second=Choice(MOMENTS, label="second moment"),
    model=Choice([BY_COUNT, *models.names()]),
    billions=Number(0.001, 10_000, 0.5, "billion", "the round number", (0.5, 1, 3, 7, 13, 33, 70, 175, 405, 1000)),
    gpu=Choice(GPUS, label="GPU"),
)  # fmt: skip
def recipe_bytes(
    weights: str = "bf16",
    gradients: str = "bf16",
    accumulated: bool = False,
    master: bool = True,
    first: str = "fp32",
    second: str = "fp32",
    model: str = "llama-2-7b",
    billions: float = 7.0,
    gpu: str = "h100-sxm",
) -> str:
    """Bytes per parameter, from the tensors that are kept."""
    if master and weights == "fp32":
        raise InfrabookError("weights in FP32 need no master copy in FP32: it would be the same numbers twice")
    if accumulated and gradients == "fp32":
        raise InfrabookError("the gradients are in FP32 already: a second FP32 sum of them would be the same tensor")
    scales = (("fp32", BLOCK),)
    tensors = [Tensor("weights", "weights", weights)]
    if gradients:
        tensors.append(Tensor("gradients", "gradients", gradients))
    if accumulated:
        tensors.append(Tensor("accumulated gradients", "gradients", "fp32"))
    if master:
        tensors.append(recipes.MASTER)
    for name, dtype in (("first moment", first), ("second moment", second)):
        if dtype:
            tensors.append(Tensor(name, "optimizer", dtype, scales=scales if dtype == "uint8" else ()))
    recipe = Recipe("yours", "the tensors you ticked", tuple(tensors))
    each = recipes.bytes_per_parameter(recipe)
    shape = round(Fraction(repr(billions)) * 10**9) if model == BY_COUNT else models.get(model)
    account, card = recipes.states(shape, recipe), hardware.gpu(gpu)
    words = next(words for words, name in GPUS.items() if name == gpu)
    rest = exact(Fraction(card.memory_bytes) - account.total)
    room = f"{show(max(rest, -rest))} {'are left' if rest >= 0 else 'are missing'}"
    parts: list[tuple[str, Kind]] = [("weights", "weights"), ("gradients", "gradients"), ("optimizer", "optimizer")]
    split = " + ".join(_plain(recipes.bytes_per_parameter(recipe, kind=kind)) for _, kind in parts)
    return (
        f'<p class="explorer-answer">{number(f"{_plain(each)} bytes per parameter", each)}: {split} for weights, '
        f"gradients and optimizer states. {show(account.total)} in all; of one {words} {room}, before any "
        f"activation.</p>"
        + meter(account.by_kind(), card.memory_bytes, f"{words}: {show(card.memory_bytes)}")
        + account_table(account, KINDS, room=(f"memory of one {words}, as it reports it", card.memory_bytes))
        + f'<p class="explorer-note">{escape(_whose(recipe, each))}</p>'
    )


def _whose(recipe: Recipe, each: Fraction) -> str:
    """Who counts the same tensors, who arrives at the same total with others, and what is odd about the choice."""
    kept = _tensors(recipe)
    same, total = [], []
    for convention in CONVENTIONS:
        theirs = _tensors(recipes.get(convention.recipe)) if convention.recipe else _UNNAMED.get(convention.who)
        if theirs == kept:
            same.append(_WORDS.get(convention.who, convention.who))
        elif convention.bytes == each:
            total.append(_WORDS.get(convention.who, convention.who))
    known = [other for other in recipes.RECIPES.values() if _tensors(other) == kept]
    if same:
        said = [f"Who counts these tensors: {', '.join(same)}."]
    elif known:
        said = [f"In this book's list: {known[0].title} ({known[0].source})."]
    else:
        said = ["No source on our list keeps just these tensors."]
    if total:
        said.append(f"The same number of bytes by another count: {', '.join(total)}.")
    dtypes = {t.name: t.dtype for t in recipe.tensors}
    if not any(t.kind == "gradients" for t in recipe.tensors):
        said.append("Without gradients this is what stands between steps, and not what a step needs.")
    if "master weights" not in dtypes and dtypes["weights"] == "bf16":
        said.append("BF16 weights without a master copy lose every update smaller than half a unit in the last place.")
    if dtypes.get("second moment") == "bf16":
        said.append("A second moment in BF16 does not decay at the usual 0.999.")
    return " ".join(said)


_UNNAMED = {  # lists of tensors with which nobody could train, and so no recipe
    "scaling-book": {("weights", "bf16"), ("first moment", "fp32"), ("second moment", "fp32")}
}
_WORDS = {"Full fp32": "ml-engineering, for full FP32", "ZeRO": "the ZeRO paper"}


def _tensors(recipe: Recipe) -> set[tuple[str, str]]:
    return {(tensor.name, tensor.dtype) for tensor in recipe.tensors}


def _plain(size: Fraction) -> str:
    return f"{float(size):.4f}".rstrip("0").rstrip(".")
