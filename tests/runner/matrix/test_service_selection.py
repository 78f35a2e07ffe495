"""Arguments cannot override the backend and device of a container's service."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.runner.cli.main import main
from keras_matrix.runner.measure.seams import Seams
from tests.fakes.executor import FakeExecutor
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
def test_service_measures_its_backend_on_its_device(folder: Path, arguments: list[str]) -> None:
    assert runner(*arguments) == 0
    assert {(r.settings.backend, r.settings.device) for r in newest_records(folder)} == {("jax", "gpu")}


def test_plan_in_a_service_contains_its_cells(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runner("plan") == 0
    assert "tensorflow" not in capsys.readouterr().out


def test_commands_without_measurement_are_unchanged_in_a_service(folder: Path) -> None:
    assert runner("list") == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--backend", "tensorflow"], "--backend tensorflow: this service has jax (KERAS_BENCHMARK_BACKENDS)"),
        (["--set", "device=cpu"], "--set device=cpu: this service is for gpu (KERAS_BENCHMARK_DEVICE)"),
        (["fc", "--mode", "fc_data", "--device", "cpu"], "--device cpu: this service is for gpu"),
    ],
)
def test_request_for_another_backend_or_device_names_the_service_to_run(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    assert runner(*arguments) == 2
    printed = capsys.readouterr().err
    assert expected in printed
    assert "run the service" in printed


def test_service_ends_with_the_command_that_merges_the_services_runs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runner() == 0
    assert (
        "jax alone was measured; for one table with the newest runs of the other backends: "
        "docker compose run --rm report\n"
    ) in capsys.readouterr().out
    assert runner("--new", "--json") == 0
    assert "docker compose" not in capsys.readouterr().out


@pytest.mark.parametrize(("flags", "hinted"), [(["--backend", "jax"], True), ([], False)])
def test_run_of_one_backend_on_the_host_ends_with_the_command_that_merges_and_others_do_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: list[str], hinted: bool
) -> None:
    monkeypatch.delenv("KERAS_BENCHMARK_BACKENDS")
    monkeypatch.delenv("KERAS_BENCHMARK_DEVICE")
    assert runner(*flags) == 0
    assert ("of the other backends: runner report --merge\n" in capsys.readouterr().out) == hinted
