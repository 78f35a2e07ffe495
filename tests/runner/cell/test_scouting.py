"""A program's calls are listed by a process that runs each of them short, once for an unchanged program."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.schema import MEASURED
from keras_matrix.records.store import Results, latest_attempts
from keras_matrix.runner.cli.main import main
from tests.sessions import counted_records

pytestmark = pytest.mark.process
SCRIPTS = Path(__file__).parent / "scripts"


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, tuple[int, int, int | None]]:
    """Return the calls that are listed, by name: how often they are made, and the steps of all and of one epoch."""
    assert main(["script", "--list", "--json", *words]) == 0
    program = json.loads(capsys.readouterr().out)["program"]
    assert program["scouted"]["has_ended"]
    return {
        f"{call['kind']}:{call['nth']} {call['place']}": (call["calls"], call["steps"], call["epoch_steps"])
        for call in program["scouted"]["calls"]
    }


@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
@pytest.mark.one_backend("tensorflow")
def test_calls_are_listed_with_the_steps_that_the_program_asks_for(
    tmp_path: Path, backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    project, results = tmp_path / "project", tmp_path / "results"
    shutil.copytree(SCRIPTS, project)
    words = ["--backend", backend, "--results", str(results), str(project / "twice.py")]
    calls = {
        "fit:1 parts/training.py:13": (1, 2, 2),
        "fit:2 twice.py:11": (2, 16, 8),
        "evaluate:1 twice.py:12": (1, 8, 8),
        "predict:1 twice.py:13": (1, 8, 8),
    }
    assert listed(capsys, *words) == calls
    (stored,) = (results / "scouting").glob("*.json")
    first_time = stored.stat().st_mtime_ns
    assert listed(capsys, *words) == calls
    assert stored.stat().st_mtime_ns == first_time, "an unchanged program is not run again"
    training = project / "parts" / "training.py"
    training.write_text(training.read_text().replace("epochs=1", "epochs=3"))
    assert listed(capsys, *words)["fit:1 parts/training.py:13"] == (1, 6, 2), "a changed file of the project is seen"
    assert stored.stat().st_mtime_ns != first_time
    assert sorted(path.name for path in (results / "scouting").iterdir()) == [".lock", stored.name]


@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
@pytest.mark.one_backend("jax")
def test_longest_fit_is_measured_with_short_epochs_and_calls_before_it_cut(
    tmp_path: Path, backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    project = tmp_path / "project"
    shutil.copytree(SCRIPTS, project)
    flags = ["--backend", backend, "--results", str(tmp_path / "results"), "--before", "cut", "--most-steps", "4"]
    assert main(["script", *flags, "--set", "epochs=3", str(project / "twice.py")]) == 0
    printed = capsys.readouterr().out
    assert "2  fit twice.py:11 (fit:2): 16 steps in 2 epochs of 2 calls" in printed
    assert "; measured by default" in printed
    (record,) = counted_records(tmp_path)
    assert record.settings.params == {"call": "fit:2", "before": "cut", "most_steps": 4}
    assert record.resolved is not None
    assert (record.resolved.call, record.resolved.steps_per_epoch) == ("fit twice.py:11", 4)
    times = record.times
    assert (times.whole_epoch_steps, times.lead_steps, len(times.training_times_s)) == (8, 1, 2)
    assert times.training_step_time_s
    assert times.calls_before_time_s
    assert times.epoch_time_mean_s
    assert times.epoch_time_mean_s > max(times.epoch_times_s), "a whole epoch has the steps that were left out"
    assert any(warning.startswith("epoch_cut: each epoch ended after 4 of its 8 steps") for warning in record.warnings)
    assert f"epochs were cut: {backend}: " in printed


@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
@pytest.mark.one_backend("tensorflow")
def test_choice_of_a_call_that_is_not_made_lists_those_that_are(
    tmp_path: Path, backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "project").mkdir()
    program = shutil.copy(SCRIPTS / "idle.py", tmp_path / "project")
    flags = ["--backend", backend, "--results", str(tmp_path / "results"), "--call", "predict_on_batch"]
    assert main(["script", *flags, str(program)]) == 2
    assert "call: idle.py makes no call 'predict_on_batch'" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
@pytest.mark.one_backend("jax")
def test_comparison_of_environments_measures_the_cell_that_a_run_measures(tmp_path: Path, backend: str) -> None:
    """Mutation: `compare` measures the cells of its matrix without their calls."""
    project, results = tmp_path / "project", tmp_path / "results"
    shutil.copytree(SCRIPTS, project)
    entry = "{workload: {script: twice.py}, epochs: 2, repeats: 1}"
    (project / "matrix.yaml").write_text(f"version: 1\nbackends: [{backend}]\ncells: [{entry}]\n")
    options = ["--matrix", str(project / "matrix.yaml"), "--results", str(results)]
    assert main(options) == 0
    (stored,) = (results / "scouting").glob("*.json")
    first_time = stored.stat().st_mtime_ns
    assert main(["compare", "--base-env", sys.prefix, "--new-env", sys.prefix, *options]) == 0
    records = [record for run in Results(results).runs() for record in latest_attempts(run.load()[0])]
    assert {record.status for record in records} <= MEASURED
    assert len(records) == 3
    assert {(record.cell_id, record.settings.params["call"]) for record in records} == {(records[0].cell_id, "fit:2")}
    assert {record.resolved and record.resolved.call for record in records} == {"fit twice.py:11"}
    assert [path.stat().st_mtime_ns for path in (results / "scouting").glob("*.json")].count(first_time) == 1
