"""The Sphinx side of the book: quoted numbers, explorers, and what surrounds a page.

``numbers`` reads stored lab outputs, ``tables`` prints what the library knows, ``explorers`` puts live Python on a
page, ``pages`` adds the contents and status table, where a page comes from and its links, ``assets`` serves fonts,
formulas and the style sheet.
"""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, Any]:
    """Load the parts."""
    for part in ("numbers", "assets", "formulas", "pages", "tables", "explorers"):
        app.setup_extension(f"{__name__}.{part}")
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
