"""What a lab does besides computing: store a number or a figure for its chapter, and check an exercise.

Stored outputs have to be the same on the next processor. So a float keeps only the digits that were proved to
survive one, and a figure is drawn from values rounded by ``rounded`` or exact ones.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from io import StringIO
from typing import Any, TypeVar

from IPython import display as ipython

from . import palette
from .charts import Span
from .errors import InfrabookError
from .labfile import NARROW
from .ledger import Ledger
from .narrow import narrow as narrowed

Answer = TypeVar("Answer", bound=Callable[[], Any])
PREFIX = "application/papermill.record/"  # what myst_nb.glue writes and nbval compares
EXERCISES: dict[str, Exercise] = {}


# -- numbers and figures for the chapter ----------------------------------------------------------------------
def record(key: str, value: Any, digits: int = 6) -> None:
    """Print ``key = value`` and store the value for ``{num}``; a float keeps ``digits`` significant digits.

    Takes int, float, str, Fraction (stored as float) and scalars of NumPy and torch.
    """
    if not re.fullmatch("[a-z][a-z0-9_]*", key):
        raise InfrabookError(f"the key {key!r} has to be lower-case letters, digits and _, as in total_gb")
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, Fraction):
        value = int(value) if value.denominator == 1 else float(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InfrabookError(f"{key} is {value}: only finite numbers can be quoted")
        value = float(f"{value:.{digits}g}")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InfrabookError(f"{key} is a {type(value).__name__}; a chapter can quote an int, a float or a str")
    print(f"{key} = {value:,}" if isinstance(value, int) else f"{key} = {value}")
    _store(key, {PREFIX + "text/plain": repr(value)}, PREFIX)


def record_figure(key: str, figure: Any, *, narrow: Callable[[Any], object] | None = None) -> None:
    """Show a matplotlib figure and store it as SVG under ``key``, the same bytes in every run.

    A second drawing for phones is stored beside it, which the site shows in a narrow window: the same figure made
    3.9 inches wide, its words as large as before. ``narrow(figure)`` adjusts that drawing where words would meet:
    ``narrow.legend_below``, or a function that shortens words, thins ticks or changes the height.
    """
    import matplotlib.pyplot as plt

    wide = _svg(figure, key)
    with figure_style():
        narrowed(figure, narrow)
        slim = _svg(figure, key + " narrow", pad_inches=0.05)
    plt.close(figure)
    _store(key, {"image/svg+xml": wide, NARROW: slim, "text/plain": f"<figure {key}>"}, "")


def _svg(figure: Any, salt: str, **options: Any) -> str:
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": salt, "svg.fonttype": "path"}):
        text = StringIO()
        about = {"Date": None}
        figure.savefig(text, format="svg", metadata=about, bbox_inches="tight", transparent=True, **options)
    return text.getvalue()


def _store(key: str, bundle: dict[str, str], prefix: str) -> None:
    where = {"scrapbook": {"name": key, "mime_prefix": prefix}}
    ipython.display(bundle, raw=True, metadata=where)  # type: ignore[no-untyped-call]


def show(ledger: Ledger, unit: str = "GB", digits: int = 2) -> None:
    """A ledger as a table."""
    ipython.display(ipython.HTML(ledger.to_html(unit, digits)))  # type: ignore[no-untyped-call]


def show_source(*functions: Any) -> None:
    """The source of functions that the library holds and a lab runs, as it stands there."""
    text = "\n\n".join(inspect.getsource(function).rstrip() for function in functions)
    ipython.display(ipython.Markdown(f"```python\n{text}\n```"))  # type: ignore[no-untyped-call]


@contextmanager
def figure_style() -> Iterator[dict[str, str]]:
    """The book's one style for matplotlib; yields the palette, kind -> colour.

    >>> with figure_style() as colours:
    ...     colours["weights"]
    '#0072B2'
    """
    import matplotlib

    style: dict[Any, Any] = {
        "figure.figsize": (7.2, 3.4), "font.size": 9.5, "font.family": "sans-serif",
        "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7, "axes.titlesize": 10.5,
        "axes.titlelocation": "left", "axes.titleweight": "bold", "xtick.major.width": 0.7, "ytick.major.width": 0.7,
        "legend.frameon": False, "lines.linewidth": 1.6, "hatch.linewidth": 0.6,
    }  # fmt: skip
    with matplotlib.rc_context(style):
        yield {kind: colour for kind, (colour, _) in (palette.KINDS | palette.PHASES).items()}


def draw_gantt(axes: Any, rows: Sequence[tuple[str, Sequence[Span]]], *, labels: bool = True) -> None:
    """``charts.gantt`` for a figure: rows of spans over time on matplotlib's ``axes``, idle time hatched.

    Times are drawn to four digits. Legend and labels of the axes are the caller's.
    """
    last = max((float(span.end) for _, row in rows for span in row), default=1.0)
    for y, (_, row) in enumerate(rows):
        axes.barh(y, last, 0.8, color="none", edgecolor="#8A8A8A", hatch="////", linewidth=0)
        for start, end, kind, words, tone in (Span(*span) for span in row):
            left, right = rounded([start, end])
            fill = palette.tint(kind, tone)
            axes.barh(y, right - left, 0.8, left, color=fill, edgecolor="white", linewidth=0.4)
            if labels and words:
                middle = (left + right) / 2
                axes.text(middle, y, words, ha="center", va="center_baseline", fontsize=7, color=palette.ink(fill),
                          clip_on=True)  # fmt: skip
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, last)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def rounded(values: Any, digits: int = 4) -> list[float]:
    """Numbers kept to ``digits`` significant digits, so that a figure is the same on every processor.

    >>> rounded([1.23456, 2 / 3])
    [1.235, 0.6667]
    """
    return [float(f"{float(value):.{digits}g}") for value in values]


# -- exercises -------------------------------------------------------------------------------------------------
class Exercise:
    """A question with a computed answer, and a word for each mistake worth naming."""

    def __init__(self, answer: Callable[[], Any], mistakes: dict[str, Callable[[], Any]], tolerance: float) -> None:
        self.answer, self.mistakes, self.tolerance = answer, mistakes, tolerance

    def matches(self, given: Any, wanted: Any) -> bool:
        """Whether ``given`` is right: equal, or within the relative tolerance for numbers."""
        if isinstance(wanted, str) or isinstance(given, str):
            return str(given).strip().lower() == str(wanted).strip().lower()
        if isinstance(given, list | tuple) or isinstance(wanted, list | tuple):
            return list(given) == list(wanted)
        return math.isclose(float(given), float(wanted), rel_tol=self.tolerance, abs_tol=0)


@dataclass(frozen=True)
class Verdict:
    """Whether an answer was right; a notebook shows nothing of it, since ``check`` has said everything."""

    right: bool

    def __bool__(self) -> bool:
        return self.right

    def _ipython_display_(self) -> None:
        pass


def exercise(
    name: str, *, mistakes: dict[str, Callable[[], Any]] | None = None, tolerance: float = 0.005
) -> Callable[[Answer], Answer]:
    """Register the function below as the answer to exercise ``name`` (``"seven-billion/1"``).

    ``mistakes`` maps what to say to the wrong answer that earns it.
    """

    def register(answer: Answer) -> Answer:
        EXERCISES[name] = Exercise(answer, mistakes or {}, tolerance)
        return answer

    return register


def find_exercise(name: str) -> Exercise:
    """The exercise called ``name``, from its chapter's module of ``infrabook.exercises``."""
    chapter = name.partition("/")[0].replace("-", "_")
    try:
        import_module(f"infrabook.exercises.{chapter}")
    except ModuleNotFoundError as error:
        raise InfrabookError(f"there is no exercise {name!r}: no chapter is called {chapter!r}") from error
    if name not in EXERCISES:
        known = sorted(key for key in EXERCISES if key.startswith(name.partition("/")[0]))
        raise InfrabookError(f"there is no exercise {name!r}; there are {', '.join(known)}")
    return EXERCISES[name]


def check(name: str, given: Any) -> Verdict:
    """Say whether ``given`` answers exercise ``name``, without saying what would; the verdict is true if it does."""
    found = find_exercise(name)
    if given is ... or given is None:
        print(f"{name}: waiting for your answer.")
        return Verdict(False)
    try:
        right = found.matches(given, found.answer())
    except (TypeError, ValueError):
        print(f"{name}: {given!r} is not the kind of answer asked for.")
        return Verdict(False)
    if right:
        print(f"{name}: right.")
        return Verdict(True)
    words = next((say for say, wrong in found.mistakes.items() if found.matches(given, wrong())), "not yet.")
    print(f"{name}: {words}")
    return Verdict(False)
