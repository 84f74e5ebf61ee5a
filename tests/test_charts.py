"""Charts are the same bytes everywhere: well-formed SVG, drawn to scale, in the palette's colours."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from infrabook import charts, palette
from infrabook.charts import Span
from infrabook.ledger import Ledger, Row

SVG = "{http://www.w3.org/2000/svg}"
ONE = Ledger("one", (Row("weights", 10 * 10**9, "weights"), Row("gradients", 30 * 10**9, "gradients")))
TWO = Ledger("two", (Row("weights", 20 * 10**9, "weights"),))


def drawn(text: str) -> ElementTree.Element:
    """The chart as a tree."""
    return ElementTree.fromstring(text)


def bars(text: str) -> list[tuple[float, float, str]]:
    """(x, width, colour) of every part of a bar, which has a title."""
    found = []
    for box in drawn(text).iter():
        if box.tag.endswith("rect") and any(child.tag.endswith("title") for child in box):
            found.append((float(box.attrib["x"]), float(box.attrib["width"]), box.attrib["fill"]))
    return found


def test_parts_stand_side_by_side_in_proportion() -> None:
    parts = bars(charts.stacked_bars({"one": ONE, "two": TWO}, capacity={}))
    (x1, w1, c1), (x2, w2, c2), (x3, w3, c3) = parts
    assert (c1, c2, c3) == ("#0072B2", "#E69F00", "#0072B2")
    assert w2 / w1 == pytest.approx(3, abs=0.01)
    assert w3 / w1 == pytest.approx(2, abs=0.01)
    assert x2 == pytest.approx(x1 + w1, abs=0.01)
    assert x3 == x1


def test_a_bar_past_the_card_crosses_its_mark_and_stays_in_the_picture() -> None:
    text = charts.stacked_bars({"one": ONE}, capacity={"a card": 20 * 10**9})
    mark = next(box for box in drawn(text).iter() if box.tag.endswith("path"))
    x = float(mark.attrib["d"].split()[0].removeprefix("M"))
    end = max(start + width for start, width, _ in bars(text))
    assert x < end <= charts.WIDTH
    assert "".join(drawn(text).itertext()).count("a card") == 1


def test_colour_never_stands_alone() -> None:
    words = "".join(drawn(charts.stacked_bars({"one": ONE}, capacity={})).itertext())
    for kind in ("weights", "gradients"):
        assert palette.label(kind) in words
    assert "weights: 10.00 GB" in words, "a part says what it is"


def test_name_of_the_picture_says_its_sums() -> None:
    assert drawn(charts.stacked_bars({"one": ONE, "two": TWO}, capacity={})).get("aria-label") == (
        "one 40.00 GB; two 20.00 GB"
    )
    assert drawn(charts.stacked_bars({"one": ONE}, capacity={}, title="my title")).get("aria-label") == "my title"


def test_the_same_accounts_are_the_same_bytes() -> None:
    first, second = (charts.stacked_bars({"one": ONE, "two": TWO}, capacity={"a": 1, "b": 2}) for _ in range(2))
    assert first == second


def test_words_take_the_colour_of_the_page() -> None:
    """One drawing serves both themes: only what has a meaning has a colour of its own."""
    text = charts.stacked_bars({"one": ONE}, capacity={"a card": 1})
    colours = {box.attrib.get("fill") for box in drawn(text).iter() if box.tag.endswith("text")}
    assert colours == {"currentColor"}


def test_markup_in_names_is_escaped() -> None:
    text = charts.stacked_bars({"<&>": ONE}, capacity={'"<i>"': 10**9})
    assert "<i>" not in text
    assert "<&>" in "".join(drawn(text).itertext())


def test_swatch_is_for_kinds_with_a_meaning() -> None:
    assert charts.swatch("weights") == '<span class="swatch" style="background:#0072B2" aria-hidden="true"></span>'
    assert charts.swatch("anything else") == ""


def test_both_units_of_memory() -> None:
    assert charts.gigabytes(80 * 10**9) == "80.00 GB (74.51 GiB)"


# -- time charts -------------------------------------------------------------------------------------------------
STEP = [
    ("rank 0", [Span(0, 1, "forward", "0"), Span(3, 5, "backward", "0")]),
    ("rank 1", [Span(1, 2, "forward", "0", 0.5), Span(2, 3, "backward", "<0>")]),
]


def timed(text: str) -> ElementTree.Element:
    """A time chart as a tree."""
    return ElementTree.fromstring(f"<div>{text}</div>")


def test_spans_stand_where_their_times_are() -> None:
    boxes = [box.attrib for box in timed(charts.gantt(STEP, title="a step", end=10)).iter("rect")]
    assert [(box["x"], box["width"], box["fill"]) for box in boxes] == [
        ("0.000%", "10.000%", "#56B4E9"),
        ("30.000%", "20.000%", "#0072B2"),
        ("10.000%", "10.000%", "#AADAF4"),
        ("20.000%", "10.000%", "#0072B2"),
    ]


def test_time_chart_names_what_it_shows_and_its_colours() -> None:
    tree = timed(charts.gantt(STEP, title="a <step>"))
    assert tree[0].get("aria-label") == "a <step>"
    words = "".join(tree.itertext())
    assert all(name in words for name in ("rank 0", "rank 1", "forward", "backward", "idle", "<0>"))
    assert "backward by input" not in words, "only the kinds that are there"


def test_labels_that_do_not_fit_are_left_out() -> None:
    row = [("a", [Span(0, 1, "forward", "12"), Span(1, 30, "forward", "12"), Span(30, 1000, "forward", "12")])]
    labels = [box.get("class") for box in timed(charts.gantt(row, title="a")).iter("text") if box.text == "12"]
    assert labels == ["fine", None]


def test_spans_of_one_length_have_labels_or_none_has() -> None:
    """0 to 9 with a label and 10 to 31 without would look like two kinds of work."""
    row = [("a", [Span(i, i + 1, "forward", str(i)) for i in range(44)])]
    assert not [box for box in timed(charts.gantt(row, title="a")).iter("text") if box.get("y") == "15"]


def test_thousands_of_spans_are_one_path_a_colour() -> None:
    row = [("a", [Span(i, i + 1, ("forward", "backward")[i % 2]) for i in range(charts.DENSE + 1)])]
    tree = timed(charts.gantt(row, title="a"))
    assert not list(tree.iter("rect"))
    assert len(list(tree.iter("path"))) == 2


@pytest.mark.parametrize("end", [0.003, 0.7, 1, 33, 999, 123_456])
def test_an_axis_has_two_to_six_marks(end: float) -> None:
    text = charts.gantt([("a", [Span(0, end, "forward")])], title="a", unit="ms")
    marks = [box.text or "" for box in timed(text).iter("text")]
    assert 2 <= len(marks) <= 6
    assert marks[0] == "0 ms"


def test_an_empty_chart_is_all_idle() -> None:
    assert "idle" in charts.gantt([("a", [])], title="nothing")


def test_ink_is_read_on_every_colour() -> None:
    assert palette.ink(palette.colour("backward")) == "#fff"
    assert palette.ink(palette.tint("backward", 0.6)) == "#000"
