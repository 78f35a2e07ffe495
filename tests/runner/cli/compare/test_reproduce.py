"""`runner reproduce` through the real command line: pretended processes, real records."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.schema import Container, Learning, Resolved, Status
from keras_matrix.records.store import Results
from keras_matrix.records.task import PREFIX
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors.process import registration
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.plan.session import ArmRequest
from keras_matrix.runner.service import reproduce
from tests.conftest import MACHINE, make_settings
from tests.fakes.container_engine import FakeEngine
from tests.fakes.executor import FakeExecutor
from tests.sessions import processes, run_name, store_session

PYTHON = {"python": platform.python_version()}
FIGURE_S = 0.02  # of the pretended processes of JAX
RESOLVED = Resolved(1, 32, "fork", "float32", parameters=1000)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def stored(folder: Path, step_time_s: float = FIGURE_S, **changes: Any) -> Path:
    """Store a run of one cell, measured by this Python, and return the file of its first record."""
    given = {"settings": make_settings(backend="jax"), "versions": PYTHON, "resolved": RESOLVED} | changes
    run = store_session(folder / "results", run_name(0), processes(step_time_s, count=5, **given))
    return sorted((run / "records").iterdir())[0]


def reproduced(*arguments: str, executor: FakeExecutor | None = None) -> int:
    return main(["reproduce", *arguments], Seams(executor=executor or FakeExecutor(), engine=FakeEngine()))


@pytest.mark.parametrize(
    ("step_time_s", "code", "said"),
    [(FIGURE_S, 0, "reproduced within 5.0 %: new / stored"), (0.017, 4, "differs by more than 5.0 %: new / stored")],
)
def test_verdict_is_the_exit_code_and_is_stated_with_both_figures(
    folder: Path, capsys: pytest.CaptureFixture[str], step_time_s: float, code: int, said: str
) -> None:
    assert reproduced(str(stored(folder, step_time_s))) == code
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(said) for line in lines)
    assert any(line.startswith("stored:          time per step") for line in lines)
    assert any(line.endswith("5 of 5 processes") and line.startswith("measured again:") for line in lines)


def test_cell_is_named_as_in_show_and_the_new_run_is_apart_from_the_history(folder: Path) -> None:
    path = stored(folder)
    assert reproduced("jax:mnist_mlp") == 0
    assert [run.run_id for run in Results(folder / "results").runs()] == [path.parent.parent.name]
    [run] = Results(folder / "reproduced").runs()
    assert run.about()["reproduces"] == path.parent.parent.name
    settings = [record.settings for record in run.load()[0]]
    assert settings == [make_settings(backend="jax")] * 5


def test_undecided_says_what_would_decide(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored(folder)
    assert reproduced("jax:mnist_mlp", "--threshold", "0.001") == 5
    assert "undecided, more --repeats narrow the interval" in capsys.readouterr().out


def test_one_stored_process_gives_no_interval(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"settings": make_settings(backend="jax"), "versions": PYTHON, "resolved": RESOLVED}
    store_session(folder / "results", run_name(0), processes(FIGURE_S, count=1, **given))
    assert reproduced("jax:mnist_mlp") == 5
    said = capsys.readouterr().out
    assert "undecided: there is no interval, which takes two processes on each side that ended ok: new / stored" in said


def test_failed_processes_are_not_measured_and_their_reason_is_shown(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(folder)
    assert reproduced("jax:mnist_mlp", executor=FakeExecutor(absent=frozenset({"jax"}))) == 1
    assert "0 of 5 processes; " in capsys.readouterr().out


def test_json_is_one_document(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stored(folder)
    assert reproduced("jax:mnist_mlp", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["stored"] == path.parent.parent.name
    assert (found["verdict"], found["work"]) == ("reproduced", None)
    assert found["ratio"]["low"] < 1.01 < found["ratio"]["high"] * 1.02


def test_other_versions_are_measured_in_an_environment_made_with_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Mapping[str, str]] = []

    def environment(recipe: Any, cache: Path, say: Any) -> Path:
        made.append(recipe.packages)
        return Path("made")

    monkeypatch.setattr(reproduce, "environment", environment)
    monkeypatch.setattr(reproduce, "_arm_of", lambda path, flag: ArmRequest(str(path), None, {"keras": "1"}))
    then = {"keras": "1", "keras-hub": "0.30.0"}
    stored(folder, versions=PYTHON | then)
    assert reproduced("jax:mnist_mlp") == 0
    assert made == [then]
    [run] = Results(folder / "reproduced").runs()
    assert run.about()["arms"] == {"": {"python": "made", "fault": None}}


def test_other_patch_of_python_needs_no_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: `rebuilt_arm` compares the complete version of Python."""
    monkeypatch.delattr(reproduce, "environment")
    stored(folder, versions={"python": f"{PYTHON['python'].rpartition('.')[0]}.99"})
    assert reproduced("jax:mnist_mlp") == 0


def test_named_environment_is_measured_in_instead(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: `_measured` ignores `--env`."""
    named: list[tuple[Path, str]] = []

    def arm_of(path: Path, flag: str) -> ArmRequest:
        named.append((path, flag))
        return ArmRequest("its python", None, {"keras": "1"})

    monkeypatch.setattr(reproduce, "_arm_of", arm_of)
    monkeypatch.delattr(reproduce, "environment")
    stored(folder, versions={"keras": "9"})
    assert reproduced("jax:mnist_mlp", "--env", "mine") == 0
    assert named == [(Path("mine"), "--env")]
    [run] = Results(folder / "reproduced").runs()
    assert run.about()["arms"] == {"": {"python": "its python", "fault": None}}


@pytest.mark.parametrize("start", ["fork", "fresh"])
def test_processes_are_started_as_the_stored_ones(folder: Path, start: str) -> None:
    """Mutation: `run` has the default start."""
    stored(folder, resolved=replace(RESOLVED, start=start))
    assert reproduced("jax:mnist_mlp") == 0
    [run] = Results(folder / "reproduced").runs()
    assert run.about()["start"] == start


def test_losses_and_what_has_changed_since_are_stated(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Mutation: `lines` of the command leaves out either line."""
    trained = Resolved(1, 32, "fork", "float32", parameters=1000)
    settings = make_settings(backend="jax", steps_per_epoch=1, epochs=3, discard=1)
    learning = Learning(loss=[1.0, 0.5, 0.25])  # pretended processes have a third of the first loss in the third epoch
    path = stored(
        folder, machine=replace(MACHINE, kernel="6.0-then"), settings=settings, learning=learning, resolved=trained
    )
    assert reproduced(str(path)) == 0
    said = capsys.readouterr().out
    assert f"changed since: kernel: 6.0-then -> {platform.release()}" in said
    assert "losses: differ by up to 0.083 of the first loss" in said


def test_backend_is_the_installed_one_also_if_its_distribution_is_that_for_cpus(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutation: `rebuilt_arm` compares names of modules with names of distributions, and makes another environment."""
    monkeypatch.setattr(registration, "installed_versions", lambda: {"tensorflow-cpu": "2.21.0", "keras": "3.15.1"})
    monkeypatch.delattr(reproduce, "environment")
    versions = {**PYTHON, "tensorflow": "2.21.0", "keras": "3.15.1"}
    stored(folder, step_time_s=0.01, settings=make_settings(backend="tensorflow"), versions=versions)
    assert reproduced("tensorflow:mnist_mlp") == 0
    [run] = Results(folder / "reproduced").runs()
    assert run.about()["arms"] == {"": {"python": None, "fault": None}}


@pytest.mark.parametrize(
    ("workload", "versions", "reason"),
    [
        ("mnist_mlp", {"keras": "1"}, "the record states no usable versions"),
        ("gpt2", {**PYTHON, "keras": "1"}, "the record does not state the version of KerasHub, which gpt2 needs"),
    ],
)
def test_what_cannot_be_rebuilt_ends_with_3_and_the_reason(
    folder: Path, capsys: pytest.CaptureFixture[str], workload: str, versions: Mapping[str, str], reason: str
) -> None:
    stored(folder, settings=make_settings(backend="jax", workload=workload), versions=versions)
    assert reproduced(f"jax:{workload}") == 3
    assert reason in capsys.readouterr().err
    assert not (folder / "reproduced").exists()


def test_another_image_than_the_stored_one_cannot_be_rebuilt(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce, "own_arm", lambda request, cells: ArmRequest(None, None, {"image a": "sha256:2"}))
    stored(folder, container=Container("a", "sha256:1", 1 << 30, 1))
    assert reproduced("jax:mnist_mlp") == 3
    message = capsys.readouterr().err
    assert "measured in the image sha256:1, but image a is sha256:2" in message
    assert "docker tag sha256:1 reproduced:SERVICE" in message


def test_the_stored_image_is_measured_in_containers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "own_arm", lambda request, cells: ArmRequest(None, None, {"image a": "sha256:1"}))
    stored(folder, container=Container("a", "sha256:1", 1 << 30, 1))
    assert reproduced("jax:mnist_mlp") == 0
    [run] = Results(folder / "reproduced").runs()
    assert run.about()["start"] == "docker warm"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("jax:other", "CELL: no cell of run"),
        (f"{'0' * 16}.0.0.json", "does not exist"),
        ("results/nothing.json", "results/nothing.json does not exist"),
        ("results/{run}/run.json", "is not a record, whose file is named CELL.REPEAT.ATTEMPT.json"),
        ("results/{run}/records/{other}.0.0.json", "is not a record"),
    ],
)
def test_record_that_is_not_there_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], record: str, message: str
) -> None:
    path = stored(folder)
    other = "0" * 16
    (path.parent / f"{other}.0.0.json").write_text("{}")
    assert reproduced(record.format(run=run_name(0), other=other)) == 2
    assert message in capsys.readouterr().err


def test_external_command_is_refused_with_the_command_that_measures_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(folder, settings=make_settings(backend="jax", workload=f"{PREFIX}train"))
    assert reproduced(f"jax:{PREFIX}train") == 2
    assert "measure it again with: runner task train" in capsys.readouterr().err


def test_cell_without_a_figure_is_refused_before_anything_is_measured(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    executor, given = FakeExecutor(), {"settings": make_settings(backend="jax"), "versions": PYTHON}
    ended = [replace(one, status=Status.UNSUPPORTED, reason="no GPU is there") for one in processes(FIGURE_S, **given)]
    store_session(folder / "results", run_name(0), ended)
    assert reproduced("jax:mnist_mlp", executor=executor) == 2
    assert "ended ok (unsupported: no GPU is there): there is no figure to reproduce" in capsys.readouterr().err
    assert executor.jobs == []


@pytest.mark.parametrize("repeats", ["0", "1001"])
def test_number_of_repeats_is_checked(folder: Path, capsys: pytest.CaptureFixture[str], repeats: str) -> None:
    stored(folder)
    assert reproduced("jax:mnist_mlp", "--repeats", repeats) == 2
    assert "--repeats" in capsys.readouterr().err
