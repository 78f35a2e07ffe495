"""The events of a measurement, for displays, and those that store its progress and what each machine measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from keras_matrix.analysis.comparison.titles import titles
from keras_matrix.records.instruments import progress
from keras_matrix.records.instruments.progress import Placement, PlannedCell, Progress, RunningRepeat
from keras_matrix.records.schema import Record, Status
from keras_matrix.records.store import Run
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.plan.plan import PlannedRepeat


class Observer(Protocol):
    """Receives the events of a measurement."""

    def calibrating(self, cell: Cell) -> None:
        """The calibration of this cell's steps per epoch has begun."""

    def begun(self, planned: PlannedRepeat) -> None:
        """A repeat has begun."""

    def placed(self, repeats: Sequence[PlannedRepeat], machine: str) -> None:
        """These repeats are measured next, at this machine of a cluster."""

    def interleaving(self, repeats: Sequence[PlannedRepeat]) -> None:
        """These repeats have warmed up, and their measured epochs begin, interleaved."""

    def ended(self, planned: PlannedRepeat, record: Record) -> None:
        """An attempt has ended, and its record is published."""


class OpenRepeats:
    """The repeats that each machine of a cluster measures and has not ended."""

    def __init__(self) -> None:
        self._of: dict[str, set[tuple[str, str, int]]] = {}

    def begin(self, repeats: Sequence[PlannedRepeat], machine: str) -> list[str]:
        """Note what a machine measures; return other machines that have nothing left, as they were lost with these."""
        keys = {planned.key for planned in repeats}
        other_machines = [name for name, machine_keys in self._of.items() if name != machine and machine_keys & keys]
        self._of = {name: machine_keys - keys for name, machine_keys in self._of.items()} | {machine: keys}
        return [name for name in other_machines if not self._of[name]]

    def end(self, planned: PlannedRepeat) -> tuple[str | None, bool]:
        """Return the machine that has measured a repeat, None if unknown, and whether it has nothing left."""
        machine = next((name for name, machine_keys in self._of.items() if planned.key in machine_keys), None)
        if machine is None:
            return None, False
        self._of[machine].discard(planned.key)
        return machine, not self._of[machine]


class StoredPlacements:
    """Stores what each machine measures at the moment, for displays, and passes every event on.

    It is not safe for threads: `runner.measure.machines` gives it one event at a time.
    """

    def __init__(self, observer: Observer, run: Run, cells: Iterable[Cell], now: Callable[[], datetime]) -> None:
        """Store in the first run of the session, without a machine at first."""
        self._observer, self._run, self._now = observer, run, now
        settings = {cell.cell_id: cell.settings for cell in cells}
        self._titles = dict(zip(settings, titles(list(settings.values()), {}), strict=True))
        self._machines: dict[str, Placement] = {}
        self._open = OpenRepeats()
        self._store()

    def calibrating(self, cell: Cell) -> None:
        """Pass it on."""
        self._observer.calibrating(cell)

    def begun(self, planned: PlannedRepeat) -> None:
        """Pass it on."""
        self._observer.begun(planned)

    def placed(self, repeats: Sequence[PlannedRepeat], machine: str) -> None:
        """Store what the machine measures."""
        self._observer.placed(repeats, machine)
        first_repeat, placement = repeats[0], self._machines.get(machine, Placement(machine))
        arms_text = ", ".join(
            dict.fromkeys(f"{planned.cell.settings.backend} {planned.arm}".strip() for planned in repeats)
        )
        work_text = f"{self._titles[first_repeat.cell.cell_id]} #{first_repeat.repeat}: {arms_text}"
        since = self._now().isoformat(timespec="seconds")
        for name in self._open.begin(repeats, machine):
            self._machines[name] = replace(self._machines[name], work=None, since=None)
        self._machines[machine] = replace(placement, work=work_text, since=since)
        self._store()

    def interleaving(self, repeats: Sequence[PlannedRepeat]) -> None:
        """Pass it on."""
        self._observer.interleaving(repeats)

    def ended(self, planned: PlannedRepeat, record: Record) -> None:
        """Store that a machine has nothing to measure, once its last repeat has ended."""
        self._observer.ended(planned, record)
        machine, is_idle = self._open.end(planned)
        if machine is None:
            return
        placement = self._machines[machine]
        if record.status is not Status.INFRA:
            placement = replace(placement, host_id=record.place)
        if is_idle:
            placement = replace(placement, work=None, since=None)
        if placement != self._machines[machine]:
            self._machines[machine] = placement
            self._store()

    def _store(self) -> None:
        progress.keep_placements(self._run, progress.Placements(list(self._machines.values())))


# The file names every cell: a session of many stores it less often, so that storing takes a bounded share of it.
CELLS_STORED_AT_ONCE, CELLS_STORED_PER_S = 50, 100


class StoredProgress:
    """Stores how far a session is, for displays, and passes every event on. Not safe for threads either.

    A session of up to 50 cells stores every event; of more, at most one in as many seconds as it has hundreds of cells.
    """

    def __init__(self, observer: Observer, run: Run, cells: Sequence[PlannedCell], now: Callable[[], datetime]) -> None:
        """Store in the first run of the session, with nothing running at first."""
        self._observer, self._run = observer, run
        self._now, self._stored = now, now()
        self._started = self._stored.isoformat(timespec="seconds")
        self._pause_s = len(cells) / CELLS_STORED_PER_S if len(cells) > CELLS_STORED_AT_ONCE else 0.0
        self._cells = {(cell.arm, cell.cell_id): cell for cell in cells}
        self._running: dict[tuple[str, str, int], RunningRepeat] = {}
        self._keep()

    def calibrating(self, cell: Cell) -> None:
        """Pass it on."""
        self._observer.calibrating(cell)

    def begun(self, planned: PlannedRepeat) -> None:
        """Store that the repeat runs; one that was added counts as planned."""
        self._observer.begun(planned)
        self._begin([planned])

    def placed(self, repeats: Sequence[PlannedRepeat], machine: str) -> None:
        """Store that these repeats run."""
        self._observer.placed(repeats, machine)
        self._begin(repeats)

    def interleaving(self, repeats: Sequence[PlannedRepeat]) -> None:
        """Pass it on; nothing is written while epochs are measured."""
        self._observer.interleaving(repeats)

    def ended(self, planned: PlannedRepeat, record: Record) -> None:
        """Store that the repeat does not run any more."""
        self._observer.ended(planned, record)
        if self._running.pop(planned.key, None) is not None:
            self._store()

    def _begin(self, repeats: Iterable[PlannedRepeat]) -> None:
        for planned in repeats:
            arm, cell_id, repeat = planned.key
            if cell := self._cells.get((arm, cell_id)):
                self._cells[arm, cell_id] = replace(cell, planned=max(cell.planned, repeat + 1))
            self._running[planned.key] = RunningRepeat(cell_id, arm, repeat)
        self._store()

    def _store(self) -> None:
        if abs((self._now() - self._stored).total_seconds()) >= self._pause_s:  # also after the clock was set back
            self._keep()

    def _keep(self) -> None:
        self._stored = self._now()
        progress.keep(self._run, Progress(self._started, list(self._cells.values()), list(self._running.values())))


def planned_cells(repeats: Sequence[PlannedRepeat], expected_s: Mapping[str, float]) -> list[PlannedCell]:
    """Return the cells of a plan by arm, in the order of the plan, with the duration that is expected of a repeat."""
    cell_by_arm: dict[tuple[str, str], PlannedCell] = {}
    settings = {planned.cell.cell_id: planned.cell.settings for planned in repeats}
    names = dict(zip(settings, titles(list(settings.values()), {}), strict=True))
    for arm, cell_id, repeat in (planned.key for planned in repeats):
        cell = cell_by_arm.get((arm, cell_id)) or PlannedCell(
            cell_id, settings[cell_id].backend, arm, names[cell_id], 0, expected_s.get(cell_id)
        )
        cell_by_arm[arm, cell_id] = replace(cell, planned=max(cell.planned, repeat + 1))
    return list(cell_by_arm.values())


@contextmanager
def stored_progress(
    observer: Observer, run: Run, cells: Sequence[PlannedCell], now: Callable[[], datetime]
) -> Iterator[Observer]:
    """Yield an observer that stores the progress in a run, and remove it at the end."""
    try:
        yield StoredProgress(observer, run, cells, now)
    finally:
        progress.remove(run)
