"""The book's explorers. ``MODULES`` says where each one is, so that a page imports only its own.

To add one: write it in a module of this package, add its name below, show it with ``{explorer}`` in a chapter
or as the last line of a lab's cell.
"""

from __future__ import annotations

MODULES: dict[str, str] = {}  # explorer -> module of this package
