"""The funnel keeps accounts, near-duplicates are found as promised, and a dataset has one hash."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from infrabook import crawl, dataset
from infrabook.dataset import Document, Funnel
from infrabook.errors import InfrabookError

CRAWL = "90af6d3cb20405af"  # of seed 5; another seed is another crawl


def documents() -> Funnel:
    """The crawl as documents, a token being a word here."""
    made = []
    for page in crawl.pages():
        text = dataset.decode(page.raw)
        made.append(Document(page.url, page.day, len(page.raw), text, len(text.split())))
    return Funnel(tuple(made))


def kept() -> Funnel:
    """What the filters leave, without exact duplicates."""
    funnel = documents().drop("not decoded", lambda one: one.text == "")
    funnel = funnel.drop("not English", lambda one: not dataset.english(dataset.signals(one.text)))
    funnel = funnel.drop("low quality", lambda one: not dataset.good(dataset.signals(one.text)))
    return funnel.first_of("exact duplicates", lambda one: dataset.normalized(one.text))


# -- the crawl -------------------------------------------------------------------------------------------------
def test_the_crawl_is_the_same_on_every_machine() -> None:
    digest = hashlib.sha256()
    for page in crawl.pages():
        digest.update(f"{page.url}\0{page.day}\0{page.kind}\0{page.origin}\0".encode() + page.raw + b"\0")
    assert digest.hexdigest()[:16] == CRAWL


def test_addresses_are_unique_and_originals_come_first() -> None:
    pages = crawl.pages()
    assert len({page.url for page in pages}) == len(pages)
    published = {page.url: page.day for page in crawl.originals()}
    copies = [page for page in pages if page.origin in published and page.kind != "original"]
    assert all(page.day > published[page.origin] for page in copies)
    assert len(copies) > 200


def test_what_was_damaged_in_a_known_way_is_repaired() -> None:
    texts = {page.url: page.raw.decode() for page in crawl.originals()}
    kinds = ("same bytes", "mojibake", "Windows-1252", "UTF-16")
    repaired = [page for page in crawl.pages() if page.kind in kinds]
    assert all(dataset.decode(page.raw) == texts[page.origin] for page in repaired)
    assert {page.kind for page in crawl.pages() if not dataset.decode(page.raw)} == {"broken"}


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("naïve".encode(), "naïve"), (b"\xef\xbb\xbfmark", "mark"), (b"na\xefve", "naïve"), (b"", ""),
        ("x".encode("utf-16"), "x"), (b"\xff\xfex", ""), (b"\x81", ""), (b"a\x00b", ""), (b"\x89PNG\r\n\x1a\n", ""),
        ("Ã".encode(), "Ã"), ("人人生而自由".encode(), "人人生而自由"),
    ],
)  # fmt: skip
def test_decoding(raw: bytes, text: str) -> None:
    assert dataset.decode(raw) == text


# -- filters and accounts --------------------------------------------------------------------------------------
def test_everything_fetched_is_accounted_for() -> None:
    start, end = documents(), kept()
    for unit, at in (("documents", 1), ("bytes", 2), ("tokens", 3)):
        assert end.ledger(unit).total == start.stages()[0][at] == end.stages()[0][at]
        assert end.ledger(unit)["kept"] == end.stages()[-1][at]
    assert [line[0] for line in end.stages()] == ["fetched", *(name for name, _ in end.dropped)]
    counts = [line[1] for line in end.stages()]
    assert counts == sorted(counts, reverse=True)


def test_a_step_has_a_name_of_its_own() -> None:
    funnel = documents().drop("short", lambda one: len(one.text) < 9)
    for name in ("short", "kept"):
        with pytest.raises(InfrabookError, match=f"a row {name!r} already"):
            funnel.drop(name, lambda one: False)
    with pytest.raises(InfrabookError, match="and not 'words'"):
        funnel.ledger("words")


def test_the_filters_do_what_their_names_say_and_no_more() -> None:
    kinds = {page.url: page.kind for page in crawl.pages()}
    left = {kinds[one.id] for one in kept().kept}
    assert not left & {"broken", "other language", "short", "keyboard noise", "numbers", "menu"}
    assert "word salad" in left  # no filter reads


def test_signals_of_a_text_without_words() -> None:
    found = dataset.signals("")
    assert found.words == 0
    assert not dataset.english(found)
    assert not dataset.good(found)


def test_the_earliest_copy_stays_whatever_the_order() -> None:
    made = [Document(name, day, 1, "text") for name, day in (("c", 2), ("b", 1), ("a", 1))]
    for order in (made, made[::-1]):
        assert [one.id for one in Funnel(tuple(order)).first_of("copies", lambda one: one.text).kept] == ["a"]


def test_one_address_fetched_on_two_days_is_two_documents() -> None:
    twice = Document("a", 2, 1, "text"), Document("a", 1, 1, "text"), Document("a", 1, 1, "text")
    funnel = Funnel(twice).first_of("copies", lambda one: one.text)
    assert funnel.kept == (twice[1],)
    assert funnel.ledger().total == 3
    other = Document("a", 2, 1, "another text")
    assert Funnel((twice[0], other)).first_of("copies", lambda one: one.text).kept == (twice[0], other)
    assert dataset.content_hash({"all": [twice[0], other]}) == dataset.content_hash({"all": [other, twice[0]]})
    assert dataset.shuffled([twice[0], other]) == dataset.shuffled([other, twice[0]])


def test_what_the_decoder_gives_up_lacks_its_first_byte() -> None:
    texts = {page.url: page.raw.decode() for page in crawl.originals()}
    broken = [page for page in crawl.pages() if page.kind == "broken"]
    assert not any(dataset.decode(page.raw) for page in broken)
    for page in broken:
        rest = page.raw[1:]
        assert rest[: len(rest) // 2 * 2].decode("utf-16-le") in texts[page.origin]


# -- near-duplicates -------------------------------------------------------------------------------------------
def test_similar_pairs_are_those_of_comparing_all() -> None:
    chance = random.Random(3)
    for _ in range(30):
        sets = [frozenset(chance.choices("abcdefgh", k=chance.randint(1, 7))) for _ in range(12)]
        for least in (0.1, 0.5, 1):
            wanted = {(i, j): dataset.jaccard(sets[i], sets[j]) for i, j in combinations(range(12), 2)}
            assert dataset.similar_pairs(sets, least) == {k: v for k, v in wanted.items() if v >= Fraction(str(least))}


def test_the_s_curve_of_the_textbook() -> None:
    """Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, figure 3.8: 20 bands of 5 rows."""
    table = {0.2: 0.006, 0.3: 0.047, 0.4: 0.186, 0.5: 0.470, 0.6: 0.802, 0.7: 0.975, 0.8: 0.9996}
    for similarity, probability in table.items():
        assert dataset.candidate_probability(similarity, bands=20, rows=5) == pytest.approx(probability, abs=6e-4)


def test_the_s_curve_of_fineweb() -> None:
    """Penedo et al. 2024: 14 buckets of 8 hashes find 56%, 77%, 92% and 98.8% at 0.7, 0.75, 0.8 and 0.85."""
    for similarity, percent in ((0.7, 56), (0.75, 77), (0.8, 92), (0.85, 98.8)):
        found = 100 * dataset.candidate_probability(similarity, bands=14, rows=8)
        assert found == pytest.approx(percent, abs=0.5)


def test_minhash_finds_what_the_s_curve_promises() -> None:
    datasketch = pytest.importorskip("datasketch")
    import funnel_table

    sets = [dataset.shingles(one.text) for one in kept().kept]
    exact = dataset.similar_pairs(sets, 0.4)
    signatures = [funnel_table.signature(one) for one in sets]
    index = datasketch.MinHashLSH(num_perm=128, params=(32, 4))
    for i, one in enumerate(signatures):
        index.insert(i, one)
    proposed = {(min(i, j), max(i, j)) for i, one in enumerate(signatures) for j in index.query(one) if i != j}
    promised = sum(dataset.candidate_probability(s, bands=32, rows=4) for s in exact.values())
    assert len(exact.keys() & proposed) == pytest.approx(promised, abs=5)
    error = [signatures[i].jaccard(signatures[j]) - float(s) for (i, j), s in exact.items()]
    assert max(map(abs, error)) < 0.2


def test_refusals_name_the_value() -> None:
    with pytest.raises(InfrabookError, match="is 0"):
        dataset.similar_pairs([{"a"}], 0)
    with pytest.raises(InfrabookError, match="bands"):
        dataset.candidate_probability(0.5, bands=0, rows=4)
    with pytest.raises(InfrabookError, match=r"not 1\.5"):
        dataset.candidate_probability(1.5, bands=4, rows=4)
    with pytest.raises(InfrabookError, match="size of a shingle"):
        dataset.shingles("a b", 0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda wrong: dataset.decode(wrong), "are bytes, and not 'x'"),
        (lambda wrong: dataset.shingles(None), "and not of None"),  # type: ignore[arg-type]
        (lambda wrong: dataset.jaccard({"a"}, None), "one of them is None"),  # type: ignore[arg-type]
        (lambda wrong: dataset.similar_pairs([{"a"}], wrong), "and is 'x'"),
        (lambda wrong: dataset.candidate_probability(wrong, bands=2, rows=2), "and not 'x'"),
        (lambda wrong: dataset.clusters(2, [(0, 5)]), r"2 items, counted from 0, and no pair \(0, 5\)"),
        (lambda wrong: dataset.clusters(2, [(-1, 1)]), "no pair"),
        (lambda wrong: dataset.pack([1, 2], 2, separator=0), "number 0 is 1"),  # type: ignore[list-item]
        (lambda wrong: dataset.pack([[1], wrong], 2, separator=0), "number 1 is 'x'"),
        (lambda wrong: dataset.content_hash({"train": [wrong]}), "'train' holds documents, and 'x' is none"),
    ],
)  # fmt: skip
def test_a_value_of_another_kind_is_refused_in_words(call: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(InfrabookError, match=words):
        call("x")


# -- parts, rows, the card -------------------------------------------------------------------------------------
def test_places_are_spread_evenly_and_move_nobody() -> None:
    places = [dataset.place(str(i), "split") for i in range(10_000)]
    assert all(0 <= one < 1 for one in places)
    assert sum(one < Fraction(1, 5) for one in places) == pytest.approx(2000, abs=120)
    few = [Document(str(i), 0, 0) for i in range(50)]
    many = [*few, *(Document(f"new {i}", 0, 0) for i in range(50))]
    there = {one.id for one in few}
    assert [one for one in dataset.shuffled(many) if one.id in there] == dataset.shuffled(reversed(few))


def test_packing_loses_only_the_last_row() -> None:
    sequences = [[i] * (i % 7) for i in range(1, 60)]
    rows, rest = dataset.pack(sequences, 16, separator=0)
    assert all(len(row) == 16 for row in rows)
    assert 16 * len(rows) + rest == sum(map(len, sequences)) + len(sequences)
    assert [token for row in rows for token in row] == [t for s in sequences for t in (*s, 0)][: 16 * len(rows)]
    with pytest.raises(InfrabookError, match="length of a row"):
        dataset.pack(sequences, 0, separator=0)


def test_the_hash_is_of_the_content_alone() -> None:
    one, two = Document("a", 0, 4, "é"), Document("b", 3, 4, "text")
    digest = dataset.content_hash({"train": [one], "test": [two]})
    assert digest == dataset.content_hash({"test": iter([two]), "train": [one]})
    assert digest != dataset.content_hash({"train": [two], "test": [one]})
    assert digest == hashlib.sha256(b'["test","b","text"]\n["train","a","\\u00e9"]\n').hexdigest()


def test_another_process_makes_the_same_dataset_from_the_crawl_in_another_order() -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests'); import test_dataset as t; from infrabook import dataset;"
        "funnel = t.kept(); print(dataset.content_hash({'all': reversed(funnel.kept)}))"
    )
    root = str(Path(__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root,
                          env={**os.environ, "PYTHONHASHSEED": "7"})  # fmt: skip
    assert done.stdout.strip() == dataset.content_hash({"all": kept().kept})


def test_a_card_says_how_it_was_made() -> None:
    funnel = kept()
    parts = {"train": funnel.kept[:200], "test": funnel.kept[200:]}
    card = json.loads(dataset.card("a small crawl", funnel, parts, {"seed": crawl.SEED}))
    assert card["sha256"] == dataset.content_hash(parts)
    assert card["left after each step"]["fetched"]["documents"] == len(crawl.pages())
    assert sum(part["documents"] for part in card["parts"].values()) == len(funnel.kept)


# -- the explorer ----------------------------------------------------------------------------------------------
def test_the_explorers_table_is_what_its_tool_writes() -> None:
    pytest.importorskip("datasketch")
    import funnel_table

    assert tomllib.loads(funnel_table.PATH.read_text("utf-8")) == funnel_table.table()


def words(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def test_the_explorer_agrees_with_the_funnel() -> None:
    from infrabook.explorers import funnel

    view, done = words(funnel()), kept()
    for name, documents, _, _ in done.stages():
        said = {"fetched": "fetched", "not decoded": "decoded", "not English": "English",
                "low quality": "good enough", "exact duplicates": "no exact duplicates"}[name]  # fmt: skip
        assert re.search(rf" {said} {documents:,} ", view), (said, documents)
    exact = dataset.similar_pairs([dataset.shingles(one.text) for one in done.kept], 0.4)
    assert f"similarity of 0.4 or more: {len(exact)}." in view


@pytest.mark.parametrize(
    "change",
    [
        {"function_words": 45}, {"words": 20}, {"lettered": 95}, {"repeated": 95}, {"threshold": 0.7}, {"bands": 4},
        {"rows": 2},
    ],
)  # fmt: skip
def test_every_threshold_moves_something(change: dict[str, Any]) -> None:
    from infrabook.explorers import funnel

    assert words(funnel(**change)) != words(funnel())


def test_the_explorer_refuses_more_minima_than_there_are() -> None:
    from infrabook.explorers import funnel

    with pytest.raises(InfrabookError, match="need signatures of 256 minima, and these have 128"):
        funnel(bands=32, rows=8)
    with pytest.raises(InfrabookError, match=r"from 0\.15 to 1, and is -1"):
        funnel(threshold=-1)
