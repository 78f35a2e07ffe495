"""Sources of the application's answers: a state of the data that a full page shares, and its description.

Live          a warehouse with free queries: the local one, which gets the runs that have ended
Refreshed     a snapshot of a warehouse with costs (`dashboards.live.app.refreshed`)
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from keras_matrix.dashboards.live import page
from keras_matrix.dashboards.live.questions import EARLIEST_DAY, Reader
from keras_matrix.dashboards.live.session import MeasuredSession
from keras_matrix.records import findings
from keras_matrix.records.store import FINISHED, Problem, Results, Run
from keras_matrix.records.store_failure import StoreFailure
from keras_matrix.records.text import plural, printable
from keras_matrix.uploader.errors import UploadError
from keras_matrix.uploader.warehouse import Warehouse

FRESH_S = 30.0  # between two queries of a warehouse into which others may have sent rows
LOOK_S = 1.0  # between two looks at the files of a results folder
RUNS_READ = 50  # newest runs whose files are read, to name those that cannot be: as many as a site has pages of
LINES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Edition:
    """One state of the data. Editions with equal numbers give equal answers; `since` is the first available day.

    `empty` explains an edition without runs, `session` returns the session that is being measured.
    """

    reader: Reader
    number: int
    origin: str
    since: str = EARLIEST_DAY
    notices: tuple[str, ...] = ()
    empty: Callable[[], str] = lambda: page.EMPTY
    session: Callable[[], MeasuredSession | None] = lambda: None


class PageSource(Protocol):
    """Provides the edition of each page."""

    @property
    def address(self) -> str:
        """The address of the warehouse."""

    def edition(self) -> Edition:
        """Return the current edition. Raises `UploadError` if it is not available."""

    def peek(self) -> Edition | None:
        """Return the edition for the health check, None before the first visit. Causes no costs."""


@dataclass(slots=True)
class EndedRuns:
    """Sends the runs of a results folder that have ended since the last look."""

    results: Path
    send: Callable[[], None]
    _sent: frozenset[tuple[str, int]] | None = None

    def __call__(self) -> bool:
        """Send what has ended; return whether there was anything. Raises `UploadError` or `StoreFailure`."""
        ended_runs = self._ended()
        if ended_runs == self._sent:
            return False
        self.send()
        self._sent = ended_runs
        return True

    def _ended(self) -> frozenset[tuple[str, int]]:
        """Return the files that say that a run has ended and what it found, each with its time of change."""
        ended_runs = set()
        for run in Results(self.results).runs():
            for name in (FINISHED, findings.FILE):
                with contextlib.suppress(OSError):
                    ended_runs.add((f"{run.run_id}/{name}", (run.folder / name).stat().st_mtime_ns))
        return frozenset(ended_runs)


@dataclass(slots=True)
class UnreadFiles:
    """Lists what cannot be read in a results folder: what has the name of a run and is none, and the records and
    findings of its newest runs. A run is read once, and again when one of these files is new or has changed."""

    results: Path
    _read: dict[str, tuple[frozenset[tuple[str, int, int]], tuple[str, ...]]] = field(default_factory=dict)

    def __call__(self) -> tuple[str, ...]:
        """Return a line for each, by its path in the folder. Raises `StoreFailure` for a folder that is not listed."""
        results = Results(self.results)
        lines = [self._line(problem) for problem in results.left_out()]
        read_by_run = {}
        for run in results.runs()[-RUNS_READ:]:
            state, previous_read = _files_of(run), self._read.get(run.run_id)
            read_by_run[run.run_id] = (
                previous_read if previous_read is not None and previous_read[0] == state else (state, self._lines(run))
            )
            lines += read_by_run[run.run_id][1]
        self._read = read_by_run
        more_line = [f"and {plural(len(lines) - LINES_SHOWN, 'other file')}"] if len(lines) > LINES_SHOWN else []
        return (*lines[:LINES_SHOWN], *more_line)

    def _lines(self, run: Run) -> tuple[str, ...]:
        try:
            lines = [self._line(problem) for problem in run.load()[1]]
            findings.load(run)
        except StoreFailure as error:
            return (printable(str(error).removeprefix(f"{self.results}/"), " "),)
        return tuple(lines)

    def _line(self, problem: Problem) -> str:
        return printable(f"{problem.path.relative_to(self.results).as_posix()}: {problem.reason}", " ")


def _files_of(run: Run) -> frozenset[tuple[str, int, int]]:
    """Return the name, size and time of change of each record and of the findings."""
    paths = [*(run.folder / "records").glob("*.json"), run.folder / findings.FILE]
    states = set()
    for path in paths:
        with contextlib.suppress(OSError):
            state = path.lstat()
            states.add((path.name, state.st_size, state.st_mtime_ns))
    return frozenset(states)


@dataclass(slots=True)
class Live:
    """A warehouse that is queried directly, at most once in `FRESH_S` for the same question.

    At most once in `LOOK_S`, while there are visitors, `update` sends it the runs that have ended, and says whether
    there were any: then every question is asked anew. `session` is read as often. With each new number, `unread` lists
    the files that cannot be read.
    """

    warehouse: Warehouse
    since: str = EARLIEST_DAY
    empty: Callable[[], str] = lambda: page.EMPTY
    clock: Callable[[], float] = time.monotonic
    session: Callable[[], MeasuredSession | None] = lambda: None
    update: Callable[[], bool] = lambda: False
    unread: Callable[[], tuple[str, ...]] = tuple
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _number: int = 0
    _began_s: float | None = None
    _looked_s: float | None = None
    _session: MeasuredSession | None = None
    _notices: tuple[str, ...] = ()
    _not_read: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """The address of the warehouse."""
        return self.warehouse.address

    def edition(self) -> Edition:
        """Return the warehouse, with a new number after `FRESH_S`, and when runs were sent."""
        with self._lock:
            now_s = self.clock()
            is_sent = False
            if self._looked_s is None or now_s - self._looked_s >= LOOK_S:
                is_sent, self._looked_s = self._updated(), now_s
                self._session = self.session()
            if is_sent or self._began_s is None or now_s - self._began_s >= FRESH_S:
                self._began_s, self._number = now_s, self._number + 1
                self._not_read = self._listed()
            number, session, notices = self._number, self._session, (*self._notices, *self._not_read)
        origin_text = f"Read from {self.address}."
        return Edition(self.warehouse, number, origin_text, self.since, notices, self.empty, lambda: session)

    def _updated(self) -> bool:
        """Send the runs that have ended; if that fails, the pages say why, and it is tried again."""
        try:
            was_sent = self.update()
        except (UploadError, StoreFailure) as error:
            self._notices = (f"Runs that have ended since cannot be shown: {error}",)
            return False
        self._notices = ()
        return was_sent

    def _listed(self) -> tuple[str, ...]:
        """Return a notice for each file that cannot be read."""
        try:
            return tuple(f"Not read: {line}" for line in self.unread())
        except (StoreFailure, OSError) as error:
            return (f"Not read: {error}",)

    def peek(self) -> Edition:
        """Return the current edition: queries are free."""
        return self.edition()
