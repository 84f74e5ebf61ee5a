"""The book's ledgers at a shell: ``infrabook ledger llama-2-7b --gpus 8 --zero 3 --gpu h100-sxm``.

Every number comes from the same functions that chapters and explorers call. Bad input gets one sentence on
stderr and exit status 2.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from . import activations, hardware, memory, models, parameters, recipes
from .errors import InfrabookError
from .ledger import Ledger
from .models import Transformer
from .units import BYTES, quantity, scaled, show


class _Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that answers bad input with one sentence instead of its whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"infrabook: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (by default the process's own) and return its exit status."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 0
    try:
        print(_COMMANDS[args.command](args))
        sys.stdout.flush()
    except InfrabookError as error:
        print(f"infrabook: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="infrabook", description="Memory ledgers of transformer models, row by row.")
    commands = parser.add_subparsers(dest="command", metavar="command")
    for name, words in (
        ("models", "list the models that have a name, with their parameters"),
        ("gpus", "list the GPUs that have a name, with their memory and its bandwidth"),
        ("recipes", "list the training recipes and their bytes per parameter"),
    ):
        commands.add_parser(name, help=words, description=f"{words.capitalize()}.")
    _ledger_arguments(
        commands.add_parser(
            "ledger",
            help="what a GPU holds to train a model, or to serve it",
            description="What one GPU holds to train a model, or with --inference to serve it.",
        )
    )
    return parser


def _ledger_arguments(add: argparse.ArgumentParser) -> None:
    choices = activations.CHOICES
    add.add_argument("model", help="a name from 'infrabook models', or the path of a Hugging Face config.json")
    add.add_argument("--unit", default="GB", help="unit to print: GB (10^9 bytes), GiB (2^30 bytes) ...")
    add.add_argument("--json", action="store_true", help="print exact bytes as JSON")
    add.add_argument("--by-kind", action="store_true", help="one row a kind: weights, gradients, activations ...")
    add.add_argument("--gpu", help="say whether it fits this GPU: a name from 'infrabook gpus', or '80 GB'")
    add.add_argument("--reserved", default="0 B", help="memory that is not available on the GPU, such as '1 GB'")
    add.add_argument("--batch", type=_whole, default=1, help="sequences a micro-batch, or sequences served at once")
    add.add_argument("--tensor-parallel", type=_whole, default=1, help="GPUs that split every matrix")

    train = add.add_argument_group("to train")
    train.add_argument("--recipe", default="bf16-adamw", help="a name from 'infrabook recipes'")
    train.add_argument("--sequence", type=_whole, default=2048, help="tokens a sequence")
    train.add_argument("--gpus", type=_whole, default=1, help="all GPUs; data-parallel ranks follow from it")
    train.add_argument("--zero", type=_whole, default=0, help="ZeRO stage: 0, 1, 2 or 3")
    train.add_argument("--pipeline-parallel", type=_whole, default=1, help="pipeline stages; the first is shown")
    train.add_argument("--sequence-parallel", action="store_true", help="split norms and dropouts too")
    for name, words in (
        ("attention", "flash keeps no matrix of scores, eager does"),
        ("recomputation", "what is computed again in the backward pass"),
        ("logits", "in which dtype the loss keeps them"),
        ("rmsnorm", "fused kernel, PyTorch without it (fp32), or Hugging Face's (cast)"),
    ):
        default = {"attention": "flash", "recomputation": "none", "logits": "fp32", "rmsnorm": "fused"}[name]
        train.add_argument(f"--{name}", choices=choices[name], default=default, help=f"{words} ({default})")
    train.add_argument("--moments", action="store_true", help="totals at the moments of a step, and the peak")

    serve = add.add_argument_group("to serve")
    serve.add_argument("--inference", action="store_true", help="weights and KV cache instead of training")
    serve.add_argument("--context", type=_whole, help="tokens kept of each sequence (the model's longest)")
    serve.add_argument("--weights", default="bf16", help="dtype of the weights")
    serve.add_argument("--cache", default="bf16", help="dtype of the KV cache")


# -- commands ------------------------------------------------------------------------------------------------


def _ledger(args: argparse.Namespace) -> str:
    if args.unit not in BYTES:
        raise InfrabookError(f"{args.unit!r} is not a unit of bytes; use one of {', '.join(BYTES)}")
    model = _model(args.model)
    reserved = quantity(args.reserved)
    moments: tuple[memory.Moment, ...] = ()
    if args.inference:
        account = memory.inference(
            model, batch=args.batch, context=args.context or model.context, weights=args.weights,
            cache=args.cache, tensor_parallel=args.tensor_parallel,
        )  # fmt: skip
    else:
        options = _training_options(args)
        account = memory.training(model, args.recipe, **options)
        if args.moments:
            moments = memory.timeline(model, args.recipe, **options)
    fit = memory.fits(account, _gpu(args.gpu), reserved=reserved) if args.gpu else None
    shown = account.by_kind() if args.by_kind else account
    if args.json:
        return json.dumps(_plain(shown, fit, moments), indent=2, ensure_ascii=False)
    parts = [shown.to_text(args.unit)]
    if moments:
        parts.append(_moments(moments, args.unit))
    if fit:
        parts.append(fit.to_text(args.unit))
    return "\n\n".join(parts)


def _models(_: argparse.Namespace) -> str:
    rows = [(name, scaled(parameters.count(models.get(name)).total, "")) for name in models.names()]
    return _columns(rows)


def _gpus(_: argparse.Namespace) -> str:
    return _columns(
        [(gpu.name, show(gpu.memory_bytes, "GiB"), scaled(gpu.bandwidth_bytes_per_s, "B/s")) for gpu in hardware.gpus()]
    )


def _recipes(_: argparse.Namespace) -> str:
    rows = []
    for name, recipe in recipes.RECIPES.items():
        try:
            size = f"{float(recipes.bytes_per_parameter(recipe)):.5g} B"
        except InfrabookError:  # depends on the shapes of a model's matrices
            size = "by model"
        rows.append((name, size, recipe.title))
    return _columns(rows)


_COMMANDS = {"ledger": _ledger, "models": _models, "gpus": _gpus, "recipes": _recipes}


# -- reading -------------------------------------------------------------------------------------------------


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _model(text: str) -> Transformer:
    path = Path(text)
    if path.exists() or path.suffix == ".json" or len(path.parts) > 1:
        return Transformer.from_hf_config(path)
    return models.get(text)


def _gpu(text: str) -> Any:
    return quantity(text) if text[:1].isdigit() else hardware.gpu(text)


def _training_options(args: argparse.Namespace) -> dict[str, Any]:
    split = args.tensor_parallel * args.pipeline_parallel
    if split < 1 or args.gpus < 1 or (args.gpus % split and args.gpus > 1):
        raise InfrabookError(
            f"{args.gpus} GPUs do not divide into groups of {args.tensor_parallel} tensor-parallel × "
            f"{args.pipeline_parallel} pipeline ranks"
        )
    names = ("batch", "sequence", "zero", "attention", "recomputation", "logits", "rmsnorm",
             "tensor_parallel", "pipeline_parallel", "sequence_parallel")  # fmt: skip
    return {name: getattr(args, name) for name in names} | {"data_parallel": max(1, args.gpus // split)}


# -- writing -------------------------------------------------------------------------------------------------


def _plain(account: Ledger, fit: memory.Fit | None, moments: tuple[memory.Moment, ...]) -> dict[str, Any]:
    plain = account.to_dict()
    if moments:
        plain["moments"] = [{"name": m.name, "total": _number(m.ledger.total)} for m in moments]
    if fit:
        plain["fit"] = {
            "fits": fit.fits,
            "capacity": _number(fit.capacity),
            "reserved": _number(fit.reserved),
            "headroom": _number(fit.headroom),
        }
    return plain


def _number(value: Any) -> int | str:
    return value if isinstance(value, int) else str(value)


def _moments(moments: tuple[memory.Moment, ...], unit: str) -> str:
    most = max(m.ledger.total for m in moments)
    rows = [(m.name, show(m.ledger.total, unit), "<- peak" if m.ledger.total == most else "") for m in moments]
    return _columns(rows)


def _columns(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) if i == 1 else cell.ljust(width)
                 for i, (cell, width) in enumerate(zip(row, widths, strict=True))]  # fmt: skip
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
