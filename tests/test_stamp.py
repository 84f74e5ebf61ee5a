"""A stamped lab installs the library from the commit it was stamped with, and its other lines are untouched."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import stamp_labs

from infrabook import labfile

ROOT = Path(__file__).parents[1]
LABS = sorted((ROOT / "notebooks").rglob("*.ipynb"))
COLAB = re.findall(r"^([\w-]+)==", (ROOT / "requirements-colab.txt").read_text("utf8"), re.MULTILINE)
ON_COLAB = {"IPython" if name == "ipython" else name for name in COLAB}
ADDRESS = "https://host.example/reader/book"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def code(notebook: dict[str, Any]) -> list[str]:
    """The code cells of a notebook."""
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def git(*words: str, at: Path) -> str:
    """What a git command prints."""
    done = subprocess.run(["git", "-C", str(at), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_every_lab_is_stamped_and_keeps_its_outputs(tmp_path: Path) -> None:
    written = stamp_labs.write(tmp_path, ADDRESS, COMMIT)
    assert [path.relative_to(tmp_path) for path in written] == [lab.relative_to(ROOT) for lab in LABS]
    for path, lab in zip(written, LABS, strict=True):
        before, after = (json.loads(file.read_text("utf8")) for file in (lab, path))
        assert f"@{COMMIT}" in code(after)[0]
        assert code(after)[1:] == code(before)[1:]
        assert [cell.get("outputs") for cell in after["cells"]] == [cell.get("outputs") for cell in before["cells"]]
        if labfile.recorded_hash(before) == labfile.code_hash(before):
            assert labfile.recorded_hash(after) == labfile.code_hash(after)


@pytest.mark.parametrize(
    ("address", "commit", "words"),
    [
        (ADDRESS, "main", "'main' is not a commit"), (ADDRESS, "", "'' is not a commit"),
        ("reader/book", COMMIT, "'reader/book' is not an address"),
        ("https://host.example/a b", COMMIT, "is not an address"),
    ],
)  # fmt: skip
def test_a_branch_or_half_an_address_is_refused(address: str, commit: str, words: str) -> None:
    with pytest.raises(SystemExit) as caught:
        stamp_labs.source(address, commit)
    assert words in str(caught.value)


@pytest.mark.parametrize("lab", LABS, ids=lambda path: path.stem)
def test_a_lab_imports_what_colab_brings_and_what_the_stamp_installs(lab: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]["optional-dependencies"]
    installed = {requirement.split(">")[0].split("=")[0] for requirement in extras[stamp_labs.EXTRA]}
    imported = {"pylance": "lance", "scikit-learn": "sklearn"}  # packages whose modules have another name
    known = {imported.get(name, name) for name in ON_COLAB | installed} | {"infrabook", *sys.stdlib_module_names}
    for cell in code(json.loads(lab.read_text("utf8"))):
        for node in ast.walk(ast.parse(cell)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.partition(".")[0] for name in names} <= known, names


def test_the_install_cell_of_a_stamped_lab_installs_that_commit(tmp_path: Path) -> None:
    """A local repository stands for the reader's own copy, an empty environment for Colab's.

    A file's address has no extra, which would bring torch; pip gets setuptools, which builds it, from its registry.
    """
    copy = copied(ROOT, tmp_path / "copy")
    git("init", "-q", at=copy)
    git("add", "-A", ".", at=copy)
    git("-c", "user.name=reader", "-c", "user.email=reader@host.example", "commit", "-qm", "a copy", at=copy)
    commit = git("rev-parse", "HEAD", at=copy)
    stamp = stamp_labs.source(copy.as_uri(), commit)
    cell = code(labfile.stamped(json.loads(LABS[0].read_text("utf8")), stamp))[0]
    assert commit in cell
    python = tmp_path / "empty" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "empty")], check=True)
    proof = """
import importlib.metadata, infrabook, json
origin = json.loads(importlib.metadata.distribution("infrabook").read_text("direct_url.json"))
print(json.dumps([infrabook.__file__, origin["vcs_info"]["commit_id"]]))
"""
    done = subprocess.run([str(python), "-c", cell + proof], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    file, installed = json.loads(done.stdout.splitlines()[-1])
    assert installed == commit
    assert Path(file).is_relative_to(tmp_path / "empty")
    again = subprocess.run([str(python), "-c", cell], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", ""), "where it is installed the cell does nothing"


def copied(root: Path, target: Path) -> Path:
    """The tracked and the new files of the package, as a folder of its own."""
    ours = ("pyproject.toml", "README.md", "LICENSE*", "src")
    names = git("ls-files", "--cached", "--others", "--exclude-standard", *ours, at=root)
    for name in names.splitlines():
        if (root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes((root / name).read_bytes())
    return target
