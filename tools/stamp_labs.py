"""Copies of the labs that install the library from one commit: python tools/stamp_labs.py FOLDER ADDRESS COMMIT

ADDRESS is the reader's own copy, ``https://github.com/OWNER/NAME`` in the Pages workflow and any address that git
clones elsewhere. The copies keep their stored outputs and their places below FOLDER; Colab opens them from there.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from infrabook.labfile import stamped

ROOT = Path(__file__).parents[1]
LABS = ROOT / "notebooks"
EXTRA = "colab"  # of pyproject.toml: what labs import and Colab does not bring


def source(address: str, commit: str) -> str:
    """What pip installs, by the name of the package and the commit.

    >>> source("https://host.example/reader/book", "0123abcd")
    'infrabook[colab] @ git+https://host.example/reader/book@0123abcd'
    """
    if not re.fullmatch(r"[0-9a-f]{7,40}", commit):
        sys.exit(f"{commit!r} is not a commit: give its hexadecimal name, so that a lab never changes under a reader")
    if not re.match(r"(?:https|file)://\S+$", address):
        sys.exit(f"{address!r} is not an address; write it as https://... or file:///...")
    if address.startswith("file:"):  # pip takes no name before a file, and so no extra
        return f"git+{address}@{commit}"
    return f"infrabook[{EXTRA}] @ git+{address}@{commit}"


def write(folder: Path, address: str, commit: str) -> list[Path]:
    """Stamped copies below ``folder``; the paths written."""
    written = []
    for lab in sorted(LABS.rglob("*.ipynb")):
        if ".ipynb_checkpoints" in lab.parts:
            continue
        notebook: dict[str, Any] = json.loads(lab.read_text("utf8"))
        target = folder / lab.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(stamped(notebook, source(address, commit)), indent=1, ensure_ascii=False)
        target.write_text(text + "\n", "utf8")
        written.append(target)
    return written


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    written = write(Path(sys.argv[1]), sys.argv[2].removesuffix(".git"), sys.argv[3])
    print(f"stamped {len(written)} labs with {sys.argv[3][:12]}")


if __name__ == "__main__":
    main()
