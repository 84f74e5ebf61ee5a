"""A figure for a phone: the drawing that ``lab.record_figure`` stores beside the wide one.

The same matplotlib figure, ``WIDTH`` inches wide and with no words below ``SMALLEST`` points: in the column of a
phone they are 9 pixels high or more. What the width alone does not settle, a lab says with ``legend_below`` or a
function of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

WIDTH = 3.9  # inches, 374 pixels
SMALLEST = 8.0  # points, 10.7 pixels


def narrow(figure: Any, adjust: Callable[[Any], object] | None = None) -> None:
    """Turn ``figure`` into its narrow drawing: the width, the size of words, then ``adjust``.

    Legends of several columns move below the axes, and titles and names of axes break into lines.
    """
    from matplotlib.text import Text

    figure.set_figwidth(WIDTH)
    for words in figure.findobj(Text):
        words.set_fontsize(max(words.get_fontsize(), SMALLEST))
    if adjust:
        adjust(figure)
    if any(legend._ncols > 1 for legend in _legends(figure)):
        legend_below(figure)
    if figure.get_layout_engine() is None:
        figure.set_layout_engine("tight", pad=0.3)
    lines = [(axes, words) for axes in figure.axes for words in (axes._left_title, axes.title, axes.xaxis.label)]
    for _, words in lines:
        words.set_in_layout(False)
    figure.draw_without_rendering()  # places the axes, which says how long a line may be
    for axes, words in lines:
        _break_lines(words, axes.get_window_extent().width)
        words.set_in_layout(True)


def legend_below(figure: Any) -> None:
    """One legend below the axes instead of those inside, in as many columns as there is room for."""
    found: dict[str, Any] = {}
    for legend in _legends(figure):
        found |= {words.get_text(): handle for words, handle in zip(legend.texts, legend.legend_handles, strict=True)}
        legend.remove()
    for columns in range(len(found), 0, -1):
        below = figure.legend(
            found.values(), found.keys(), loc="upper center", bbox_to_anchor=(0.5, 0), ncols=columns,
            fontsize=8.5, columnspacing=1.2, handlelength=1.6, borderaxespad=0.2,
        )  # fmt: skip
        if columns == 1 or below.get_window_extent(figure.canvas.get_renderer()).width <= figure.bbox.width:
            return
        below.remove()


def _legends(figure: Any) -> list[Any]:
    return [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]


def _break_lines(words: Any, room: float) -> None:
    """Break the one line of ``words`` where ``room`` pixels end."""
    lines: list[str] = []
    for part in words.get_text().split(" "):
        words.set_text(" ".join([*lines[-1:], part]))
        if lines and words.get_window_extent().width <= room:
            lines[-1] = words.get_text()
        else:
            lines.append(part)
    words.set_text("\n".join(lines))
