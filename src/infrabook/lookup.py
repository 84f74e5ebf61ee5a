"""Reads the package's data tables, and answers a wrong name with near ones.

Both import what they need when first called: the core has to start fast, in a browser too.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from .errors import InfrabookError


def toml(name: str) -> dict[str, Any]:
    """The table ``data/<name>.toml``; decimals as exact fractions of what is written.

    >>> sorted(toml("models"))
    ['family', 'model']
    """
    import tomllib
    from importlib import resources

    text = (resources.files("infrabook") / "data" / f"{name}.toml").read_text("utf-8")
    return tomllib.loads(text, parse_float=Fraction)


def not_found(kind: str, name: object, known: Iterable[str]) -> InfrabookError:
    """The error for a ``name`` that is not among ``known``: it names up to three that begin like it or look like it.

    >>> str(not_found("fruit", "aple", ["fig", "apple"]))
    "no fruit is called 'aple'; near: apple"
    """
    import difflib

    known, asked = list(known), str(name).strip().lower()
    near = [n for n in known if asked and n.startswith(asked)] or difflib.get_close_matches(asked, known, cutoff=0.45)
    return InfrabookError(f"no {kind} is called {name!r}; near: {', '.join(near[:3] or known)}")
