"""Tables that the library fills when the site is built, so that a page never types what a function knows.

``{table-of} conventions`` and its siblings: one function below each, returning headings and rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from html import escape
from typing import Any, TypeAlias

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from .. import charts, errata, formats, hardware, models, palette, parameters, recipes
from ..units import GB, MB, show

Table: TypeAlias = tuple[
    str, Sequence[str], Sequence[Sequence[str]], set[int]
]  # caption, headings, rows, columns of figures
SHOWN_PEAKS = (("fp32", ""), ("tf32", ""), ("bf16", ""), ("fp16", "fp32"), ("fp8", "fp32"), ("int8", ""))


def conventions() -> Table:
    """Bytes per parameter as public sources count them."""
    rows = [
        (c.who, " + ".join(f"{size} {what}" for what, size in c.components), str(c.bytes), c.recipe or "–", c.source)
        for c in sorted(recipes.CONVENTIONS, key=lambda c: (c.bytes, c.who))
    ]
    heads = ("who", "what is kept for each parameter, in bytes", "bytes", "our recipe", "source")
    return "Who counts how many bytes per parameter", heads, rows, {2}


def known_recipes() -> Table:
    """The recipes of the library, with their tensors."""
    model = models.get("llama-2-7b")
    rows = [
        (
            recipe.name,
            ", ".join(f"{tensor.name} {tensor.dtype}" for tensor in recipe.tensors),
            f"{float(recipes.states(model, recipe).total) / float(parameters.count(model).total):.2f}",
            recipe.source,
        )
        for recipe in recipes.RECIPES.values()
    ]
    return (
        "Recipes, and what they keep for each parameter of Llama-2-7B",
        ("recipe", "tensors", "bytes", "source"),
        rows,
        {2},
    )


def gpus() -> Table:
    """Cards: memory, bandwidth, dense peaks."""

    def peak(gpu: hardware.Gpu, dtype: str, accumulate: str) -> str:
        found = [p for p in gpu.peaks if p.dtype == dtype and (not accumulate or p.accumulate == accumulate)]
        return f"{found[0].flop_per_s / 1e12:,.4g}" if found else "–"

    def whole(value: int, unit: int) -> str:
        return f"{value / unit:,.0f}" if value else "–"

    rows = [
        (
            gpu.name, str(gpu.label_gb), show(gpu.memory_bytes, "GiB") if gpu.memory_bytes else "–",
            whole(gpu.bandwidth_bytes_per_s, GB), str(gpu.sms), whole(gpu.l2_bytes, MB),
            *(peak(gpu, *which) for which in SHOWN_PEAKS),
        )
        for gpu in hardware.gpus()
    ]  # fmt: skip
    heads = (
        "card", "label, GB", "usable", "memory, GB/s", "SMs", "L2, MB",
        *(dtype.upper() + (", FP32 sums" if accumulate else "") for dtype, accumulate in SHOWN_PEAKS),
    )  # fmt: skip
    return "GPUs: memory, and dense peaks in TFLOP/s (INT8: TOP/s)", heads, rows, set(range(1, len(heads)))


def links() -> Table:
    """Links, with their direction."""
    rows = [
        (
            link.name, f"{link.bytes_per_s / GB:,.2f}", f"{link.both_ways_bytes_per_s / GB:,.0f}",
            f"{float(link.latency_s * 10**6):g}", link.source,
        )
        for link in hardware.links()
    ]  # fmt: skip
    heads = (
        "link", "one direction, GB/s", "as printed, both directions, GB/s", "a step of NCCL's ring, µs", "source",
    )  # fmt: skip
    return "Links of one GPU or one port", heads, rows, {1, 2, 3}


def known_models() -> Table:
    """Models and their exact counts."""
    rows = []
    for name in models.names():
        model = models.get(name)
        total = int(parameters.count(model).total)
        sizes = (model.layers, model.hidden, model.heads, model.kv_heads, model.ffn, model.vocab)
        rows.append((name, f"{total:,}", f"{total / 10**9:.2f} billion", *(f"{size:,}" for size in sizes)))
    heads = ("model", "parameters", "rounded", "L", "h", "a", "g", "f", "V")
    return "Models that the library knows by name", heads, rows, set(range(1, len(heads)))


def field_errata() -> Table:
    """Where public sources and the arithmetic part ways."""
    rows = [(e.who, e.printed, e.computed(), e.reconciles) for e in errata.DISAGREEMENTS]
    return (
        "What was printed, and what the same question gives here",
        ("source", "printed", "computed", "what reconciles them"),
        rows,
        set(),
    )


def colours() -> Table:
    """What each colour means."""
    rows = [
        (charts.swatch(kind) + escape(label), colour)
        for kind, (colour, label) in (palette.KINDS | palette.PHASES).items()
    ]
    return "What a colour means, in accounts of memory and in time charts", ("kind", "colour"), rows, set()


def number_formats() -> Table:
    """Every format with its limits."""

    def size(value: Fraction) -> str:
        if value.numerator == 1 or value.denominator > 1:
            power = value.numerator.bit_length() - value.denominator.bit_length()
            if value == Fraction(2) ** power and power < 0:
                return f"<span>2<sup>−{-power}</sup></span>"
        if value < 10**6:
            return f"{float(value):,g}" if value.denominator > 1 else f"{value.numerator:,}"
        digits, _, power_of_ten = f"{float(value):.3g}".partition("e")
        return f"<span>{digits} · 10<sup>{int(power_of_ten)}</sup></span>"

    def row(name: str, one: formats.Format) -> tuple[str, ...]:
        bits = f"{int(one.signed)}+{one.exponent}+{one.mantissa}"
        limits = (one.max, one.min_normal, one.min_subnormal, one.eps)
        count = f"{one.finite:,}" if one.bits < 32 else "–"
        return name, bits, str(one.stored_bits), *map(size, limits), count

    plain = [row(name.replace("_", " ").upper(), one) for name, one in formats.FORMATS.items()]
    blocks = [
        (f"{block.name.replace('_', ' ').upper()}, by {block.size}", *row("", block.element)[1:2],
         f"{float(block.bits_per_element):g}", *row("", block.element)[3:])
        for block in formats.BLOCKS.values()
    ]  # fmt: skip
    heads = (
        "format", "s+e+f", "bits", "largest", "normal from", "smallest", "step at 1", "finite",
    )  # fmt: skip
    return (
        "Number formats: bits of sign, exponent and fraction; stored bits; limits",
        heads,
        [*plain, *blocks],
        {2, 3, 4, 5, 6, 7},
    )


TABLES: dict[str, Callable[[], Table]] = {
    "conventions": conventions,
    "recipes": known_recipes,
    "hardware": gpus,
    "links": links,
    "formats": number_formats,
    "models": known_models,
    "errata": field_errata,
    "palette": colours,
}


def html(name: str) -> str:
    """The table called ``name`` as HTML; a cell that is HTML already begins with ``<``."""
    caption, heads, rows, figures = TABLES[name]()
    head = "".join(f'<th scope="col"{_align(i in figures)}>{escape(words)}</th>' for i, words in enumerate(heads))
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{_align(i in figures)}>{cell if cell.startswith('<') else escape(cell)}</td>"
            for i, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="table-wrapper" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _align(figure: bool) -> str:
    return ' class="amount"' if figure else ""


class TableOf(SphinxDirective):
    """``{table-of} name``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        if name not in TABLES:
            raise self.error(f"there is no table {name!r}; there are {', '.join(TABLES)}")
        self.env.note_reread()  # the library may have changed, and that is no file of the page's
        return [nodes.raw("", html(name), format="html")]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("table-of", TableOf)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
