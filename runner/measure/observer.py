"""The events of a measurement, for displays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from keras_matrix.records.schema import Record
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
