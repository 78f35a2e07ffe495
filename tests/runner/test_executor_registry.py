"""The registry of executors, walked by one on another machine: its own module and one row are all that it needs."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.schema import Status
from keras_matrix.records.store import Run
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors import Contract, Outcome, registry
from tests.runner import remote_executor
from tests.runner.remote_executor import NODE, Node
from tests.sessions import newest_records, run_name

ROOT = Path(__file__).parents[2]
MATRIX = """\
version: 1
defaults: {repeats: 2}
backends: [tensorflow, jax, torch]
cells:
  - workload: mnist_mlp
    batch_size: [32, 128]
  - workload: gru
    cpus: 64
"""


def test_the_row_of_the_howto_is_one_of_the_registry() -> None:
    page = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"```python\n(\w+\(\n    name=.*?\n\))\n```", page, flags=re.DOTALL)
    assert eval(row, vars(registry)) == replace(
        registry.ENTRIES["process"],
        name="announced",
        module="keras_matrix.runner.executors.announced",
        summary="as process, each announced",
        starts=("fork", "fresh"),
        place="announced cells",
        options=(),
    )


@pytest.fixture
def run_on_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    monkeypatch.setitem(registry.ENTRIES, "grid", remote_executor.ENTRY)

    def run(*flags: str) -> int:
        return main(["--matrix", "matrix.yaml", "--executor", "grid", *flags])

    return run


def test_remote_executor_measures_a_matrix_from_the_command_line(
    run_on_grid: Callable[..., int], tmp_path: Path
) -> None:
    assert run_on_grid("--grid", "node") == 0
    records = newest_records(tmp_path)
    assert len(records) == 18
    assert {record.status for record in records} == {Status.OK}
    assert [record.machine for record in records] == [NODE] * len(records)
    about = json.loads((tmp_path / "results/latest/run.json").read_text())
    assert about["versions"] == {"grid": "1.0"}
    assert (tmp_path / "results/latest/report.html").is_file()


@pytest.mark.fault("F40", mutation="`run_request` stores the arguments as given")
def test_no_record_of_a_run_contains_a_password_of_its_arguments(
    run_on_grid: Callable[..., int], tmp_path: Path
) -> None:
    assert run_on_grid("--grid", "user:secret@node:22") == 0
    files = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    assert [path for path in files if b"secret" in path.read_bytes()] == []
    assert json.loads((tmp_path / "results/latest/run.json").read_text())["command"][-2:] == ["--grid", "node:22"]


def test_remote_run_is_continued_by_its_own_executor_alone(
    run_on_grid: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Node, "missing", lambda node, backend, device="cpu": "node: offline")
    assert run_on_grid("--grid", "node") == 3
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(registry.ENTRIES, "grid", remote_executor.ENTRY)
    assert run_on_grid("--grid", "node") == 0
    assert len([path for path in (tmp_path / "results").iterdir() if (path / "run.json").is_file()]) == 2


def test_outcome_without_its_machine_is_not_a_measurement(
    run_on_grid: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_executor, "Node", lambda disk: Node(disk, machine=None))
    assert run_on_grid("--grid", "node") == 3
    assert {(record.status, record.reason) for record in newest_records(tmp_path)} == {
        (Status.INFRA, "machine: the executor does not say on which machine the process ran")
    }


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--executor", "grid"], "--grid: must name a grid"),
        (
            ["--executor", "grid", "--grid", "node", "--start", "fork"],
            "--start: must be fresh with --executor grid",
        ),
        (["--executor", "docker", "--grid", "node"], "--grid: applies only to a grid: add --executor grid"),
        (["--grid", "node"], "--grid: applies only to a grid: add --executor grid"),
    ],
)
def test_options_of_a_new_executor_are_checked(
    run_on_grid: Callable[..., int], capsys: pytest.CaptureFixture[str], flags: list[str], text: str
) -> None:
    assert main(["--matrix", "matrix.yaml", *flags]) == 2
    assert text in capsys.readouterr().err


def test_help_lists_the_options_of_a_new_executor(
    run_on_grid: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    printed = capsys.readouterr().out
    assert f"--executor {{{','.join(registry.ENTRIES)}}}" in printed  # the last of which is grid
    assert "in a grid (docs/grid.md):\n  --grid FOLDER         the grid that runs cells" in printed


@pytest.mark.parametrize("entry", registry.ENTRIES.values(), ids=lambda entry: entry.name)
def test_every_row_names_a_module_that_makes_its_executors(entry: registry.ExecutorEntry) -> None:
    made = importlib.import_module(entry.module).make(
        entry, registry.ExecutorRequest(entry.starts[0], dict.fromkeys(option.name for option in entry.options))
    )
    assert made.contract == entry.contract


def test_only_an_ended_process_of_another_machine_must_name_it() -> None:
    remote = Contract(local_machine=False)
    assert remote.problem(Outcome(exit_code=1)) is not None
    assert remote.problem(Outcome(signal=9)) is not None
    assert remote.problem(Outcome(deadline_exceeded=True)) is not None
    assert remote.problem(Outcome(exit_code=0, machine=NODE)) is None
    assert remote.problem(Outcome(infrastructure="node: offline")) is None
    assert Contract().problem(Outcome(exit_code=0)) is None


def test_documented_executor_starts_cells_with_the_python_of_a_comparison(tmp_path: Path) -> None:
    page = (ROOT / "docs/design.md").read_text()
    module: dict[str, Any] = {"__name__": "announced"}
    howto = page.partition("## Add an executor")[2]
    exec(howto.partition("```python\n")[2].partition("```")[0], module)  # noqa: S102 - the page of this project
    request = registry.ExecutorRequest(start="fresh")
    entry = replace(registry.ENTRIES["process"], name="announced")
    executor = module["make"](entry, request).executor(Run(tmp_path / "results" / run_name(0)), "/other/bin/python")
    assert type(executor) is module["AnnouncingExecutor"]
    assert executor._interpreter.python == "/other/bin/python"
    assert executor.name == "announced"
