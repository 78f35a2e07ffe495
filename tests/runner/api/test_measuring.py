"""`km.run`: what is measured is what the command line measures; errors are exceptions with the same messages."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import keras_matrix as km
from keras_matrix.records.store import Results
from keras_matrix.runner.api import measuring
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.executors.registry import ENTRIES
from keras_matrix.runner.measure.seams import Seams
from tests.fakes.executor import FakeExecutor, crash
from tests.runner.api.conftest import MATRIX, measured

TEXT = "version: 1\nbackends: [jax]\ncells:\n  - workload: mnist_mlp\n"


def test_run_of_a_dict_returns_the_finished_run_with_its_report(folder: Path) -> None:
    run = measured()
    assert (len(run.cells), run.statuses, run.pending) == (6, {"ok": 30}, 0)
    assert run.folders == ((folder / "results" / "latest").resolve(),)
    assert (run.folders[0] / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("given", [TEXT, '{"version": 1, "backends": ["jax"], "cells": [{"workload": "mnist_mlp"}]}'])
def test_run_of_a_text_measures_its_cells(folder: Path, given: str) -> None:
    assert [cell.name for cell in measured(given).cells] == ["mnist_mlp on jax"]


@pytest.mark.parametrize("path", [Path("some.yaml"), "some.yaml"])
def test_run_of_a_path_measures_the_file_as_the_command_line_does(folder: Path, path: str | Path) -> None:
    (folder / "some.yaml").write_text(TEXT)
    run = measured(path)
    assert main(["--matrix", "some.yaml", "--results", "other"], Seams(executor=FakeExecutor())) == 0
    other = km.load("other")
    assert [cell.cell_id for cell in run.cells] == [cell.cell_id for cell in other.cells]
    assert [cell.step_time_s for cell in run.cells] == [cell.step_time_s for cell in other.cells]


def test_options_select_cells_and_repeats(folder: Path) -> None:
    options: dict[str, Any] = {"backends": ["jax"], "filters": ["batch_size=64"], "repeats": 2, "results": "elsewhere"}
    run = measured(**options)
    assert [(cell.backend, cell.settings["batch_size"], cell.processes) for cell in run.cells] == [("jax", 64, 2)]
    assert run.folders[0].parent == folder / "elsewhere"


def test_settings_replace_those_of_the_matrix(folder: Path) -> None:
    assert {cell.settings["epochs"] for cell in measured(settings={"epochs": 7}).cells} == {7}


def test_the_same_call_continues_an_unfinished_run_unless_it_is_new(folder: Path) -> None:
    first = measured(fake=FakeExecutor(absent=frozenset({"torch"})))
    assert (first.statuses, first.pending) == ({"infra": 10, "ok": 20}, 10)
    again = measured()
    assert (again.run_ids, again.pending) == (first.run_ids, 0)
    assert len(Results(folder / "results").runs()) == 1
    measured(new=True)
    assert len(Results(folder / "results").runs()) == 2


def test_a_cell_that_fails_has_its_status_and_reason(folder: Path) -> None:
    run = measured(fake=FakeExecutor(behaviours={"mnist_mlp": crash()}), repeats=1)
    assert {cell.status for cell in run.cells} == {"crash"}
    assert {(cell.step_time_s, cell.samples_per_s, cell.processes) for cell in run.cells} == {(None, None, 0)}
    assert all(cell.reasons[0].startswith("crash: ") for cell in run.cells)


def test_quiet_run_prints_nothing_and_progress_prints_a_line_per_process(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(repeats=1)
    assert capsys.readouterr() == ("", "")
    measured(repeats=1, progress=True)
    assert "6/6" in capsys.readouterr().out


def test_run_works_outside_the_main_thread(folder: Path) -> None:
    found: list[km.Run] = []
    thread = threading.Thread(target=lambda: found.append(measured(repeats=1)))
    thread.start()
    thread.join()
    assert [run.statuses for run in found] == [{"ok": 6}]


WRONG: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    ("missing.yaml", {}, km.MatrixError, "missing.yaml: no such file; give the path with --matrix, or write a first"),
    ({"version": 1, "cells": [{"workload": "x"}]}, {}, km.MatrixError, "matrix:"),
    ({"version": 1, "cells": {1, 2}}, {}, km.MatrixError, "matrix: must consist of dicts, lists, texts, numbers"),
    ({"version": float("nan")}, {}, km.MatrixError, "matrix: must consist of"),
    (
        MATRIX,
        {"backends": ["jaxx"]},
        km.UsageError,
        "--backend: must be one of tensorflow, jax, torch, openvino, got 'jaxx'",
    ),
    (MATRIX, {"backends": "jax"}, km.UsageError, "run: backends must be a list of texts, got 'jax'; write ['jax']"),
    (MATRIX, {"filters": ["nothing*"]}, km.UsageError, "--filter nothing*: matches no cell"),
    (MATRIX, {"repeats": 0}, km.UsageError, "--repeats: must be "),
    (MATRIX, {"settings": {"epochs": [1]}}, km.UsageError, "--set epochs=a list of 1: must be "),
    (MATRIX, {"settings": {"epoch": 1}}, km.UsageError, "got 'epoch'; did you mean epochs?"),
    (MATRIX, {"budget_s": -1}, km.UsageError, "--budget: must be "),
    (MATRIX, {"executor": "dokcer"}, km.UsageError, f"--executor: must be one of {', '.join(ENTRIES)}, got 'dokcer'"),
    (MATRIX, {"executor_options": {"memori": 1}}, km.UsageError, "executor_options: must be one of start, images"),
    (MATRIX, {"executor_options": {"memory": 1}}, km.UsageError, "--memory: applies only to containers"),
    (
        MATRIX,
        {"executor": "docker", "executor_options": {"memory": "8q"}},
        km.UsageError,
        "--memory: must be a size such",
    ),
    (MATRIX, {"executor_options": {"shm_size": 1.5}}, km.UsageError, "--shm-size: must be a size such as 512m or 8g"),
    (
        {"version": 1, "backends": ["jax"], "cells": [{"workload": "gru", "batchsize": 8}]},
        {},
        km.MatrixError,
        "matrix: cells[0].batchsize: ",
    ),
    (
        {"version": 1, "backends": ["jax"], "cells": [{"workload": "gru"}] * 2},
        {},
        km.MatrixError,
        "matrix: cells[1]: must not define a cell",
    ),
    (5, {}, km.UsageError, "run: matrix: must be a path, got 5 (int)"),
    ([MATRIX], {}, km.UsageError, "run: matrix: must be a path, got ["),
    (MATRIX, {"results": 5}, km.UsageError, "run: results: must be a path, got 5 (int)"),
    (MATRIX, {"filters": 5}, km.UsageError, "run: filters must be a list of texts, got 5"),
    (MATRIX, {"backends": [1]}, km.UsageError, "run: backends must be a list of texts, got [1]"),
    (
        MATRIX,
        {"settings": ["epochs"]},
        km.UsageError,
        "run: settings must be a dict of names and values, got ['epochs']",
    ),
    (MATRIX, {"executor_options": "8g"}, km.UsageError, "run: executor_options must be a dict of names and values"),
    (MATRIX, {"executor": 5}, km.UsageError, f"--executor: must be one of {', '.join(ENTRIES)}, got 5"),
    (MATRIX, {"budget_s": "x"}, km.UsageError, "--budget: must be "),
    (MATRIX, {"repeats": 1.5}, km.UsageError, "--repeats: must be "),
    (MATRIX, {"repeat": 3}, km.UsageError, "executor_options, new, progress, got 'repeat'; did you mean repeats?"),
]


@pytest.mark.parametrize(("matrix", "options", "error", "message"), WRONG)
def test_wrong_input_raises_an_error_that_names_it(
    folder: Path, matrix: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as raised:
        measured(matrix, **options)
    assert message in str(raised.value)
    assert isinstance(raised.value, km.InputError)
    assert not (folder / "results").exists()


def test_problem_of_a_dict_names_no_line_that_nobody_wrote(folder: Path) -> None:
    with pytest.raises(km.MatrixError) as raised:
        measured(
            {
                "version": 1,
                "backends": ["jax"],
                "cells": [{"workload": "gru"}, {"workload": "gru", "batchsize": 8}, {"workload": "gru"}],
            }
        )
    assert not re.search(r":[0-9]+:|line [0-9]", str(raised.value))
    assert str(raised.value) == "matrix: cells[1].batchsize: unknown key, got 'batchsize'; did you mean batch_size?"


def test_results_that_are_a_file_raise_a_store_error(folder: Path) -> None:
    (folder / "results").write_text("")
    with pytest.raises(km.StoreError, match="results: must be a folder, got a file"):
        measured()


@pytest.mark.parametrize("memory", ["8g", 8 << 30])
def test_sizes_are_read_as_on_the_command_line(folder: Path, memory: str | int) -> None:
    options = measuring.RunOptions(executor="docker", executor_options={"memory": memory})
    assert measuring._request(MATRIX, options, Seams()).memory_bytes == 8 << 30


def test_an_interrupted_run_raises_keyboard_interrupt_and_the_same_call_continues_it(folder: Path) -> None:
    def stop(job: Job) -> Outcome:
        os.kill(os.getpid(), signal.SIGINT)
        return Outcome()

    with pytest.raises(KeyboardInterrupt, match="stopped by SIGINT; finished records are stored"):
        measured(fake=FakeExecutor(behaviours={"mnist_mlp": stop}))
    [run] = Results(folder / "results").runs()
    assert measured().run_ids == (run.run_id,)


@pytest.mark.parametrize(
    ("raised", "error", "message"),
    [
        (ConnectionRefusedError(111, "Connection refused"), km.InfrastructureError, "Connection refused"),
        (FileNotFoundError(2, "No such file", "engine.json"), km.StoreError, "engine.json: No such file"),
    ],
)
def test_only_a_system_error_about_a_file_is_a_store_error(
    folder: Path, raised: OSError, error: type[Exception], message: str
) -> None:
    def fail(job: Job) -> Outcome:
        raise raised

    with pytest.raises(km.InfrastructureError) as caught:
        measured(fake=FakeExecutor(behaviours={"mnist_mlp": fail}))
    assert (type(caught.value), str(caught.value)) == (error, message)
