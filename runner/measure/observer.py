"""The events of a measurement, for displays, and the one that stores what each machine of a cluster measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from keras_matrix.analysis.comparison.titles import titles
from keras_matrix.records.instruments import placements
from keras_matrix.records.instruments.placements import Placement
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
        before = [name for name, own in self._of.items() if name != machine and own & keys]
        self._of = {name: own - keys for name, own in self._of.items()} | {machine: keys}
        return [name for name in before if not self._of[name]]

    def end(self, planned: PlannedRepeat) -> tuple[str | None, bool]:
        """Return the machine that has measured a repeat, None if unknown, and whether it has nothing left."""
        machine = next((name for name, own in self._of.items() if planned.key in own), None)
        if machine is None:
            return None, False
        self._of[machine].discard(planned.key)
        return machine, not self._of[machine]


class StoredPlacements:
    """Stores what each machine measures at the moment, for displays, and passes every event on.

    It is not safe for threads: `runner.measure.machines.concurrent` gives it one event at a time.
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
        first, known = repeats[0], self._machines.get(machine, Placement(machine))
        arms = ", ".join(dict.fromkeys(f"{one.cell.settings.backend} {one.arm}".strip() for one in repeats))
        work = f"{self._titles[first.cell.cell_id]} #{first.repeat}: {arms}"
        since = self._now().isoformat(timespec="seconds")
        for name in self._open.begin(repeats, machine):
            self._machines[name] = replace(self._machines[name], work=None, since=None)
        self._machines[machine] = replace(known, work=work, since=since)
        self._store()

    def interleaving(self, repeats: Sequence[PlannedRepeat]) -> None:
        """Pass it on."""
        self._observer.interleaving(repeats)

    def ended(self, planned: PlannedRepeat, record: Record) -> None:
        """Store that a machine has nothing to measure, once its last repeat has ended."""
        self._observer.ended(planned, record)
        machine, idle = self._open.end(planned)
        if machine is None:
            return
        known = self._machines[machine]
        if record.status is not Status.INFRA:
            known = replace(known, host_id=record.place)
        if idle:
            known = replace(known, work=None, since=None)
        if known != self._machines[machine]:
            self._machines[machine] = known
            self._store()

    def _store(self) -> None:
        placements.keep(self._run, placements.Placements(list(self._machines.values())))
