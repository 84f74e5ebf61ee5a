"""Measure on this machine's GPU what the labs' GPU cells show elsewhere: python tools/record_gpu.py [notebook ...]

Runs each lab that calls ``on_gpu``, up to its last such cell, as a plain program, and writes every result to
``src/infrabook/data/gpu.json`` under its key and this card, with the date and the versions. Then run ``make labs``.
"""

import datetime
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from infrabook.measure import gpu

ROOT = Path(__file__).parents[1]
LABS = ROOT / "notebooks"
DATA = ROOT / "src" / "infrabook" / "data" / "gpu.json"
Records = dict[str, dict[str, dict[str, Any]]]


def program(notebook: dict[str, Any]) -> list[str]:
    """The code cells up to the last that calls ``on_gpu``, without exercises; none if no cell calls it."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    sources = ["".join(cell["source"]) for cell in cells if "exercise" not in cell["metadata"].get("tags", [])]
    calls = [number for number, source in enumerate(sources) if "on_gpu(" in source]
    return sources[: calls[-1] + 1] if calls else []


def run(sources: list[str], note: Callable[[str, dict[str, Any]], None], name: str) -> None:
    """Run the cells as one program in which ``on_gpu`` measures and tells ``note``."""

    def on_gpu(
        key: str, measure: Callable[[], dict[str, Any]], *, need: tuple[int, int] = (0, 0), count: int = 1
    ) -> dict[str, Any] | None:
        if not gpu.available(need, count):
            cards = "" if count == 1 else f"{count} GPUs of "
            print(f"{key}: left out, it needs {cards}compute capability {need[0]}.{need[1]}", file=sys.stderr)
            return None
        result = measure()
        note(key, result)
        return result

    original = gpu.on_gpu
    gpu.on_gpu = on_gpu
    try:
        namespace: dict[str, Any] = {"__name__": "__main__"}
        for number, source in enumerate(sources):
            exec(compile(source, f"{name}, code cell {number + 1}", "exec"), namespace)
    finally:
        gpu.on_gpu = original


def versions() -> dict[str, str]:
    """What a result depends on."""
    import torch

    return {"torch": torch.__version__, "CUDA": str(torch.version.cuda)}


def card() -> str:
    """The name of this machine's GPU."""
    import torch

    return str(torch.cuda.get_device_name())


def record(labs: list[Path], data: Path = DATA) -> Records:
    """All records after the labs ran here; those of other cards and keys stay."""
    records: Records = json.loads(data.read_text("utf8")) if data.is_file() else {}
    progress = tqdm(labs, unit="lab", disable=not sys.stderr.isatty())
    for lab in progress:
        sources = program(json.loads(lab.read_text("utf8")))
        if not sources:
            continue
        progress.set_description(lab.stem)

        def note(key: str, result: dict[str, Any]) -> None:
            row = {"date": datetime.date.today().isoformat(), "versions": versions(), "result": result}
            try:
                json.dumps(row)
            except TypeError as error:
                sys.exit(f"{key}: a result has to be plain data: {error}")
            records.setdefault(key, {})[card()] = row

        run(sources, note, lab.stem)
        data.write_text(json.dumps(records, indent=1, sort_keys=True) + "\n", "utf8")  # what is measured is kept
    return records


def main() -> None:
    if not gpu.available():
        sys.exit("there is no GPU here; run this on a machine that has one, with the labs' versions")
    import matplotlib

    matplotlib.use("Agg")
    records = record([Path(name) for name in sys.argv[1:]] or sorted(LABS.rglob("*.ipynb")))
    for key, cards in sorted(records.items()):
        print(f"{key}: {', '.join(cards)}")


if __name__ == "__main__":
    main()
