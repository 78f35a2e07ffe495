"""Texts of the progress lines: short names of repeats, and outcomes of attempts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from keras_matrix.analysis.comparison import primary_metric
from keras_matrix.analysis.comparison.primary_metric import STEP_TIME, figure_of
from keras_matrix.analysis.comparison.titles import titles_of, work_labels
from keras_matrix.records.instruments.stall_arms import arm_of
from keras_matrix.records.schema import MEASURED, Record, Status
from keras_matrix.records.text import amount, printable
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.matrix.settings_text import work
from keras_matrix.runner.plan.plan import PlannedRepeat

REASON_CHARACTERS = 200
SYMBOLS = {Status.OK: "ok", Status.UNSTABLE: "unstable"}


class OutcomeText:
    """Short texts of how attempts ended. A reason shared by many, such as a missing image, is printed in full once.

    `printed` are the problems that the preflight has printed in full: of these only the name is repeated.
    """

    def __init__(self, printed: Collection[str] = ()) -> None:
        self._printed = printed
        self._reasons: set[str] = set()

    def is_known(self, record: Record) -> bool:
        """Return whether an attempt could not be started for a reason that was printed before, such as no backend."""
        return record.status is Status.INFRA and record.reason in self._printed

    def result(self, record: Record) -> str:
        """Return how an attempt ended."""
        reason = record.reason or ""
        if reason in self._printed:
            return f"{record.status}: {reason.partition(':')[0]}"
        if record.status is not Status.INFRA or reason not in self._reasons:
            self._reasons.add(reason)
            return result(record)
        return f"{record.status}: {reason.partition(':')[0]}, as before"


class CellNames:
    """Short names of cells for progress, with the settings that distinguish cells of one short name."""

    def __init__(self, repeats: Sequence[PlannedRepeat]) -> None:
        self._details = distinguishing(repeats, _name)

    def of(self, cell: Cell) -> str:
        """Return the name of a cell: workload, phase, batch size, arm and change; the plan lists all settings."""
        return printable(_name(cell, self._details.get(cell.cell_id, "")), " ")

    def comparison(self, cell: Cell) -> str:
        """Return the name of a cell's comparison: that of the cell, without its arm and backend."""
        return printable(_comparison_name(cell, self._details.get(cell.cell_id, "")), " ")

    def label(self, planned: PlannedRepeat) -> str:
        """Return the name of a repeat: its cell, its arm, its number."""
        return f"{self.of(planned.cell)} {planned.arm} #{planned.repeat}".replace("  ", " ")


def _name(cell: Cell, details: str = "") -> str:
    if cell.task is not None:
        return f"{work(cell.settings)}{details} {cell.settings.backend}"
    arm = f" {arm_of(cell.settings)}" if cell.together else ""
    arm += f" ({cell.change})" if cell.change else ""
    return f"{_comparison_name(cell, arm + details)} on {cell.settings.backend}"


def _comparison_name(cell: Cell, details: str) -> str:
    if cell.task is not None:
        return f"{work(cell.settings)}{details}"
    phase = "" if cell.settings.phase == "fit" else f" {cell.settings.phase}"
    return f"{work(cell.settings)}{phase} b{cell.settings.batch_size}{details}"


def distinguishing(repeats: Sequence[PlannedRepeat], name: Callable[[Cell], str]) -> dict[str, str]:
    """Return by cell_id, as text that begins with a blank, the settings that differ between cells of one name.

    A cell whose name no other one has is left out.
    """
    alike: dict[str, dict[str, Cell]] = {}
    for planned in repeats:
        alike.setdefault(name(planned.cell), {})[planned.cell.cell_id] = planned.cell
    return {cell_id: text for cells in alike.values() for cell_id, text in _differing(cells).items()}


def _differing(cells: Mapping[str, Cell]) -> dict[str, str]:
    if len(cells) < 2:
        return {}
    named = titles_of([("", work_labels(cell.settings)) for cell in cells.values()], {})
    return {cell_id: str(title) for cell_id, title in zip(cells, named, strict=True)}


def result(record: Record) -> str:
    """Return how an attempt ended, in half a line."""
    if record.status in MEASURED:
        warned = f", {len(record.warnings)} warning{'s'[: len(record.warnings) > 1]}" if record.warnings else ""
        disturbed = ", disturbed by others" if record.surroundings.disturbed else ""
        return f"{SYMBOLS[record.status]}, {attempt_figure(record)}{warned}{disturbed}"
    reason = printable(record.reason or "")
    shown = reason if len(reason) <= REASON_CHARACTERS else f"{reason[: REASON_CHARACTERS - 3]}..."
    return f"{record.status}: {shown}"


def attempt_figure(record: Record) -> str:
    """Return one attempt's figure for the progress line."""
    figure = figure_of([record])
    found = record.times.step_time_s if record.task is None else primary_metric.primary_value([record])
    return f"{amount(found, figure.unit)} " + ("a step" if figure == STEP_TIME else figure.name)
