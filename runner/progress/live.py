"""The progress of a terminal: finished attempts scroll up; below, what is running and the time left.

On a cluster what is running has a line for each machine that measures.

A module of its own: it imports rich, which only a terminal needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich import get_console
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column
from rich.text import Text

from keras_matrix.records.schema import HARMLESS, Record
from keras_matrix.records.text import duration
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.observer import OpenRepeats
from keras_matrix.runner.plan.plan import PlannedRepeat
from keras_matrix.runner.progress.time_left import CellNames, OutcomeText, TimeLeft

Texts = tuple[TimeLeft, OutcomeText, CellNames]
MOST_MACHINE_LINES = 8
# Narrower terminals show no bar: `3/15` says the same.
WIDE, BAR_WIDTH = 100, 20
FIGURE = Column(no_wrap=True, justify="right")


class LiveView:
    """Shows events on a rich progress bar."""

    def __init__(self, bar: Progress, task: TaskID, texts: Texts) -> None:
        self._bar = bar
        self._task = task
        self._left, self._outcomes, self._names = texts
        self._machines: dict[tuple[str, str, int], str] = {}
        self._working: dict[str, str] = {}
        self._open = OpenRepeats()

    def calibrating(self, cell: Cell) -> None:
        """Show which cell is being calibrated."""
        self._left.runs(cell)
        self._show(f"calibrating {self._names.of(cell)}")

    def begun(self, planned: PlannedRepeat) -> None:
        """Show which repeat is running."""
        self._left.begun(planned)
        self._show(self._names.label(planned))

    def placed(self, repeats: Sequence[PlannedRepeat], machine: str) -> None:
        """Show what each machine of a cluster measures."""
        for planned in repeats:
            self._left.begun(planned)
        self._machines.update((planned.key, f" at {machine}") for planned in repeats)
        self._working[machine] = f"{self._names.of(repeats[0].cell)} #{repeats[0].repeat}"
        for lost in self._open.begin(repeats, machine):
            del self._working[lost]
        self._show("")

    def interleaving(self, repeats: Sequence[PlannedRepeat]) -> None:
        """Show which repeats are interleaved."""
        if len(repeats) > 1:
            arms_text = " | ".join(f"{planned.cell.settings.backend} {planned.arm}".strip() for planned in repeats)
            name = self._names.comparison(repeats[0].cell)
            self._show(f"{name} #{repeats[0].repeat}, interleaved: {arms_text}")

    def ended(self, planned: PlannedRepeat, record: Record) -> None:
        """Print how the attempt ended, above the bar."""
        is_counted = self._left.ended(planned, record.status)
        if not self._outcomes.is_known(record):
            self._print(planned, record)
        self._bar.update(self._task, advance=is_counted)
        machine, is_idle = self._open.end(planned)
        if machine is not None and is_idle:
            del self._working[machine]
        if machine is not None:
            self._show("")

    def _print(self, planned: PlannedRepeat, record: Record) -> None:
        colour = "red" if record.status not in HARMLESS else "yellow" if record.warnings or record.reason else "green"
        label = escape(self._names.label(planned) + self._machines.get(planned.key, ""))
        self._bar.console.print(f"[{colour}]{label}[/]: {escape(self._outcomes.result(record))}")

    def _show(self, fallback: str) -> None:
        lines = [f"{machine}: {cell}" for machine, cell in self._working.items()]
        if len(lines) > MOST_MACHINE_LINES:
            unlisted_count = len(lines) - MOST_MACHINE_LINES + 1
            lines = [*lines[: MOST_MACHINE_LINES - 1], f"and {unlisted_count} more machines"]
        self._bar.update(self._task, description=escape("\n".join(lines) or fallback), machines=len(self._working) or 1)
        self._bar.refresh()


class TimeLeftColumn(ProgressColumn):
    """Shows the time left; the number of machines is the field `machines` of the task."""

    def __init__(self, time_left: TimeLeft) -> None:
        super().__init__(FIGURE)
        self._left = time_left

    def render(self, task: Task) -> Text:
        """Return the time left now."""
        return Text(f"{duration(self._left.seconds(task.fields['machines']))} left")


class WideBarColumn(BarColumn):
    """The bar, on terminals that have room for it beside a description."""

    def __init__(self, console: Console) -> None:
        super().__init__(BAR_WIDTH)
        self._console = console

    def render(self, task: Task) -> Any:
        """Return the bar, or nothing on a narrow terminal, whose width may change at any time."""
        return super().render(task) if self._console.width >= WIDE else Text()


def columns(console: Console, time_left: TimeLeft) -> tuple[ProgressColumn, ...]:
    """Return the columns of the last line: the description is cut to the room that the figures leave."""
    return (
        TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
        WideBarColumn(console),
        MofNCompleteColumn(table_column=FIGURE),
        TimeElapsedColumn(FIGURE),
        TimeLeftColumn(time_left),
    )


@contextmanager
def live(total: int, done_count: int, texts: Texts) -> Iterator[LiveView]:
    """Yield the live view; restores the terminal at the end."""
    console = get_console()
    with Progress(*columns(console, texts[0]), console=console, expand=True, refresh_per_second=1) as bar:
        task = bar.add_task("starting the backends", total=total, completed=done_count, machines=1)
        yield LiveView(bar, task, texts)
