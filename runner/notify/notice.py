"""Which notifications are due for a history, given those that were sent, and the content of one of them. Pure.

A change point keeps its thread while its position moves by at most `MOVES` sessions, which is less than the shortest
distance of two; the oldest of several threads of one change point counts, the others are duplicates. A thread that a
person closed stays closed. One whose change point is no longer found is closed only if a rule with a lower threshold
does not find it either: a change near the threshold is found on some nights and not on others.

What the traces on both sides of a change show, if both sides have one.
"""

from __future__ import annotations

import hashlib
import math
import shlex
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from keras_matrix.analysis.findings import likely_owner
from keras_matrix.analysis.history.change_points import (
    MOVES,
    PACKAGES,
    Assessment,
    Change,
    ChangeKind,
    VersionChange,
    change_points,
    kind_of,
    packages_around,
    slowdown,
)
from keras_matrix.analysis.history.sessions import History
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.traces import OperationShift, largest_shifts
from keras_matrix.analysis.views.history_view import ChangeView, HistoryView
from keras_matrix.dashboards.charts.time_series import date
from keras_matrix.records.backends import KERAS_HUB
from keras_matrix.records.codec import canonical
from keras_matrix.records.history_reader import Past, PastRun
from keras_matrix.records.store import Run
from keras_matrix.records.task import PREFIX
from keras_matrix.records.text import Unit, percent_change, plural, quantity, unit_for
from keras_matrix.records.traces.request import TraceError
from keras_matrix.records.traces.table import TraceSummary
from keras_matrix.runner.measure.traces import FOLDER, stored_traces, table_of

GROWS_BY, GROWS_AT_LEAST = 1.25, 0.02
GONE_BELOW = 2.8


@dataclass(frozen=True, slots=True)
class About:
    """What is known about a history besides its sessions: its owner, its page, and what its traces show.

    `settings` are those that distinguish the cell in a matrix, as in `batch_size=32`. `shifts` is None unless a session
    on either side of the change has a trace.
    """

    settings: Sequence[str] = ()
    owner: str | None = None
    page: str | None = None
    shifts: Sequence[OperationShift] | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """One event of a history with all that is stated about it."""

    due: Due
    view: HistoryView
    about: About

    @property
    def history(self) -> History:
        """Return the sessions."""
        return self.view.history

    @property
    def change(self) -> Change:
        """Return the change point. Only events about one have it."""
        return self._shown.change

    @property
    def _shown(self) -> ChangeView:
        view = self.view.change_at(self.due.change.run_id) if self.due.change else None
        assert view is not None
        return view

    @property
    def run_id(self) -> str:
        """Return the session that names the thread of notifications."""
        return self.due.thread.run_id if self.due.thread else self.change.run_id

    @property
    def sides(self) -> tuple[Estimate, Estimate]:
        """Return the levels before and after the change."""
        return self._shown.before, self._shown.after

    @property
    def searches(self) -> tuple[str, ...]:
        """Return the commands that search the version which caused the change."""
        return self._shown.searches

    @property
    def unit(self) -> Unit:
        """Return the unit in which values of this history are shown."""
        figure, baseline = self.history.figure, self.view.baseline
        return unit_for([baseline.value.centre]) if baseline and figure.unit == "s" else Unit(figure.unit, 1.0)

    @property
    def size(self) -> str:
        """Return the shift of the figure, as in `time per step +10.3 %`."""
        return f"{self.history.figure.name} {percent_change(self.change.ratio or 1.0)}"

    @property
    def likely(self) -> str:
        """Return who probably knows about the change, by what changed there."""
        return likely_owner(self.change.versions)


def summary(notice: Notice) -> str:
    """Return the notification in one sentence."""
    title, due = notice.view.title, notice.due
    if due.event is Event.GONE:
        sessions = plural(len(notice.history.valued), "session")
        return f"{title}: with {sessions}, no change is found at {notice.run_id} any more; it was scatter"
    before, after = (quantity(side.centre, notice.unit) for side in notice.sides)
    change = notice.change
    size_sentence = f"{notice.size} since {change.run_id} ({date(change.run_id)}), {before} -> {after}"
    text_by_event = {
        Event.OPENED: size_sentence,
        Event.GROWN: f"the change has grown: {size_sentence}",
        Event.RECOVERED: f"recovered: no longer worse since {change.repaired}; the change was {size_sentence}",
        Event.INTENDED: f"the change is intended: {change.note}",
        Event.REOPENED: f"not over after all: {size_sentence}",
        Event.DUPLICATE: f"duplicate of #{due.original.number if due.original else 0}",
    }
    return f"{title}: {text_by_event[due.event]}"


def commands(notice: Notice) -> list[str]:
    """Return the commands that show the change, measure it again and find its cause.

    If packages differ: both sides in one session, and a search over the versions of each package that became newer.
    """
    history = notice.history
    lines = [f"runner history {history.cell_id}"]
    workload, backend = (str(history.settings.get(name, "")) for name in ("workload", "backend"))
    before, after = packages_around(notice.view.assessed, notice.change)
    if before == after or workload.startswith(PREFIX):
        return lines
    for name, packages in (("base", before), ("new", after)):
        python_name = "python" + ".".join(packages.pop("python", "3").split(".")[:2])
        hub = packages.pop(KERAS_HUB, None)  # with what it requires, pip would install another TensorFlow
        requirements_text = " ".join(shlex.quote(f"{package}=={version}") for package, version in packages.items())
        lines.append(f"{python_name} -m venv {name} && {name}/bin/pip install {requirements_text}")
        if hub is not None:
            hub_requirement = shlex.quote(f"{KERAS_HUB}=={hub}")
            lines.append(
                f"{name}/bin/pip install --no-deps {hub_requirement}  # and what it requires: docs/language-models.md"
            )
    selecting = (f"workload={workload}", f"backend={backend}", *notice.about.settings)
    filters_text = " ".join(f"--filter {shlex.quote(filter_text)}" for filter_text in selecting)
    return [*lines, f"runner gate --base-env base --new-env new {filters_text}", *notice.searches]


def machine_changes(notice: Notice) -> list[VersionChange]:
    """Return what changed there and is not part of an environment, so that `runner gate` cannot show its share."""
    return [change for change in notice.change.versions if change.name not in PACKAGES]


class Event(StrEnum):
    """What a notification says about a change point."""

    OPENED = "opened"
    GROWN = "grown"
    RECOVERED = "recovered"
    INTENDED = "intended"
    GONE = "gone"
    REOPENED = "reopened"
    DUPLICATE = "duplicate"


CLOSING = frozenset({Event.RECOVERED, Event.INTENDED, Event.GONE, Event.DUPLICATE})


@dataclass(frozen=True, slots=True)
class Thread:
    """What was sent about one change point: at `run_id`, last the event `last`, which stated `slower_by`.

    `number` grows with time; `events` counts what was sent. A thread without `is_open` after an event that closes none
    was closed by a person.
    """

    number: int
    history: str
    run_id: str
    slower_by: float
    last: Event
    events: int
    is_open: bool


@dataclass(frozen=True, slots=True)
class Due:
    """An event to notify of. `thread` is None for a new one, `change` if it is no longer found.

    `original` is the thread of which a duplicate is one.
    """

    event: Event
    assessed: Assessment
    change: Change | None = None
    thread: Thread | None = None
    original: Thread | None = None

    @property
    def slower_by(self) -> float:
        """Return the factor that the notification states."""
        if self.change is not None:
            return slowdown(self.change, self.assessed.history.figure.goal)
        return self.thread.slower_by if self.thread else 1.0


def history_key(history: History) -> str:
    """Return what identifies a history: 16 hex digits of the hash of its cell, host and device."""
    place = [history.cell_id, history.host_id, list(history.device) if history.device else None]
    return hashlib.sha256(canonical(place).encode(errors="surrogatepass")).hexdigest()[:16]


def due(assessment: Assessment, threads: Sequence[Thread]) -> list[Due]:
    """Return what is to be sent about a history, in the order of its changes."""
    key, goal = history_key(assessment.history), assessment.history.figure.goal
    own_threads = sorted((thread for thread in threads if thread.history == key), key=lambda thread: thread.number)
    changes = [change for change in assessment.changes if kind_of(change, goal) is not ChangeKind.FASTER]
    nearest = {thread.number: _nearest(assessment, changes, thread) for thread in own_threads}
    events_due: list[Due] = []
    for change in changes:
        same_change = [thread for thread in own_threads if nearest[thread.number] is change]
        event = _event(assessment, change, same_change[0] if same_change else None)
        if event is not None:
            events_due.append(Due(event, assessment, change, same_change[0] if same_change else None))
        events_due += [
            Due(Event.DUPLICATE, assessment, change, duplicate, same_change[0])
            for duplicate in same_change[1:]
            if duplicate.is_open
        ]
    lost = [thread for thread in own_threads if nearest[thread.number] is None]
    return events_due + [Due(Event.GONE, assessment, thread=thread) for thread in lost if _is_gone(assessment, thread)]


def duplicates(assessment: Assessment, threads: Sequence[Thread]) -> Iterator[Due]:
    """Yield the threads that another runner opened at the same time for a change point that already has one."""
    return (due_event for due_event in due(assessment, threads) if due_event.event is Event.DUPLICATE)


def _event(assessment: Assessment, change: Change, thread: Thread | None) -> Event | None:
    kind, goal = kind_of(change, assessment.history.figure.goal), assessment.history.figure.goal
    if thread is None:
        return Event.OPENED if kind is ChangeKind.SLOWER else None
    if kind is ChangeKind.SLOWER and not thread.is_open:
        return Event.REOPENED if thread.last in CLOSING - {Event.DUPLICATE} else None
    if not thread.is_open or thread.last in CLOSING:  # if open nevertheless, a person reopened it
        return None
    closes = {ChangeKind.REPAIRED: Event.RECOVERED, ChangeKind.INTENDED: Event.INTENDED}
    if kind is ChangeKind.SLOWER:
        return Event.GROWN if _has_grown(thread.slower_by, slowdown(change, goal)) else None
    return closes.get(kind)


def _has_grown(before: float, after: float) -> bool:
    return after / before - 1 >= GROWS_AT_LEAST and math.log(after) >= GROWS_BY * math.log(before)


def _nearest(assessment: Assessment, changes: Sequence[Change], thread: Thread) -> Change | None:
    position = bisect_left([session.run_id for session in assessment.history.valued], thread.run_id)
    near_changes = [change for change in changes if abs(change.index - position) <= MOVES]
    return min(near_changes, key=lambda change: abs(change.index - position), default=None)


def _is_gone(assessment: Assessment, thread: Thread) -> bool:
    run_ids = [session.run_id for session in assessment.history.valued]
    if not thread.is_open or thread.last in CLOSING or thread.run_id not in run_ids:
        return False
    position = run_ids.index(thread.run_id)
    return not any(abs(index - position) <= MOVES for index in change_points(assessment.history.logs, GONE_BELOW))


def shifts_of(past: Past, assessment: Assessment, change: Change) -> list[OperationShift] | None:
    """Return the operations whose time differs most between the newest traces of both levels; None without two."""
    position = [level.first for level in assessment.levels].index(change.index)
    tables = []
    for level in assessment.levels[position - 1 : position + 1]:
        run_ids = {session.run_id for session in assessment.history.valued[level.first : level.last + 1]}
        ordered = (run for run in reversed(past.runs) if run.run_id in run_ids)
        tables.append(next((table for run in ordered if (table := _table(run, assessment))), None))
    before, after = tables
    return largest_shifts(before, after) if before and after else None


def _table(run: PastRun, assessment: Assessment) -> TraceSummary | None:
    stored_run = Run(run.root / run.run_id)
    if not any((stored_run.folder / FOLDER).glob(f"{assessment.history.cell_id}.*")):
        return None
    for record, path in stored_traces(stored_run, stored_run.load()[0]):
        if (record.cell_id, record.machine.host_id) == (assessment.history.cell_id, assessment.history.host_id):
            with suppress(TraceError):
                return table_of(path)
    return None
