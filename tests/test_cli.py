"""The ledgers at a shell: the library's numbers, and one sentence for bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from infrabook import cli, memory, models

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}  # fmt: skip


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    try:
        status = cli.main(words)
    except SystemExit as stop:
        status = int(stop.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


def test_ledger_is_the_librarys(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "ledger", "llama-2-7b", "--json")
    assert status == 0
    assert json.loads(out) == memory.training(models.get("llama-2-7b")).to_dict()


def test_ledger_on_eight_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    words = "ledger llama-2-7b --gpus 8 --zero 3 --gpu h100-sxm --unit GiB --moments --by-kind"
    status, out, _ = run(capsys, *words.split())
    assert status == 0
    assert "1.57 GiB" in out  # an eighth of 12.55
    assert "<- peak" in out
    assert "fits h100-sxm" in out


def test_data_parallel_ranks_are_what_tensor_and_pipeline_leave(capsys: pytest.CaptureFixture[str]) -> None:
    words = "ledger llama-2-7b --gpus 16 --tensor-parallel 2 --pipeline-parallel 2 --zero 1 --json"
    _, out, _ = run(capsys, *words.split())
    expected = memory.training(
        models.get("llama-2-7b"), zero=1, data_parallel=4, tensor_parallel=2, pipeline_parallel=2
    )
    assert json.loads(out)["total"] == expected.to_dict()["total"]


def test_ledger_of_a_config_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    _, named, _ = run(capsys, "ledger", "llama-2-7b", "--json")
    status, read, _ = run(capsys, "ledger", str(path), "--json")
    assert status == 0
    assert json.loads(read)["total"] == json.loads(named)["total"]


def test_inference(capsys: pytest.CaptureFixture[str]) -> None:
    words = "ledger llama-2-7b --inference --context 4096 --gpu 16GB --json"
    status, out, _ = run(capsys, *words.split())
    assert status == 0
    assert json.loads(out)["fit"] == {
        "fits": True, "capacity": 16 * 10**9, "reserved": 0,
        "headroom": 16 * 10**9 - 2 * 6_738_415_616 - 2 * 2**30,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("command", "words"),
    [("models", "llama-2-7b"), ("gpus", "h100-sxm"), ("recipes", "20 B  mixed precision"), ("--help", "ledger")],
)
def test_lists(capsys: pytest.CaptureFixture[str], command: str, words: str) -> None:
    status, out, _ = run(capsys, command)
    assert status == 0
    assert words in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("ledger llama-9", "no model is called 'llama-9'"),
        ("ledger nowhere/config.json", "nowhere/config.json"),
        ("ledger llama-2-7b --gpu h900", "h900"),
        ("ledger llama-2-7b --gpu 80Gb", "'Gb' is not a unit"),
        ("ledger llama-2-7b --recipe adamw", "there is no recipe 'adamw'"),
        ("ledger llama-2-7b --batch many", "'many' is not a whole number"),
        ("ledger llama-2-7b --batch 0", "batch has to be greater than 0"),
        ("ledger llama-2-7b --zero 4", "ZeRO has the stages 0, 1, 2 and 3"),
        ("ledger llama-2-7b --gpus 6 --tensor-parallel 4", "6 GPUs do not divide"),
        ("ledger llama-2-7b --unit Gb", "'Gb' is not a unit"),
        ("ledger llama-2-7b --attention fast", "invalid choice"),
        ("ledger llama-2-7b --inference --weights int9", "'int9' is not a dtype"),
        ("ledger", "model"),
        ("book", "invalid choice"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(capsys: pytest.CaptureFixture[str], arguments: str, words: str) -> None:
    status, out, err = run(capsys, *arguments.split())
    assert status == 2
    assert out == ""
    assert err.startswith("infrabook: ")
    assert err.count("\n") == 1
    assert words in err


def test_a_config_that_is_not_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{")
    status, _, err = run(capsys, "ledger", str(path))
    assert status == 2
    assert err.count("\n") == 1


def test_as_a_process_without_a_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "infrabook.cli", "ledger", "llama-9"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
