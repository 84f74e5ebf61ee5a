"""Stored labs are what one run from top to bottom leaves, and their exercises know right from wrong.

nbval compares outputs; it passes a lab that was stripped of them, or edited since it ran. These tests do not.
"""

from __future__ import annotations

import json
import pkgutil
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import nbformat
import prose
import pytest

from infrabook import exercises, lab, labfile
from infrabook.site import assets

ROOT = Path(__file__).parents[1]
LABS = sorted(path for path in (ROOT / "notebooks").rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)
CHAPTERS = [path for path in prose.pages() if re.match(r"\d", path.parent.name)]
TAGS = {"hide-input", "hide-output", "exercise", "nbval-ignore-output"}
WIDGET = "application/vnd.jupyter.widget-view+json"
MACHINE = re.compile(
    r"(?<![\w.])/(?:tmp|home|root|Users|work|usr|opt|var|private|content|mnt)/|[A-Z]:\\\\|ipykernel_\d"
)

every_lab = pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
Cell = dict[str, Any]


@cache
def read(path: Path) -> dict[str, Any]:
    """A lab as JSON."""
    found: dict[str, Any] = json.loads(path.read_text("utf8"))
    return found


def source(cell: Cell) -> str:
    """A cell's text."""
    return "".join(cell["source"])


def code(path: Path) -> list[Cell]:
    """A lab's code cells."""
    return [cell for cell in read(path)["cells"] if cell["cell_type"] == "code"]


def tags(cell: Cell) -> set[str]:
    """A cell's tags."""
    return set(cell["metadata"].get("tags", ()))


def keys(cell: Cell) -> list[str]:
    """What a cell recorded for its chapter."""
    stored = (output.get("metadata", {}).get("scrapbook") for output in cell["outputs"])
    return [one["name"] for one in stored if one]


# -- labs and chapters ---------------------------------------------------------------------------------------
def test_every_chapter_has_its_lab_and_every_lab_its_chapter() -> None:
    chapters = {path.relative_to(ROOT / "book").with_suffix("") for path in CHAPTERS}
    labs = {path.relative_to(ROOT / "notebooks").with_suffix("") for path in LABS}
    assert chapters == labs
    assert len(labs) >= 3


@every_lab
def test_lab_and_chapter_link_to_each_other(path: Path) -> None:
    name = path.relative_to(ROOT / "notebooks").with_suffix("")
    assert f"notebooks/{name.as_posix()}" in (ROOT / "book" / name.with_suffix(".md")).read_text("utf8")


# -- stored outputs ------------------------------------------------------------------------------------------
@every_lab
def test_lab_is_a_valid_notebook_without_state_of_its_own(path: Path) -> None:
    nbformat.validate(nbformat.from_dict(read(path)))  # type: ignore[no-untyped-call]  # it has no types
    assert set(read(path)["metadata"]) == {"kernelspec", "language_info", labfile.KEY}


@every_lab
def test_lab_ran_once_from_top_to_bottom(path: Path) -> None:
    cells = [cell for cell in code(path) if source(cell).strip()]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))


@every_lab
def test_outputs_are_those_of_the_code_as_it_stands(path: Path) -> None:
    assert labfile.recorded_hash(read(path)) == labfile.code_hash(read(path)), "run `make labs`"


@every_lab
def test_lab_says_when_and_with_what_it_ran(path: Path) -> None:
    about = read(path)["metadata"][labfile.KEY]
    assert set(about) == {"code", "date", "versions", "device"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", about["date"])
    assert set(about["versions"]) == {"Python", "torch", "numpy"}


@every_lab
def test_nothing_went_to_stderr_and_nothing_failed(path: Path) -> None:
    for cell in code(path):
        for output in cell["outputs"]:
            assert output["output_type"] != "error", source(cell)
            assert output.get("name") != "stderr", output["text"]


@every_lab
def test_every_lab_begins_with_the_same_install_cell(path: Path) -> None:
    first = code(path)[0]
    assert source(first) == labfile.INSTALL
    assert tags(first) == {"hide-input"}
    assert first["outputs"] == []


@every_lab
def test_no_path_of_a_machine_is_stored(path: Path) -> None:
    for cell in read(path)["cells"]:
        for text in (source(cell), json.dumps(cell.get("outputs", []))):
            found = MACHINE.search(text)
            assert not found, text[max(0, found.start() - 60) : found.end() + 60]


@every_lab
def test_only_known_tags_are_used(path: Path) -> None:
    for cell in read(path)["cells"]:
        assert tags(cell) <= TAGS, tags(cell) - TAGS


@every_lab
def test_a_key_is_recorded_once_and_under_nbvals_eyes(path: Path) -> None:
    """A cell whose outputs nobody compares records nothing that a chapter could quote."""
    every = [key for cell in code(path) for key in keys(cell)]
    assert len(every) == len(set(every)) > 0
    for cell in code(path):
        assert not (keys(cell) and "nbval-ignore-output" in tags(cell)), keys(cell)


TIMED = re.compile(r"perf_counter|blocked_autorange|timeit|time\.time|\bseconds\b|\btimed?\(")


@every_lab
def test_what_varies_is_not_compared_and_nothing_else_is_excused(path: Path) -> None:
    """Widgets have ids and GPUs are not everywhere; of the rest only times may differ from run to run."""
    for cell in code(path):
        varies = any(WIDGET in output.get("data", {}) for output in cell["outputs"]) or "on_gpu(" in source(cell)
        excused = "nbval-ignore-output" in tags(cell)
        assert excused or not varies, source(cell)
        assert not excused or varies or TIMED.search(source(cell)), source(cell)


@every_lab
def test_an_explorer_is_stored_as_html_too(path: Path) -> None:
    stored = [output["data"] for cell in code(path) for output in cell["outputs"] if WIDGET in output.get("data", {})]
    assert stored
    assert all("data-explorer=" in "".join(data["text/html"]) for data in stored)


@every_lab
def test_figures_are_svg_without_a_date(path: Path) -> None:
    for cell in code(path):
        for output in cell["outputs"]:
            data = output.get("data", {})
            assert "image/png" not in data, "record_figure stores SVG, which is the same in every run"
            assert "<dc:date>" not in "".join(data.get("image/svg+xml", ""))


@every_lab
def test_every_figure_has_a_drawing_for_phones_with_words_that_can_be_read(path: Path) -> None:
    """At 9 pixels or more in a column of 345: a phone of 390, and in the dark theme the figure's paper has an edge."""
    figures = [out for cell in code(path) for out in cell["outputs"] if "image/svg+xml" in out.get("data", {})]
    for figure in figures:
        drawing = "".join(figure["data"].get(labfile.NARROW, ()))
        assert drawing, f"{figure['metadata']['scrapbook']['name']} has none: run `make labs`"
        size = assets.size_of(drawing)
        assert size, "its size is known before it is loaded"
        words = min(map(float, re.findall(r"scale\(([\d.]+) -[\d.]+\)", drawing)))  # letters are drawn at 100 points
        assert 100 * words * 4 / 3 * min(1, 345 / size[0]) >= 9, figure["metadata"]["scrapbook"]["name"]


# -- exercises -----------------------------------------------------------------------------------------------
CHECK = re.compile(r'check\("([\w-]+/\d+)", (\w+)\)')


def asked(path: Path) -> list[tuple[str, str, str]]:
    """(exercise, variable, solution) of every exercise in a lab, the solution from the cell below."""
    cells = read(path)["cells"]
    found = []
    for cell, below in zip(cells, [*cells[1:], {"cell_type": "", "source": ""}], strict=True):
        if "exercise" in tags(cell):
            match = CHECK.search(source(cell))
            assert match, source(cell)
            folded = re.search(r"<details><summary>Solution</summary>(.*?)</details>", source(below), re.DOTALL)
            assert folded, f"{match[1]} has no folded solution in the cell below it"
            program = re.search(r"```python\n(.*?)```", folded[1], re.DOTALL)
            assert program, f"the solution of {match[1]} is not a program"
            found.append((match[1], match[2], program[1]))
    return found


QUESTIONS = [(*question, path) for path in LABS for question in asked(path)]
every_exercise = pytest.mark.parametrize(
    ("name", "variable", "solution", "path"), QUESTIONS, ids=[question[0] for question in QUESTIONS]
)


def test_every_registered_exercise_has_a_cell_and_every_cell_a_registered_exercise() -> None:
    for module in pkgutil.iter_modules(exercises.__path__):
        import_module(f"{exercises.__name__}.{module.name}")
    names = [question[0] for question in QUESTIONS]
    assert len(names) == len(set(names))
    assert set(names) == set(lab.EXERCISES)


@every_exercise
def test_exercise_is_of_its_own_lab_and_waits(name: str, variable: str, solution: str, path: Path) -> None:
    cell = next(cell for cell in code(path) if f'check("{name}"' in source(cell))
    assert name.split("/")[0] == path.stem
    assert source(cell).startswith(f"{variable} = ...\n")
    assert "waiting for your answer" in json.dumps(cell["outputs"])


@every_exercise
def test_folded_solution_is_right(
    name: str, variable: str, solution: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    namespace: dict[str, Any] = {}
    exec(solution, namespace)
    assert lab.check(name, namespace[variable])
    assert capsys.readouterr().out == f"{name}: right.\n"


@every_exercise
def test_wrong_answer_is_refused_without_the_right_one(
    name: str, variable: str, solution: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = lab.find_exercise(name).answer()
    wrong = (
        "something else" if isinstance(right, str) else [*right, 0] if isinstance(right, list | tuple) else 1.7 * right
    )
    assert not lab.check(name, wrong)
    said = capsys.readouterr().out
    assert said.startswith(f"{name}: ")
    assert "right." not in said
    shown = (
        str(right)
        if isinstance(right, int | str)
        else f"{float(right):.4g}"
        if not isinstance(right, list | tuple)
        else ""
    )
    assert not shown or shown not in said.removeprefix(name)


@every_exercise
def test_named_mistakes_are_mistakes_each_with_its_own_word(
    name: str, variable: str, solution: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, mistake in lab.find_exercise(name).mistakes.items():
        assert not lab.check(name, mistake())
        assert capsys.readouterr().out == f"{name}: {words}\n"
