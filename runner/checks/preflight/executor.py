"""An executor that starts no cell which the preflight refuses, and adds the preflight's warnings to the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from keras_matrix.records.schema import Status
from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.checks.preflight.cells import Preflight
from keras_matrix.runner.checks.preflight.rules import Problem
from keras_matrix.runner.executors import Executor, Outcome, Running, WaitingCell
from keras_matrix.runner.executors.supervise.watch import Never


class CheckedExecutor:
    """Another executor behind the preflight."""

    def __init__(self, inner: Executor, preflight: Preflight) -> None:
        self.name = inner.name
        self._inner, self._preflight = inner, preflight

    def missing(self, backend: str, device: str = "cpu") -> str | None:
        """Return why this backend cannot run here."""
        return self._inner.missing(backend, device)

    def begin_block(self, settings: Sequence[Settings]) -> None:
        """Begin a block."""
        self._inner.begin_block(settings)

    def await_block(self) -> None:
        """Wait until the block can begin."""
        self._inner.await_block()

    def start(self, job: Job, timeout_s: float) -> Running:
        """Start the job, unless the preflight refuses it."""
        problems = self._preflight.problems(job.settings, job.task)
        if job.task is not None:
            # The other executor refuses a command itself, with a record of the command.
            problems = tuple(one for one in problems if one.status is None)
        if refusing := [one for one in problems if one.status is not None]:
            return Never(_refused(refusing[0]))
        running = self._inner.start(job, timeout_s)
        return WithWarnings(running, tuple(map(str, problems))) if problems else running

    def close(self) -> None:
        """Close the other executor."""
        self._inner.close()


class WithWarnings:
    """A started process whose outcome gets warnings."""

    def __init__(self, inner: Running, warnings: tuple[str, ...]) -> None:
        self._inner, self._warnings = inner, warnings

    def calibrated(self) -> float | None:
        """Return the seconds of a step."""
        return self._inner.calibrated()

    def resume(self, steps: int) -> None:
        """Pass the steps per epoch on."""
        self._inner.resume(steps)

    def turn(self, waiting: Sequence[WaitingCell] = ()) -> bool:
        """Have the process go on."""
        return self._inner.turn(waiting)

    def root(self) -> int | None:
        """Return the process above all others of the cell."""
        return self._inner.root()

    def resident_bytes(self) -> int:
        """Return the memory of the process."""
        return self._inner.resident_bytes()

    def finish(self) -> Outcome:
        """Return the outcome with the warnings."""
        outcome = self._inner.finish()
        return replace(outcome, warnings=(*self._warnings, *outcome.warnings))

    def abandon(self) -> None:
        """End the process."""
        self._inner.abandon()


def _refused(problem: Problem) -> Outcome:
    text = str(problem)
    if problem.status is Status.UNSUPPORTED:
        return Outcome(refused=text)
    return Outcome(infrastructure=text) if problem.status is Status.INFRA else Outcome(missing_device=text)
