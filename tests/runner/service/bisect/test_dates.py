"""`runner bisect --dates` through the real command line: a pretended uv, whose environments contain no package."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.records.schema import CellResult
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.environments import dated
from keras_matrix.runner.environments.layered import BaseEnvironment
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.service import bisect
from tests.fakes.executor import FakeExecutor

pytestmark = pytest.mark.process

UV = f"""\
#!/bin/sh
for last; do :; done
case "$1 $2" in
"pip compile")
    cat >wanted
    echo "$*" >options
    case "$last" in 2025-05-0[2-3]T*) echo small==1 ;; 2025-05-0[4-5]T*) echo small==2 ;; *) echo small==3 ;; esac ;;
"venv "*) mkdir -p "$last/bin" && ln -s {sys.executable} "$last/bin/python" ;;
"pip install") while [ "$1" != --python ]; do shift; done; cat >"$2.lock" ;;
esac
"""
MATRIX = """\
version: 1
defaults: {repeats: 1, epochs: 2, steps_per_epoch: 1}
backends: [jax]
cells:
  - workload: gpt2
    device: gpu
  - workload: mnist_mlp
    device: gpu
"""
INSTALLED = {"keras": "3", "numpy": "2", "jax": "1", "jaxlib": "1", "keras-hub": "0.32", "jax-cuda12-plugin": "1"}


class UnderItsLock(FakeExecutor):
    """Pretends times that the lock of the arm's environment determines: the third one is slower."""

    def result(self, job: Job) -> CellResult:
        about = json.loads((Path(job.folder).parents[1] / "run.json").read_text())
        lock = Path(about["arms"][about["arm"]]["python"] + ".lock").read_text()
        share = 0.05 if lock == "small==3\n" else 0.0001
        return FakeExecutor.result(self, replace(job, fault=f"slower:{share}"))


@pytest.fixture(autouse=True)
def uv(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A uv whose lock changes on 3 and 5 May."""
    tool = folder / "uv"
    tool.write_text(UV)
    tool.chmod(0o755)
    monkeypatch.setattr(dated, "uv", lambda: [str(tool)])
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))


def bisected(*flags: str, cell: str = "jax:mnist_mlp") -> int:
    command = ["bisect", cell, "--dates", "--good", "2025-05-01", "--bad", "2025-05-08", *flags]
    return main(command, Seams(executor=UnderItsLock()))


def test_day_of_the_slow_lock_is_found_with_what_changed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Mutation: `_after` searches only the days before the middle one."""
    assert bisected() == 0
    said = capsys.readouterr().out
    assert "3 versions of the lock: 2025-05-01, 2025-05-03, 2025-05-05" in said
    assert "found: 2025-05-05 is slower than 2025-05-03: +5.0 %" in said
    assert "differs, too: small 2 -> 3" in said


@pytest.mark.parametrize(
    ("cell", "installed", "wanted"),
    [
        ("jax:mnist_mlp", {"jax-cuda12-plugin": "1"}, "keras numpy jax jaxlib jax-cuda12-plugin[with-cuda]"),
        ("jax:mnist_mlp", {"keras-hub": "0.32", "torch": "2"}, "keras numpy jax jaxlib"),
        ("jax:gpt2", {"keras-hub": "0.32", "tensorflow": "2"}, "keras numpy keras-hub jax jaxlib"),
    ],
)
def test_packages_of_the_cell_are_locked_without_versions(
    folder: Path, monkeypatch: pytest.MonkeyPatch, cell: str, installed: Mapping[str, str], wanted: str
) -> None:
    """Mutations: `_wanted` names Keras alone, no plugin, no KerasHub, or what is not installed."""
    usual = dict.fromkeys(("keras", "numpy", "jax", "jaxlib"), "1")
    monkeypatch.setattr(bisect, "base_of", lambda python: BaseEnvironment(python, {**usual, **installed}))
    (folder / "matrix.yaml").write_text(MATRIX)
    assert bisected("--plan", cell=cell) == 0
    assert (folder / "wanted").read_text().split() == wanted.split()


def test_packages_of_a_cell_on_a_cpu_are_locked_without_a_plugin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: `_wanted` names the plugin for every device."""
    monkeypatch.setattr(bisect, "base_of", lambda python: BaseEnvironment(python, INSTALLED))
    assert bisected("--plan") == 0
    assert (folder / "wanted").read_text().split() == ["keras", "numpy", "jax", "jaxlib"]


@pytest.fixture
def empty(folder: Path) -> Path:
    """The Python of an environment without any package."""
    python = folder / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    base = Path(sys.executable).resolve()
    python.symlink_to(base)
    (folder / "env" / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    return python


def test_requirements_of_a_file_are_locked_for_the_python_of_the_named_environment(folder: Path, empty: Path) -> None:
    """It needs no Keras of its own. Mutations: the file or --env is ignored; `_base` inverts `complete`."""
    (folder / "mine.txt").write_text("keras<3.15\nmine\n")
    assert bisected("--plan", "--requirements", "mine.txt", "--env", "env") == 0
    assert (folder / "wanted").read_text() == "keras<3.15\nmine\n"
    assert f"--python {empty} " in (folder / "options").read_text()


def test_environment_of_the_other_packages_needs_keras_numpy_and_the_backend(
    folder: Path, empty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutation: `_base` ignores what is absent."""
    command = ["bisect", "jax:mnist_mlp", "--package", "small", "--good", "1", "--bad", "2", "--env", "env"]
    assert main(command, Seams(executor=UnderItsLock())) == 2
    assert f"--env: {empty} has no keras, numpy, jax; install them there" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_requirements_that_cannot_be_read_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    """Mutation: OSError, or UnicodeDecodeError, is not caught."""
    if content is not None:
        (folder / "mine.txt").write_bytes(content)
    assert bisected("--plan", "--requirements", "mine.txt") == 2
    assert "--requirements: mine.txt cannot be read: " in capsys.readouterr().err
    assert not (folder / "wanted").exists()
