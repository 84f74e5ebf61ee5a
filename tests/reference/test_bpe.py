"""The cases of ``bpe-cases.jsonl``: pre-tokens, merges, ids and text, as other implementations have them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("regex")

from infrabook import bpe
from infrabook.bpe.merging import vocabulary

from .cases import FOLDER, every

every()  # without the reference folder this module is skipped, or in CI fails
CASES: dict[str, dict[str, Any]] = {
    case["id"]: case for case in map(json.loads, (FOLDER / "bpe-cases.jsonl").read_text("utf-8").splitlines())
}
DATA = FOLDER.parent / "data"


def of(*kinds: str) -> list[str]:
    return [name for name, case in CASES.items() if case["kind"] in kinds]


def latin(merges: list[tuple[bytes, bytes]]) -> list[list[str]]:
    return [[first.decode("latin-1"), second.decode("latin-1")] for first, second in merges]


@cache
def gpt2(special: tuple[str, ...] | None = None) -> bpe.Tokenizer:
    plain = bpe.Tokenizer.from_files(DATA / "gpt2_vocab.json", DATA / "gpt2_merges.txt")
    return plain if special is None else bpe.Tokenizer(plain.vocab, plain.merges, special)


def test_every_kind_of_case_is_tried() -> None:
    tried = of(
        "pretok",
        "train_counts",
        "train_file",
        "encode",
        "encode_iterable",
        "encode-toy",
        "encode-perf",
        "decode",
        "decode-error",
    )
    assert len(tried) == len(CASES) == 80


@pytest.mark.parametrize("name", of("pretok"))
def test_pretokens(name: str) -> None:
    assert bpe.pretokens.pretokens(CASES[name]["input"]) == CASES[name]["expect"]


@pytest.mark.parametrize("compiled", [False, True], ids=["python", "numba"])
@pytest.mark.parametrize("name", of("train_counts"))
def test_merges_from_counts(name: str, compiled: bool) -> None:
    if compiled:
        pytest.importorskip("numba")
    given = CASES[name]["input"]
    assert latin(bpe.train_counts(given["counts"], given["n_merges"], compiled=compiled)) == CASES[name]["expect"]


@pytest.mark.parametrize("compiled", [False, True], ids=["python", "numba"])
@pytest.mark.parametrize("name", of("train_file"))
def test_merges_from_a_file(name: str, compiled: bool, tmp_path: Path) -> None:
    if compiled:
        pytest.importorskip("numba")
    given = CASES[name]["input"]
    path = tmp_path / "text"
    path.write_bytes(given["bytes_latin1"].encode("latin-1"))
    vocab, merges = bpe.train(path, given["vocab_size"], given["special"], compiled=compiled)
    assert latin(merges) == CASES[name]["expect"]
    assert len(vocab) == 256 + len(given["special"]) + len(merges)


@pytest.mark.parametrize("name", of("encode"))
def test_ids_of_gpt_2(name: str) -> None:
    given = CASES[name]["input"]
    found = gpt2(tuple(given["special"])).encode(given["text"], allowed_special="all", disallowed_special=())
    assert found == CASES[name]["expect"]


@pytest.mark.parametrize("name", of("encode_iterable"))
def test_ids_of_a_text_in_chunks(name: str) -> None:
    given = CASES[name]["input"]
    assert list(gpt2(tuple(given["special"])).encode_iterable(given["chunks"])) == CASES[name]["expect"]


@pytest.mark.parametrize("name", of("encode-toy"))
def test_tokens_by_given_merges(name: str) -> None:
    given = CASES[name]["input"]
    merges = [(first.encode(), second.encode()) for first, second in given["merges"]]
    toy = bpe.Tokenizer(vocabulary(merges), merges)
    assert [toy.decode([one]) for one in toy.encode(given["text"])] == CASES[name]["expect"]


@pytest.mark.parametrize("name", of("encode-perf"))
def test_a_million_equal_characters(name: str) -> None:
    given = CASES[name]["input"]
    assert len(gpt2().encode(given["repeat"] * given["n"])) == CASES[name]["expect"]["n_tokens"]


@pytest.mark.parametrize("name", of("decode"))
def test_text_of_ids(name: str) -> None:
    assert gpt2().decode(CASES[name]["input"]) == CASES[name]["expect"]


@pytest.mark.parametrize("name", of("decode-error"))
def test_an_id_that_no_token_has(name: str) -> None:
    with pytest.raises(ValueError, match="no token has the id 10000000; ids go up to 50256"):
        gpt2().decode(CASES[name]["input"])
