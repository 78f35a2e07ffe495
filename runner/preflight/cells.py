"""The preflight of a plan: the problems of each cell on a GPU or TPU, known before anything is measured."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from records.settings import Settings
from records.task import Task
from runner.executors.visible import gpus_of
from runner.preflight.builds import DISTRIBUTIONS, build_of
from runner.preflight.facts import GpuFacts, TpuFacts, read_gpus, read_tpus
from runner.preflight.rules import Problem, gpu_problems, tpu_problems
from runner.surroundings.tree import Tree

TOOLKIT = ("nvidia-container-runtime-hook", "nvidia-ctk", "nvidia-container-cli")
NO_TOOLKIT = Problem(
    "container_toolkit",
    "the NVIDIA Container Toolkit is not found on this machine, so the engine may be unable to give a container a GPU; "
    "install it: https://docs.nvidia.com/datacenter/cloud-native/container-toolkit",
)


@dataclass(frozen=True, slots=True)
class Preflight:
    """The facts about this machine's GPUs and TPU; `versions` of the backends that run the cells, empty if not known.

    `everywhere` are problems of every cell on a GPU.
    """

    gpus: GpuFacts | None = None
    tpus: TpuFacts | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    everywhere: tuple[Problem, ...] = ()

    def problems(self, settings: Settings, task: Task | None = None) -> tuple[Problem, ...]:
        """Return the problems of one cell, those with a status first. An external command's build is not judged."""
        found: list[Problem] = []
        if settings.device == "gpu" and self.gpus is not None:
            build = None if task is not None else build_of(settings.backend, self.versions)
            found = [*gpu_problems(self.gpus, gpus_of(settings), build), *self.everywhere]
        elif settings.device == "tpu" and self.tpus is not None:
            found = tpu_problems(self.tpus)
        return tuple(sorted(found, key=lambda problem: problem.status is None))

    def lines(self, cells: Iterable[tuple[Settings, Task | None]]) -> list[str]:
        """Return each problem of these cells once, as a text."""
        return list(dict.fromkeys(str(problem) for cell in cells for problem in self.problems(*cell)))


def preflight_of(
    settings: Iterable[Settings], *, in_containers: bool = False, tree: Tree | None = None, library: Any = None
) -> Preflight | None:
    """Read the facts that these cells need; None if all of them are on the CPU: then nothing is read.

    `in_containers` if each cell gets a container: its image has builds of its own, which are not judged.
    """
    on_device = [one for one in settings if one.device != "cpu"]
    names = dict.fromkeys(name for one in on_device for name in gpus_of(one))
    if not on_device:
        return None
    missing_toolkit = in_containers and names and not any(shutil.which(name) for name in TOOLKIT)
    return Preflight(
        gpus=read_gpus(names, tree, library) if names else None,
        tpus=read_tpus(tree) if not in_containers and any(one.device == "tpu" for one in on_device) else None,
        versions={} if in_containers else installed(),
        everywhere=(NO_TOOLKIT,) if missing_toolkit else (),
    )


def installed() -> dict[str, str]:
    """Return the versions of the backends' distributions that are installed for this Python."""
    found = {}
    for name in (name for names in DISTRIBUTIONS.values() for name in names):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
