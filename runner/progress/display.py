"""The output of a command while it measures: progress on stdout, problems on stderr."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.observer import Observer
from keras_matrix.runner.plan.largest_batch import Try
from keras_matrix.runner.plan.plan import PlannedRepeat
from keras_matrix.runner.progress.largest import lines, tried_line
from keras_matrix.runner.progress.lines import progress

if TYPE_CHECKING:
    from keras_matrix.runner.plan.largest_batch import LargestFound


class TerminalDisplay:
    """Prints progress and problems; with `quiet`, as for --json, only the problems of the preflight."""

    def __init__(self, quiet: bool, problems: set[str] | None = None) -> None:
        self.quiet = quiet
        self._problems = set() if problems is None else problems

    @property
    def known_problems(self) -> Collection[str]:
        """The problems that have been printed in full."""
        return self._problems

    def say(self, text: str) -> None:
        """Print a text."""
        if not self.quiet:
            print(text, flush=True)

    def problems(self, lines: Iterable[str]) -> None:
        """Print each problem of the preflight once."""
        for line in lines:
            if line not in self._problems:
                print(f"preflight: {line}", file=sys.stderr)
            self._problems.add(line)

    def tried(self, cell: Cell, found: Try) -> None:
        """Print whether a batch size fitted."""
        if not self.quiet:
            print(tried_line(cell, found), file=sys.stderr, flush=True)

    def largest(self, found: LargestFound) -> None:
        """Print the largest batch that fits, of each cell."""
        self.say("\n".join(lines(found, self.known_problems)))

    def warn(self, text: str) -> None:
        """Print a warning on stderr."""
        print(f"runner: {text}", file=sys.stderr)

    def progress(
        self, repeats: Sequence[PlannedRepeat], pending: Sequence[PlannedRepeat], estimates_s: Mapping[str, float]
    ) -> AbstractContextManager[Observer]:
        """Return a context manager whose value prints the attempts of a session."""
        return progress(self.quiet, repeats, pending, estimates_s, self._problems)

    def of_a_try(self) -> TerminalDisplay:
        """Return the display for a try of a batch size: only problems are printed."""
        return TerminalDisplay(True, self._problems)
