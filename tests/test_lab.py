"""A lab stores numbers that the next processor would store too, draws the same bytes, and checks without telling."""

from __future__ import annotations

from fractions import Fraction
from typing import Any
from xml.etree import ElementTree

import pytest

from infrabook import lab, palette
from infrabook.errors import InfrabookError
from infrabook.labfile import NARROW
from infrabook.ledger import Ledger, Row
from infrabook.narrow import SMALLEST, legend_below
from infrabook.site import assets

pytest.importorskip("IPython")
Stored = list[tuple[dict[str, str], dict[str, Any]]]


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Stored:
    """What a cell would store: (mime bundle, metadata) of every display."""
    found: Stored = []

    def display(bundle: Any, raw: bool = False, metadata: Any = None) -> None:
        found.append((bundle if raw else {"text/html": bundle._repr_html_()}, metadata or {}))

    monkeypatch.setattr("infrabook.lab.ipython.display", display)
    return found


# -- numbers -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("value", "kept", "said"),
    [
        (6_738_415_616, "6738415616", "6,738,415,616"), (1 / 3, "0.333333", "0.333333"), (2 / 3 * 1e9, "666667000.0",
        "666667000.0"),
        ("none", "'none'", "none"), (Fraction(1, 3), "0.333333", "0.333333"), (Fraction(8, 2), "4", "4"), (-5, "-5",
        "-5"),
        (0.1 + 0.2, "0.3", "0.3"), (1e-9, "1e-09", "1e-09"),
    ],
)  # fmt: skip
def test_a_number_is_printed_and_stored(
    value: Any, kept: str, said: str, stored: Stored, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.record("total_gb", value)
    assert stored == [
        (
            {"application/papermill.record/text/plain": kept},
            {"scrapbook": {"name": "total_gb", "mime_prefix": "application/papermill.record/"}},
        )
    ]
    assert capsys.readouterr().out == f"total_gb = {said}\n"


def test_digits_that_differ_between_processors_are_not_kept(stored: Stored) -> None:
    lab.record("a", 1.23456789, digits=3)
    lab.record("b", 1.23456780001, digits=3)
    assert stored[0][0] == stored[1][0] == {"application/papermill.record/text/plain": "1.23"}


def test_scalars_of_numpy_and_torch_are_numbers(stored: Stored) -> None:
    numpy = pytest.importorskip("numpy")
    torch = pytest.importorskip("torch")
    for value in (numpy.int64(7), torch.tensor(7), numpy.float32(7), torch.tensor(7.0)):
        lab.record("seven", value)
    assert [next(iter(bundle.values())) for bundle, _ in stored] == ["7", "7", "7.0", "7.0"]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("Total", 1, "the key 'Total' has to be lower-case letters, digits and _, as in total_gb"),
        ("total-gb", 1, "the key 'total-gb'"), ("1st", 1, "the key '1st'"), ("", 1, "the key ''"), ("a:b",
        1, "the key 'a:b'"),
        ("total", float("nan"), "total is nan: only finite numbers can be quoted"), ("total", float("-inf"),
        "total is -inf"),
        ("total", True, "total is a bool; a chapter can quote an int, a float or a str"), ("total",
        [1], "total is a list"),
        ("total", None, "total is a NoneType"), ("total", 1j, "total is a complex"),
    ],
)  # fmt: skip
def test_what_cannot_be_quoted_is_refused(key: str, value: Any, words: str, stored: Stored) -> None:
    with pytest.raises(InfrabookError) as caught:
        lab.record(key, value)
    assert words in str(caught.value)
    assert stored == []


# -- figures and tables ------------------------------------------------------------------------------------------
def figure() -> Any:
    """A figure with a clip path and a legend, which have ids in SVG."""
    plt = pytest.importorskip("matplotlib.pyplot")
    with lab.figure_style() as colours:
        drawing, axis = plt.subplots()
        axis.plot(lab.rounded([0.1, 1 / 3, 2 / 3]), color=colours["weights"], label="weights")
        axis.legend()
    return drawing


def test_a_figure_is_the_same_bytes_twice(stored: Stored) -> None:
    for _ in range(2):
        lab.record_figure("a_figure", figure())
    (first, about), (second, _) = stored
    assert first == second
    assert set(first) == {"image/svg+xml", NARROW, "text/plain"}
    assert first["text/plain"] == "<figure a_figure>"
    assert about == {"scrapbook": {"name": "a_figure", "mime_prefix": ""}}


@pytest.mark.parametrize("kind", ["image/svg+xml", NARROW])
def test_a_figure_is_well_formed_has_no_date_and_takes_the_books_colours(kind: str, stored: Stored) -> None:
    lab.record_figure("a_figure", figure())
    text = stored[0][0][kind]
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "<dc:date>" not in text
    assert palette.colour("weights").lower() in text


def test_the_wide_figure_knows_nothing_of_the_narrow_one(stored: Stored) -> None:
    seen: list[tuple[float, float]] = []

    def adjust(drawing: Any) -> None:
        seen.append(tuple(drawing.get_size_inches()))
        drawing.set_figheight(5)

    lab.record_figure("a_figure", figure())
    lab.record_figure("a_figure", figure(), narrow=adjust)
    (plain, _), (adjusted, _) = stored
    assert plain["image/svg+xml"] == adjusted["image/svg+xml"]
    assert seen == [(3.9, 3.4)]
    assert assets.size_of(plain[NARROW])[0] < 390 < 500 < assets.size_of(plain["image/svg+xml"])[0]  # type: ignore[index]
    assert assets.size_of(adjusted[NARROW])[1] > assets.size_of(plain[NARROW])[1] + 100  # type: ignore[index]


def test_words_of_the_narrow_figure_are_large_enough_and_their_lines_short_enough(stored: Stored) -> None:
    drawing = figure()
    (axis,) = drawing.axes
    axis.set_xlabel("one of the longer names that an axis has had, with what is hollow and what is filled", fontsize=5)
    axis.set_title("A finding that takes more room than a phone has for one line of it")
    lab.record_figure("a_figure", drawing)
    assert axis.xaxis.label.get_fontsize() == SMALLEST
    assert axis.xaxis.label.get_text().count("\n") == 1
    assert axis.title.get_text().count("\n") == 1
    assert assets.size_of(stored[0][0][NARROW])[0] < 390  # type: ignore[index]


def test_a_legend_moves_below_in_as_many_columns_as_fit(stored: Stored) -> None:
    drawing = figure()
    (axis,) = drawing.axes
    for name in ("optimizer states", "activations", "gradients, summed"):
        axis.plot([0, 2], [0, 1], label=name)
    axis.legend(ncols=4, bbox_to_anchor=(0.5, -0.2), loc="upper center")
    lab.record_figure("a_figure", drawing, narrow=legend_below)
    (legend,) = drawing.legends
    assert axis.get_legend() is None
    assert [words.get_text() for words in legend.texts] == [
        "weights", "optimizer states", "activations", "gradients, summed"
    ]  # fmt: skip
    assert legend._ncols == 2
    assert assets.size_of(stored[0][0][NARROW])[0] < 390  # type: ignore[index]


def test_two_figures_of_a_page_do_not_share_ids(stored: Stored) -> None:
    lab.record_figure("one", figure())
    lab.record_figure("other", figure())
    assert stored[0][0]["image/svg+xml"] != stored[1][0]["image/svg+xml"]


def test_the_style_ends_with_its_block() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    before = dict(matplotlib.rcParams)
    with lab.figure_style() as colours:
        assert matplotlib.rcParams["axes.spines.top"] is False
        assert colours["communication"] == "#D55E00"
    assert dict(matplotlib.rcParams) == before


def test_rounded_keeps_significant_digits() -> None:
    assert lab.rounded([123456, 0.00123456, -2 / 3, 0]) == [123500, 0.001235, -0.6667, 0]
    assert lab.rounded([Fraction(1, 3)], 2) == [0.33]


def test_show_displays_the_ledger(stored: Stored) -> None:
    lab.show(Ledger("an account", (Row("weights", 10**9),)), "MB", 0)
    assert "1,000 MB" in stored[0][0]["text/html"]


# -- exercises ---------------------------------------------------------------------------------------------------
@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exercises of this test's own, in a chapter that there is."""
    lab.find_exercise("seven-billion/1")  # its chapter registers its own, once
    monkeypatch.setattr(lab, "EXERCISES", dict(lab.EXERCISES))
    lab.exercise("seven-billion/91", mistakes={"that is in GiB.": lambda: 104.31, "and so is this.": lambda: 1 / 0})(
        lambda: 112.0
    )
    lab.exercise("seven-billion/92", tolerance=0)(lambda: 7)
    lab.exercise("seven-billion/93")(lambda: "forward")
    lab.exercise("seven-billion/94")(lambda: [1, 2])


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("91", 112, "right."), ("91", 112.5, "right."), ("91", Fraction(112), "right."), ("91", 113, "not yet."),
        ("91", 104.3, "that is in GiB."), ("91", ..., "waiting for your answer."), ("91",
        None, "waiting for your answer."),
        ("91", [112], "[112] is not the kind of answer asked for."), ("91",
        object, "is not the kind of answer asked for."),
        ("92", 7, "right."), ("92", 7.0, "right."), ("92", 7.001, "not yet."), ("92", -7, "not yet."),
        ("93", "forward", "right."), ("93", " Forward ", "right."), ("93", "backward", "not yet."), ("93",
        5, "not yet."),
        ("94", [1, 2], "right."), ("94", (1, 2), "right."), ("94", [2, 1], "not yet."),
        ("94", 1, "1 is not the kind of answer asked for."), ("91", float("nan"), "not yet."),
    ],
)  # fmt: skip
def test_check(questions: None, name: str, given: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    if said == "not yet." and name == "91":  # a mistake that cannot be computed would be the book's fault
        lab.EXERCISES["seven-billion/91"].mistakes.pop("and so is this.")
    right = bool(lab.check(f"seven-billion/{name}", given))
    out = capsys.readouterr().out
    assert right == (said == "right.")
    assert out.startswith(f"seven-billion/{name}: ")
    assert out.endswith(f"{said}\n")


def test_an_unknown_exercise_is_answered_with_those_there_are() -> None:
    with pytest.raises(InfrabookError, match="there is no exercise 'seven-billion/99'; there are seven-billion/1, "):
        lab.check("seven-billion/99", 1)
    with pytest.raises(InfrabookError, match="there is no exercise 'nothing/1'"):
        lab.check("nothing/1", 1)
