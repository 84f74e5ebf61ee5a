"""Text to ids and back, with a vocabulary and its merges.

Encoding a piece applies, again and again, the merge that was learned first; a cache remembers each distinct piece, so
that ordinary text is mostly look-ups. ``files`` has the formats of other libraries.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Literal

from .. import processes
from ..errors import InfrabookError
from . import merging, pretokens
from .merging import Merge, Vocabulary

if TYPE_CHECKING:
    import tiktoken
    import tokenizers

    from .compiled import Encoder

_NEVER = 1 << 60
_SHORT = 256  # a longer word is searched once, and not again for every merge
_STRETCH = 1 << 15  # characters that are cut into pieces at once


class _Cache(dict[str, tuple[int, ...]]):
    """Ids by piece, worked out when first asked for; emptied when it is full."""

    __slots__ = ("limit", "work")

    def __init__(self, work: Callable[[str], tuple[int, ...]], limit: int) -> None:
        super().__init__()
        self.work, self.limit = work, limit

    def __missing__(self, piece: str) -> tuple[int, ...]:
        found = self.work(piece)
        if len(self) >= self.limit:
            self.clear()
        self[piece] = found
        return found


class Tokenizer:
    """A byte-level BPE tokenizer: ``vocab`` id -> bytes, ``merges`` in the order in which they were learned.

    ``special_tokens`` that the vocabulary lacks get the next ids. ``pattern`` is the one that the merges were trained
    with. ``cache`` is the number of distinct pieces remembered. ``compiled`` encodes with numba, for GPT-2's pattern.

    >>> from infrabook.bpe import train
    >>> tokenizer = Tokenizer(*train(["low low lower lowest"], 262, []))
    >>> tokenizer.encode("lower low"), tokenizer.decode([257, 32, 258])
    ([257, 101, 114, 258], 'low  low')
    """

    def __init__(
        self, vocab: Mapping[int, bytes], merges: Sequence[Merge], special_tokens: Sequence[str] | None = None, *,
        pattern: str = "gpt2", cache: int = 1 << 20, compiled: bool = False,
    ) -> None:  # fmt: skip
        pretokens.checked(special_tokens or ())
        special = tuple(special_tokens or ())
        self.vocab: Vocabulary = dict(vocab)
        self.merges = list(merges)
        self.pattern = pattern
        ids: dict[bytes, int] = {}
        for number, token in self.vocab.items():
            ids.setdefault(token, number)
        if lacking := [byte for byte in range(256) if bytes([byte]) not in ids]:
            raise InfrabookError(f"the vocabulary lacks the byte {lacking[0]}: any text may have it")
        for word in special:
            if word.encode() not in ids:
                new = max(self.vocab) + 1
                self.vocab[new] = word.encode()
                ids[word.encode()] = new
        self.special = {word: ids[word.encode()] for word in special}
        self._find_special = pretokens.special_pattern(special) if special else None
        self._regex = pretokens.compiled(pattern)
        self._rules(ids)
        self._words = _Cache(self._word, cache)
        self._pieces = _Cache(self._piece, cache)
        self._encoder: Encoder | None = None
        if compiled and pattern == "gpt2":
            self._encoder = merging._fast().Encoder(
                self._rank, self._rules_by_rank, self._ids, self._pieces.__getitem__, cache
            )

    def _rules(self, ids: Mapping[bytes, int]) -> None:
        """Each token as one code point: a byte as itself, then the merges' results as they come."""
        codes = {bytes([byte]): chr(byte) for byte in range(256)}
        self._ids = [ids[bytes([byte])] for byte in range(256)]
        self._rank: dict[str, int] = {}
        self._rules_by_rank: list[str] = []  # what the merge of this rank makes
        for rank, (first, second) in enumerate(self.merges):
            if first not in codes or second not in codes:
                raise InfrabookError(f"merge {rank} joins {first!r} and {second!r}, of which one has not been made yet")
            token = first + second
            if token not in codes:
                if token not in ids:
                    raise InfrabookError(f"merge {rank} makes {token!r}, which the vocabulary lacks")
                codes[token] = chr(len(self._ids))
                self._ids.append(ids[token])
            pair = codes[first] + codes[second]
            self._rank.setdefault(pair, rank)
            self._rules_by_rank.append(codes[token])

    # -- encoding ------------------------------------------------------------------------------------------------
    def encode(
        self, text: str, *, allowed_special: Literal["all"] | set[str] = frozenset(),  # type: ignore[assignment]
        disallowed_special: Literal["all"] | Iterable[str] = "all",
    ) -> list[int]:  # fmt: skip
        """The ids of ``text``.

        As tiktoken has it: special tokens in ``allowed_special`` become their ids, others that are in the text are
        refused, unless ``disallowed_special`` leaves them out: then they are ordinary text.
        """
        return list(self._encoded(text, *self._special(text, allowed_special, disallowed_special)))

    def encode_ordinary(self, text: str) -> list[int]:
        """The ids of ``text``, special tokens taken as ordinary text."""
        return list(self._ordinary(text))

    def encode_batch(
        self, texts: Iterable[str], *, allowed_special: Literal["all"] | set[str] = frozenset(),  # type: ignore[assignment]
        disallowed_special: Literal["all"] | Iterable[str] = "all", workers: int = 1,
    ) -> list[list[int]]:  # fmt: skip
        """The ids of several texts, on ``workers`` processes. Each starts without a cache: it pays for megabytes."""
        if isinstance(texts, str):
            raise InfrabookError("encode_batch takes a list of texts, and encode takes one")
        texts = list(texts)
        if workers <= 1 or len(texts) < 2:
            return [
                self.encode(t, allowed_special=allowed_special, disallowed_special=disallowed_special) for t in texts
            ]
        made = (self.vocab, self.merges, list(self.special), self.pattern, self._encoder is not None)
        arguments = (made, allowed_special, disallowed_special)
        with processes.pool(workers, preload=[__name__], initializer=_become, arguments=arguments) as pool:
            return pool.map(_encode_one, texts, chunksize=max(1, len(texts) // (4 * workers)))

    def encode_iterable(
        self, texts: Iterable[str], *, allowed_special: Literal["all"] | set[str] = "all",
        disallowed_special: Literal["all"] | Iterable[str] = "all",
    ) -> Iterator[int]:  # fmt: skip
        """The ids of texts that follow one another, such as the lines of a file, in constant memory.

        The same ids as the whole text has: what might still change, from the last white space on, waits.
        """
        allowed = self._names(allowed_special)
        longest = max(map(len, self.special), default=1) - 1
        buffer = ""
        for text in texts:
            buffer += text
            cut = self._last_cut(buffer, len(buffer) - longest)
            if cut > 0:
                yield from self._encoded(buffer[:cut], *self._special(buffer[:cut], allowed, disallowed_special))
                buffer = buffer[cut:]
        yield from self._encoded(buffer, *self._special(buffer, allowed, disallowed_special))

    def _last_cut(self, text: str, at: int) -> int:
        """The last place up to ``at`` where nothing that follows can change what comes before."""
        while at > 0:
            if self.pattern == "gpt2":
                good = _space(text[at : at + 1]) and not _space(text[at - 1])
            else:
                good = text[at] == " " and text[at + 1 : at + 2].isascii() and text[at + 1 : at + 2].isalpha()
                good = good and "!" <= text[at - 1] <= "~"
            if good and not self._within_special(text, at):
                return at
            at -= 1
        return 0

    def _within_special(self, text: str, at: int) -> bool:
        if self._find_special is None:
            return False
        longest = max(map(len, self.special))
        around = self._find_special.finditer(text, max(0, at - longest), min(len(text), at + longest))
        return any(found.start() < at < found.end() for found in around)

    def _names(self, wanted: Literal["all"] | Iterable[str]) -> set[str]:
        if isinstance(wanted, str):
            if wanted != "all":
                raise InfrabookError(f'special tokens are given as a set or as "all", and not as {wanted!r}')
            return set(self.special)
        return set(wanted)

    def _special(
        self, text: str, allowed: Literal["all"] | Iterable[str], disallowed: Literal["all"] | Iterable[str]
    ) -> tuple[Any, set[str]]:
        """The pattern of the special tokens to look for in ``text``, if any, after refusing those that may not be."""
        if not isinstance(text, str):
            raise InfrabookError(f"only text can be encoded, and this is a {type(text).__name__}")
        names = self._names(allowed) & set(self.special)
        refused = set(self.special) - names if isinstance(disallowed, str) and disallowed == "all" else set(disallowed)
        if refused:
            found = pretokens.special_pattern(tuple(sorted(refused))).search(text)
            if found:
                raise InfrabookError(
                    f"the text has the special token {found.group()!r}: allow it (allowed_special), or take it as "
                    "ordinary text (disallowed_special=())"
                )
        return (pretokens.special_pattern(tuple(sorted(names))) if names else None), names

    def _encoded(self, text: str, wanted: Any, names: set[str]) -> Iterator[int]:
        if wanted is None:
            return self._ordinary(text)
        parts: list[Iterable[int]] = []
        at = 0
        for found in wanted.finditer(text):
            parts += (self._ordinary(text[at : found.start()]), (self.special[found.group()],))
            at = found.end()
        parts.append(self._ordinary(text[at:]))
        return chain.from_iterable(parts)

    def _ordinary(self, text: str) -> Iterator[int]:
        if self.pattern != "gpt2":
            return chain.from_iterable(map(self._words.__getitem__, self._regex.findall(text)))
        known = self._pieces.__getitem__
        if self._encoder is not None and len(text) > _SHORT:
            return chain.from_iterable(map(self._compiled, _stretches(text)))
        if len(text) <= 2 * _STRETCH:
            return chain.from_iterable(map(known, pretokens.pieces(text)))
        return chain.from_iterable(map(known, chain.from_iterable(map(pretokens.pieces, _stretches(text)))))

    def _compiled(self, text: str) -> Iterable[int]:
        found = self._encoder.encode(text) if self._encoder is not None else None
        return chain.from_iterable(map(self._pieces.__getitem__, pretokens.pieces(text))) if found is None else found

    def _piece(self, piece: str) -> tuple[int, ...]:
        if piece[1:].isalpha() and (piece[0] == " " or piece[0].isalpha()):  # what the pattern takes as one
            return self._words[piece]
        return tuple(chain.from_iterable(map(self._words.__getitem__, self._regex.findall(piece))))

    def _word(self, word: str) -> tuple[int, ...]:
        """The ids of one pre-token."""
        text = _bytes(word).decode("latin-1")
        if len(text) > _SHORT:
            return self._long(text)
        rank, rules = self._rank.get, self._rules_by_rank
        tokens = list(text)
        ranks = [rank(first + second, _NEVER) for first, second in pairwise(tokens)]
        while ranks:
            least = min(ranks)
            if least == _NEVER:
                break
            at = ranks.index(least)
            tokens[at] = rules[least]
            del tokens[at + 1], ranks[at]
            if at < len(ranks):
                ranks[at] = rank(tokens[at] + tokens[at + 1], _NEVER)
            if at:
                ranks[at - 1] = rank(tokens[at - 1] + tokens[at], _NEVER)
        ids = self._ids
        return tuple([ids[code] for code in map(ord, tokens)])

    def _long(self, text: str) -> tuple[int, ...]:
        """A run of many characters: pairs wait in a heap, so that a merge costs what it changes."""
        rank, rules = self._rank.get, self._rules_by_rank
        tokens: list[str] = list(text)
        after = list(range(1, len(tokens) + 1))
        before = list(range(-1, len(tokens) - 1))
        end = len(tokens)
        waiting = [
            (least, at)
            for at, pair in enumerate(map(str.__add__, text, text[1:]))
            if (least := rank(pair, _NEVER)) < _NEVER
        ]
        heapq.heapify(waiting)
        while waiting:
            least, at = heapq.heappop(waiting)
            right = after[at]
            if right >= end or not tokens[at] or rank(tokens[at] + tokens[right], _NEVER) != least:
                continue  # one of the two has been merged with another since
            tokens[at] = rules[least]
            tokens[right] = ""
            beyond = after[at] = after[right]
            if beyond < end:
                before[beyond] = at
                new = rank(tokens[at] + tokens[beyond], _NEVER)
                if new < _NEVER:
                    heapq.heappush(waiting, (new, at))
            left = before[at]
            if left >= 0:
                new = rank(tokens[left] + tokens[at], _NEVER)
                if new < _NEVER:
                    heapq.heappush(waiting, (new, left))
        ids = self._ids
        return tuple([ids[ord(token)] for token in tokens if token])

    # -- decoding ------------------------------------------------------------------------------------------------
    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of ``ids``; raises ``InfrabookError`` for an id that no token has."""
        try:
            return b"".join(map(self.vocab.__getitem__, ids))
        except KeyError as error:
            raise InfrabookError(f"no token has the id {error.args[0]!r}; ids go up to {max(self.vocab)}") from None

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ``ids``; bytes that are no UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    # -- other libraries -----------------------------------------------------------------------------------------
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write Hugging Face's ``tokenizer.json``; the file appears when it is complete."""
        from . import files

        files.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """What ``save`` or Hugging Face's tokenizers wrote."""
        from . import files

        return files.load(path)

    @classmethod
    def from_files(
        cls, vocab: str | os.PathLike[str], merges: str | os.PathLike[str] | None = None,
        special_tokens: Sequence[str] | None = None, *, pattern: str = "gpt2",
    ) -> Tokenizer:  # fmt: skip
        """A tokenizer from GPT-2's ``vocab.json`` and ``merges.txt``, tiktoken's ranks, or a ``tokenizer.json``.

        Without ``merges`` the kind of file is told from its contents. ``special_tokens`` and ``pattern`` are for
        files that do not say.
        """
        from . import files

        return files.read(vocab, merges, special_tokens, pattern=pattern)

    def to_tiktoken(self, name: str = "infrabook") -> tiktoken.Encoding:
        """The same tokenizer as a ``tiktoken.Encoding``."""
        from . import files

        return files.to_tiktoken(self, name)

    def to_tokenizers(self) -> tokenizers.Tokenizer:
        """The same tokenizer as Hugging Face's ``tokenizers.Tokenizer``."""
        from . import files

        return files.to_tokenizers(self)


def _bytes(text: str) -> bytes:
    """UTF-8; pairs of surrogates are joined, and one that stands alone becomes U+FFFD, as in tiktoken."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _space(character: str) -> bool:
    return character in _SPACES if character else False


_SPACES = frozenset(pretokens._SPACES)


def _stretches(text: str) -> Iterator[str]:
    """Long text in stretches, cut before white space."""
    start = 0
    while len(text) - start > 2 * _STRETCH:
        at = start + _STRETCH
        while at < len(text) and not (_space(text[at]) and not _space(text[at - 1])):
            at += 1
        yield text[start:at]
        start = at
    yield text[start:]


_own: list[Any] = []  # in a worker of encode_batch: its tokenizer and how to use it


def _become(made: tuple[Vocabulary, list[Merge], list[str], str, bool], allowed: Any, disallowed: Any) -> None:
    vocab, merges, special, pattern, compiled = made
    _own[:] = [Tokenizer(vocab, merges, special, pattern=pattern, compiled=compiled), allowed, disallowed]


def _encode_one(text: str) -> list[int]:
    tokenizer, allowed, disallowed = _own
    found: list[int] = tokenizer.encode(text, allowed_special=allowed, disallowed_special=disallowed)
    return found
