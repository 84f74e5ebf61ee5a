"""Every lab on the versions that Colab ships: python3.12 tools/labs_colab.py [notebook ...]

Makes an environment of its own in .venv-colab from requirements-colab.txt, installs the library as a stamped lab
would, and runs the labs. Nothing is compared: other versions may print other digits. Any Python starts this.
"""

import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".venv-colab"
PYTHON = FOLDER / "bin" / "python"


def prepare() -> None:
    """Install Colab's versions, and the library with what Colab lacks."""
    if not PYTHON.is_file():
        venv.create(FOLDER, with_pip=True)
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--requirement", str(ROOT / "requirements-colab.txt")], check=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]
    lacking = project["optional-dependencies"]["colab"]
    constraints = ["--constraint", str(ROOT / "requirements-colab.txt")]  # what Colab has stays as it is
    subprocess.run([*pip, *constraints, *lacking], check=True)
    subprocess.run([*pip, "--no-deps", "--editable", str(ROOT)], check=True)


def run(names: list[str]) -> int:
    """Run the labs, inside the environment."""
    from nbclient.exceptions import CellExecutionError
    from run_labs import execute, labs
    from tqdm import tqdm

    failed = 0
    progress = tqdm(labs(names), unit="lab", disable=not sys.stderr.isatty())
    for path in progress:
        progress.set_description(path.stem)
        try:
            execute(path)
        except CellExecutionError as error:
            failed += 1
            print(f"failed {path.stem}\n{error}", flush=True)
        else:
            print(f"ran    {path.stem}", flush=True)
    return min(failed, 1)


def main() -> int:
    if Path(sys.prefix).resolve() == FOLDER:
        return run(sys.argv[1:])
    if "--as-it-is" in sys.argv:  # an environment made by hand
        sys.argv.remove("--as-it-is")
    else:
        prepare()
    return subprocess.run([str(PYTHON), __file__, *sys.argv[1:]], env=os.environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
