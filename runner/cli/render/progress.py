"""Live progress: a bar where there is a terminal, plain lines where there is none, nothing where JSON is asked for.

It redraws once a second: while a cell runs the runner must leave the CPU alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from keras_matrix.records.schema import Record, Status
from keras_matrix.runner.cli.render.attempt_text import TimeLeft, Told, label, name
from keras_matrix.runner.cli.render.format import duration

if TYPE_CHECKING:
    from keras_matrix.runner.matrix.reader import Cell
    from keras_matrix.runner.measure.scheduler import Observer
    from keras_matrix.runner.plan.plan import PlannedRepeat


class Silent:
    """Says nothing."""

    def calibrating(self, cell: Cell) -> None:
        """Say nothing."""

    def begun(self, planned: PlannedRepeat) -> None:
        """Say nothing."""

    def interleaving(self, repeats: Sequence[PlannedRepeat]) -> None:
        """Say nothing."""

    def ended(self, planned: PlannedRepeat, record: Record) -> None:
        """Say nothing."""


class Lines:
    """One line per attempt: for logs and pipes."""

    def __init__(self, total: int, done: int, left: TimeLeft, told: Told) -> None:
        self._total = total
        self._done = done
        self._left = left
        self._told = told

    def calibrating(self, cell: Cell) -> None:
        """Name what is calibrated."""
        _say(f"        calibrating {name(cell)}")

    def begun(self, planned: PlannedRepeat) -> None:
        """Say nothing: the end says all."""

    def interleaving(self, repeats: Sequence[PlannedRepeat]) -> None:
        """Say nothing: the end says all."""

    def ended(self, planned: PlannedRepeat, record: Record) -> None:
        """Print how an attempt ended."""
        counted = record.status is not Status.INFRA and self._left.done(planned)
        self._done += counted
        again = record.status is not Status.INFRA and not counted
        # Beyond what was planned are repeats that were added: how many more, nobody knows.
        left = f"   ({duration(self._left.seconds())} left)" if self._done <= self._total else ""
        told = "   (measured again)" if again else left
        _say(f"{self._done:4d}/{max(self._done, self._total)} {label(planned)}: {self._told.result(record)}{told}")


def _say(line: str) -> None:
    """Print a line; go on measuring in silence when nobody reads any more, as under `runner | head`."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def progress(
    silent: bool,
    repeats: Sequence[PlannedRepeat],
    pending: Sequence[PlannedRepeat],
    estimates_s: Mapping[str, float],
    printed: Collection[str] = (),
) -> Iterator[Observer]:
    """Yield the observer that suits where the output goes; `printed` are problems that the preflight has printed."""
    left = TimeLeft(estimates_s, pending)
    done = len(repeats) - len(pending)
    if silent:
        yield Silent()
    elif not sys.stdout.isatty():
        yield Lines(len(repeats), done, left, Told(printed))
    else:
        from keras_matrix.runner.cli.render.live import live

        with live(len(repeats), done, left, Told(printed)) as observer:
            yield observer
