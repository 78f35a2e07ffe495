"""`batch_size: largest` in a matrix, end to end with fake cells, and the numbers in `run.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.identity import cell_id
from keras_matrix.records.schema import Record, Status
from keras_matrix.records.store import Results
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.errors import Interrupted, MatrixError
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.matrix.reader import Cell, expand, parse
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.plan.largest_batch import FULL_PASS, LargestCell, about, stored_results
from tests.fakes.executor import FakeExecutor
from tests.runner.cli.measure.test_fit_batch import device_of

MATRIX = """\
version: 1
defaults: {device: gpu, repeats: 1, steps_per_epoch: 20, epochs: 3}
backends: [jax, torch]
cells:
  - workload: mnist_mlp
    batch_size: [2, largest]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    return tmp_path


def fake(**limits: int) -> FakeExecutor:
    return FakeExecutor(behaviours={"mnist_mlp": device_of(limits)} if limits else {})


def runner(*arguments: str, executor: FakeExecutor | None = None) -> int:
    return main(list(arguments), Seams(executor=executor or fake(jax=5, torch=6)))


def newest(folder: Path) -> list[Record]:
    run = Results(folder / "results").latest()
    assert run is not None
    return run.load()[0]


def sizes(folder: Path) -> set[tuple[str, int]]:
    return {(record.settings.backend, record.settings.batch_size) for record in newest(folder)}


def cells_of(text: str) -> list[Cell]:
    return expand(parse(Path("m.yaml"), text.encode()))


def test_run_prints_and_stores_the_searches_and_measures_each_backend_with_its_own_largest_batch(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runner() == 0
    printed = capsys.readouterr()
    cell = "mnist_mlp epochs=3 steps_per_epoch=20 device=gpu"
    assert f"jax         {cell}  fits 5  too large 6  peak memory -  tries 6" in printed.out
    assert f"trying jax {cell} batch 8: oom_device" in printed.err
    [run] = Results(folder / "results").runs()  # the tries are none
    assert len(Results(folder / "results" / "fit-batch").runs()) == 12
    assert [found["largest"] for found in run.about()["largest_batch"]["cells"]] == [5, 6]
    assert {("jax", 2), ("jax", 5), ("torch", 2), ("torch", 6)} == sizes(folder)
    assert [cell_id(record.settings) for record in newest(folder)] == [record.cell_id for record in newest(folder)]


def test_continued_run_uses_the_numbers_that_it_began_with(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Stopping(FakeExecutor):
        def end(self, job: Job) -> Outcome:
            if "fit-batch" not in job.folder and job.settings.backend == "torch":
                raise Interrupted("stopped")
            return super().end(job)

    assert runner(executor=Stopping(behaviours=fake(jax=3, torch=1).behaviours)) == 130
    again = fake(jax=4, torch=4)
    again.behaviours = {}
    assert runner(executor=again) == 0
    assert {("jax", 2), ("jax", 3), ("torch", 2), ("torch", 1)} == sizes(folder)
    assert not [job for job in again.jobs if "fit-batch" in job.folder]
    assert "as found by the run that is continued" in capsys.readouterr().out


def test_finished_run_is_followed_by_a_new_search(folder: Path) -> None:
    runner("--backend", "jax", executor=fake(jax=1))
    assert runner("--backend", "jax", executor=fake(jax=3)) == 0
    assert {("jax", 2), ("jax", 3)} == sizes(folder)


def test_cell_without_a_fitting_batch_is_out_of_memory_and_others_are_measured(folder: Path) -> None:
    assert runner("--filter", "batch_size=largest", executor=fake(jax=0, torch=3)) == 1
    found = {(r.settings.backend, r.settings.batch_size, r.status) for r in newest(folder)}
    assert {("jax", 1, Status.OOM_DEVICE), ("torch", 3, Status.OK)} == found


def test_cell_whose_search_stopped_has_a_record_with_the_reason(folder: Path) -> None:
    executor = FakeExecutor(behaviours={"mnist_mlp": lambda job: Outcome(refused="too few GPUs")})
    assert runner("--set", "batch_size=largest", "--backend", "jax", executor=executor) == 0
    assert [(record.settings.batch_size, record.reason) for record in newest(folder)] == [(1, "too few GPUs")]


def test_found_number_that_the_matrix_contains_is_measured_once(folder: Path) -> None:
    assert runner("--backend", "jax", executor=fake(jax=2)) == 0
    assert [record.settings.batch_size for record in newest(folder)] == [2]


def test_row_of_the_report_compares_only_backends_with_the_same_batch(capsys: pytest.CaptureFixture[str]) -> None:
    runner("--filter", "batch_size=largest", "--json", executor=fake(jax=1, torch=2))
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert sorted(list(row["cells"]) for row in rows) == [["jax"], ["torch"]]


@pytest.mark.parametrize(("steps", "in_memory"), [("auto", FULL_PASS), ("seed", FULL_PASS), ("20", 20)])
def test_try_has_as_many_batches_in_memory_as_a_measured_cell(steps: str, in_memory: int) -> None:
    executor = fake(jax=2)
    runner(
        "fit-batch",
        "jax:mnist_mlp",
        "--set",
        f"steps_per_epoch={steps}",
        "--set",
        "batch_size=8",
        executor=executor,
    )
    assert {in_memory} == {job.steps_held for job in executor.jobs}
    assert {2} == {job.steps for job in executor.jobs}


def test_measured_cell_has_only_its_own_batches_in_memory_and_tries_write_no_tensorboard_files(folder: Path) -> None:
    executor = fake(jax=1, torch=1)
    runner("--log-dir", str(folder / "logs"), executor=executor)
    assert {0} == {job.steps_held for job in executor.jobs if "fit-batch" not in job.folder}
    assert [job for job in executor.jobs if "fit-batch" in job.folder]
    assert [job for job in executor.jobs if job.board]
    assert not [job for job in executor.jobs if "fit-batch" in job.folder and job.board]


def test_plan_does_not_search_and_says_when_the_number_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    executor = fake(jax=5, torch=6)
    assert runner("plan", "--set", "steps_per_epoch=seed", executor=executor) == 0
    printed = capsys.readouterr().out
    assert "2 cells have batch_size largest: found when the run begins" in printed
    assert "mnist_mlp batch_size=largest" in printed
    assert executor.jobs == []


def test_json_plan_contains_largest(capsys: pytest.CaptureFixture[str]) -> None:
    runner("plan", "--json", "--filter", "batch_size=largest")
    assert [cell["settings"]["batch_size"] for cell in json.loads(capsys.readouterr().out)["cells"]] == ["largest"] * 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--set", "device=cpu"), "batch_size: largest: on a CPU the search needs a limit, got none; add --executor"),
        (("selftest",), "batch_size: must be a whole number for this command, got largest"),
        (("gate", "--plant", "slower:0.2"), "batch_size: must be a whole number for this command, got largest"),
        (("--set", "batch_size=larges"), "--set batch_size=larges: must be largest or a whole number from 1 to"),
    ],
)
def test_bad_input_is_one_error_without_a_process(
    arguments: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    executor = FakeExecutor()
    assert runner(*arguments, executor=executor) == 2
    assert expected in capsys.readouterr().err
    assert executor.jobs == []


def test_largest_batch_can_be_excluded_for_one_backend() -> None:
    text = f"{MATRIX}    exclude: [{{backend: torch, batch_size: largest}}]\n"
    assert sorted(
        ((cell.settings.backend, cell.uses_largest_batch) for cell in cells_of(text)),
        key=lambda one: (one[0], not one[1]),
    ) == [("jax", True), ("jax", False), ("torch", False)]


def test_fc_workload_requires_a_number() -> None:
    with pytest.raises(MatrixError, match=r"batch_size: must be a whole number for fc, got 'largest'"):
        cells_of(MATRIX.replace("mnist_mlp", "fc"))


def found(planned: str, **other: Any) -> LargestCell:
    return LargestCell(planned=planned, **{**dict.fromkeys(("largest", "batch_size", "tries"), 8), **other})


def run_json(*found: LargestCell, memory_bytes: int | None = None) -> dict[str, Any]:
    from keras_matrix.records.codec import loads

    document = loads(json.dumps({"largest_batch": about(found, memory_bytes)}).encode())
    assert isinstance(document, dict)
    return document


def test_stored_numbers_replace_only_a_search_of_the_same_cells() -> None:
    (cell,) = [one for one in cells_of(MATRIX.replace(", torch", "")) if one.uses_largest_batch]
    own = found(cell.cell_id, smallest_too_large=9, peak_memory_bytes=None)
    assert stored_results(run_json(own), [cell], None) == [own]
    assert stored_results(run_json(own, memory_bytes=1 << 30), [cell], None) is None
    assert (
        stored_results(run_json(own, found("0" * 16, smallest_too_large=9, peak_memory_bytes=1)), [cell], None) is None
    )
    assert stored_results({"largest_batch": {"memory_bytes": None, "cells": [{"planned": 3}]}}, [cell], None) is None
    assert stored_results({}, [cell], None) is None


def test_search_stopped_by_infrastructure_is_not_reused() -> None:
    (cell,) = [one for one in cells_of(MATRIX.replace(", torch", "")) if one.uses_largest_batch]
    spoiled = found(cell.cell_id, smallest_too_large=None, peak_memory_bytes=None, stopped="infra: GPU lost")
    assert stored_results(run_json(spoiled), [cell], None) is None
