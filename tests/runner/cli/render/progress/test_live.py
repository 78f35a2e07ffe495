"""The terminal shows what each machine of a cluster measures, what is done, and the time left."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn

from keras_matrix.runner.cli.render.progress.attempt_text import CellNames, OutcomeText
from keras_matrix.runner.cli.render.progress.live import MOST_MACHINE_LINES, LiveView, TimeLeftColumn
from keras_matrix.runner.cli.render.progress.time_left import TimeLeft
from keras_matrix.runner.matrix.reader import expand, parse
from keras_matrix.runner.plan.plan import PlannedRepeat
from tests.conftest import make_record

MATRIX = """\
version: 1
backends: [jax, torch]
cells: [{workload: gru, batch_size: [16, 32, 64, 128, 256, 512, 1024, 2048, 4096]}]
"""
REPEATS = [PlannedRepeat(cell, 0) for cell in expand(parse(Path("m.yaml"), MATRIX.encode()))]


class Shown:
    """A live view and the text of its last lines."""

    def __init__(self) -> None:
        left = TimeLeft({planned.cell.cell_id: 10.0 for planned in REPEATS}, REPEATS, clock=lambda: 0.0)
        columns = TextColumn("{task.description}"), MofNCompleteColumn(), TimeLeftColumn(left)
        self._bar = Progress(*columns, console=Console(file=io.StringIO()))
        task = self._bar.add_task("starting", total=len(REPEATS), machines=1)
        self.view = LiveView(self._bar, task, (left, OutcomeText(), CellNames(REPEATS)))

    def text(self) -> str:
        console = Console(file=io.StringIO(), width=120)
        console.print(self._bar.get_renderable())
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()


@pytest.fixture
def shown() -> Shown:
    return Shown()


def test_each_machine_has_a_line_until_its_last_repeat_has_ended(shown: Shown) -> None:
    shown.view.placed(REPEATS[:2], "node a")
    shown.view.placed(REPEATS[2:4], "node b")
    lines = [line.strip() for line in shown.text().splitlines()]
    assert lines[0].startswith("node a: gru b16 on jax #0")
    assert lines[1].startswith("node b: gru b32 on jax #0")
    shown.view.ended(REPEATS[0], make_record(0.01))
    assert "node a" in shown.text()
    shown.view.ended(REPEATS[1], make_record(0.01))
    assert "node a" not in shown.text()
    assert "node b: gru b32" in shown.text()
    assert "2/18" in shown.text()


def test_time_left_is_shared_by_the_machines_before_a_repeat_has_ended(shown: Shown) -> None:
    shown.view.placed(REPEATS[:2], "node a")
    assert "3 min 00 s left" in shown.text()
    shown.view.placed(REPEATS[2:4], "node b")
    assert "1 min 30 s left" in shown.text()


def test_many_machines_are_counted(shown: Shown) -> None:
    for n in range(9):
        shown.view.placed(REPEATS[2 * n : 2 * n + 2], f"node {n}")
    text = shown.text()
    assert "and 2 more machines" in text
    assert len([line for line in text.splitlines() if line.strip()]) == MOST_MACHINE_LINES
