"""Charts are the same bytes everywhere: well-formed SVG, drawn to scale, in the palette's colours."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from infrabook import charts, palette
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
