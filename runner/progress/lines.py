"""Live progress: a bar on a terminal, plain lines otherwise, nothing with --json.

The bar is redrawn once a second, because the runner must not use the CPU while a cell runs.

Without a terminal a line is printed when an attempt ends; fine-tuning takes minutes until then. What a process does is
printed after `FIRST_S`, and again whenever its time has doubled: seven lines an hour. Short states print nothing.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from keras_matrix.records.host.streams import discard
from keras_matrix.records.schema import Record, Status
from keras_matrix.records.text import duration, printable
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.observer import Observer
from keras_matrix.runner.plan.plan import PlannedRepeat
from keras_matrix.runner.progress.attempt_text import CellNames, OutcomeText
from keras_matrix.runner.progress.time_left import TimeLeft

FIRST_S = 15.0
POLL_S = 5.0  # a wake-up that reads a clock: the runner must not use the CPU while a cell runs


class Silent:
    """Prints nothing."""

    def calibrating(self, cell: Cell) -> None:
        """A cell is calibrated."""

    def begun(self, planned: PlannedRepeat) -> None:
        """A repeat begins."""

    def placed(self, repeats: Sequence[PlannedRepeat], machine: str) -> None:
        """The repeats of a block are measured at a machine of a cluster."""

    def interleaving(self, repeats: Sequence[PlannedRepeat]) -> None:
        """The repeats of a block are interleaved."""

    def ended(self, planned: PlannedRepeat, record: Record) -> None:
        """An attempt has ended."""


class AttemptLines(Silent):
    """Prints one line per attempt when it ends, for logs and pipes."""

    def __init__(self, total: int, done: int, left: TimeLeft, outcomes: OutcomeText, names: CellNames) -> None:
        self._names = names
        self._total = total
        self._done = done
        self._left = left
        self._outcomes = outcomes
        self._machines: dict[tuple[str, str, int], str] = {}
        self.states = LongStates()

    def begun(self, planned: PlannedRepeat) -> None:
        """Count the time from now on."""
        self._left.begun(planned)
        self.states.enter(f"preparing {self._names.label(planned)}")

    def interleaving(self, repeats: Sequence[PlannedRepeat]) -> None:
        """Remember what is measured."""
        self.states.enter(f"measuring {', '.join(map(self._names.label, repeats))}")

    def placed(self, repeats: Sequence[PlannedRepeat], machine: str) -> None:
        """Remember where repeats are measured."""
        for planned in repeats:
            self._left.begun(planned)
        self.states.enter(f"measuring {self._names.label(repeats[0])} at {machine}")
        self._machines.update((planned.key, f" at {machine}") for planned in repeats)

    def calibrating(self, cell: Cell) -> None:
        """Print which cell is being calibrated."""
        self._left.runs(cell)
        self.states.enter(f"calibrating {self._names.of(cell)}")
        _say(f"        calibrating {self._names.of(cell)}")

    def ended(self, planned: PlannedRepeat, record: Record) -> None:
        """Print how an attempt ended."""
        self.states.enter("")
        counted = self._left.ended(planned, record.status)
        if self._outcomes.is_known(record):
            return
        self._done += counted
        again = record.status is not Status.INFRA and not counted
        total = left = ""
        if self._done <= self._total:  # beyond are repeats that were added, of which the number is not known
            total = f"/{self._total}"
        if self._done < self._total:  # at the end nothing is left, or what is measured again, which is not known yet
            left = f"   ({duration(self._left.seconds())} left)"
        note = "   (measured again)" if again else left
        label, outcome = self._names.label(planned), self._outcomes.result(record)
        where = self._machines.get(planned.key, "")
        _say(f"{self._done:4d}{total} {label}{where}: {outcome}{note}")


def _say(line: str) -> None:
    """Print a line; once the reader has closed the pipe, as in `runner | head`, print nothing more."""
    try:
        print(printable(line, " "), flush=True)
    except BrokenPipeError:
        discard(sys.stdout)


@contextmanager
def progress(
    silent: bool,
    repeats: Sequence[PlannedRepeat],
    pending: Sequence[PlannedRepeat],
    estimates_s: Mapping[str, float],
    printed: Collection[str] = (),
) -> Iterator[Observer]:
    """Yield the observer for this output; `printed` are the problems that the preflight has printed."""
    left = TimeLeft(estimates_s, pending)
    done = len(repeats) - len(pending)
    if silent:
        yield Silent()
        return
    names = CellNames(repeats)
    if not sys.stdout.isatty():
        lines = AttemptLines(len(repeats), done, left, OutcomeText(printed), names)
        with printing(lines.states, _say):
            yield lines
    else:
        from keras_matrix.runner.progress.live import live

        with live(len(repeats), done, (left, OutcomeText(printed), names)) as observer:
            yield observer


class LongStates:
    """The state of a measurement, and when it is to be printed next. Two threads may use it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._text, self._begun_s, self._next_s = "", 0.0, FIRST_S

    def enter(self, text: str) -> None:
        """Begin a state; an empty text means that nothing runs."""
        with self._lock:
            self._text, self._begun_s, self._next_s = text, self._clock(), FIRST_S

    def due(self) -> str | None:
        """Return the line to print now; None if it is too early."""
        with self._lock:
            lasted_s = self._clock() - self._begun_s
            if not self._text or lasted_s < self._next_s:
                return None
            self._next_s = 2 * lasted_s
            return f"        {self._text}, {duration(lasted_s)} so far"


@contextmanager
def printing(states: LongStates, say: Callable[[str], None]) -> Iterator[None]:
    """Within, print the lines of long states when they are due."""
    ended = threading.Event()

    def poll() -> None:
        while not ended.wait(POLL_S):
            if line := states.due():
                say(line)

    thread = threading.Thread(target=poll, name="long states", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
