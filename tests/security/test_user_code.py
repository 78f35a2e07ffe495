"""Modules of a user run only inside of a cell: no command imports or executes them in a process of its own.

A workload, and modules named like the packages that the runner uses, note each import with the process that made it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from keras_matrix.records.host.inherited_environment import MARK
from keras_matrix.records.schema import Record
from tests.conftest import make_settings
from tests.sessions import counted_records, processes, run_name, store_session

ROOT = Path(__file__).parents[2]
# Modules outside of the cell that import by a name: of which all names are constants of the project.
IMPORT_BY_NAME = {
    "analysis/stats/special.py",
    "runner/api/stored_run.py",
    "runner/cli/main.py",
    "runner/executors/registry.py",
    "runner/machine/gpus/nvml.py",
    "runner/measure/tensorboard.py",
    "runner/executors/tasks/metric_match.py",
    "uploader/cli/main.py",
}
RUNS_CODE = re.compile(r"\b(import_module|__import__|spec_from_file_location|run_path|run_module|exec|eval)\(")
WORKLOAD = "my_net:build"
MATRIX = f"""\
version: 1
defaults: {{repeats: 1, epochs: 2, discard: 1, steps_per_epoch: 2, batch_size: 8}}
backends: [torch]
cells:
  - workload: {WORKLOAD}
"""
NOTE = """\
import os
with open({path!r}, "a") as file:
    file.write(f"{{__name__}} {{os.environ.get({mark!r}, 'outside')}}\\n")
"""
MODEL = """
def build():
    import keras
    import numpy as np
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    return model, np.ones((16, 4), "float32"), np.ones((16, 1), "float32")
"""
# What the host side imports, and modules that Python itself looks for.
LIKE_PACKAGES = """
yaml duckdb jinja2 markupsafe rich psutil scipy numpy sqlglot tensorboardX pytz pynvml docker ray keras torch
waitress requests google models records runner uploader analysis dashboards conftest usercustomize
"""
COMMANDS = [
    ["runner", "plan"],
    ["runner", "list"],
    ["runner", "show", WORKLOAD],
    ["runner", "report", "--publish", "site"],
    ["runner", "history"],
    ["runner", "compare", "0", "1"],
    ["runner", "check", "--seconds", "3"],
    ["runner", "roofline"],
    ["runner", "replay", WORKLOAD],
    ["uploader", "push"],
    ["uploader", "verify"],
    ["uploader", "query", "SELECT COUNT(*) AS n FROM cells"],
    ["uploader", "push", "--to", "bigquery://some-project.benchmarks"],
]


def test_nothing_outside_of_a_cell_can_import_a_module_by_a_name_of_the_user() -> None:
    """Mutation: `runner explain` imports the workload of a record, to count its parameters."""
    folders = ("records", "runner", "analysis", "uploader", "dashboards")
    modules = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    outside = [path for path in modules if not path.is_relative_to(ROOT / "runner" / "cell")]
    found = {str(path.relative_to(ROOT)) for path in outside if RUNS_CODE.search(path.read_text(encoding="utf-8"))}
    assert found == IMPORT_BY_NAME


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a workload, its matrix, and a stored run of it."""
    note = NOTE.format(path=str(tmp_path / "noted.txt"), mark=MARK)
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "matrix.yaml").write_text(MATRIX)
    (folder / "my_net.py").write_text(note + MODEL)
    for name in LIKE_PACKAGES.split():
        (folder / f"{name}.py").write_text(note + "raise SystemExit('a module of the user')\n")
    settings = make_settings(workload=WORKLOAD, backend="torch")
    store_session(folder / "results", run_name(0), processes(0.01, settings=settings))
    return folder


def noted(project: Path) -> list[str]:
    """Return the modules of the project that were imported, each with where."""
    path = project.parent / "noted.txt"
    return path.read_text().splitlines() if path.exists() else []


def run(project: Path, *command: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command in the project's folder, without an engine, an emulator or a network."""
    away = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_GCE_CHECK": "true", "HOME": str(project)}
    return subprocess.run(
        command, cwd=project, env={**os.environ, **away}, capture_output=True, check=False, timeout=120
    )


@pytest.mark.process
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_imports_a_module_of_the_user(project: Path, command: list[str]) -> None:
    """Started as `python -m`, which puts the working folder before the packages.

    Mutation: `ignore_other_modules` leaves the working folder where it is.
    """
    name, *arguments = command
    done = run(project, sys.executable, "-m", f"keras_matrix.{name}", *arguments)
    assert (noted(project), b"a module of the user" in done.stderr) == ([], False), done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.process
@pytest.mark.parametrize("start", ["fork", pytest.param("fresh", marks=pytest.mark.nightly)])
def test_a_users_workload_is_imported_only_by_the_processes_of_its_cell(project: Path, start: str) -> None:
    """Mutation: `ProcessExecutor.start` imports the module of a user's workload."""
    for path in project.glob("*.py"):
        if path.name != "my_net.py":
            path.unlink()
    done = run(project, sys.executable, "-m", "keras_matrix.runner", "--start", start, "--upload", "local", "--new")
    assert done.returncode == 0, done.stderr
    records: list[Record] = counted_records(project)
    assert [record.settings.workload for record in records] == [WORKLOAD]
    assert set(noted(project)) == {f"my_net {project / 'results'}"}
