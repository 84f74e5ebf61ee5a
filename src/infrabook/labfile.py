"""What a stored lab says about itself: which code made its outputs, when, and with which versions.

Standard library only, since the site reads it without torch or a kernel. ``tools/run_labs.py`` writes it. The cell
that every lab begins with stands here too: ``tools/stamp_labs.py`` fills in where to install from.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from .errors import InfrabookError

KEY = "infrabook"  # of the notebook's metadata
NARROW = "text/vnd.infrabook.narrow+svg"  # a figure for phones: no notebook shows it, and text/ keeps its lines apart

NO_SOURCE = 'SOURCE = ""'
INSTALL = """\
# Installs the book's library where it is missing, as on Colab; everywhere else this does nothing.
SOURCE = ""  # a published lab carries the address and the commit that it was stamped from
import importlib.util, subprocess, sys

if importlib.util.find_spec("infrabook") is None:
    if not SOURCE:
        raise SystemExit("Install infrabook first: pip install -e '.[labs]' in a copy of the book's repository.")
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", SOURCE], check=True)"""


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


def stamped(notebook: dict[str, Any], source: str) -> dict[str, Any]:
    """A copy of a lab whose first code cell installs the library from ``source``; its stored outputs stay valid.

    >>> lab = {"cells": [{"cell_type": "code", "source": INSTALL}], "metadata": {KEY: {"code": "0"}}}
    >>> cell = stamped(lab, "infrabook @ git+https://host/owner/book@abc")["cells"][0]["source"]
    >>> cell.splitlines()[1].split("  #")[0]
    'SOURCE = "infrabook @ git+https://host/owner/book@abc"'
    """
    copy: dict[str, Any] = json.loads(json.dumps(notebook))
    first = next((cell for cell in copy["cells"] if cell["cell_type"] == "code"), None)
    text = "".join(first["source"]) if first else ""
    if first is None or text != INSTALL:
        raise InfrabookError("a lab's first code cell has to be infrabook.labfile.INSTALL, and is something else")
    filled = text.replace(NO_SOURCE, f"SOURCE = {json.dumps(source)}", 1)
    first["source"] = filled.splitlines(keepends=True) if isinstance(first["source"], list) else filled
    current = recorded_hash(notebook) == code_hash(notebook)
    if current:
        copy["metadata"][KEY]["code"] = code_hash(copy)
    return copy
