"""A stored lab knows which code made its outputs."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest

from infrabook.errors import InfrabookError
from infrabook.labfile import INSTALL, KEY, code_hash, recorded_hash, stamped


def notebook(*cells: tuple[str, str], code: str | None = None) -> dict[str, Any]:
    """A notebook of (kind, source) cells."""
    return {
        "cells": [{"cell_type": kind, "source": source.splitlines(keepends=True),
        "metadata": {}} for kind, source in cells],
        "metadata": {KEY: {"code": code}} if code else {},
    }  # fmt: skip


def test_prose_may_be_edited_without_running_a_lab_again() -> None:
    one = notebook(("markdown", "a"), ("code", "x = 1"))
    assert code_hash(one) == code_hash(notebook(("code", "x = 1"), ("markdown", "another")))


@pytest.mark.parametrize(
    "other",
    [
        notebook(("code", "x = 2")), notebook(("code", "x = 1\n")), notebook(("code", "x = 1"), ("code", "")),
        notebook(("code", "x"), ("code", "= 1")), notebook(),
    ],
)  # fmt: skip
def test_any_change_of_code_changes_the_hash(other: dict[str, Any]) -> None:
    assert code_hash(other) != code_hash(notebook(("code", "x = 1")))


def test_lines_of_a_source_may_be_a_list_or_a_string() -> None:
    as_list, as_text = notebook(("code", "x = 1\ny = 2")), notebook(("code", "x = 1\ny = 2"))
    as_text["cells"][0]["source"] = "x = 1\ny = 2"
    assert code_hash(as_list) == code_hash(as_text)


def test_a_lab_that_never_ran_has_no_hash() -> None:
    assert recorded_hash(notebook(("code", "x"))) is None
    assert recorded_hash({}) is None
    assert recorded_hash(notebook(("code", "x"), code="0123")) == "0123"


# -- stamping ----------------------------------------------------------------------------------------------------
ADDRESS = "infrabook @ git+https://host.example/reader/book@0123abc"


def test_the_install_cell_is_python_that_names_nobody() -> None:
    ast.parse(INSTALL)
    assert 'SOURCE = ""' in INSTALL
    assert "git+" not in INSTALL
    assert "://" not in INSTALL


def test_a_stamped_lab_says_where_to_install_from_and_keeps_everything_else() -> None:
    lab = notebook(("markdown", "# Lab"), ("code", INSTALL), ("code", "x = 1"))
    lab["metadata"] = {KEY: {"code": code_hash(lab), "date": "2026-01-01"}}
    before = json.dumps(lab)
    copy = stamped(lab, ADDRESS)
    assert json.dumps(lab) == before, "the original stays as it is"
    assert copy["cells"][0] == lab["cells"][0]
    assert copy["cells"][2] == lab["cells"][2]
    tree = ast.parse("".join(copy["cells"][1]["source"]))
    assignment = next(node for node in tree.body if isinstance(node, ast.Assign))
    assert ast.literal_eval(assignment.value) == ADDRESS
    assert recorded_hash(copy) == code_hash(copy), "its stored outputs are still those of its code"
    assert copy["metadata"][KEY]["date"] == "2026-01-01"


def test_stamping_does_not_make_an_edited_lab_look_current() -> None:
    lab = notebook(("code", INSTALL), code="outdated")
    assert recorded_hash(stamped(lab, ADDRESS)) == "outdated"


@pytest.mark.parametrize(
    "lab", [notebook(), notebook(("code", "x = 1")), notebook(("code", "x = 1"), ("code", INSTALL))]
)
def test_a_lab_that_begins_otherwise_is_refused(lab: dict[str, Any]) -> None:
    with pytest.raises(InfrabookError, match="first code cell has to be"):
        stamped(lab, ADDRESS)
