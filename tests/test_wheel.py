"""The wheel holds what a reader needs and nothing of the repository: data, site assets, types, licences."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import labs_wheel
import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "infrabook"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources."""
    return labs_wheel.build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def inside(wheel: Path) -> set[str]:
    """Names of its files."""
    return set(zipfile.ZipFile(wheel).namelist())


def test_every_file_of_the_package_is_in_the_wheel(inside: set[str]) -> None:
    here = {
        path.relative_to(PACKAGE.parent).as_posix() for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }  # fmt: skip
    assert not here - inside
    assert {name for name in inside if name.startswith("infrabook/")} == here


@pytest.mark.parametrize(
    "name",
    [
        "py.typed", "data/hardware.toml", "data/models.toml", "data/gpu.json", "site/assets/static/book.css",
        "site/assets/static/icons.css", "site/assets/templates/layout.html", "site/assets/explorer/explorer.js",
    ],
)  # fmt: skip
def test_data_assets_and_types_are_in_the_wheel(name: str, inside: set[str]) -> None:
    assert f"infrabook/{name}" in inside


def test_nothing_else_is_in_the_wheel_but_what_describes_it(inside: set[str]) -> None:
    others = {name for name in inside if not name.startswith("infrabook/")}
    assert all(".dist-info/" in name for name in others), others
    assert {"LICENSE", "LICENSE-text"} <= {name.split("/")[-1] for name in others}


def test_the_wheel_asks_for_nothing_and_answers_alone(wheel: Path, tmp_path: Path) -> None:
    """Its core under an interpreter that sees no other package, outside the repository."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
        about = next(name for name in archive.namelist() if name.endswith("METADATA"))
        required = [line for line in archive.read(about).decode().splitlines() if line.startswith("Requires-Dist")]
    assert all("extra ==" in line for line in required), required
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import infrabook
from infrabook.cli import main
print(infrabook.__file__)
sys.exit(main(["ledger", "llama-2-7b"]))
"""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode in (0, None), done.stderr
    assert done.stdout.startswith(str(tmp_path))
    assert "118.19 GB" in done.stdout
