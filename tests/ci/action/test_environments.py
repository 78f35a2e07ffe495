"""The action's first step, run by the emulator: what it refuses, and when there is nothing to compare."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from ci.github import emulator
from ci.github.trial import git

pytestmark = pytest.mark.process


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two commits, of which only the second one has a matrix file; python3 is one that the action supports."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet")
    for number, name in enumerate(("README", "matrix.yaml")):
        (folder / name).write_text("version: 1\n")
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", f"Commit {number}")
    return folder


def run(repository: Path, inputs: Mapping[str, str]) -> emulator.JobResult:
    return emulator.run(emulator.ROOT, {"python-version": "", **inputs}, repository, repository.with_name("job"))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"matrix-of": "new"}, "matrix-of: must be base or head, got 'new'"),
        ({"undecided": "skip"}, "undecided: must be pass or fail, got 'skip'"),
        ({"matrix": "a/../../matrix.yaml"}, "matrix: must be a path in the repository, got 'a/../../matrix.yaml'"),
        ({"matrix": "absent.yaml"}, "matrix: neither side has the file absent.yaml"),
        ({"base-env": "a"}, "base-env, head-env: set both or none, got 'a' and ''"),
        (
            {"extras": "jax"},
            "extras: must be some of tf-cpu tf-gpu jax-cpu jax-gpu jax-gpu-cuda13 torch-cpu torch-gpu openvino-cpu, "
            "got 'jax'",
        ),
        (
            {"base": "$(touch injected)%0A::x::"},
            "base: git knows no '$(touch injected)%250A::x::' here; set fetch-depth: 0 for actions/checkout",
        ),
        ({"matrix-of": "head", "constraints": "no.txt"}, "constraints: must be locked, none or a file, got 'no.txt'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_input_is_an_annotation_before_anything_is_installed(
    repository: Path, capfd: pytest.CaptureFixture[str], inputs: Mapping[str, str], message: str
) -> None:
    ended = run(repository, inputs)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("::error")]
    assert (ended.code, lines) == (2, [f"::error title=Benchmarks::{message}"])
    assert list(repository.parent.rglob("injected")) == []
    assert list((repository.parent / "job" / "temp").glob("*/base-env")) == []


def test_action_can_be_used_twice_in_a_job(repository: Path, tmp_path: Path) -> None:
    """Both uses share the runner's folder for temporary files, and each makes its own worktrees there."""
    inputs = yaml.safe_load((emulator.ROOT / "action.yml").read_text(encoding="utf-8"))["inputs"]
    given = {name.upper().replace("-", "_"): one["default"] for name, one in inputs.items()}
    works = []
    for use in ("first", "second"):
        files = {"GITHUB_OUTPUT": str(tmp_path / use), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary")}
        environment = {**os.environ, **given, **files, "RUNNER_TEMP": str(tmp_path)}
        subprocess.run([emulator.ROOT / "ci/action/environments"], cwd=repository, env=environment, check=True)
        works.append(Path(emulator.written((tmp_path / use).read_text())["work"]))
        assert [(works[-1] / side / "README").is_file() for side in ("base", "head")] == [True, True]
    assert works[0] != works[1]


def test_missing_parent_says_which_depth_to_fetch(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ended = run(repository, {"head": "HEAD~1"})
    assert ended.code == 2
    assert "is not here; set fetch-depth: 2 for actions/checkout, or the input base" in capfd.readouterr().err


def test_base_without_the_matrix_file_leaves_nothing_to_compare_and_passes(repository: Path) -> None:
    ended = run(repository, {})
    assert (ended.code, ended.outputs, ended.artifacts) == (0, {"outcome": "", "exit-code": ""}, {})
    assert ended.summary == (
        "Nothing to compare: the base has no `matrix.yaml`. It is measured from the next pull request on.\n"
    )
