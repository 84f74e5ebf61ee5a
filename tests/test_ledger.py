"""A ledger adds up: its arithmetic is exact, and its views say the same in text, HTML, SVG and JSON."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any
from xml.etree import ElementTree

import pytest

from infrabook import memory, models
from infrabook.errors import InfrabookError
from infrabook.ledger import Ledger, Row, ledger

STATES = Ledger(
    "states of a layer",
    (
        Row("weights", 14, "weights", "2N"), Row("gradients", 14, "gradients"), Row("master", 28, "optimizer"),
        Row("moments", 56, "optimizer"),
    ),
)  # fmt: skip
THIRDS = Ledger("thirds", (Row("a", Fraction(1, 3)), Row("b", Fraction(2, 3)), Row("c", 1)))


def xml(text: str) -> ElementTree.Element:
    """A view as an XML tree; void and boolean HTML would not parse."""
    return ElementTree.fromstring(text)


# -- arithmetic ------------------------------------------------------------------------------------------------
def test_total_shares_and_kinds() -> None:
    assert STATES.total == 112
    assert STATES["master"] == 28
    assert STATES.of("optimizer") == 84
    assert STATES.of("activations") == 0
    assert STATES.share("moments") == Fraction(1, 2)
    assert sum(STATES.share(row.name) for row in STATES) == 1
    assert len(STATES) == 4
    assert "weights" in STATES
    assert "nothing" not in STATES


def test_fractions_stay_exact_and_whole_sums_become_integers() -> None:
    assert THIRDS.total == 2
    assert isinstance(THIRDS.total, int)
    assert (THIRDS * 3)["a"] == 1
    assert (THIRDS / 7)["c"] == Fraction(1, 7)
    assert (THIRDS * 3 / 3) == THIRDS
    assert sum([THIRDS] * 9, Ledger("none", ())).total == 18


def test_scaling_is_adding() -> None:
    assert STATES + STATES == 2 * STATES == STATES * 2
    assert (STATES / 8).total == 14


def test_adding_puts_rows_of_one_name_together_and_keeps_the_others() -> None:
    both = STATES + Ledger("more", (Row("weights", 1, "weights"), Row("logits", 5, "activations")))
    assert both["weights"] == 15
    assert both["logits"] == 5
    assert [row.name for row in both] == ["weights", "gradients", "master", "moments", "logits"]
    assert both.title == STATES.title
    assert STATES["weights"] == 14, "a ledger does not change"


def test_what_only_looks_alike_does_not_add_up() -> None:
    with pytest.raises(InfrabookError, match="bytes and parameters do not add up"):
        STATES + Ledger("count", (Row("weights", 7),), "parameters")
    with pytest.raises(InfrabookError, match="row 'weights' is 'weights' in one ledger and 'buffers' in the other"):
        STATES + Ledger("odd", (Row("weights", 7, "buffers"),))


def test_by_kind_follows_the_palette_and_keeps_the_total() -> None:
    mixed = Ledger(
        "mixed", (Row("x", 1, "activations"), Row("y", 2, "weights"), Row("z", 3, "activations"), Row("u", 4, "own"))
    )
    grouped = mixed.by_kind()
    assert [(row.name, row.value) for row in grouped] == [("weights", 2), ("activations", 4), ("own", 4)]
    assert grouped.total == mixed.total


def test_where_map_named_and_compare() -> None:
    assert STATES.where(lambda row: row.kind == "optimizer").total == 84
    assert STATES.map(lambda row: 1).total == 4
    assert STATES.named("another").title == "another"
    assert STATES.compare(Ledger("other", (Row("weights", 10, "weights"), Row("new", 1)))) == [
        ("weights", 14, 10, -4), ("gradients", 14, 0, -14), ("master", 28, 0, -28), ("moments", 56, 0, -56), ("new",
        0, 1, 1),
    ]  # fmt: skip


def test_ledger_without_empty_rows() -> None:
    assert [row.name for row in ledger("t", [Row("a", 0), Row("b", 1), Row("c", Fraction(0))])] == ["b"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: STATES["logits"], "'states of a layer' has no row 'logits'; it has weights, gradients, master"),
        (lambda: Ledger("t", (Row("a", 1), Row("a", 2))), "the ledger 't' has two rows named 'a'"),
        (lambda: Ledger("empty", ()).share("a"), "'empty' sums to 0, so no row has a share of it"),
        (lambda: STATES / 0, "the divisor of a ledger has to be greater than 0, and is 0"),
        (lambda: STATES / -2, "the divisor of a ledger has to be greater than 0, and is -2"),
        (lambda: STATES.to_text("Gb"), "'Gb' is not a unit of bytes"), (lambda: STATES.to_html("Gb"),
        "'Gb' is not a unit"),
        (lambda: STATES.to_svg("Gb"), "'Gb' is not a unit of bytes"),
    ],
)  # fmt: skip
def test_bad_input_is_answered_in_words(call: Any, words: str) -> None:
    with pytest.raises(InfrabookError) as caught:
        call()
    assert words in str(caught.value)


# -- views -----------------------------------------------------------------------------------------------------
def test_text() -> None:
    assert STATES.to_text("B") == (
        "states of a layer\n"
        "---------------------------\n"
        "weights    2N   14 B  12.5%\n"
        "gradients       14 B  12.5%\n"
        "master          28 B  25.0%\n"
        "moments         56 B  50.0%\n"
        "---------------------------\n"
        "total          112 B"
    )


def test_lines_of_the_text_are_as_wide_as_its_rule() -> None:
    lines = memory.training(models.get("llama-2-7b")).to_text().splitlines()
    rule = next(line for line in lines if set(line) == {"-"})
    assert max(map(len, lines[1:])) <= len(rule)


@pytest.mark.parametrize("unit", ["B", "MB", "GiB"])
def test_html_is_well_formed_and_lists_every_row(unit: str) -> None:
    table = xml(STATES.to_html(unit))
    assert table.tag == "table"
    assert [cell.text for cell in table.iter("caption")] == [STATES.title]
    heads = ["".join(cell.itertext()) for cell in table.iter("th")]
    assert heads == [*(row.name for row in STATES), "total"]
    assert all(cell.get("scope") == "row" for cell in table.iter("th"))
    columns = {len(row.findall("td")) for row in table.iter("tr")}
    assert columns == {3}, "every row has as many cells"


def test_html_without_formulas_has_no_column_for_them() -> None:
    assert {len(row.findall("td")) for row in xml(THIRDS.to_html()).iter("tr")} == {2}
    assert {len(row.findall("td")) for row in xml(STATES.to_html(formulas=False)).iter("tr")} == {2}


def test_names_from_a_reader_cannot_become_markup() -> None:
    bad = Ledger('<b>"t"</b>', (Row("<script>1</script>", 10**9, "weights", "a < b & c"),))
    for view in (bad.to_html(), bad.to_svg()):
        assert "<script>" not in view
        assert "<b>" not in view
        xml(view)


@pytest.mark.parametrize("account", [STATES, 10**9 * STATES, THIRDS], ids=["bytes", "large", "fractions"])
def test_svg_is_well_formed_and_named(account: Ledger) -> None:
    drawing = xml(account.to_svg(capacity={"a card of 80 GB": 80 * 10**9}))
    assert drawing.get("role") == "img"
    assert account.title in (drawing.get("aria-label") or "")
    assert len(list(drawing.iter("rect"))) == 2 * len(account.by_kind()), (
        "a part of the bar and a mark in the legend each"
    )
    assert "a card of 80 GB" in "".join(drawing.itertext())


def test_views_are_the_same_every_time() -> None:
    for _ in range(2):
        one, other = (memory.training(models.get("llama-2-7b")) for _ in range(2))
        assert one.to_text() == other.to_text()
        assert one.to_html() == other.to_html()
        assert one.to_svg() == other.to_svg()
        assert json.dumps(one.to_dict()) == json.dumps(other.to_dict())


def test_dict_is_plain_and_exact() -> None:
    assert THIRDS.to_dict() == {
        "title": "thirds", "unit": "bytes", "total": 2,
        "rows": [
            {"name": "a", "kind": "", "formula": "", "value": "1/3"},
            {"name": "b", "kind": "", "formula": "", "value": "2/3"},
            {"name": "c", "kind": "", "formula": "", "value": 1},
        ],
    }  # fmt: skip
    assert json.loads(json.dumps(STATES.to_dict()))["total"] == 112


def test_counts_are_shown_as_counts() -> None:
    counted = Ledger("parameters", (Row("head", 6_738_415_616),), "parameters")
    assert "6,738,415,616" in counted.to_text()
    assert "GB" not in counted.to_html()


def test_a_ledger_of_nothing_still_has_its_views() -> None:
    empty = Ledger("nothing", ())
    assert empty.total == 0
    assert "total" in str(empty)
    xml(empty.to_html())
    xml(empty.to_svg())
