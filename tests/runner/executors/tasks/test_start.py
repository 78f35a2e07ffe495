"""The arguments, the environment and the GPUs of a command."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.schema import Status
from keras_matrix.records.task import Task
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from keras_matrix.runner.executors.tasks.start import (
    Command,
    DeviceMissing,
    NotStarted,
    TooFewDevices,
    command_of,
    contained,
)
from keras_matrix.runner.machine.gpus.nvml import PresentGpus
from keras_matrix.runner.measure.judge import StatusVerdict
from keras_matrix.runner.measure.record_builder import judge_task
from tests.canaries import SECRETS
from tests.conftest import make_settings

CALLER = {"PATH": os.defpath, "HOME": "/home/of/the/caller", "SECRET": "x", "KEPT": "y", "KEYBOARD": "z"}
TASK = Task("t", ["true"])


@pytest.fixture
def job(tmp_path: Path) -> Job:
    for name in ("scratch", "outputs"):
        (tmp_path / name).mkdir()
    settings = make_settings(backend="command")
    folder, outputs = str(tmp_path / "scratch"), str(tmp_path / "outputs")
    return Job("n", "c", 0, 0, settings, 1, folder, [str(tmp_path)], None, None, task=TASK, outputs_dir=outputs)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Path("/dev") / name for name in ("nvidia0", "nvidia1", "nvidiactl", "null")]
    monkeypatch.setattr("keras_matrix.runner.executors.tasks.start.Path.iterdir", lambda self: iter(found))
    monkeypatch.setattr("keras_matrix.runner.executors.tasks.start.present_gpus", lambda: None)


def started(job: Job, caller: dict[str, str] | None = None, **task: Any) -> Command:
    return command_of(replace(job, task=replace(TASK, **task)), sys.executable, "mark", CALLER | (caller or {}))


def test_placeholders_are_filled_except_those_of_a_shell(job: Job) -> None:
    text = "{python} {outputs} ${python} ${outputs} {unknown} $HOME"
    found = started(job, command=[text], shell=True, wrap=["env", "A={outputs}"], environment={"B": "{python}"})
    outputs = job.outputs_dir
    own = f"{sys.executable} {outputs} ${{python}} ${{outputs}} {{unknown}} $HOME"
    assert found.argv[1:] == [f"A={outputs}", "/bin/sh", "-c", own]
    assert Path(found.argv[0]).name == "env"
    assert found.environment["B"] == sys.executable


def test_command_has_default_and_inherited_variables_and_its_own_home(job: Job) -> None:
    found = started(job, inherit=["KEPT"]).environment
    assert (found["KEPT"], found["PATH"], found.get("SECRET")) == ("y", os.defpath, None)
    assert all(found[name].startswith(job.folder) for name in ("HOME", "TMPDIR"))
    assert found["KERAS_BENCHMARK_OUTPUTS"] == job.outputs_dir
    assert "KERAS_BACKEND" not in found


def test_folder_is_relative_to_that_of_the_matrix_file(job: Job, tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    elsewhere = replace(job, import_roots=["/", str(tmp_path)], task=replace(TASK, folder="scripts"))
    assert command_of(elsewhere, sys.executable, "mark", CALLER).folder == str(tmp_path / "scripts")


def test_command_with_an_image_is_unsupported_outside_a_container(job: Job) -> None:
    ended = ProcessExecutor().start(replace(job, task=replace(TASK, image="mine:1")), 1.0).finish()
    assert judge_task(ended) == StatusVerdict(
        Status.UNSUPPORTED, "image: mine:1: a command with an image needs a container; add --executor docker"
    )


def test_command_that_inherits_all_has_the_callers_home_too(job: Job) -> None:
    found = started(job, inherit=None).environment
    assert (found["HOME"], found["KEPT"]) == (CALLER["HOME"], "y")


@pytest.mark.fault("F31", mutation="a command that inherits all gets the complete environment of the caller")
def test_command_that_inherits_all_gets_no_credentials_unless_it_names_them(job: Job) -> None:
    found = started(job, SECRETS, inherit=None).environment
    assert set(found) & set(SECRETS) == set()
    assert found["KEYBOARD"] == CALLER["KEYBOARD"]
    named = started(job, SECRETS, inherit=["HF_TOKEN"]).environment
    assert set(named) & set(SECRETS) == {"HF_TOKEN"}


@pytest.mark.parametrize("inherit", [None, [*SECRETS]])
@pytest.mark.fault("F31", mutation="`contained` passes the caller's environment to `_environment`")
def test_command_in_a_container_gets_no_credentials_whatever_it_inherits(job: Job, inherit: list[str] | None) -> None:
    of_image = replace(job, task=replace(TASK, image="mine:1", inherit=inherit))
    found, _ = contained(of_image, "mark", CALLER | SECRETS)
    assert set(found.environment) & set(SECRETS) == set()


def test_inherited_home_is_that_of_the_caller(job: Job) -> None:
    assert started(job, inherit=["HOME"]).environment["HOME"] == CALLER["HOME"]


def test_backend_and_threads_are_set_as_environment_variables(job: Job) -> None:
    settings = make_settings(backend="jax", threads=3)
    found = command_of(replace(job, settings=settings), sys.executable, "mark", CALLER).environment
    assert (found["KERAS_BACKEND"], found["OMP_NUM_THREADS"]) == ("jax", "3")


def test_backend_that_is_not_the_compared_axis_is_set_too(job: Job) -> None:
    settings = make_settings(backend="batch_size=8", params={"backend": "jax"})
    found = command_of(replace(job, settings=settings), sys.executable, "mark", CALLER).environment
    assert found["KERAS_BACKEND"] == "jax"


@pytest.mark.parametrize(
    ("gpus", "visible", "seen"),
    [
        (0, None, "-1"),
        (0, "0,1", "-1"),
        (1, None, "0"),
        (2, None, "0,1"),
        (1, "1", "1"),
        (2, "1,0", "1,0"),
        (1, "GPU-8f2a,GPU-11c0", "GPU-8f2a"),
    ],
)
def test_command_gets_the_first_visible_gpus_of_its_caller(
    job: Job, two_gpus: None, gpus: int, visible: str | None, seen: str
) -> None:
    caller = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = started(job, caller, gpus=gpus, inherit=None)
    assert found.environment["CUDA_VISIBLE_DEVICES"] == seen
    assert found.gpus == (tuple(seen.split(",")) if gpus else ())


@pytest.mark.parametrize(("gpus", "visible", "there"), [(3, None, 2), (2, "1", 1), (1, "", 0)])
def test_more_gpus_than_available_are_refused(
    job: Job, two_gpus: None, gpus: int, visible: str | None, there: int
) -> None:
    caller = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    kind = TooFewDevices if there else DeviceMissing
    with pytest.raises(kind, match=f"must be at most {there}, the number available here.*got {gpus}"):
        started(job, caller, gpus=gpus)


def test_container_gets_its_gpus_numbered_from_0(job: Job, two_gpus: None) -> None:
    of_one = replace(job, task=replace(TASK, gpus=1, image="mine:1"))
    found, _ = contained(of_one, "mark", {"CUDA_VISIBLE_DEVICES": "1"})
    assert (found.gpus, found.environment["CUDA_VISIBLE_DEVICES"]) == (("1",), "0")
    found, _ = contained(replace(job, task=replace(TASK, gpus=2)), "mark", {"CUDA_VISIBLE_DEVICES": "1,0"})
    assert (found.gpus, found.environment["CUDA_VISIBLE_DEVICES"]) == (("1", "0"), "0,1")


def test_command_is_not_started_where_the_driver_lists_no_gpu(
    job: Job, two_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keras_matrix.runner.executors.tasks.start.present_gpus", lambda: PresentGpus(()))
    with pytest.raises(DeviceMissing, match=r"must be at most 0, the number available here .device: gpu was requested"):
        started(job, gpus=1)


@pytest.mark.parametrize("visible", ["-1", "NoDevFiles", "0;1"])
def test_command_is_not_given_a_gpu_that_is_not_visible(job: Job, two_gpus: None, visible: str) -> None:
    with pytest.raises(
        DeviceMissing, match=f"at most 0, the number available here .CUDA_VISIBLE_DEVICES is '{visible}'"
    ):
        started(job, {"CUDA_VISIBLE_DEVICES": visible}, gpus=1)


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("/bin", "/bin is a folder, not a program"),
        ("no-such-program", "there is no program 'no-such-program' on its PATH"),
        ("./none", "there is no program './none' in "),
        ("python-none", "on its PATH; use {python} for the runner's interpreter"),
        ("./plain", "./plain is not executable; chmod"),
    ],
)
def test_command_that_cannot_be_started_has_a_reason_and_advice(job: Job, tmp_path: Path, word: str, why: str) -> None:
    (tmp_path / "plain").write_text("not a program")
    with pytest.raises(NotStarted) as caught:
        started(job, command=[word])
    assert why in str(caught.value)
