"""What a stored lab says about itself: which code made its outputs, when, and with which versions.

Standard library only, since the site reads it without torch or a kernel. ``tools/run_labs.py`` writes it.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

KEY = "infrabook"  # of the notebook's metadata


def code_hash(notebook: dict[str, Any]) -> str:
    """A hash of the code cells; prose may be edited without running the lab again.

    >>> code_hash({"cells": [{"cell_type": "markdown", "source": "a"}]}) == code_hash({"cells": []})
    True
    """
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()[:16]


def recorded_hash(notebook: dict[str, Any]) -> str | None:
    """The hash of the code that made the stored outputs, or None for a lab that never ran."""
    found = notebook.get("metadata", {}).get(KEY, {}).get("code")
    return found if isinstance(found, str) else None
