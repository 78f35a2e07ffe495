"""Prepares the start of an external command: its arguments, its environment, and the reasons against starting it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.records.backends import BACKENDS
from keras_matrix.records.host.inherited_environment import MARK, THREAD_VARIABLES
from keras_matrix.records.task import Task
from keras_matrix.runner.cell.job import Job, make_home
from keras_matrix.runner.executors.docker.container_paths import ROOT, WORK, Mount, variables_inside
from keras_matrix.runner.executors.supervise.environment import ALLOWED, device_environment, without_credentials
from keras_matrix.runner.executors.supervise.visible_gpus import VARIABLE, NoGpu, usable_gpus
from keras_matrix.runner.machine.gpus.nvml import PresentGpus, present_gpus
from keras_matrix.runner.matrix.task_rules import filled

SHELL = "/bin/sh"
REPORT_VARIABLE = "KERAS_BENCHMARK_METRICS"
OUTPUTS_VARIABLE = "KERAS_BENCHMARK_OUTPUTS"
GPU_FILE = re.compile(r"nvidia[0-9]+")


class NotStarted(Exception):
    """A command cannot be started; the message says why and what to do."""


class DeviceMissing(NotStarted):
    """A required device is missing."""


class TooFewDevices(NotStarted):
    """There are fewer devices than required."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command to be started: `argv` begins with the path of a program."""

    argv: list[str]
    environment: dict[str, str]
    folder: str
    gpus: tuple[str, ...]


def command_of(job: Job, python: str, mark: str, caller: Mapping[str, str]) -> Command:
    """Return the command of a task's job; `python` is the value of `{python}`. Raises `NotStarted`."""
    task = task_of(job)
    values = {"python": python, "outputs": job.outputs_dir or job.folder}
    gpus = _gpus(job, caller)
    folder = _folder(job)
    environment = _environment(job, mark, caller, gpus) | {
        name: filled(value, values) for name, value in task.environment.items()
    }
    argv = _argv(task, values)
    program = _program(argv[0], folder, environment.get("PATH", os.defpath))
    return Command([program, *argv[1:]], environment, str(folder), gpus)


def contained(job: Job, mark: str, caller: Mapping[str, str]) -> tuple[Command, tuple[Mount, ...]]:
    """Return the command for a container of a task's image, and its mounts. Raises `NotStarted`.

    Its folder is mounted read-only, its outputs are writable. The caller's environment is not passed on.
    """
    task = task_of(job)
    gpus = _gpus(job, caller)
    mounts = (
        Mount(job.folder, f"{WORK}/{Path(job.folder).name}", writable=True),
        Mount(job.outputs_dir or job.folder, f"{ROOT}/outputs", writable=True),
        Mount(str(_folder(job)), f"{ROOT}/task"),
    )
    values = {"python": "python3", "outputs": f"{ROOT}/outputs"}
    gpus_inside = [str(number) for number in range(len(gpus))]  # a container numbers its GPUs from 0
    usual = variables_inside(_environment(job, mark, {}, gpus_inside), mounts)
    environment = usual | {name: filled(value, values) for name, value in task.environment.items()}
    return Command(_argv(task, values), environment, f"{ROOT}/task", gpus), mounts


def task_of(job: Job) -> Task:
    """Return the task of a job for an external command."""
    assert job.task is not None
    return job.task


def _folder(job: Job) -> Path:
    folder = Path(job.import_roots[-1] if job.import_roots else ".") / task_of(job).folder
    if not folder.is_dir():
        raise NotStarted(f"folder: there is no folder {folder}; the path is relative to the matrix file")
    return folder.resolve()


def _argv(task: Task, values: Mapping[str, str]) -> list[str]:
    command = [filled(word, values) for word in task.command]
    return [*(filled(word, values) for word in task.wrap), *([SHELL, "-c", *command] if task.shell else command)]


def _program(word: str, folder: Path, path: str) -> str:
    program = str(folder / word) if "/" in word else word
    program_path = shutil.which(program, path=path)
    if program_path is not None:
        return str(Path(program_path).absolute())
    if "/" in word and Path(program).is_dir():
        raise NotStarted(f"command: {word} is a folder, not a program")
    if "/" in word and Path(program).exists():
        raise NotStarted(f"command: {word} is not executable; chmod +x it, or name its interpreter before it")
    place_text = f"in {folder}" if "/" in word else "on its PATH"
    advice = "; use {python} for the runner's interpreter" if word.startswith("python") else ""
    raise NotStarted(f"command: there is no program {word!r} {place_text}{advice}")


def _gpus(job: Job, caller: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs of the task: the first ones of those that it may use."""
    task = task_of(job)
    if not task.gpus:
        return ()
    gpu_files = sorted(path.name for path in Path("/dev").iterdir() if GPU_FILE.fullmatch(path.name))
    visible, reason_text = tuple(str(number) for number in range(len(gpu_files))), ""
    present = present_gpus()
    if VARIABLE in caller or isinstance(present, PresentGpus) or not job.gpus.any:
        try:
            visible = usable_gpus(job.gpus, caller, present)
        except NoGpu as error:
            visible, reason_text = (), f" ({error})"
    if len(visible) < task.gpus or not gpu_files:
        available = min(len(visible), len(gpu_files))
        raise (TooFewDevices if available else DeviceMissing)(
            f"gpus: must be at most {available}, the number available here{reason_text}, got {task.gpus}; lower gpus "
            "(--num-gpus)"
        )
    return visible[: task.gpus]


def _environment(job: Job, mark: str, caller: Mapping[str, str], gpus: Sequence[str]) -> dict[str, str]:
    task = task_of(job)
    if task.inherit is None:
        environment = without_credentials(caller)
    else:
        environment = {name: caller[name] for name in (*ALLOWED, *task.inherit) if name in caller}
    homes = make_home(job)
    if task.inherit is not None or task.image is not None:
        environment |= {name: folder for name, folder in homes.items() if name not in (task.inherit or ())}
    environment |= {MARK: mark, REPORT_VARIABLE: str(job.report_path)}
    if job.outputs_dir is not None:
        environment[OUTPUTS_VARIABLE] = job.outputs_dir
    # With `compare`, `backends` may be an axis that is not compared; then it is among the parameters.
    backend = job.settings.params.get("backend", job.settings.backend)
    if backend in BACKENDS:
        environment["KERAS_BACKEND"] = str(backend)
    if job.settings.threads != "all":
        environment |= dict.fromkeys(THREAD_VARIABLES, str(job.settings.threads))
    if gpus:
        return environment | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    return environment | device_environment("cpu")
