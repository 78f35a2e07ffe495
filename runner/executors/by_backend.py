"""An executor whose cells of some backends are started by others, each with a Python environment of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors import Executor, Running
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from keras_matrix.runner.executors.process.interpreter import of_environment
from keras_matrix.runner.matrix.grammar import ANY_BACKEND


def in_environments(environments: Mapping[str, Path], mark: str = "") -> Executor:
    """Return an executor of processes in the environments that `--python` names. Raises `UsageError`."""
    interpreters = {name: of_environment(path, "--python") for name, path in environments.items()}
    executors = {name: ProcessExecutor(mark=mark, interpreter=found) for name, found in interpreters.items()}
    others = executors.pop(ANY_BACKEND, None) or ProcessExecutor(mark=mark)
    return ByBackend(others, executors) if executors else others


class ByBackend:
    """Measures as the executor of a cell's backend does, as `inner` does for the other cells."""

    def __init__(self, inner: Executor, executors: Mapping[str, Executor]) -> None:
        self.name, self._inner, self._executors = inner.name, inner, executors

    def missing(self, backend: str, device: str = "cpu") -> str | None:
        """Return why a backend cannot run in its environment, None when it can."""
        return self._of(backend).missing(backend, device)

    def begin_block(self, settings: Sequence[Settings]) -> None:
        """Begin a block everywhere, each with its own cells."""
        for executor in self._all():
            executor.begin_block([one for one in settings if self._of(one.backend) is executor])

    def await_block(self) -> None:
        """Wait for all of them."""
        for executor in self._all():
            executor.await_block()

    def start(self, job: Job, timeout_s: float) -> Running:
        """Start the job in the environment of its backend."""
        return self._of(job.settings.backend).start(job, timeout_s)

    def close(self) -> None:
        """Close all of them."""
        for executor in self._all():
            executor.close()

    def _of(self, backend: str) -> Executor:
        return self._executors.get(backend, self._inner)

    def _all(self) -> Iterator[Executor]:
        yield self._inner
        yield from self._executors.values()
