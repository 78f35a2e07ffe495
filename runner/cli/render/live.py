"""The progress of a terminal: finished attempts scroll up; the last line shows what is running and the time left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from keras_matrix.records.schema import HARMLESS, Record, Status
from keras_matrix.runner.cli.render.attempt_text import OutcomeText, TimeLeft, label, name
from keras_matrix.runner.cli.render.format import duration
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.plan.plan import Step


class LiveView:
    """Shows events on a rich progress bar."""

    def __init__(self, bar: Progress, task: TaskID, left: TimeLeft, outcomes: OutcomeText) -> None:
        self._bar = bar
        self._task = task
        self._left = left
        self._outcomes = outcomes

    def calibrating(self, cell: Cell) -> None:
        """Show which cell is being calibrated."""
        self._show(f"calibrating {name(cell)}")

    def begun(self, step: Step) -> None:
        """Show which repeat is running."""
        self._show(label(step))

    def taking_turns(self, steps: Sequence[Step]) -> None:
        """Show which repeats are interleaved."""
        if len(steps) > 1:
            arms = " | ".join(f"{step.cell.settings.backend} {step.arm}".strip() for step in steps)
            self._show(f"{steps[0].cell.settings.workload} #{steps[0].repeat}, interleaved: {arms}")

    def ended(self, step: Step, record: Record) -> None:
        """Print how the attempt ended, above the bar."""
        counted = record.status is not Status.INFRA and self._left.done(step)
        colour = "red" if record.status not in HARMLESS else "yellow" if record.warnings or record.reason else "green"
        self._bar.console.print(f"[{colour}]{escape(label(step))}[/]: {escape(self._outcomes.result(record))}")
        self._bar.update(self._task, advance=counted)

    def _show(self, what: str) -> None:
        self._bar.update(self._task, description=escape(what), left=f"{duration(self._left.seconds())} left")
        self._bar.refresh()


@contextmanager
def live(total: int, done: int, left: TimeLeft, outcomes: OutcomeText) -> Iterator[LiveView]:
    """Yield the live view; restores the terminal at the end."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, refresh_per_second=1) as bar:
        task = bar.add_task("starting", total=total, completed=done, left="")
        yield LiveView(bar, task, left, outcomes)
