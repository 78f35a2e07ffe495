"""What a container's service pins, no argument can lose."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.cli.main import Seams, main
from runner.testing import FakeExecutor
from tests.sessions import newest_records

MATRIX = "version: 1\nbackends: [tensorflow, jax]\ncells:\n  - workload: mnist_mlp\n    repeats: 1\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_BENCHMARK_BACKENDS", "jax")
    monkeypatch.setenv("KERAS_BENCHMARK_DEVICE", "gpu")
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    return tmp_path


def runner(*arguments: str) -> int:
    return main(list(arguments), Seams(executor=FakeExecutor()))


@pytest.mark.parametrize("arguments", [[], ["--set", "batch_size=8"], ["--backend", "jax"], ["--set", "device=gpu"]])
def test_a_service_measures_its_backend_on_its_device_whatever_follows(folder: Path, arguments: list[str]) -> None:
    assert runner(*arguments) == 0
    assert {(r.settings.backend, r.settings.device) for r in newest_records(folder)} == {("jax", "gpu")}


def test_a_plan_of_a_service_is_of_its_cells(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runner("plan") == 0
    assert "tensorflow" not in capsys.readouterr().out


def test_commands_that_measure_nothing_are_as_anywhere(folder: Path) -> None:
    assert runner("list") == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--backend", "tensorflow"], "--backend tensorflow: this service holds jax (KERAS_BENCHMARK_BACKENDS)"),
        (["--set", "device=cpu"], "--set device=cpu: this service is for gpu (KERAS_BENCHMARK_DEVICE)"),
        (["fc", "--mode", "fc_data", "--device", "cpu"], "--device cpu: this service is for gpu"),
    ],
)
def test_what_asks_for_another_is_told_which_service_to_run(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert runner(*arguments) == 2
    printed = capsys.readouterr().err
    assert told in printed
    assert "run the service" in printed
