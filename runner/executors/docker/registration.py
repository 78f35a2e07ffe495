"""Cells in containers of their images: `--executor docker` and its options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from keras_matrix.records.codec import loads
from keras_matrix.records.host.system import usable_memory_bytes
from keras_matrix.records.store import Run
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors import Executor
from keras_matrix.runner.executors.docker import executor as docker
from keras_matrix.runner.executors.docker.engine import ContainerLimits, Engine, Image, Seccomp, connect
from keras_matrix.runner.executors.docker.executor import IMAGES, ContainerPlace, DockerExecutor, image_name, looked_up
from keras_matrix.runner.executors.registry import ExecutorEntry, ExecutorRequest, Executors
from keras_matrix.runner.machine import tree_memory
from keras_matrix.runner.matrix.reader import Cell

# Left to the machine itself, so that a cell that needs too much is ended before the machine runs out of memory.
MACHINES_SHARE = 1 / 16


class InContainers(Executors):
    """Each cell runs in its own container (`fresh`), or is forked from the server in a container (`warm`).

    The engine and each image are looked up once, when first needed, so that all runs of a command use the same.
    """

    def __init__(self, entry: ExecutorEntry, request: ExecutorRequest) -> None:
        """Read the options. Raises `UsageError` for a seccomp profile that cannot be read."""
        super().__init__(entry, request)
        self._images: str = request.options["images"] or IMAGES
        self._seccomp = _seccomp(request.options["seccomp"])
        self._connected: Engine | None = request.service
        self._found: dict[str, Image | str] = {}

    def software(self, cells: Sequence[Cell]) -> Mapping[str, str]:
        """Return the digests of the local images that these cells need."""
        task_images = [cell.task.image for cell in cells if cell.task and cell.task.image]
        measured_settings = [cell.settings for cell in cells if cell.task is None]
        names = dict.fromkeys(
            [
                image_name(self._images, cell_settings.backend, cell_settings.device)
                for cell_settings in measured_settings
            ]
            + task_images
        )
        for name in names:
            if name not in self._found:
                self._found[name] = looked_up(self._engine(), name)
        image_by_name = {name: self._found[name] for name in names}
        return {f"image {name}": image.image_id for name, image in image_by_name.items() if isinstance(image, Image)}

    def end_leftovers(self, results: Path) -> None:
        """End the processes and remove the containers of a killed runner."""
        tree_memory.end_leftovers(str(results.resolve()))
        docker.end_leftovers(self._engine(), str(results.resolve()))

    def executor(self, run: Run, python: str | None) -> Executor:
        """Return the executor for the images that were found, which have their own Python."""
        place = ContainerPlace(str(run.folder.parent.resolve()), run.run_id, self._images, self._found)
        return DockerExecutor(self._engine(), place, self._limits(), warm=self.request.start == "warm")

    def _limits(self) -> ContainerLimits:
        """Return what a container may use, nearly all of the machine's memory by default. Raises `UsageError`."""
        usable_bytes = usable_memory_bytes()
        memory = self.request.options["memory"] or (
            round(usable_bytes * (1 - MACHINES_SHARE)) if usable_bytes else None
        )
        if memory is None:
            raise UsageError("--memory: required, since this machine does not report its memory; set a size such as 8g")
        defaults = ContainerLimits(memory)
        shared_memory = self.request.options["shm_size"] or defaults.shared_memory_bytes
        return ContainerLimits(memory, shared_memory, defaults.processes, self._seccomp)

    def _engine(self) -> Engine:
        """Return the engine. Raises `ExecutorError` if none answers."""
        if self._connected is None:
            self._connected = connect()
        return self._connected


make = InContainers


def _seccomp(text: str | None) -> Seccomp | None:
    """Return a seccomp profile, read here since the engine would refuse every container with an unreadable one."""
    if text is None or text == "unconfined":
        return Seccomp(text, text) if text else None
    path = Path(text)
    try:
        profile = path.read_text(encoding="utf-8")
        loads(profile)
        return Seccomp(path.name, profile)
    except (OSError, ValueError) as error:
        raise UsageError(f"--seccomp: must be the file of a profile, or unconfined, got {text!r}: {error}") from error
