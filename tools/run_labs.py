"""Run labs and store their outputs: python tools/run_labs.py [notebook ...]

Each lab runs in a fresh kernel in an empty folder outside the repository, as it would on Colab. Its metadata says
which code made the outputs, when, and with which versions; a run that changes no output changes no line.
"""

import datetime
import json
import platform
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from tqdm import tqdm

from infrabook.labfile import KEY, code_hash

ROOT = Path(__file__).parents[1]
LABS = ROOT / "notebooks"
VOLATILE = {"execution", "collapsed"}


def labs(names: list[str]) -> list[Path]:
    """The notebooks asked for, or all of them."""
    found = [Path(name) for name in names] or sorted(LABS.rglob("*.ipynb"))
    missing = [str(path) for path in found if not path.is_file()]
    if missing:
        sys.exit(f"no such lab: {', '.join(missing)}")
    return [path for path in found if ".ipynb_checkpoints" not in path.parts]


def essence(notebook: Any) -> str:
    """What a second run has to leave as it is: code and outputs, but not widget ids or timings.

    Of a cell whose output is not compared, an explorer's first frame still counts: the page shows it.
    """
    cells = []
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        if "nbval-ignore-output" in cell.metadata.get("tags", []):
            frames = (output.get("data", {}).get("text/html", "") for output in outputs)
            outputs = [frame for frame in frames if "data-explorer" in frame]
        cells.append([cell.source, outputs])
    return json.dumps(cells, sort_keys=True)


def provenance(notebook: Any) -> dict[str, Any]:
    """Today's entry for the notebook's metadata."""
    names = [("Python", platform.python_version()), ("torch", version("torch")), ("numpy", version("numpy"))]
    return {
        "code": code_hash(notebook),
        "date": datetime.date.today().isoformat(),
        "versions": {name: number.split("+")[0] for name, number in names},
        "device": f"{platform.machine()} CPU",
    }


def execute(path: Path, *, timeout: int = 600) -> Any:
    """The notebook at ``path``, run from top to bottom in an empty folder."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook, timeout=timeout, kernel_name="python3", record_timing=False, coalesce_streams=True,
            store_widget_state=False, resources={"metadata": {"path": folder}},
        )  # fmt: skip
        client.execute()
    return notebook


def store(path: Path) -> bool:
    """Run the lab at ``path`` and write it back; True if something other than ids changed."""
    before = nbformat.read(path, as_version=4)
    after = execute(path)
    if essence(before) == essence(after) and before.metadata.get(KEY, {}).get("code") == code_hash(after):
        return False
    after.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
            KEY: provenance(after),
        }
    )
    nbformat.validate(after)
    nbformat.write(after, path)
    return True


def main() -> None:
    progress = tqdm(labs(sys.argv[1:]), unit="lab", disable=not sys.stderr.isatty())
    for path in progress:
        progress.set_description(path.stem)
        print(f"{'changed' if store(path) else 'same   '} {path.resolve().relative_to(ROOT)}", flush=True)


if __name__ == "__main__":
    main()
