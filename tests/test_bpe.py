"""The trainer gives the same merges in every form and as its peers, the tokenizer their ids; hard inputs do no harm."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("regex")

from infrabook import bpe
from infrabook.bpe import files, ladder, merging, pretokens, tokenizer
from infrabook.errors import InfrabookError

try:
    from infrabook.bpe import compiled as fast
except ImportError:  # its tests are skipped
    fast = None  # type: ignore[assignment]

END = "<|endoftext|>"
TEXT = bpe.corpus().read_text("utf-8")
COUNTS = bpe.count_file(bpe.corpus(), [END])
LADDER = {"recount": ladder.recount, "word_table": ladder.word_table, "incremental": ladder.incremental,
          "indexed": ladder.indexed, "buckets": ladder.buckets, "heap": ladder.heap}  # fmt: skip


# -- training ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [name for name in LADDER if name != "recount"])
def test_every_rung_of_the_ladder_gives_the_same_merges(name: str) -> None:
    assert LADDER[name](COUNTS, 150).merges == bpe.train_counts(COUNTS, 150)  # type: ignore[operator]


def test_the_plainest_rung_too() -> None:
    documents = TEXT.split(END)[:2]
    assert ladder.recount(documents, 60).merges == bpe.train(documents, 256 + 60, [])[1]


def test_each_rung_does_less_work_than_the_one_before() -> None:
    done = [LADDER[name](COUNTS, 100) for name in ("word_table", "incremental", "indexed", "buckets", "heap")]  # type: ignore[operator]
    assert done[0].pairs > 10 * done[1].pairs
    assert done[1].pairs == done[2].pairs == done[3].pairs == done[4].pairs
    assert done[1].words > 10 * done[2].words
    assert done[2].compared > 10 * done[3].compared
    assert done[3].compared > 10 * done[4].compared
    assert done[0].pairs < 100 * ladder.predicted_pairs(total=1, distinct=sum(len(w.encode()) - 1 for w in COUNTS),
                                                        merges=1)["word_table"]  # fmt: skip


def words(seed: int) -> tuple[dict[str, int], int]:
    numbers = random.Random(seed)
    alphabet = numbers.choice(["ab", "abc", "abcd", "aé", "a"])
    counts = {
        "".join(numbers.choice(alphabet) for _ in range(numbers.randint(1, 14))): numbers.randint(1, 6)
        for _ in range(numbers.randint(1, 9))
    }
    return counts, numbers.randint(1, 16)


def test_hundreds_of_small_corpora_by_recounting_and_by_every_other_way() -> None:
    """Repeated and overlapping pairs, ties, words that run out."""
    pytest.importorskip("numba")
    for seed in range(300):
        counts, merges = words(seed)
        wanted = ladder.word_table(counts, merges).merges
        for compiled in (False, True):
            assert bpe.train_counts(counts, merges, compiled=compiled) == wanted, (seed, compiled)
        for ties in ("huggingface", "rustbpe"):
            one, two = (bpe.train_counts(counts, merges, ties=ties, compiled=way) for way in (False, True))  # type: ignore[arg-type]
            assert one == two, (seed, ties)


def test_merges_of_hugging_face() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=1500, special_tokens=[END], initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    made.train_from_iterator(TEXT.split(END), trainer)
    theirs = [tuple(map(files.to_bytes, pair)) for pair in json.loads(made.to_str())["model"]["merges"]]
    ours = bpe.train(bpe.corpus(), 1500, [END], ties="huggingface")[1]
    assert ours == theirs
    assert ours != bpe.train(bpe.corpus(), 1500, [END])[1]


def test_merges_of_rustbpe() -> None:
    rustbpe = pytest.importorskip("rustbpe")
    made = rustbpe.Tokenizer()
    made.train_from_iterator(iter(TEXT.split(END)), vocab_size=1500, pattern=bpe.PATTERNS["gpt2"])
    theirs = [bytes(token) for token, _ in sorted(made.get_mergeable_ranks(), key=lambda row: row[1])][256:]
    ours = bpe.train(bpe.corpus(), 1501, [END], ties="rustbpe")[1]
    assert [first + second for first, second in ours] == theirs


def test_equal_counts_are_broken_by_bytes_unless_asked_otherwise() -> None:
    counts = {"ab": 2, "xy": 2, "\x80\x81": 1}
    assert bpe.train_counts(counts, 1) == [(b"x", b"y")]
    assert bpe.train_counts(counts, 1, ties="rustbpe") == [(b"a", b"b")]
    with pytest.raises(InfrabookError, match="ties can be bytes, huggingface or rustbpe"):
        bpe.train_counts(counts, 1, ties="mine")  # type: ignore[arg-type]


def test_counts_beyond_32_bits() -> None:
    pytest.importorskip("numba")
    counts = {"ab": 2**40, "cd": 2**40 + 1}
    for compiled in (False, True):
        assert bpe.train_counts(counts, 2, compiled=compiled) == [(b"c", b"d"), (b"a", b"b")]


# -- counting ----------------------------------------------------------------------------------------------------
ODD = [
    "", " ", "\n", "\n\n ", "\t", "\r\n", "\u00a0", "\u3000", "\u2028", "\x1c", "\x1f", "\x00", "a", "é", "中", "'s",
    "'", "12", "--", "\U0001f600", "\u200b", "\x85",
]  # fmt: skip


def test_two_levels_are_exact_for_gpt_2s_pattern() -> None:
    numbers = random.Random(0)
    for _ in range(4000):
        text = "".join(numbers.choices(ODD, k=numbers.randint(0, 12)))
        plain = Counter(pretokens.pretokens(text))
        assert bpe.count_text(text) == plain, repr(text)
        assert "".join(pretokens.pieces(text)) == text


def test_compiled_code_cuts_and_counts_as_the_pattern_does(tmp_path: Path) -> None:
    """Every kind of white space, signs, contractions, bytes that are no UTF-8, special tokens anywhere."""
    pytest.importorskip("numba")
    numbers = random.Random(1)
    special = ["<|a b|>", "<|a", "\n\n", "é"]
    odd = [text.encode() for text in [*ODD, *special, " the", "'ll", "'re", "'ve", "'d", "A", "."]] + [b"\xff", b"\xc2"]
    path = tmp_path / "odd"
    for _ in range(1500):
        path.write_bytes(b"".join(numbers.choices(odd, k=numbers.randint(1, 40))))
        given = numbers.sample(special, numbers.randint(0, 3))
        wanted = pretokens.count_file(path, given)
        words = fast.count_file(path, given)
        assert as_dictionary(words) == wanted, path.read_bytes()


def test_compiled_code_counts_in_blocks_and_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    monkeypatch.setattr(pretokens, "SMALL", 1 << 14)
    monkeypatch.setattr(fast.words, "_BLOCK", 997)
    assert as_dictionary(fast.count_file(bpe.corpus(), [END], workers=2)) == COUNTS
    assert bpe.train(bpe.corpus(), 900, [END], compiled=True, workers=2) == bpe.train(bpe.corpus(), 900, [END])


def as_dictionary(words: Any) -> dict[str, int]:
    data, rows = words.data.tobytes(), zip(words.start, words.size, words.count, strict=True)
    found = {data[start : start + size].decode(): int(count) for start, size, count in rows}
    assert len(found) == len(words.start)  # each word once
    return found


@pytest.mark.parametrize("pattern", ["gpt2", "gpt4"])
def test_a_file_in_stretches_counts_as_a_whole(pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretokens, "BLOCK", 997)
    path = tmp_path / "text"
    path.write_text(TEXT[:30_000] + "  \n x" + END * 3 + "ünï \u00a0 code" + TEXT[30_000:60_000], "utf-8")
    whole = bpe.count_text(path.read_text("utf-8"), [END], pattern=pattern)
    for number in (1, 2, 7, 40):
        total: Counter[str] = Counter()
        parts = pretokens.stretches(path, number, [END], pattern)
        assert [part.end for part in parts[:-1]] == [part.start for part in parts[1:]]
        for part in parts:
            total.update(pretokens.count_stretch(part))
        assert total == whole, number


def test_several_processes_count_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretokens, "SMALL", 1 << 14)
    assert bpe.count_file(bpe.corpus(), [END], workers=2) == COUNTS == bpe.count_file(bpe.corpus(), [END], workers=1)


def test_special_tokens_inside_one_another_and_over_borders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    special = ["<|a b|>", "<|a", "|>"]
    text = "some words <|a b|> more <|a here |> and " * 400
    path = tmp_path / "text"
    path.write_text(text, "utf-8")
    whole = bpe.count_text(text, special)
    for block in (7, 64, 1000):
        monkeypatch.setattr(pretokens, "BLOCK", block)
        for number in (1, 9):
            total: Counter[str] = Counter()
            for part in pretokens.stretches(path, number, special):
                total.update(pretokens.count_stretch(part))
            assert total == whole


# -- inputs that must not hurt -----------------------------------------------------------------------------------
def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("compiled", [False, True])
def test_one_long_line_and_many_equal_letters(compiled: bool, tmp_path: Path) -> None:
    if compiled:
        pytest.importorskip("numba")
    numbers = random.Random(0)
    line = "".join(numbers.choices("abcdefghij", k=1_000_000)).encode()
    merges = bpe.train(write(tmp_path / "line", line), 256 + 1 + 60, [END], compiled=compiled)[1]
    assert len(merges) == 60
    equal = bpe.train(write(tmp_path / "equal", b"a" * 200_000), 300, [END], compiled=compiled)[1]
    assert [first + second for first, second in equal][:3] == [b"aa", b"a" * 4, b"a" * 8]
    assert sum(len(token) for token in equal[-1]) <= 200_000


def test_nul_bytes_invalid_utf_8_and_windows_newlines(tmp_path: Path) -> None:
    assert bpe.pretokens.pretokens("a\0b") == ["a", "\0", "b"]  # NUL is neither letter, digit nor white space
    merges = bpe.train(write(tmp_path / "nul", b"\0\0ab " * 50), 262, [END])[1]
    assert merges == [(b"a", b"b"), (b"\0", b"\0"), (b" ", b"\0\0")]
    bad = bpe.train(write(tmp_path / "bad", b"\xff\xff \xff"), 259, [END])[1]
    assert bad[0] == ("\ufffd".encode()[:1], "\ufffd".encode()[1:2])
    assert (b"\r", b"\n") in bpe.train(write(tmp_path / "crlf", b"a\r\nb\r\n" * 9), 260, [END])[1]


def test_an_empty_file_a_small_vocabulary_and_one_that_cannot_be_filled(tmp_path: Path) -> None:
    empty = write(tmp_path / "empty", b"")
    vocab, merges = bpe.train(empty, 1000, [END])
    assert (len(vocab), merges) == (257, [])
    assert bpe.train(write(tmp_path / "few", b"abab"), 100, [END])[1] == []
    assert bpe.train(tmp_path / "few", 10_000, [END])[1] == [(b"a", b"b"), (b"ab", b"ab")]


def test_a_file_that_grows_is_read_to_its_first_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "log", b"one two " * 10)
    parts = pretokens.stretches(path, 1)
    with path.open("ab") as file:
        file.write(b"three " * 1000)
    assert "three" not in "".join(pretokens.count_stretch(parts[0]))


def test_a_file_that_shrinks_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "log", b"one two " * 1000)
    parts = pretokens.stretches(path, 1)
    path.write_bytes(b"one")
    with pytest.raises(InfrabookError, match="has become shorter while it was read"):
        pretokens.count_stretch(parts[0])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"source": "nowhere/text"}, "nowhere/text cannot be read: No such file"),
        ({"source": "."}, r"\. cannot be read: Is a directory"),
        ({"vocab_size": 0}, "vocab_size has to be a whole number greater than 0, and is 0"),
        ({"vocab_size": 300.5}, "vocab_size has to be a whole number"),
        ({"special_tokens": END}, "special_tokens has to be a list of words"),
        ({"special_tokens": [""]}, "special_tokens has to be a list of words"),
        ({"special_tokens": [END, END]}, "special_tokens has a word twice"),
        ({"pattern": "("}, "is neither a pattern's name"),
        ({"workers": -1}, "workers has to be 0 or more"),
    ],
)
def test_nonsense_is_refused_in_words(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InfrabookError, match=words):
        bpe.train(**{"source": bpe.corpus(), "vocab_size": 300} | arguments)


def test_no_place_to_write_leaves_nothing(tmp_path: Path) -> None:
    made = bpe.Tokenizer(*bpe.train(["a b"], 258, []))
    with pytest.raises(InfrabookError, match="cannot be written"):
        made.save(tmp_path / "no" / "tokenizer.json")
    target = tmp_path / "tokenizer.json"
    target.mkdir()
    with pytest.raises(InfrabookError, match="cannot be written"):
        made.save(target)
    assert list(tmp_path.iterdir()) == [target]


def test_an_interrupt_leaves_no_process(tmp_path: Path) -> None:
    path = write(tmp_path / "text", (TEXT * 400).encode())
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import os, pathlib, time\n"
        "def count(stretch):\n"
        "    pathlib.Path(__file__).with_name(f'begun{os.getpid()}').touch()\n"
        "    time.sleep(60)\n"
    )
    program = textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import slow
        from infrabook import bpe
        print("ready", flush=True)
        bpe.count_file({str(path)!r}, workers=2, counter=slow.count)
    """)
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert child.stdout is not None
    child.stdout.readline()
    for _ in range(600):  # until both counting processes are under way
        if len(list(tmp_path.glob("begun*"))) == 2:
            break
        time.sleep(0.1)
    os.killpg(child.pid, signal.SIGINT)
    _, errors = child.communicate(timeout=30)
    assert child.returncode != 0
    assert b"KeyboardInterrupt" in errors
    for _ in range(100):  # the server of new processes ends by itself when its pipe closes
        try:
            os.killpg(child.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.1)
    else:
        pytest.fail("a process of the interrupted training is left")


def test_an_interrupt_stops_compiled_merging(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    numbers = random.Random(0)
    line = "".join(numbers.choices("abcdefghij", k=1_000_000))
    heard: list[int] = []

    def told(done: int) -> None:
        heard.append(done)
        if sum(heard) > 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fast.merge_counts({line: 1}, 50_000, order=range(256), by_bytes=True, told=told)
    assert 5 < sum(heard) < 25_000


# -- encoding ----------------------------------------------------------------------------------------------------
MADE = bpe.Tokenizer(*bpe.train(bpe.corpus(), 1200, [END]), [END])


def texts(count: int = 400) -> list[str]:
    numbers = random.Random(5)
    plain = [
        "the",
        " memory",
        "  ",
        "\n",
        "GPU",
        " 12,345",
        "’",
        "é",
        "中文",
        "\U0001f600",
        "'ll",
        "\x00",
        "\u2028",
        "aaaa",
    ]
    return ["".join(numbers.choices(plain, k=numbers.randint(0, 14))) for _ in range(count)]


@pytest.mark.parametrize("pattern", ["gpt2", "gpt4"])
def test_the_same_ids_as_tiktoken_and_hugging_face(pattern: str) -> None:
    pytest.importorskip("tiktoken")
    pytest.importorskip("tokenizers")
    made = bpe.Tokenizer(*bpe.train(bpe.corpus(), 1200, [END], pattern=pattern), [END], pattern=pattern)
    theirs, also = made.to_tiktoken(), made.to_tokenizers()
    for text in [*texts(), TEXT[:20_000], "x" + END + " y"]:
        wanted = theirs.encode(text, allowed_special="all")
        assert made.encode(text, allowed_special="all") == wanted, repr(text)
        assert also.encode(text).ids == wanted, repr(text)
        assert made.decode(wanted) == text


def test_the_compiled_encoder_gives_the_same_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    made = bpe.Tokenizer(MADE.vocab, MADE.merges, [END], compiled=True)
    forgetful = bpe.Tokenizer(MADE.vocab, MADE.merges, [END], compiled=True, cache=50)
    numbers = random.Random(3)
    monkeypatch.setattr(tokenizer, "_SHORT", 0)
    long = ["a" * 5000, "ab" * 400 + " the", "\ud800 lone", "\u00a0 x \u2003\n y", "x" + "\n" * 300 + "y"]
    for text in [*texts(), *long, *["".join(numbers.choices(ODD, k=30)) for _ in range(500)], TEXT, TEXT[::-1]]:
        wanted = MADE.encode_ordinary(text)
        assert made.encode_ordinary(text) == wanted, repr(text)
        assert forgetful.encode_ordinary(text) == wanted, repr(text)
    assert made.encode_batch(texts(6), workers=2) == [MADE.encode(text) for text in texts(6)]


def test_every_unicode_block_makes_the_round_trip() -> None:
    for start in range(0, 0x110000, 256):
        if 0xD800 <= start < 0xE000:
            continue
        text = "".join(map(chr, range(start, start + 256)))
        assert MADE.decode(MADE.encode(text)) == text, hex(start)


def test_a_lone_surrogate_becomes_the_replacement_character() -> None:
    assert MADE.decode(MADE.encode("a\ud800b")) == "a\ufffdb"
    assert MADE.decode(MADE.encode("\ud83d\ude00")) == "\U0001f600"


@pytest.mark.parametrize("pattern", ["gpt2", "gpt4"])
def test_chunks_of_any_size_give_the_ids_of_the_whole(pattern: str) -> None:
    made = bpe.Tokenizer(MADE.vocab, MADE.merges, [END, END + END, "<|end"], pattern=pattern)
    numbers = random.Random(2)
    for text in [one + END + two for one, two in zip(texts(), reversed(texts()), strict=True)]:
        wanted = made.encode(text, allowed_special="all")
        cuts = sorted(numbers.choices(range(len(text) + 1), k=4))
        chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert list(made.encode_iterable(chunks)) == wanted, (text, chunks)


def test_streaming_takes_constant_memory() -> None:
    """However long the stream, what waits is less than a line."""
    import tracemalloc

    lines = (f"line {number} of a long stream\n" for number in range(30_000))
    tracemalloc.start()
    count = sum(1 for _ in MADE.encode_iterable(lines))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count > 100_000
    assert peak < 32 * 2**20


def test_special_tokens_as_tiktoken_has_them() -> None:
    text = f"a{END}b"
    with pytest.raises(InfrabookError, match="the text has the special token '<|endoftext|>'".replace("|", r"\|")):
        MADE.encode(text)
    inside = MADE.encode(text, allowed_special={END})
    assert inside[1] == 0
    assert len(inside) == 3
    assert 0 not in MADE.encode(text, disallowed_special=())
    assert MADE.encode_ordinary(text) == MADE.encode(text, disallowed_special=())
    longer = bpe.Tokenizer(MADE.vocab, MADE.merges, [END, END + END])
    assert longer.encode(END + END, allowed_special="all") == [max(longer.vocab)]


def test_batches_on_one_process_and_on_two() -> None:
    batch = texts(40)
    assert MADE.encode_batch(batch) == MADE.encode_batch(batch, workers=2) == [MADE.encode(text) for text in batch]


def test_saved_and_loaded_it_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    MADE.save(path)
    again = bpe.Tokenizer.load(path)
    assert (again.vocab, again.merges, again.special, again.pattern) == (MADE.vocab, MADE.merges, MADE.special, "gpt2")
    tokenizers = pytest.importorskip("tokenizers")
    assert tokenizers.Tokenizer.from_file(str(path)).encode(TEXT[:5000]).ids == MADE.encode(TEXT[:5000])


def test_tiktokens_ranks_are_read_back(tmp_path: Path) -> None:
    import base64

    ranks = {token: number for number, token in MADE.vocab.items() if number}
    path = tmp_path / "ours.tiktoken"
    lines = (f"{base64.b64encode(token).decode()} {rank}" for token, rank in ranks.items())
    path.write_text("\n".join(lines) + "\n", "utf-8")
    again = bpe.Tokenizer.from_files(path, special_tokens=[END])
    assert again.merges == MADE.merges
    assert again.encode(TEXT[:5000]) == MADE.encode(TEXT[:5000])


def test_gpt_2s_two_files_are_read_back(tmp_path: Path) -> None:
    vocab = {END if number == 0 else files.to_characters(token): number for number, token in MADE.vocab.items()}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab), "utf-8")
    pairs = (" ".join(map(files.to_characters, pair)) for pair in MADE.merges)
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(pairs) + "\n", "utf-8")
    again = bpe.Tokenizer.from_files(tmp_path / "vocab.json", tmp_path / "merges.txt")
    assert (again.vocab, again.merges, again.special) == (MADE.vocab, MADE.merges, MADE.special)
    with pytest.raises(InfrabookError, match="is a vocabulary; its merges are in another file"):
        bpe.Tokenizer.from_files(tmp_path / "vocab.json")


@pytest.mark.parametrize(
    ("vocab", "merges", "words"),
    [
        ({0: b"a"}, [], "the vocabulary lacks the byte 0"),
        (merging.vocabulary([]), [(b"ab", b"c")], "of which one has not been made yet"),
        (merging.vocabulary([]), [(b"a", b"b")], "makes b'ab', which the vocabulary lacks"),
    ],
)
def test_a_vocabulary_that_cannot_be_is_refused(vocab: Any, merges: Any, words: str) -> None:
    with pytest.raises(InfrabookError, match=words):
        bpe.Tokenizer(vocab, merges)


def test_merges_that_tiktoken_would_do_otherwise_are_refused() -> None:
    pytest.importorskip("tiktoken")
    merges = [(b"b", b"c"), (b"a", b"b"), (b"ab", b"c")]
    with pytest.raises(InfrabookError, match="tiktoken merges by the bytes that result"):
        bpe.Tokenizer(merging.vocabulary(merges), merges).to_tiktoken()
