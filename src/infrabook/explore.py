"""One definition of an explorer, two front ends: widgets in a kernel, live controls on the page.

An explorer is a function whose every parameter has a control and which returns HTML or SVG. In a kernel it
displays as ipywidgets; on a page the same function's first frame stands in the HTML, and ``explorer.js`` asks
``reply`` for the next ones, in Python, in the reader's browser. Values are checked here and nowhere else.

    @explore(layers=Number(1, 96), hidden=Number.doubling(256, 16_384), tied=Check())
    def embedding(layers: int = 32, hidden: int = 4096, tied: bool = False) -> str:
        '''Where the parameters of a transformer are.'''
        ...

``explorers.MODULES`` lists those of the book; ``site.explorers`` puts them into pages.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib import import_module, resources
from typing import Any, TypeAlias

from .errors import InfrabookError

Change: TypeAlias = Callable[[Any], None]

_DECIMAL = re.compile(r"[+-]?(\d{1,3}([, ]\d{3})+|\d+(_\d+)*|(?=\.\d))(\.\d*)?([eE][+-]?\d+)?", re.ASCII)
_LONGEST = 100_000  # characters of a pasted text; the largest config.json on record has a few thousand


# -- controls ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Number:
    """A number from ``low`` to ``high``: a slider that moves by ``step``, and a field to type any value between.

    Whole if ``low``, ``high`` and ``step`` are. ``stops`` are the slider's positions where they are not evenly
    spaced; with ``only_stops`` a typed value has to be one of them.

    >>> Number(1, 64).read("batch", "1,5")
    Traceback (most recent call last):
    infrabook.errors.InfrabookError: batch has to be a whole number from 1 to 64, and is '1,5'
    """

    low: float
    high: float
    step: float = 1
    unit: str = ""
    label: str = ""
    stops: tuple[float, ...] = ()
    only_stops: bool = False

    @classmethod
    def doubling(cls, low: int, high: int, *, unit: str = "", label: str = "") -> Number:
        """A slider that doubles from ``low`` to ``high``, for lengths and counts that span decades.

        >>> Number.doubling(128, 1000).stops
        (128, 256, 512, 1000)
        """
        stops = [low]
        while stops[-1] * 2 < high:
            stops.append(stops[-1] * 2)
        return cls(low, high, 1, unit, label, (*stops, high))

    @classmethod
    def among(cls, values: Sequence[float], *, unit: str = "", label: str = "") -> Number:
        """A slider over ``values`` alone, in rising order.

        >>> Number.among([1, 2, 4, 8]).read("tensor parallel", "3")
        Traceback (most recent call last):
        infrabook.errors.InfrabookError: tensor parallel has to be one of 1, 2, 4, 8, and is '3'
        """
        return cls(values[0], values[-1], 1, unit, label, tuple(values), only_stops=True)

    @property
    def whole(self) -> bool:
        """Whether only whole numbers are meant."""
        return all(isinstance(value, int) for value in (self.low, self.high, self.step, *self.stops))

    def read(self, name: str, raw: object) -> int | float:
        """``raw``, as typed or as a number, or a sentence that says what to change."""
        value = _number(raw)
        ok = value is not None and self.low <= value <= self.high and (not self.whole or value == int(value))
        if ok and self.only_stops:
            ok = value in self.stops
        if not ok or value is None:
            kind = "a whole number" if self.whole else "a number"
            meant = f"one of {_join(self.stops)}" if self.only_stops else f"{kind} {self._range()}"
            raise InfrabookError(f"{name} has to be {meant}, and is {_quote(raw)}")
        return int(value) if self.whole else value

    def key(self, value: Any) -> str:
        """``value`` as it stands in the field and in a link."""
        return str(int(value)) if value == int(value) else repr(value)

    def html(self, name: str, label: str, value: Any) -> str:
        """The field, its label and its slider."""
        at = self.key(value)
        if self.stops:
            near = min(range(len(self.stops)), key=lambda i: abs(self.stops[i] - value))
            scale = f'min="0" max="{len(self.stops) - 1}" step="1" value="{near}" '
            scale += f'data-stops="{" ".join(map(self.key, self.stops))}" aria-valuetext="{at}"'
        else:
            scale = f'min="{self.low}" max="{self.high}" step="{self.step}" value="{at}"'
        mode = "numeric" if self.whole else "decimal"
        unit = f'<span class="explorer-unit">{escape(self.unit)}</span>' if self.unit else ""
        return (
            f'<div class="explorer-control explorer-numeric"><label><span>{escape(label)}</span>'
            f'<span class="explorer-typed"><input type="text" name="{name}" value="{at}" inputmode="{mode}" '
            f'size="7" title="{escape(self._range())}"/>{unit}</span></label>'
            f'<input type="range" aria-label="{escape(label)}, slider" {scale}/></div>'
        )

    def widget(self, label: str, value: Any) -> tuple[Any, Any]:
        """(what is shown, the widget that holds the value); the field is the value, the slider moves it."""
        import ipywidgets

        stops = self.stops or tuple(
            self.low + i * self.step for i in range(round((self.high - self.low) / self.step) + 1)
        )
        field = ipywidgets.Text(
            self.key(value), description=label, continuous_update=False, style=_STYLE, layout={"width": "22em"}
        )
        slider = ipywidgets.IntSlider(_nearest(stops, value), 0, len(stops) - 1, readout=False)
        moving: list[bool] = []  # set while one of the pair follows the other

        def slid(change: Any) -> None:
            if not moving:
                field.value = self.key(stops[change["new"]] if self.whole else round(stops[change["new"]], 12))

        def typed(change: Any) -> None:
            number = _number(change["new"])
            if number is not None:
                moving.append(True)
                slider.value = _nearest(stops, number)
                moving.pop()

        slider.observe(slid, names="value")
        field.observe(typed, names="value")
        return ipywidgets.HBox([field, slider, ipywidgets.Label(self.unit)]), field

    def _range(self) -> str:
        low, high = (
            f"{end:g}".replace("e+", "e") if abs(end) >= 1e15 else self.key(end) for end in (self.low, self.high)
        )
        return f"from {low} to {high}"


@dataclass(frozen=True)
class Choice:
    """One of ``options``: values, or ``{what the reader sees: value}``.

    >>> Choice({"full": 1, "causal, halved": 2}).read("attention", "2")
    2
    """

    options: Sequence[Any] | Mapping[str, Any]
    label: str = ""

    @property
    def pairs(self) -> list[tuple[str, Any]]:
        """(what the reader sees, value) in order."""
        if isinstance(self.options, Mapping):
            return list(self.options.items())
        return [(str(value), value) for value in self.options]

    def read(self, name: str, raw: object) -> Any:
        """The option that ``raw`` names, as a value or as a link writes it."""
        for _, value in self.pairs:
            if self.key(value) == str(raw):
                return value
        keys = [self.key(value) for _, value in self.pairs]
        raise InfrabookError(f"{name} has to be one of {_join(keys)}, and is {_quote(raw)}")

    def key(self, value: Any) -> str:
        """``value`` as a link writes it."""
        return str(value)

    def html(self, name: str, label: str, value: Any) -> str:
        """A drop-down list with its label."""
        options = "".join(
            f'<option value="{escape(self.key(option))}"{_on("selected", option == value)}>{escape(words)}</option>'
            for words, option in self.pairs
        )
        return (
            f'<div class="explorer-control"><label><span>{escape(label)}</span>'
            f'<select name="{name}">{options}</select></label></div>'
        )

    def widget(self, label: str, value: Any) -> tuple[Any, Any]:
        """(what is shown, the widget that holds the value)."""
        import ipywidgets

        box = ipywidgets.Dropdown(options=self.pairs, value=value, description=label, style=_STYLE)
        return box, box


@dataclass(frozen=True)
class Check:
    """Yes or no.

    >>> Check().read("flash attention", "no")
    False
    """

    label: str = ""

    def read(self, name: str, raw: object) -> bool:
        """``raw`` as a truth value; links write ``yes`` and ``no``."""
        known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if str(raw).lower() not in known:
            raise InfrabookError(f"{name} has to be yes or no, and is {_quote(raw)}")
        return known[str(raw).lower()]

    def key(self, value: Any) -> str:
        """``value`` as a link writes it."""
        return "yes" if value else "no"

    def html(self, name: str, label: str, value: Any) -> str:
        """A check box with its label."""
        return (
            f'<div class="explorer-control explorer-check"><label><span>{escape(label)}</span>'
            f'<input type="checkbox" name="{name}"{_on("checked", value)}/></label></div>'
        )

    def widget(self, label: str, value: Any) -> tuple[Any, Any]:
        """(what is shown, the widget that holds the value)."""
        import ipywidgets

        box = ipywidgets.Checkbox(value=value, description=label, style=_STYLE, indent=False)
        return box, box


@dataclass(frozen=True)
class Text:
    """Text of several lines, such as a pasted ``config.json``.

    >>> Text().read("config", "  {}\\n")
    '{}'
    """

    rows: int = 6
    placeholder: str = ""
    label: str = ""

    def read(self, name: str, raw: object) -> str:
        """``raw`` without blanks around it."""
        if not isinstance(raw, str):
            raise InfrabookError(f"{name} has to be text, and is {_quote(raw)}")
        if len(raw) > _LONGEST:
            raise InfrabookError(f"{name} has {len(raw):,} characters, more than the {_LONGEST:,} it can take")
        return raw.strip()

    def key(self, value: Any) -> str:
        """``value`` as a link writes it."""
        return str(value)

    def html(self, name: str, label: str, value: Any) -> str:
        """A text area with its label, folded away while it is empty."""
        return (
            f'<details class="explorer-control explorer-text"{_on("open", value)}><summary>{escape(label)}</summary>'
            f'<textarea name="{name}" rows="{self.rows}" aria-label="{escape(label)}" spellcheck="false" '
            f'placeholder="{escape(self.placeholder)}">\n{escape(str(value))}</textarea></details>'
        )

    def widget(self, label: str, value: Any) -> tuple[Any, Any]:
        """(what is shown, the widget that holds the value)."""
        import ipywidgets

        box = ipywidgets.Textarea(
            value, description=label, rows=self.rows, placeholder=self.placeholder, continuous_update=False,
            style=_STYLE, layout={"width": "44em", "max_width": "95%"},
        )  # fmt: skip
        return box, box


Control: TypeAlias = Number | Choice | Check | Text


# -- explorers -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Explorer:
    """A function with a control for each of its parameters. Call it with values to get a view.

    Values may be as typed (``"4"``), and one that its control does not take raises an ``InfrabookError``.
    """

    name: str
    title: str
    function: Callable[..., str]
    controls: dict[str, Control]
    defaults: dict[str, Any]

    def __call__(self, **values: Any) -> str:
        return self.function(**self.read(values))

    def at(self, **values: Any) -> Explorer:
        """The same explorer with other values to start from.

        A lab shows ``model_ledger.at(batch=4)``; in a chapter the directive takes them as options.
        """
        return replace(self, defaults=self.read(values))

    def label(self, name: str) -> str:
        """What the reader calls the parameter ``name``."""
        return self.controls[name].label or name.replace("_", " ")

    def read(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """All values, checked, in the order of the parameters; those not given are the defaults."""
        for name in values:
            if name not in self.controls:
                raise InfrabookError(f"{name!r} is not a setting of {self.name}; it has {_join(self.controls)}")
        return {
            name: control.read(self.label(name), values.get(name, self.defaults[name]))
            for name, control in self.controls.items()
        }

    def link(self, **values: Any) -> str:
        """The end of an address that opens the explorer with ``values``.

        >>> @explore(batch=Number(1, 64), flash=Check())
        ... def example(batch: int = 1, flash: bool = True) -> str:
        ...     "An example."
        ...     return f"<p>{batch}</p>"
        >>> example.link(batch=4)
        '#example?batch=4&flash=yes'
        """
        from urllib.parse import urlencode

        chosen = self.read(values)
        keys = {name: control.key(chosen[name]) for name, control in self.controls.items()}
        return f"#{self.name}?{urlencode({name: key for name, key in keys.items() if key})}"

    def html(self, *, view_first: bool = False) -> str:
        """The page's front end: controls and first frame; ``explorer.js`` makes them live.

        With ``view_first`` the view stands above the controls, for a page that has to make its point at once.
        """
        rows = "".join(
            control.html(name, self.label(name), self.defaults[name]) for name, control in self.controls.items()
        )
        controls = (
            f'<fieldset class="explorer-controls">{rows}</fieldset>'
            '<div class="explorer-actions"><button type="reset">Reset</button>'
            '<button type="button" class="explorer-copy">Copy link</button>'
            '<span class="explorer-status" role="status" aria-live="polite"></span>'
            "<noscript>The controls need JavaScript.</noscript></div>"
        )
        stage = (
            '<div class="explorer-stage"><div class="explorer-message" role="status" aria-live="polite"></div>'
            f'<div class="explorer-view">{self()}</div></div>'
        )
        return (
            f'<form class="explorer" id="{self.name}" data-explorer="{self.name}" aria-label="{escape(self.title)}" '
            f'autocomplete="off" novalidate="novalidate">{stage + controls if view_first else controls + stage}</form>'
        )

    def widget(self) -> Any:
        """The kernel's front end."""
        import ipywidgets

        shown, sources = [], {}
        for name, control in self.controls.items():
            box, sources[name] = control.widget(self.label(name), self.defaults[name])
            shown.append(box)
        view = ipywidgets.HTML(self())

        def redraw(_: Any = None) -> None:
            try:
                view.value = self(**{name: source.value for name, source in sources.items()})
            except InfrabookError as sentence:
                view.value = f'<p class="explorer-error">{escape(str(sentence))}</p>'

        for source in sources.values():
            source.observe(redraw, names="value")
        sheet = resources.files("infrabook").joinpath("site/assets/explorer/explorer.css")
        style = ipywidgets.HTML(f"<style>{sheet.read_text('utf-8')}</style>")
        box = ipywidgets.VBox([style, *shown, view])
        box.add_class("explorer")
        return box

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": f"<explorer {self.name}>", "text/html": self.html()}
        try:
            view = self.widget()._repr_mimebundle_()
        except ImportError:  # no ipywidgets: the first frame is still worth showing
            return bundle
        return {mime: data for mime, data in view.items() if mime != "text/plain"} | bundle


REGISTRY: dict[str, Explorer] = {}


def explore(**controls: Control) -> Callable[[Callable[..., str]], Explorer]:
    """Make a function an explorer: one control a parameter, each parameter with a default.

    >>> @explore(batch=Number(1, 64), flash=Check())
    ... def example(batch: int = 1, flash: bool = True) -> str:
    ...     "An example: its first line names it to screen readers."
    ...     return f"<p>{batch}{' with flash attention' if flash else ''}</p>"
    >>> example(batch="8", flash="no")
    '<p>8</p>'
    """

    def define(function: Callable[..., str]) -> Explorer:
        name = function.__name__
        parameters = inspect.signature(function).parameters
        if list(parameters) != list(controls):
            raise TypeError(f"{name} has parameters {_join(parameters)} but controls {_join(controls)}, in that order")
        title = (inspect.getdoc(function) or "").split("\n")[0].rstrip(".")
        if not title:
            raise TypeError(f"{name} needs a docstring: its first line names the explorer to screen readers")
        defaults = {key: parameter.default for key, parameter in parameters.items()}
        made = Explorer(name, title, function, controls, defaults)
        REGISTRY[name] = replace(made, defaults=made.read(defaults))
        return REGISTRY[name]

    return define


def load(name: str) -> Explorer:
    """The explorer called ``name``; imports its module and no other.

    >>> load("model_ledgr")
    Traceback (most recent call last):
    infrabook.errors.InfrabookError: there is no explorer 'model_ledgr'; did you mean 'model_ledger'?
    """
    from .explorers import MODULES

    if name not in REGISTRY:
        if name not in MODULES:
            from difflib import get_close_matches

            near = get_close_matches(name, MODULES, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {_join(sorted(MODULES))}"
            raise InfrabookError(f"there is no explorer {name!r}; {hint}")
        import_module(f"infrabook.explorers.{MODULES[name]}")
    return REGISTRY[name]


def render(name: str, values_json: str = "{}") -> str:
    """The view of the explorer ``name`` with the values of a JSON object, as typed or as numbers."""
    values = json.loads(values_json)
    if not isinstance(values, dict):
        raise InfrabookError('settings have to be a JSON object such as {"batch": 4}')
    return load(name)(**values)


def reply(name: str, values_json: str) -> str:
    """What the page asks for: ``{"html": view}`` or ``{"error": sentence}``, as JSON."""
    try:
        return json.dumps({"html": render(name, values_json)})
    except InfrabookError as sentence:
        return json.dumps({"error": str(sentence)})


# -- parts of views ------------------------------------------------------------------------------------------
def number(words: str, value: object) -> str:
    """An explorer's main number: ``words`` for the reader, the exact ``value`` for tests.

    >>> number("112.00 GB", 112 * 10**9)
    '<b class="explorer-number" data-value="112000000000">112.00 GB</b>'
    """
    return f'<b class="explorer-number" data-value="{escape(str(value))}">{escape(words)}</b>'


# -- small helpers -------------------------------------------------------------------------------------------
_STYLE = {"description_width": "11em"}


def _number(raw: object) -> int | float | None:
    """``raw`` as a finite number; ``None`` for anything else, and for a comma that is not between thousands."""
    if isinstance(raw, bool):
        return None
    if isinstance(raw, str):
        typed = raw.strip()
        if not _DECIMAL.fullmatch(typed):
            return None
        raw = re.sub("[, _]", "", typed)
        raw = int(raw) if re.fullmatch(r"[+-]?\d{1,30}", raw) else float(raw)
    if not isinstance(raw, int | float) or raw != raw or raw in (float("inf"), float("-inf")):
        return None
    return raw


def _nearest(stops: Sequence[float], value: float) -> int:
    return min(range(len(stops)), key=lambda i: abs(stops[i] - value))


def _join(values: Any) -> str:
    words = [str(value) for value in values]
    return ", ".join(words) if len(words) <= 12 else ", ".join(words[:12]) + f" and {len(words) - 12} more"


def _quote(raw: object) -> str:
    if isinstance(raw, str) and not raw.strip():
        return "empty"
    words = repr(raw)
    return words if len(words) <= 60 else words[:57] + "..."


def _on(attribute: str, value: Any) -> str:
    return f' {attribute}="{attribute}"' if value else ""
