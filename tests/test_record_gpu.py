"""Recording GPU results, without a GPU: a card of the test's own stands in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import record_gpu

from infrabook.measure import gpu

MEASURE = "from infrabook.measure.gpu import on_gpu\nseen = on_gpu('demo', lambda: {'x': base}, need=(7, 5))"


def lab(folder: Path, *cells: tuple[str, list[str]]) -> Path:
    """A notebook of (source, tags)."""
    path = folder / "demo.ipynb"
    code = [{"cell_type": "code", "source": source, "metadata": {"tags": tags}} for source, tags in cells]
    path.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": "# Demo"}, *code]}), "utf8")
    return path


@pytest.fixture
def a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU of compute capability 7.5."""
    monkeypatch.setattr(gpu, "available", lambda need=(0, 0), count=1: need <= (7, 5))
    monkeypatch.setattr(record_gpu, "card", lambda: "a card")


def test_results_are_recorded_with_card_date_and_versions(a_card: None, tmp_path: Path) -> None:
    data = tmp_path / "gpu.json"
    data.write_text(json.dumps({"demo": {"another card": {"result": 1}}, "old": {}}), "utf8")
    path = lab(tmp_path, ("base = 41", []), ("base += 1", []), (MEASURE, ["nbval-ignore-output"]), ("1 / 0", []))
    before = gpu.on_gpu
    records = record_gpu.record([path], data)
    assert json.loads(data.read_text("utf8")) == records
    assert set(records) == {"demo", "old"}
    assert set(records["demo"]) == {"another card", "a card"}
    row = records["demo"]["a card"]
    assert row["result"] == {"x": 42}
    assert set(row) == {"date", "versions", "result"}
    assert set(row["versions"]) == {"torch", "CUDA"}
    assert gpu.on_gpu is before, "the library is left as it was"


def test_exercises_and_cells_after_the_last_measurement_do_not_run(a_card: None, tmp_path: Path) -> None:
    path = lab(tmp_path, ("base = 1", []), ("1 / 0", ["exercise"]), (MEASURE, []), ("1 / 0", []))
    assert record_gpu.program(json.loads(path.read_text("utf8"))) == ["base = 1", MEASURE]


def test_a_lab_without_gpu_cells_does_not_run_at_all(a_card: None, tmp_path: Path) -> None:
    assert record_gpu.record([lab(tmp_path, ("1 / 0", []))], tmp_path / "none.json") == {}


def test_a_card_that_is_too_old_is_said(a_card: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = lab(tmp_path, ("base = 1", []), (MEASURE.replace("(7, 5)", "(9, 0)"), []))
    assert record_gpu.record([path], tmp_path / "gpu.json") == {}
    assert "demo: left out, it needs compute capability 9.0" in capsys.readouterr().err


def test_a_result_that_is_no_plain_data_is_refused(a_card: None, tmp_path: Path) -> None:
    path = lab(tmp_path, ("base = object()", []), (MEASURE, []))
    with pytest.raises(SystemExit, match="demo: a result has to be plain data"):
        record_gpu.record([path], tmp_path / "gpu.json")


def test_without_a_gpu_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "available", lambda need=(0, 0), count=1: False)
    with pytest.raises(SystemExit, match="there is no GPU here"):
        record_gpu.main()


@pytest.mark.parametrize("path", sorted(record_gpu.LABS.rglob("*.ipynb")), ids=lambda path: path.stem)
def test_every_gpu_cell_of_the_book_uses_a_key_of_its_own(path: Path) -> None:
    sources: list[str] = record_gpu.program(json.loads(path.read_text("utf8")))
    keys: list[Any] = [line for source in sources for line in source.splitlines() if "on_gpu(" in line]
    assert len(keys) == len(set(keys))
