"""The action's first step, run by the emulator: what it refuses, and when there is nothing to compare."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from ci.github import emulator
from ci.github.trial import git


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


def run(repository: Path, inputs: Mapping[str, str]) -> emulator.Ended:
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
            "extras: must be some of tf-cpu tf-gpu jax-cpu jax-gpu torch-cpu torch-gpu, got 'jax'",
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
    assert not (repository.parent / "job" / "temp" / "keras-matrix" / "base-env").exists()


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
