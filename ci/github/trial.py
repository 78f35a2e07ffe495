"""Run action.yml on a pair of commits of a small project, without and with a slowdown in the second one.

    ci/action-runner                        both, and check how they end: exit code 0, and 4 with the cell's name
    ci/action-runner slower --keep FOLDER   only this one; also copy its summary and artifact there

The project is a git repository in a temporary folder. Its model applies one dense layer several times; the slowdown
applies it more often, so both sides have the same parameters. Real environments are installed, real processes measured.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ci.github import emulator

MODEL = '''\
"""A model of its own: one dense layer, applied several times."""

import keras
import numpy as np

TIMES = {times}


def build(width: int = 256):
    inputs = keras.Input((width,))
    layer = keras.layers.Dense(width, activation="tanh")
    x = inputs
    for _ in range(TIMES):
        x = layer(x)
    model = keras.Model(inputs, keras.layers.Dense(1)(x))
    model.compile(optimizer="adam", loss="mse")
    rng = np.random.default_rng(0)
    return model, rng.random((1024, width), dtype=np.float32), rng.random((1024, 1), dtype=np.float32)
'''
MATRIX = """\
version: 1
defaults: {threads: 1, epochs: 4, steps_per_epoch: 16, batch_size: 64}
backends: [tensorflow, jax, torch]
cells:
  - workload: network.models:build
"""
PROJECT = """\
[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"
[project]
name = "network"
version = "1.0"
[tool.setuptools.packages.find]
where = ["src"]
"""
PLAIN, SLOWER = 8, 24
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
INPUTS = {"python-version": PYTHON, "threshold": "0.25", "budget": "600", "arguments": "--also recompiles"}


@dataclass(frozen=True, slots=True)
class Expected:
    """How a job should end: exit code, verdict, and what its summary says."""

    code: int
    outcome: str
    summary: str


EXPECTED = {
    "equal": (PLAIN, Expected(0, "no worse", "### Benchmarks: no worse (1 no worse)")),
    "slower": (SLOWER, Expected(4, "regressed", "- network.models:build on jax: slower steps: +")),
}


def git(folder: Path, *arguments: str) -> None:
    """Run git in a repository, as nobody in particular and without the user's own settings."""
    identity = {f"GIT_{role}_{key}": "trial@localhost" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    nowhere = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    subprocess.run(["git", *arguments], cwd=folder, env={**os.environ, **identity, **nowhere}, check=True)


def make_project(folder: Path, times: int) -> None:
    """Make the repository: a base, and a head that applies the layer this many times."""
    package = folder / "src" / "network"
    package.mkdir(parents=True)
    for name, text in {"matrix.yaml": MATRIX, "pyproject.toml": PROJECT, "src/network/__init__.py": ""}.items():
        (folder / name).write_text(text, encoding="utf-8")
    git(folder, "init", "--quiet")
    for number, count in enumerate((PLAIN, times)):
        (package / "models.py").write_text(MODEL.format(times=count), encoding="utf-8")
        (folder / "README").write_text(f"commit {number}\n")
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", f"Commit {number}")


def trial(name: str, folder: Path) -> emulator.JobResult:
    """Run the action on one pair of commits. Raises `AssertionError` if it does not end as it should."""
    times, expected = EXPECTED[name]
    make_project(folder / "repository", times)
    ended = emulator.run(emulator.ROOT, INPUTS, folder / "repository", folder / "job")
    assert (ended.code, ended.outputs["outcome"]) == (expected.code, expected.outcome), ended
    assert expected.summary in ended.summary, ended.summary
    files = sorted(path.name for path in ended.artifacts["keras-matrix"].iterdir())
    assert files == ["comparison.html", "comparison.json", "comparison.md"], files
    return ended


def main() -> int:
    """Run both trials; return 0 if both ended as they should."""
    parser = argparse.ArgumentParser(prog="ci/action-runner", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(EXPECTED)}; default: all")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="copy the summaries and artifacts there")
    args = parser.parse_args()
    if unknown := set(args.names) - set(EXPECTED):
        parser.error(f"NAME: must be of {', '.join(EXPECTED)}, got {', '.join(sorted(unknown))}")
    for name in args.names or EXPECTED:
        with tempfile.TemporaryDirectory(prefix="action-runner-") as temporary:
            ended = trial(name, Path(temporary))
            if args.keep:
                shutil.copytree(ended.artifacts["keras-matrix"], args.keep / name, dirs_exist_ok=True)
                (args.keep / name / "summary.md").write_text(ended.summary, encoding="utf-8")
        print(f"ci/action-runner: {name}: exit code {ended.code}, {ended.outputs['outcome']}, as it should", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
