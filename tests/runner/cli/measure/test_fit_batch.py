"""`runner fit-batch` from end to end, with a fake executor."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.runner.cell.job import Job, write_result
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.measure.seams import Seams
from tests.fakes.executor import Behaviour, FakeExecutor

MATRIX = """\
version: 1
defaults: {device: gpu}
backends: [jax, torch]
cells:
  - workload: mnist_mlp
  - workload: gru
    batch_size: [8, 16]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    return tmp_path


def device_of(
    limits: dict[str, int], exception: str = "XlaRuntimeError", text: str = "RESOURCE_EXHAUSTED"
) -> Behaviour:
    """A cell that raises an error above its backend's limit."""

    def behave(job: Job) -> Outcome:
        if job.settings.batch_size <= limits[job.settings.backend]:
            return FakeExecutor().succeed(job)
        write_result(job, replace(FakeExecutor().result(job), exception=exception, message=text))
        return Outcome(exit_code=1)

    return behave


def fit_batch(*arguments: str, behaviour: Behaviour | None = None) -> int:
    executor = FakeExecutor(behaviours={} if behaviour is None else {"mnist_mlp": behaviour})
    return main(["fit-batch", *arguments], Seams(executor=executor))


def test_each_backend_has_its_own_largest_batch(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit_batch("mnist_mlp", "--json", behaviour=device_of({"jax": 37, "torch": 100})) == 0
    rows = json.loads(capsys.readouterr().out)["cells"]
    assert {(row["backend"], row["largest_batch"], row["smallest_too_large"]) for row in rows} == {
        ("jax", 36, 40),
        ("torch", 96, 104),
    }


def test_table_has_a_line_per_backend(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit_batch("jax:mnist_mlp", behaviour=device_of({"jax": 5})) == 0
    assert "jax         mnist_mlp device=gpu  fits 5  too large 6" in capsys.readouterr().out


def test_another_error_stops_the_search_with_its_reason_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit_batch("jax:mnist_mlp", behaviour=device_of({"jax": 2}, "builtins.ValueError", "no such layer")) == 1
    assert "stopped at batch 4: error: ValueError: no such layer" in capsys.readouterr().out


def test_a_device_too_small_for_one_sample_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit_batch("jax:mnist_mlp", behaviour=device_of({"jax": 0})) == 1
    assert "batch 1 does not fit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("mnist_mpl",), "CELL: no cell of matrix.yaml is named 'mnist_mpl'; did you mean mnist_mlp?"),
        (("gru",), "CELL: 'gru' names 4 cells; name one by its id"),
        (("mnist_mlp", "--set", "device=cpu"), "--memory: on a CPU the search needs a limit, got none"),
        (("mnist_mlp", "--memory", "8g"), "--memory: applies only to containers: add --executor docker"),
    ],
)
def test_bad_input_is_one_error(arguments: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit_batch(*arguments) == 2
    assert expected in capsys.readouterr().err
