"""Every page keeps the rules of ``tools/prose.py``, and every rule refuses what it is there for."""

from __future__ import annotations

import doctest
import json
import re
from pathlib import Path

import prose
import pytest

from infrabook import models, parameters
from infrabook.models import Transformer

ROOT = Path(__file__).parents[1]
BOOK = prose.Book({"h", "s", "b", "x"}, {"peak", "KV cache"})
LAB = 'check("one/1", answer)'

GOOD = """\
# The title says 98%

The card reports {num}`:card_gb:.1f` GB, or {num}`:card_gib:.1f` GiB; each layer keeps $sbh$ bytes {cite:p}`who2020`.

:::{dropdown} The answer
It is the {term}`peak`, not the sum.
:::

```{explorer} model_ledger
```

## Where this breaks

Nowhere.

## Exercises

1. How many bytes are 80 GB?

## Sources

One.
"""


def found(text: str, rule: str, *, name: str = "page") -> list[str]:
    """What the lint says about ``text`` under one rule."""
    return [finding.words for finding in prose.lint(text, name, BOOK) if finding.rule == rule]


# -- the book ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", prose.pages(), ids=lambda path: path.relative_to(ROOT / "book").as_posix())
def test_page_keeps_the_rules(path: Path) -> None:
    findings = prose.lint_file(path)
    assert not findings, "\n".join(f"{path.name}:{f.line}: {f.rule}: {f.words}" for f in findings)


@pytest.mark.parametrize("lab", sorted((ROOT / "notebooks").rglob("*.ipynb")), ids=lambda path: path.stem)
def test_labs_prose_keeps_the_rules_of_units_and_words(lab: Path) -> None:
    cells = json.loads(lab.read_text("utf8"))["cells"]
    for cell in cells:
        if cell["cell_type"] == "markdown":
            findings = prose.lint("".join(cell["source"]), "lab", prose.Book.at(ROOT / "book"))
            assert not [f.words for f in findings if f.rule in ("unit", "word")]


def test_notation_shows_what_the_library_knows_of_llama_2_7b() -> None:
    llama = models.get("llama-2-7b")
    rows = re.findall(
        r"^\| \$\w\$ \|[^|]*\| `([\w.]+)` \| ([\d,]+) \|$",
        prose.ROOT.joinpath("book/notation.md").read_text("utf8"),
        re.M,
    )
    shown = {name: int(value.replace(",", "")) for name, value in rows}
    count = shown.pop("parameters.count")
    assert count == parameters.count(llama).total
    assert len(shown) == 7
    assert shown == {name: getattr(llama, name) for name in shown}
    assert set(shown) <= set(Transformer.__dataclass_fields__)


def test_notation_gives_a_symbol_one_meaning() -> None:
    source = (ROOT / "book" / "notation.md").read_text("utf8")
    rows = re.findall(r"^\|\s*(\$.+?\$)\s*\|", source, re.MULTILINE)
    symbols = [symbol for row in rows for symbol in re.findall(r"\$([^$]+)\$", row)]
    assert len(symbols) == len(set(symbols)) == len(prose.notation(source)) > 15


def test_glossary_is_in_alphabetical_order_and_names_nothing_twice() -> None:
    source = (ROOT / "book" / "glossary.md").read_text("utf8")
    inside = source.split(":::{glossary}\n")[1]
    terms = [line for line in inside.splitlines() if re.match(r"\w", line)]
    assert len(terms) == len(set(terms)) == len(prose.glossary(source)) > 30


# -- the rules -----------------------------------------------------------------------------------------------
def test_a_good_chapter_has_no_findings() -> None:
    assert prose.lint(GOOD, "3-one-gpu/one", BOOK, LAB) == []


@pytest.mark.parametrize(
    "text",
    [
        "It takes 112 GB.", "It takes 104.3 GiB.", "Two at 5GB each.", "It ran for 12 ms.", "It sends 50 GB/s.",
        "It does 3 TFLOP.", "That is 70% of it.", "That is 70 percent of it.", "It is 13 times faster.",
        "It is 13× faster.", "It is 2.5x faster.", "It has 6,738,415,616 parameters.", "It has 6.7 billion parameters.",
        "The link takes 400 Gb/s.", "It keeps 34 bytes an element.", "- in a list, 80 GB", "| in a table | 80 GB |",
        "## A heading of 80 GB", ":::{note}\nA note of 80 GB.\n:::",
        "```{labfig} :key\n:alt: words\nA caption: 80 GB.\n```",
        "It took 4 seconds.", "It keeps 2,049 of them.", "{num}`:a_gb:.1f` GB, not 112 GB.",
    ],
)  # fmt: skip
def test_a_typed_result_is_refused(text: str) -> None:
    assert found(text, "typed"), text


@pytest.mark.parametrize(
    "text",
    [
        "It takes {num}`:a_gb:.1f` GB.", "In code `80 GB` may stand.", "So may $2^{30}$ and $80$ GB.",
        "# The 80 GB card",
        '"about 30 GB of activations" is a quotation.', "Llama-2-7B has 32 layers.", "Section 3.1, in 2023, said so.",
        "```python\nsize = '80 GB'\n```", "```{labfig} :key\n:alt: a line at 80 GB\nA caption.\n```", "[80 GB](there)",
        "FP16 is a 16-bit format.", "A sequence of 2,048 tokens.", "$$x = 80\\text{ GB}$$",
        "```{math}\n80\\,\\text{GB}\n```", "PyTorch 2.13 runs it.",
    ],
)  # fmt: skip
def test_a_number_that_is_no_result_may_stand(text: str) -> None:
    assert not found(text, "typed"), text


def test_an_exercise_may_type_its_givens_in_a_chapter_alone() -> None:
    text = "# T\n\n## Exercises\n\n1. What of 80 GB?\n\n## Sources\n\nIt is 80 GB.\n"
    assert len(found(text, "typed", name="3-one-gpu/one")) == 1
    assert len(found(text, "typed")) == 2


@pytest.mark.parametrize(
    "text",
    [
        "It computes 3 TFLOPS.", "989 TFLOPs is its peak.", "It does many FLOPs/s.", "It does many FLOPs per second.",
        "Counted in FLOPs.", "GFLOPS are a rate.", "A file of 3 Gb.", "A file of 3 gb.", "It sends 3 Gbps.",
        "It has 3 kB.",
        "{num}`:total_gb:.1f` GiB", "{num}`:total_gib:.1f` GB", "{num}`:total_mib:.1f` MB", "{num}`:total_kib:.1f` KB",
        "{num}`:share_percent:.1f` of it", "{num}`:total_gb:.1f` of them", "{num}`:total:.1f` GB",
        "{num}`:a_gib:.1f` or {num}`:b_gb:.1f` GB", "$\\labnum{:total_gib:.1f}$ GB",
    ],
)  # fmt: skip
def test_a_misused_unit_is_refused(text: str) -> None:
    assert found(text, "unit"), text


@pytest.mark.parametrize(
    "text",
    [
        "It needs 3 TFLOP at 989 TFLOP/s.", "The link takes 400 Gb/s, or 50 GB/s.", "{num}`:a_gb:.1f` GB",
        "{num}`:a_percent:.0f`%",
        "{num}`:a_gb:.1f` or {num}`:b_gb:.1f` GB", "{num}`:a_gb:.1f` GB, and later {num}`:b_gb:.1f`.",
        "{num}`:a_gb:.1f` GB, or {num}`:a_gib:.1f` GiB", "{num}`:layers` layers", "$\\labnum{:total_gb:.1f}$ GB",
        "$\\labnum{:total_gb:.1f}\\,\\text{GB}$", "{num}`:left_bytes:,` bytes are left",
        "{num}`:a_percent:.0f` percent",
    ],
)  # fmt: skip
def test_a_unit_in_its_place_may_stand(text: str) -> None:
    assert not found(text, "unit"), text


@pytest.mark.parametrize(
    "text",
    [
        "$q = 2h$",
        "$$q = 2h$$",
        "```{math}\nq = 2h\n```",
        "Bytes: $\\frac{q}{h}$.",
        "A rate $\\lambda$.",
        "$h_q$",
        "$\\sqrt{q}$",
    ],
)
def test_an_unknown_symbol_is_refused(text: str) -> None:
    assert found(text, "symbol"), text


@pytest.mark.parametrize(
    "text",
    [
        "$34\\,sbh$", "$q = 2h$, where $q$ is the rate.", "Let $q$ be the rate; $q = 2h$.",
        "A rate, call it $q$. $q = h$",
        "A rate called $q$: $q = h$.", "$h = \\labnum{:query}$", "$\\text{bytes} = sbh$", "$\\max(s, b)$",
        "`$q$` in code",
        "$O(s)$", "$\\mathrm{softmax}(x)$", "It costs \\$q.",
    ],
)  # fmt: skip
def test_a_symbol_that_is_known_or_introduced_may_stand(text: str) -> None:
    assert not found(text, "symbol"), text


def test_a_term_that_the_glossary_lacks_is_refused() -> None:
    assert found("See {term}`peek`.", "term")
    assert found("See {term}`peaks <peek>`.", "term")
    assert not found("See {term}`peaks <peak>` and {term}`KV cache`.", "term")


def test_a_chapter_links_the_terms_that_it_uses() -> None:
    assert found("The peak comes.", "term", name="3-one-gpu/one")
    assert found("The Peak comes.", "term", name="3-one-gpu/one")
    assert not found("The peak comes.", "term"), "a page that is no chapter"
    assert not found("The {term}`peak` comes. A peak is a moment.", "term", name="3-one-gpu/one")
    assert not found("In code, `peak`. Two peaks. A peak-to-peak.", "term", name="3-one-gpu/one")
    assert not found("The kv CACHE.", "term", name="3-one-gpu/one"), "a term with capitals is spelled so"


@pytest.mark.parametrize(
    "text",
    [
        "A huge matrix.", "It is blazingly fast.", "You simply multiply.", "In this chapter we will see.",
        "Obviously so.",
        "It is fast \U0001f680.", "Done \u2705.", "## Introduction", "## Conclusion", "Let's dive in. Deep dive: here.",
    ],
)  # fmt: skip
def test_a_word_that_says_nothing_is_refused(text: str) -> None:
    assert found(text, "word"), text


def test_words_of_others_and_arrows_may_stand() -> None:
    assert not found('They call it "a huge model". Then a → b × c, ✓ and ½.', "word")


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        ("# The title says 98%", "one first-level heading"), (":::{dropdown} The answer",
        "a guess comes with its answer"),
        ("```{explorer} model_ledger\n```", "a chapter has an explorer"), ("## Where this breaks",
        '"Where this breaks"'),
        ("## Exercises", '"Exercises"'), ("## Sources", '"Sources"'), (" {cite:p}`who2020`", "a chapter cites"),
        ("1. How many", "numbers its questions"),
    ],
)  # fmt: skip
def test_a_chapter_without_one_of_its_parts_is_refused(cut: str, words: str) -> None:
    assert cut in GOOD
    assert any(words in said for said in found(GOOD.replace(cut, ""), "skeleton", name="3-one-gpu/one")), words
    assert not found(GOOD.replace(cut, ""), "skeleton"), "a page that is no chapter"


def test_an_exercise_without_a_cell_in_the_lab_is_refused() -> None:
    findings = prose.lint(GOOD, "3-one-gpu/one", BOOK, "nothing to check")
    assert [finding.what for finding in findings] == ["one/1"]


def test_sections_at_the_end_stand_in_order() -> None:
    turned = GOOD.replace("## Exercises", "## X").replace("## Sources", "## Exercises").replace("## X", "## Sources")
    assert any("in that order" in words for words in found(turned, "skeleton", name="3-one-gpu/one"))


# -- exemptions ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "text",
    [
        "<!-- typed: 80 GB is the card's label -->\nA card of 80 GB.",
        "A card of 80 GB. <!-- typed: 80 GB is the card's label -->",
        "A card of 80 GB.\nAnd more. <!-- typed: 80 is the card's label -->",
        "<!-- typed: 80 GB is the card's label -->\n\nA card of 80 GB.",
    ],
)
def test_an_exemption_with_a_reason_holds(text: str) -> None:
    assert prose.lint(text, "page", BOOK) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<!-- typed: the card's label is meant -->\nA card of 80 GB.", "'80 GB' is typed"),
        ("<!-- typed: 80 GB is the card's label -->\nA card of 80 GB.\n\nAnother of 80 GB.", "'80 GB' is typed"),
        ("<!-- typed: 80 GB is the card's label -->\nA card of 96 GB.", "'96 GB' is typed"),
        ("<!-- typed: 180 GB is the card's label -->\nA card of 80 GB.", "'80 GB' is typed"),
        ("<!-- typed: 80 -->\nA card of 80 GB.", "an exemption gives a reason"),
        ("<!-- typed: 80 GB is the card's label -->\nNothing.", "excuses nothing"),
        ("<!-- unit: 80 GB is the card's label -->\nA card of 80 GB.", "'80 GB' is typed"),
    ],
)  # fmt: skip
def test_an_exemption_covers_what_it_names_and_no_more(text: str, words: str) -> None:
    assert any(words in finding.words for finding in prose.lint(text, "page", BOOK)), words


def test_a_symbol_or_term_is_excused_for_the_whole_page() -> None:
    excuses = "<!-- symbol: q is the quoted paper's own letter -->\n\n<!-- term: peak is a mountain's here -->"
    text = f"$q = h$\n\nThe peak.\n\n{excuses}"
    assert not found(text, "symbol", name="3-one-gpu/one")
    assert not found(text, "term", name="3-one-gpu/one")


def test_a_finding_names_its_line() -> None:
    text = "# T\n\nOne.\nTwo `code`\nthree 80 GB.\n\n```python\nx\n```\n\n:::{note}\nA huge thing.\n:::\n"
    assert [(f.line, f.rule) for f in prose.lint(text, "page", BOOK)] == [(5, "typed"), (12, "word")]


def test_examples_in_the_lints_docstrings_hold() -> None:
    assert doctest.testmod(prose).failed == 0
