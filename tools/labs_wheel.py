"""Labs need the wheel alone, not the repository: python tools/labs_wheel.py [notebook ...]

Builds the wheel, unpacks it into an empty folder, and runs every lab outside the repository with that folder first
on the path. A last cell says where ``infrabook`` came from; outputs have to be the stored ones.
"""

import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import nbformat
from labs_portable import differences, environment
from run_labs import ROOT, execute, labs
from tqdm import tqdm

PARTS = ("pyproject.toml", "README.md", "LICENSE", "LICENSE-text", "src")
ORIGIN = "import infrabook\nprint(infrabook.__file__)"


def build(folder: Path) -> Path:
    """The wheel, built in ``folder`` from a copy of the sources, so that the repository stays as it is."""
    copy = folder / "source"
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            copy.mkdir(exist_ok=True)
            shutil.copyfile(ROOT / part, copy / part)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(copy)]
    try:
        if int(version("setuptools").split(".")[0]) >= 77:
            command.insert(4, "--no-build-isolation")  # what builds it is here already
    except PackageNotFoundError:
        pass
    subprocess.run(command, check=True)
    return next(folder.glob("infrabook-*.whl"))


def unpack(wheel: Path, folder: Path) -> Path:
    """The wheel installed into an empty folder, without what it depends on."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), str(wheel)]
    subprocess.run(command, check=True)
    return folder


def run(path: Path, site: Path, folder: Path) -> list[str]:
    """What is wrong with the lab at ``path`` when the library comes from ``site``."""
    stored = nbformat.read(path, as_version=4)
    copy = nbformat.from_dict(stored)
    copy.cells.append(nbformat.v4.new_code_cell(ORIGIN))
    outside = folder / path.name
    nbformat.write(copy, outside)
    with environment({"PYTHONPATH": str(site)}):
        after = execute(outside)
    origin = "".join(after.cells.pop().outputs[0].get("text", ""))
    wrong = [f"code cell {number}:\n{lines}" for number, lines in differences(stored, after)]
    if not Path(origin.strip()).is_relative_to(site):
        wrong.append(f"infrabook came from {origin.strip()}, not from the wheel")
    return wrong


def main() -> int:
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        site = unpack(build(folder), folder / "site")
        progress = tqdm(labs(sys.argv[1:]), unit="lab", disable=not sys.stderr.isatty())
        for path in progress:
            progress.set_description(path.stem)
            wrong = run(path, site, folder)
            failed += bool(wrong)
            print("\n".join([f"{'wrong' if wrong else 'right'} {path.stem}", *wrong]), flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
