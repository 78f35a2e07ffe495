"""`ci/gpu` checks its arguments before it looks for a GPU or creates an environment."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def first_hour(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Run a copy of ci/gpu in a folder that has nothing else, with an nvidia-smi that finds no GPU."""
    (folder / "ci").mkdir()
    shutil.copy(ROOT / "ci" / "gpu", folder / "ci")
    (folder / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (folder / "nvidia-smi").chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin"}
    done = subprocess.run(
        [folder / "ci" / "gpu", *arguments], env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device"], "--device: must be gpu or cpu, got no value"),
        (["--device", "tpu"], "--device: must be gpu or cpu, got 'tpu'"),
        (["--backend"], "--backend: must be a backend, got no value"),
        (["--backend", "mxnet"], "--backend: must be tensorflow, jax or torch, got 'mxnet'"),
        (["--backend="], "--backend: must be tensorflow, jax or torch, got ''"),
        (["--device", "cpu", "--backend=mxnet"], "--backend: must be tensorflow, jax or torch, got 'mxnet'"),
        (["--report", "a.md"], "--report: the report is build/first-hour.md; leave it out"),
    ],
)
def test_wrong_argument_is_rejected_before_the_gpu_check(tmp_path: Path, arguments: list[str], message: str) -> None:
    assert first_hour(tmp_path, *arguments) == (2, "", f"ci/gpu: {message}\n")


@pytest.mark.process
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_is_the_comment_at_the_head_of_the_script(tmp_path: Path, flag: str) -> None:
    code, output, errors = first_hour(tmp_path, flag)
    assert (code, errors) == (0, "")
    assert output.startswith("A first hour on a GPU as one command")
    assert output.endswith("any option of `runner first-hour` but --report\n")


@pytest.mark.process
@pytest.mark.backends
def test_missing_gpu_exits_with_3_and_names_checks_that_work_without(tmp_path: Path) -> None:
    code, _, errors = first_hour(tmp_path, "--backend", "torch")
    assert code == 3
    assert "no GPU: nvidia-smi is not installed or finds none; ci/gpu --device cpu" in errors
