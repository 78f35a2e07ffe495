"""The preflight of a plan: finds the problems of each cell on a GPU or TPU before anything is measured."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from keras_matrix.records.backends import TABLE
from keras_matrix.records.host.device_lists import ANY_GPU, GpuChoice
from keras_matrix.records.host.procfs import ProcTree, Unread
from keras_matrix.records.schema import Status
from keras_matrix.records.settings import Settings
from keras_matrix.records.task import Task
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.executors.process.interpreter import installed_versions
from keras_matrix.runner.executors.supervise.visible_gpus import NoGpu, TooFewGpus, gpus_of, visible_gpus
from keras_matrix.runner.machine.gpus.nvml import PresentGpus, present_gpus
from keras_matrix.runner.machine.gpus.readings import has_driver
from keras_matrix.runner.machine.preflight import (
    CellProblem,
    GpuFacts,
    TpuFacts,
    build_of,
    gpu_problems,
    read_gpus,
    read_tpus,
    tpu_problems,
)

TOOLKIT = ("nvidia-container-runtime-hook", "nvidia-ctk", "nvidia-container-cli")
NO_TOOLKIT = CellProblem(
    "container_toolkit",
    "the NVIDIA Container Toolkit is not found on this machine, so the engine may be unable to give a container a GPU; "
    "install it: https://docs.nvidia.com/datacenter/cloud-native/container-toolkit",
)


@dataclass(frozen=True, slots=True)
class Preflight:
    """Facts about this machine's GPUs and TPU; `versions` are those of the backends that run the cells, if known.

    `present` are the GPUs that the driver lists; `everywhere` are problems of all cells on a GPU.
    """

    gpus: GpuFacts | None = None
    present: PresentGpus | Unread | None = None
    tpus: TpuFacts | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    everywhere: tuple[CellProblem, ...] = ()

    def problems(
        self, settings: Settings, task: Task | None = None, choice: GpuChoice = ANY_GPU
    ) -> tuple[CellProblem, ...]:
        """Return the problems of one cell, those with a status first. An external command's build is not judged."""
        problems: list[CellProblem] = []
        if settings.device == "gpu" and self.gpus is not None:
            build = None if task is not None else build_of(settings.backend, self.versions)
            names = gpu_names(settings, self.present, choice) if self.gpus.driver is not None else ()
            problems = [names] if isinstance(names, CellProblem) else gpu_problems(self.gpus, names, build)
            problems += self.everywhere
        elif settings.device == "tpu" and self.tpus is not None:
            problems = tpu_problems(self.tpus)
        return tuple(sorted(problems, key=lambda problem: problem.status is None))

    def refused(self, job: Job) -> Outcome | None:
        """Return the outcome of a job that must not start; a command is refused by its executor, which records it."""
        problem = next(iter(self.problems(job.settings, choice=job.gpus)), None) if job.task is None else None
        if problem is None or problem.status is None:
            return None
        text = str(problem)
        if problem.status is Status.UNSUPPORTED:
            return Outcome(refused=text)
        return Outcome(infrastructure=text) if problem.status is Status.INFRA else Outcome(missing_device=text)

    def warnings(self, job: Job) -> tuple[str, ...]:
        """Return the warnings for a job that is started."""
        return tuple(
            str(problem) for problem in self.problems(job.settings, job.task, job.gpus) if problem.status is None
        )

    def lines(self, cells: Iterable[tuple[Settings, Task | None, GpuChoice]]) -> list[str]:
        """Return each problem of these cells once, as a text."""
        return list(dict.fromkeys(str(problem) for cell in cells for problem in self.problems(*cell)))


def preflight_of(
    settings: Iterable[Settings], *, in_containers: bool = False, tree: ProcTree | None = None, library: Any = None
) -> Preflight | None:
    """Read the facts that these cells need; return None without reading anything if all of them are on the CPU.

    With `in_containers` each cell gets a container; the builds in its image are not judged.
    """
    on_device = [cell_settings for cell_settings in settings if cell_settings.device != "cpu"]
    if not on_device:
        return None
    has_gpu_cells = any(cell_settings.device == "gpu" for cell_settings in on_device)
    present = present_gpus(library) if has_gpu_cells and has_driver(tree or ProcTree()) else None
    names = [
        name
        for cell_settings in on_device
        if not isinstance(found_names := gpu_names(cell_settings, present), CellProblem)
        for name in found_names
    ]
    names += _visible(present) if has_gpu_cells else ()  # which of them a cell may use is asked later
    lacks_toolkit = in_containers and has_gpu_cells and not any(shutil.which(name) for name in TOOLKIT)
    return Preflight(
        gpus=read_gpus(dict.fromkeys(names), tree, library) if has_gpu_cells else None,
        present=present,
        tpus=read_tpus(tree)
        if not in_containers and any(cell_settings.device == "tpu" for cell_settings in on_device)
        else None,
        versions={} if in_containers else installed(),
        everywhere=(NO_TOOLKIT,) if lacks_toolkit else (),
    )


def gpu_names(
    settings: Settings, present: PresentGpus | Unread | None, choice: GpuChoice = ANY_GPU
) -> tuple[str, ...] | CellProblem:
    """Return the GPUs of a cell by index or UUID, or the problem that it has too few."""
    try:
        return gpus_of(settings, os.environ, present, choice)
    except NoGpu as error:
        return CellProblem("gpu_missing", str(error), Status.DEVICE_MISMATCH)
    except TooFewGpus as error:
        return CellProblem("too_few_gpus", str(error), Status.UNSUPPORTED)


def _visible(present: PresentGpus | Unread | None) -> tuple[str, ...]:
    """Return all GPUs that the caller may use; none if there is none, which each cell then reports."""
    try:
        return visible_gpus(os.environ, present)
    except NoGpu:
        return ()


def installed() -> dict[str, str]:
    """Return the versions of the backends' distributions that are installed for this Python."""
    return installed_versions(name for backend in TABLE.values() for name in backend.build_packages)
