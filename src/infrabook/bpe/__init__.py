"""Byte-pair encoding, to use and to read: ``train`` merges from a file, ``Tokenizer`` for text to ids and back.

``pretokens`` cuts text and counts the pieces, ``merging`` learns merges from the counts (``compiled`` does it with
numba), ``ladder`` has the same trainer in seven forms from the plainest to this one, ``files`` reads other people's
tokenizers. Needs the package ``regex``.
"""

from .merging import train, train_counts
from .pretokens import PATTERNS, corpus, count_file, count_text
from .tokenizer import Tokenizer

__all__ = ["PATTERNS", "Tokenizer", "corpus", "count_file", "count_text", "train", "train_counts"]
