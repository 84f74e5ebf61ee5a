"""Tokenizers in other people's files and libraries: GPT-2's, tiktoken's, Hugging Face's."""

from __future__ import annotations

import base64
import json
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InfrabookError
from . import pretokens
from .merging import BYTE_LEVEL_ORDER, Merge, Vocabulary
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    import tiktoken
    import tokenizers

# GPT-2 writes each byte as a visible character (encoder.py, bytes_to_unicode).
_PRINTABLE = frozenset(BYTE_LEVEL_ORDER[:188])
TO_CHARACTER = {
    byte: chr(byte) if byte in _PRINTABLE else chr(256 + at - 188) for at, byte in enumerate(BYTE_LEVEL_ORDER)
}
TO_BYTE = {character: byte for byte, character in TO_CHARACTER.items()}


def to_characters(token: bytes) -> str:
    """``token`` as GPT-2 writes it.

    >>> to_characters(b" low")
    'Ġlow'
    """
    return "".join(TO_CHARACTER[byte] for byte in token)


def to_bytes(word: str) -> bytes:
    """The bytes of a token as GPT-2 writes it.

    >>> to_bytes("Ġlow")
    b' low'
    """
    try:
        return bytes(TO_BYTE[character] for character in word)
    except KeyError as error:
        raise InfrabookError(f"{word!r} is no byte-level token: {error.args[0]!r} stands for no byte") from None


# -- reading -----------------------------------------------------------------------------------------------------
def read(
    vocab: str | os.PathLike[str], merges: str | os.PathLike[str] | None = None,
    special_tokens: Sequence[str] | None = None, *, pattern: str = "gpt2",
) -> Tokenizer:  # fmt: skip
    """See ``Tokenizer.from_files``."""
    text = _text(vocab)
    if merges is None and text.lstrip()[:1] not in "{[":
        return _from_ranks(text, special_tokens or (), pattern, vocab)
    try:
        table = json.loads(text)
    except json.JSONDecodeError as error:
        raise InfrabookError(f"{os.fspath(vocab)} is no JSON: {error}") from error
    if not isinstance(table, dict):
        raise InfrabookError(f"{os.fspath(vocab)} is JSON, but no vocabulary")
    if isinstance(table.get("model"), dict):
        return _from_hugging_face(table, special_tokens or (), vocab)
    if merges is None:
        raise InfrabookError(f"{os.fspath(vocab)} is a vocabulary; its merges are in another file, usually merges.txt")
    special = tuple(special_tokens or ())
    tokens = {number: word.encode() if word in special else to_bytes_or_special(word) for word, number in table.items()}
    pairs = []
    for number, line in enumerate(_text(merges).splitlines()):
        if line.startswith("#version") or not line:
            continue
        words = line.split(" ")
        if len(words) != 2:
            raise InfrabookError(f"line {number + 1} of {os.fspath(merges)} is no pair: {line!r}")
        pairs.append((to_bytes(words[0]), to_bytes(words[1])))
    if special_tokens is None:
        special = tuple(word for word in table if word.startswith("<|") and word.endswith("|>"))
    return Tokenizer(tokens, pairs, special, pattern=pattern)


def to_bytes_or_special(word: str) -> bytes:
    """A token's bytes, or, if it is written with other characters, itself."""
    return bytes(TO_BYTE[one] for one in word) if all(one in TO_BYTE for one in word) else word.encode()


def _text(path: str | os.PathLike[str]) -> str:
    try:
        return Path(path).read_text("utf-8")
    except OSError as error:
        raise InfrabookError(f"{os.fspath(path)} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InfrabookError(f"{os.fspath(path)} is no text: {error}") from error


def _from_ranks(text: str, special: Sequence[str], pattern: str, path: str | os.PathLike[str]) -> Tokenizer:
    """tiktoken's ``.tiktoken``: a token in base64 and its rank a line. Its merges are worked out."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(text.splitlines()):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError as error:
            raise InfrabookError(
                f"line {number + 1} of {os.fspath(path)} is no token and its rank: {line!r}"
            ) from error
    return Tokenizer({rank: token for token, rank in ranks.items()}, merges_of(ranks), special, pattern=pattern)


def merges_of(ranks: dict[bytes, int]) -> list[Merge]:
    """The merges behind tokens that are known by rank alone: what each token is just before it becomes one.

    >>> merges_of({b"a": 0, b"b": 1, b"c": 2, b"bc": 3, b"abc": 4})
    [(b'b', b'c'), (b'a', b'bc')]
    """
    found = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) < 2:
            continue
        parts = parts_below(token, ranks, rank)
        if len(parts) != 2:
            raise InfrabookError(f"the token {token!r} of rank {rank} is no pair of tokens of lower rank: {parts}")
        found.append((parts[0], parts[1]))
    return found


def parts_below(token: bytes, ranks: dict[bytes, int], limit: int) -> list[bytes]:
    """``token`` merged by the ranks below ``limit``, the lowest first, as tiktoken merges."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 1:
        rank, at = min((ranks.get(parts[i] + parts[i + 1], limit), i) for i in range(len(parts) - 1))
        if rank >= limit:
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def load(path: str | os.PathLike[str]) -> Tokenizer:
    """See ``Tokenizer.load``."""
    return read(path)


def _from_hugging_face(table: dict[str, Any], special: Sequence[str], path: str | os.PathLike[str]) -> Tokenizer:
    model = table["model"]
    if model.get("type", "BPE") != "BPE":
        raise InfrabookError(f"{os.fspath(path)} holds a {model['type']} model, not BPE")
    if not {"vocab", "merges"} <= set(model):
        raise InfrabookError(f"{os.fspath(path)} has a model without vocabulary or merges")
    added = [one["content"] for one in table.get("added_tokens") or [] if one.get("special", True)]
    names = tuple(dict.fromkeys([*added, *special]))
    vocab: Vocabulary = {number: to_bytes_or_special(word) for word, number in model["vocab"].items()}
    vocab |= {one["id"]: one["content"].encode() for one in table.get("added_tokens") or []}
    pairs = [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in model["merges"]]
    merges = [(to_bytes(first), to_bytes(second)) for first, second in pairs]
    return Tokenizer(vocab, merges, names, pattern=_pattern_of(table.get("pre_tokenizer"), path))


def _pattern_of(pre: dict[str, Any] | None, path: str | os.PathLike[str]) -> str:
    """The pattern that a ``tokenizer.json`` cuts with: byte-level's own is GPT-2's."""
    steps = [] if pre is None else pre["pretokenizers"] if pre["type"] == "Sequence" else [pre]
    for step in steps:
        if step["type"] == "Split" and "Regex" in step["pattern"]:
            given: str = step["pattern"]["Regex"]
            return next((name for name in pretokens.PATTERNS if for_oniguruma(name) == given), given)
        if step["type"] == "ByteLevel":
            if step.get("add_prefix_space"):
                raise InfrabookError(f"{os.fspath(path)} puts a space before every text, which is not supported here")
            return "gpt2"
    raise InfrabookError(f"{os.fspath(path)} does not cut text by bytes and a pattern, as byte-level BPE does")


def as_merges(made: tokenizers.Tokenizer) -> list[Merge]:
    """The merges of a byte-level ``tokenizers.Tokenizer``."""
    pairs = json.loads(made.to_str())["model"]["merges"]
    return [(to_bytes(first), to_bytes(second)) for first, second in pairs]


# -- writing -----------------------------------------------------------------------------------------------------
def for_oniguruma(pattern: str) -> str:
    """The pattern of that name for Hugging Face's engine.

    It reads ``{1,3}+`` as a repetition of repetitions, and ``$`` as the end of a line. The named patterns never give
    back what they took, so they match the same without their possessive signs.
    """
    if pattern not in pretokens.PATTERNS:
        return pattern
    return re.sub(r"([?*+]|\{\d+(?:,\d*)?\})\+", r"\1", pretokens.PATTERNS[pattern]).replace("$", r"\z")


def as_hugging_face(tokenizer: Tokenizer) -> dict[str, Any]:
    """The contents of ``tokenizer.json``."""
    pattern = for_oniguruma(tokenizer.pattern)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    if pattern == pretokens.PATTERNS["gpt2"]:
        cut: dict[str, Any] = byte_level | {"use_regex": True}
    else:
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        cut = {"type": "Sequence", "pretokenizers": [split, byte_level]}
    special = set(tokenizer.special.values())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    seen: dict[str, int] = {}
    for number, token in tokenizer.vocab.items():
        seen.setdefault(token.decode() if number in special else to_characters(token), number)
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": [
            {"id": number, "content": word, **flags}
            for word, number in sorted(tokenizer.special.items(), key=lambda item: item[1])
        ],
        "pre_tokenizer": cut, "post_processor": None,
        "decoder": byte_level | {"use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": seen,
            "merges": [[to_characters(first), to_characters(second)] for first, second in tokenizer.merges],
        },
    }  # fmt: skip


def save(tokenizer: Tokenizer, path: str | os.PathLike[str]) -> None:
    """See ``Tokenizer.save``."""
    target = Path(path)
    text = json.dumps(as_hugging_face(tokenizer), ensure_ascii=False)
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, delete=False) as file:
            file.write(text)
    except OSError as error:
        raise InfrabookError(f"{target} cannot be written: {error.strerror}") from error
    try:
        os.replace(file.name, target)
    except OSError as error:
        os.unlink(file.name)
        raise InfrabookError(f"{target} cannot be written: {error.strerror}") from error


def to_tokenizers(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """See ``Tokenizer.to_tokenizers``."""
    import tokenizers

    return tokenizers.Tokenizer.from_str(json.dumps(as_hugging_face(tokenizer)))


def to_tiktoken(tokenizer: Tokenizer, name: str = "infrabook") -> tiktoken.Encoding:
    """See ``Tokenizer.to_tiktoken``."""
    import tiktoken

    special = set(tokenizer.special.values())
    ranks = {token: number for number, token in sorted(tokenizer.vocab.items(), reverse=True) if number not in special}
    for first, second in tokenizer.merges:
        token = first + second
        if parts_below(token, ranks, ranks[token]) != [first, second]:
            raise InfrabookError(
                f"tiktoken merges by the bytes that result, and would make {token!r} of other parts than "
                f"{first!r} and {second!r}"
            )
    return tiktoken.Encoding(
        name, pat_str=pretokens.PATTERNS.get(tokenizer.pattern, tokenizer.pattern), mergeable_ranks=ranks,
        special_tokens=tokenizer.special,
    )  # fmt: skip
