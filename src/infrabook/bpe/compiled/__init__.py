"""Trainer and encoder compiled by numba: the same results as without, in less time.

The first use compiles and says how long it took; numba keeps the result beside these files, so that the next process
starts in less than a second.
"""

from __future__ import annotations

import sys
import time

from .encoding import Encoder
from .merging import merge_counts
from .words import Words, _array, _Table, count_file

__all__ = ["Encoder", "Words", "count_file", "merge_counts", "warm_up"]


def warm_up(*, quiet: bool = False) -> float:
    """Compile, or load what was compiled before; the seconds it took, which are said if they are many."""
    before = time.perf_counter()
    merge_counts(words := _array({"low": 2, "lower": 1}), 1, order=range(256), by_bytes=True)
    table = _Table()
    table.add(words)
    Encoder({"lo": 0}, ["\u0100"], range(257), lambda piece: [], 1).encode("low")
    seconds = time.perf_counter() - before
    if seconds > 2 and not quiet:
        print(f"numba compiled what is needed in {seconds:.0f} s; the next process will not have to", file=sys.stderr)
    return seconds
