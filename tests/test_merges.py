"""The explorer of merges cuts as GPT-2's pattern does and learns what the trainer learns."""

from __future__ import annotations

import random
import re
import sys
import unicodedata

import pytest

from infrabook import bpe
from infrabook.bpe import pretokens, train_counts
from infrabook.errors import InfrabookError
from infrabook.explorers import merge_by_merge
from infrabook.explorers.merges import EXAMPLE, cut
from infrabook.lab import check


def test_the_corpus_is_cut_as_by_gpt2s_pattern() -> None:
    text = bpe.corpus().read_text("utf-8")
    assert cut(text) == pretokens.pretokens(text)


def test_text_made_of_what_breaks_tokenizers_is_cut_as_by_gpt2s_pattern() -> None:
    chance = random.Random(0)
    odd = [
        "'ll", "'S", "'", "’s", " ", "  ", "\n", "\t", "é", "中文", "½", "Ⅷ", "_", "a_b", "7", "٣", "\u00a0", "\u2028",
        "\x1c", "\x85", "\x00", "\U0001f600", "e\u0301", "--", ".", "A",
    ]  # fmt: skip
    for _ in range(3000):
        text = "".join(chance.choices(odd, k=12))
        assert cut(text) == pretokens.pretokens(text), text


def test_every_character_that_python_knows_is_cut_as_by_gpt2s_pattern() -> None:
    for number in range(sys.maxunicode + 1):
        one = chr(number)
        if unicodedata.category(one) not in ("Cn", "Cs"):  # unassigned in this Python, which regex may know
            text = f"a{one}1{one} {one}"
            assert cut(text) == pretokens.pretokens(text), hex(number)


@pytest.mark.parametrize(
    "text", [EXAMPLE, "dog. dog, dog! dog. dog, dog! dog. dog.", "it's  isn't\n\nit's 12 12", "aaaa aaa aa"]
)
@pytest.mark.parametrize("steps", [1, 6, 12])
def test_the_explorer_learns_what_the_trainer_learns(text: str, steps: int) -> None:
    counts: dict[str, int] = {}
    for piece in pretokens.pretokens(text):
        counts[piece] = counts.get(piece, 0) + 1
    wanted = [(first + second).decode() for first, second in train_counts(counts, steps)]
    view = merge_by_merge(text=text, step=steps)
    learned = re.findall(r"<code>(.*?)</code>", view.rpartition("the last first:")[2])
    shown = [token.replace(" ", "␣").replace("\n", "⏎").replace("'", "&#x27;") for token in wanted]
    assert learned == shown[::-1]


def test_no_merge_joins_a_word_and_a_sign() -> None:
    view = merge_by_merge(text="dog. dog, dog! dog. dog, dog! dog. dog.", step=6)
    assert "<code>␣dog</code>" in view
    assert not re.search(r"<code>[^<]*dog[.,!]", view)


def test_refusals_are_in_words() -> None:
    with pytest.raises(InfrabookError, match="2,001 characters"):
        merge_by_merge(text="a" * 2001)
    with pytest.raises(InfrabookError, match="one of greatest, least, and is 'nonsense'"):
        merge_by_merge(ties="nonsense")


def test_a_token_given_as_bytes_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert not check("bpe/2", b"zy")
    assert "the right one as bytes" in capsys.readouterr().out
