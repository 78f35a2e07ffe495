"""The output of a command while it measures: progress on stdout, problems on stderr; nothing with --json.

On a terminal there is a bar, otherwise plain lines.
The bar is redrawn once a second, because the runner must not use the CPU while a cell runs.

Without a terminal a line is printed when an attempt ends; fine-tuning takes minutes until then. What a process does is
printed after `FIRST_S`, and again whenever its time has doubled: seven lines an hour. Short states print nothing.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from keras_matrix.records.host.streams import discard
from keras_matrix.records.schema import Record, Status
from keras_matrix.records.text import bytes_text, duration, printable
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.matrix.settings_text import settings_text
from keras_matrix.runner.measure.observer import Observer
from keras_matrix.runner.plan.largest_batch import LargestCell, LargestFound, Try
from keras_matrix.runner.plan.plan import PlannedRepeat
from keras_matrix.runner.progress.time_left import CellNames, OutcomeText, TimeLeft

FIRST_S = 15.0
POLL_S = 5.0  # a wake-up that reads a clock: the runner must not use the CPU while a cell runs


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

    def tried(self, cell: Cell, trial: Try) -> None:
        """Print whether a batch size fitted."""
        if not self.quiet:
            print(tried_line(cell, trial), file=sys.stderr, flush=True)

    def largest(self, largest: LargestFound) -> None:
        """Print the largest batch that fits, of each cell."""
        self.say("\n".join(lines(largest, self.known_problems)))

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

    def __init__(
        self, total: int, done_count: int, time_left: TimeLeft, outcomes: OutcomeText, names: CellNames
    ) -> None:
        self._names = names
        self._total = total
        self._done = done_count
        self._left = time_left
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
        is_counted = self._left.ended(planned, record.status)
        if self._outcomes.is_known(record):
            return
        self._done += is_counted
        is_measured_again = record.status is not Status.INFRA and not is_counted
        total_text = left_text = ""
        if self._done <= self._total:  # beyond are repeats that were added, of which the number is not known
            total_text = f"/{self._total}"
        if self._done < self._total:  # at the end nothing is left, or what is measured again, which is not known yet
            left_text = f"   ({duration(self._left.seconds())} left)"
        note_text = "   (measured again)" if is_measured_again else left_text
        label, outcome_text = self._names.label(planned), self._outcomes.result(record)
        place_text = self._machines.get(planned.key, "")
        _say(f"{self._done:4d}{total_text} {label}{place_text}: {outcome_text}{note_text}")


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
    time_left = TimeLeft(estimates_s, pending)
    done_count = len(repeats) - len(pending)
    if silent:
        yield Silent()
        return
    names = CellNames(repeats)
    if not sys.stdout.isatty():
        lines = AttemptLines(len(repeats), done_count, time_left, OutcomeText(printed), names)
        with printing(lines.states, _say):
            yield lines
    else:
        from keras_matrix.runner.progress.live import live

        with live(len(repeats), done_count, (time_left, OutcomeText(printed), names)) as observer:
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
    end_event = threading.Event()

    def poll() -> None:
        while not end_event.wait(POLL_S):
            if line := states.due():
                say(line)

    thread = threading.Thread(target=poll, name="long states", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end_event.set()
        thread.join()


def lines(largest: LargestFound, printed: Collection[str] = ()) -> list[str]:
    """Return a heading, and a line with the result of each cell."""
    largest_by_cell = {largest_cell.planned: largest_cell for largest_cell in largest.found}
    origin_text = ", as found by the run that is continued" if largest.by_earlier_start else ""
    heading = f"largest batch that fits{origin_text}:"
    return [heading, *(line(cell_name(cell), largest_by_cell[cell.cell_id], printed) for cell in largest.cells)]


def line(name: str, largest_cell: LargestCell, printed: Collection[str] = ()) -> str:
    """Return the result of a cell as text; of a problem that was printed in full, only the name."""
    if largest_cell.stopped:
        status, _, reason = largest_cell.stopped.partition(": ")
        stopped = f"{status}: {reason.partition(':')[0]}" if reason in printed else largest_cell.stopped
        return f"{name}  stopped at batch {largest_cell.batch_size}: {stopped}"
    if largest_cell.largest is None:
        return f"{name}  batch 1 does not fit; use fewer samples, a smaller model or more memory"
    too_large = largest_cell.smallest_too_large or "none tried"
    memory = bytes_text(largest_cell.peak_memory_bytes)
    return (
        f"{name}  fits {largest_cell.largest}  too large {too_large}  peak memory {memory}  tries {largest_cell.tries}"
    )


def cell_name(cell: Cell) -> str:
    """Return the backend and the cell, without its batch size, which is searched."""
    return f"{cell.settings.backend:<10}  {_cell_text(cell)}"


def tried_line(cell: Cell, batch_try: Try) -> str:
    """Return how a try of a batch size ended."""
    ending_text = (
        f"fits, peak memory {bytes_text(batch_try.peak_memory_bytes)}" if batch_try.fits else f"{batch_try.status}"
    )
    return f"trying {cell.settings.backend} {_cell_text(cell)} batch {batch_try.batch_size}: {ending_text}"


def _cell_text(cell: Cell) -> str:
    return settings_text(cell.settings, omitted_names=("batch_size",))
