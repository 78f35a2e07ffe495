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
from tests.golden import Golden
from tests.sessions import processes, run_name, store_session
from tests.transcripts import Transcript

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


def test_cell_is_named_as_in_show_and_the_new_run_is_apart_from_the_history(folder: Path) -> None:
    path = stored(folder)
    assert reproduced("jax:mnist_mlp") == 0
    assert [run.run_id for run in Results(folder / "results").runs()] == [path.parent.parent.name]
    [run] = Results(folder / "reproduced").runs()
    assert run.about()["reproduces"] == path.parent.parent.name
    settings = [record.settings for record in run.load()[0]]
    assert settings == [make_settings(backend="jax")] * 5


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


def test_the_stored_image_is_measured_in_containers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "own_arm", lambda request, cells: ArmRequest(None, None, {"image a": "sha256:1"}))
    stored(folder, container=Container("a", "sha256:1", 1 << 30, 1))
    assert reproduced("jax:mnist_mlp") == 0
    [run] = Results(folder / "reproduced").runs()
    assert run.about()["start"] == "docker warm"


def test_what_is_printed_of_a_reproduction(folder: Path, transcript: Transcript, golden: Golden) -> None:
    seams = Seams(executor=FakeExecutor(), engine=FakeEngine())
    stored(folder)
    transcript.run("reproduce jax:mnist_mlp", "reproduce jax:mnist_mlp --threshold 0.001", seams=seams, brief=True)
    missing = Seams(executor=FakeExecutor(absent=frozenset({"jax"})))
    transcript.note("the backend is not installed")
    transcript.run("reproduce jax:mnist_mlp", seams=missing, brief=True)
    settings = make_settings(backend="jax", steps_per_epoch=1, epochs=3, discard=1)
    changes = {"settings": settings, "learning": Learning(loss=[1.0, 0.5, 0.25])}
    path = stored(folder / "before", 0.017, machine=replace(MACHINE, kernel="6.0-then"), **changes)
    transcript.note("a record of a faster kernel, with other losses")
    transcript.run(f"reproduce {path.relative_to(folder)}", seams=seams, brief=True)
    given = {"settings": make_settings(backend="jax"), "versions": PYTHON, "resolved": RESOLVED}
    store_session(folder / "single" / "results", run_name(0), processes(FIGURE_S, count=1, **given))
    transcript.note("one stored process")
    transcript.run("reproduce jax:mnist_mlp --results single/results", seams=seams, brief=True)
    golden.check("reproduce.txt", transcript.text)


def test_messages_of_what_cannot_be_reproduced(
    folder: Path, monkeypatch: pytest.MonkeyPatch, transcript: Transcript, golden: Golden
) -> None:
    seams = Seams(executor=FakeExecutor(), engine=FakeEngine())
    path = stored(folder)
    (path.parent / f"{'0' * 16}.0.0.json").write_text("{}")
    transcript.run(
        "reproduce jax:other",
        f"reproduce {'0' * 16}.0.0.json",
        f"reproduce results/{run_name(0)}/run.json",
        f"reproduce results/{run_name(0)}/records/{'0' * 16}.0.0.json",
        "reproduce jax:mnist_mlp --repeats 0",
        "reproduce jax:mnist_mlp --repeats 1001",
        "reproduce jax:mnist_mlp --threshold 5%",
        "reproduce jax:mnist_mlp --env nowhere",
        seams=seams,
    )
    transcript.note("an external command")
    stored(folder / "a", settings=make_settings(backend="jax", workload=f"{PREFIX}train"))
    transcript.run(f"reproduce 'jax:{PREFIX}train' --results a/results", seams=seams)
    given = {"settings": make_settings(backend="jax"), "versions": PYTHON}
    ended = [replace(one, status=Status.UNSUPPORTED, reason="no GPU is there") for one in processes(FIGURE_S, **given)]
    store_session(folder / "b" / "results", run_name(0), ended)
    transcript.note("a cell without a figure")
    transcript.run("reproduce jax:mnist_mlp --results b/results", seams=seams)
    transcript.note("a record without the version of Python, and one without that of KerasHub")
    stored(folder / "c", versions={"keras": "1"})
    stored(folder / "d", settings=make_settings(backend="jax", workload="gpt2"), versions={**PYTHON, "keras": "1"})
    transcript.run("reproduce mnist_mlp --results c/results", "reproduce gpt2 --results d/results", seams=seams)
    monkeypatch.setattr(reproduce, "own_arm", lambda request, cells: ArmRequest(None, None, {"image a": "sha256:2"}))
    stored(folder / "e", container=Container("a", "sha256:1", 1 << 30, 1))
    transcript.note("measured in another image")
    transcript.run("reproduce mnist_mlp --results e/results", seams=seams)
    golden.check("reproduce_refused.txt", transcript.text)
