"""What the cells of a command run in, as it was asked for: processes of this machine, or containers of their images.

Both make the executor of one run, say what software its cells will find, and end what a killed runner left.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from runner.errors import UsageError

if TYPE_CHECKING:
    from records.store import Run
    from runner.executors import Executor
    from runner.executors.engine import Engine, Image, Limits, Seccomp
    from runner.matrix import Cell

# What the machine itself is left, so that a cell that needs too much is ended before the machine is short of memory.
MACHINES_SHARE = 1 / 16


@dataclass(frozen=True, slots=True)
class InProcesses:
    """Cells are processes of this machine; `start` is `fork` or `fresh`."""

    start: str = "fork"
    in_containers: ClassVar[bool] = False

    @property
    def started(self) -> str:
        """How cells start, as `run.json` keeps it: a run in containers never continues one in processes."""
        return self.start

    def software(self, cells: Sequence[Cell]) -> Mapping[str, str]:
        """Return the versions that are installed here."""
        from runner.executors.interpreter import installed_versions

        return installed_versions()

    def end_leftovers(self, results: Path) -> None:
        """End the processes of a killed runner."""
        from runner.executors.process_tree import end_leftovers

        end_leftovers(str(results.resolve()))

    def executor(self, run: Run, python: str | None) -> Executor:
        """Return what starts processes."""
        from runner.executors.interpreter import Interpreter
        from runner.executors.process import ProcessExecutor

        interpreter = Interpreter(python, foreign=python != sys.executable) if python else None
        return ProcessExecutor(start=self.start, mark=str(run.folder.parent.resolve()), interpreter=interpreter)


class InContainers:
    """Each cell runs in a container of its image, made for it (`fresh`) or forked from a container's server (`warm`).

    The engine and each image are looked up once, when they are first needed: all runs of a command use the same.
    """

    in_containers = True

    def __init__(self, start: str, images: str | None, limits: Limits, engine: Engine | None = None) -> None:
        from runner.executors.docker import IMAGES

        self._start, self._images, self._limits = start, images or IMAGES, limits
        self._connected = engine
        self._found: dict[str, Image | str] = {}

    @property
    def started(self) -> str:
        """How cells start."""
        return f"docker {self._start}"

    def software(self, cells: Sequence[Cell]) -> Mapping[str, str]:
        """Return the digests of the images that these cells need and that are here."""
        from runner.executors.docker import image_name, looked_up
        from runner.executors.engine import Image

        own = [cell.task.image for cell in cells if cell.task and cell.task.image]
        measured = [cell.settings for cell in cells if cell.task is None]
        names = dict.fromkeys([image_name(self._images, one.backend, one.device) for one in measured] + own)
        for name in names:
            if name not in self._found:
                self._found[name] = looked_up(self._engine(), name)
        found = {name: self._found[name] for name in names}
        return {f"image {name}": image.image_id for name, image in found.items() if isinstance(image, Image)}

    def end_leftovers(self, results: Path) -> None:
        """End the processes and remove the containers of a killed runner."""
        from runner.executors import docker, process_tree

        process_tree.end_leftovers(str(results.resolve()))
        docker.end_leftovers(self._engine(), str(results.resolve()))

    def executor(self, run: Run, python: str | None) -> Executor:
        """Return what starts containers, of the images that were found; these bring their own Python."""
        from runner.executors.docker import DockerExecutor, Place

        place = Place(str(run.folder.parent.resolve()), run.run_id, self._images, self._found)
        return DockerExecutor(self._engine(), place, self._limits, warm=self._start == "warm")

    def _engine(self) -> Engine:
        """Return the engine. Raises `ExecutorError` if none answers."""
        if self._connected is None:
            from runner.executors.engine import connect

            self._connected = connect()
        return self._connected


Executors = InProcesses | InContainers
"""Makes the executor of each run of a command."""


def container_limits(memory_bytes: int | None, shared_memory_bytes: int | None, seccomp: Seccomp | None) -> Limits:
    """Return what a container may use: nearly all of the machine's memory by default. Raises `UsageError`."""
    from runner.executors.engine import Limits
    from runner.surroundings.memory import usable_bytes
    from runner.surroundings.tree import Tree

    here = usable_bytes(Tree())
    memory = memory_bytes or (round(here * (1 - MACHINES_SHARE)) if here else None)
    if memory is None:
        raise UsageError("--memory: must be given, since this machine does not tell how much it has")
    usual = Limits(memory)
    return Limits(memory, shared_memory_bytes or usual.shared_memory_bytes, usual.processes, seccomp)
