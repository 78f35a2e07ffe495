"""What a container's service pins, no argument can lose."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.runner.cli.main import Seams, main
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
        (["--backend", "tensorflow"], "--backend tensorflow: this service has jax (KERAS_BENCHMARK_BACKENDS)"),
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


def test_a_service_ends_with_the_command_that_merges_the_services_runs(
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
def test_a_run_of_one_backend_on_the_host_ends_with_the_command_that_merges_and_others_do_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: list[str], hinted: bool
) -> None:
    monkeypatch.delenv("KERAS_BENCHMARK_BACKENDS")
    monkeypatch.delenv("KERAS_BENCHMARK_DEVICE")
    assert runner(*flags) == 0
    assert ("of the other backends: runner report --merge\n" in capsys.readouterr().out) == hinted
