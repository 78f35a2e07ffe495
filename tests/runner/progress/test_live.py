"""The terminal shows what each machine of a cluster measures, what is done, and the time left."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn

from keras_matrix.runner.matrix.reader import expand, parse
from keras_matrix.runner.plan.plan import PlannedRepeat
from keras_matrix.runner.progress.live import MOST_MACHINE_LINES, LiveView, TimeLeftColumn, columns
from keras_matrix.runner.progress.time_left import CellNames, OutcomeText, TimeLeft
from tests.conftest import make_record

MATRIX = """\
version: 1
backends: [jax, torch]
cells: [{workload: gru, batch_size: [16, 32, 64, 128, 256, 512, 1024, 2048, 4096]}]
"""
ROOT = Path(__file__).parents[3]
REPEATS = [PlannedRepeat(cell, 0) for cell in expand(parse(Path("m.yaml"), MATRIX.encode()))]

NAMES = [planned for planned in REPEATS if planned.cell.settings.batch_size == 4096]


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


def printed(width: int, *, cut: bool = True) -> list[str]:
    """The last lines of a long measurement on a console of that width."""
    left = TimeLeft({planned.cell.cell_id: 1000.0 for planned in REPEATS}, REPEATS, clock=lambda: 0.0)
    console = Console(file=io.StringIO(), width=width)
    bar = Progress(*columns(console, left), console=console, expand=True)
    task = bar.add_task("starting", total=900, completed=123, machines=1)
    view = LiveView(bar, task, (left, OutcomeText(), CellNames(REPEATS)))
    if cut:
        view.interleaving(NAMES)
    else:
        view.placed(REPEATS[:2], "a machine with a long name")
        view.placed(REPEATS[2:4], "b")
    console.print(bar.get_renderable())
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]


@pytest.mark.parametrize(
    ("width", "description"),
    [
        (200, "gru b4096 #0, interleaved: jax | torch"),
        (80, "gru b4096 #0, interleaved: jax | torch"),
        (60, "gru b4096 #0, interleaved"),
        (40, "gru b4"),
    ],
)
def test_on_a_narrow_terminal_the_description_is_cut_and_the_figures_stay(width: int, description: str) -> None:
    [line] = printed(width)
    assert cell_len(line) <= width
    assert line.startswith(description)
    assert line.endswith("123/900 0:00:00 5 h 00 min left")


def test_on_a_narrow_terminal_each_machine_keeps_its_line() -> None:
    lines = printed(40, cut=False)
    assert [line[:2] for line in lines] == ["a ", "b:"]
    assert lines[0].endswith("123/900 0:00:00 2 h 30 min left")


SCRIPT = """\
from tests.runner.progress.test_live import *
from keras_matrix.runner.progress.lines import progress
estimates = {planned.cell.cell_id: 1000.0 for planned in REPEATS}
with progress(False, REPEATS, REPEATS, estimates) as observer:
    observer.interleaving(NAMES)
    observer.ended(REPEATS[0], make_record(0.01))
"""


def on_a_terminal(columns: int) -> str:
    """Return what the script writes to a terminal of so many columns."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-c", SCRIPT]
    environment |= {"TERM": "xterm", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=ROOT) as process:
        os.close(theirs)
        text = b""
        with contextlib.suppress(OSError):  # the terminal is closed when the process has ended
            while part := os.read(ours, 4096):
                text += part
    os.close(ours)
    assert process.returncode == 0, text.decode()
    return text.decode()


@pytest.mark.process
@pytest.mark.parametrize("width", [80, 60, 40])
def test_on_a_real_terminal_every_line_fits_and_ends_in_its_figures(width: int) -> None:
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", on_a_terminal(width))
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", plain) if line.strip()]
    assert max(map(cell_len, lines)) <= width
    last = [line for line in lines if line.startswith("gru b4")]
    assert last
    assert [line for line in last if not re.search(r" 0/18 0:00:0\d 5 h 00 min left$", line)][:-1] == []
