"""A run whose cells are external commands: real processes, which the runner starts, watches and ends."""

from __future__ import annotations

from pathlib import Path

from keras_matrix.records.store import Results
from keras_matrix.runner.cli.main import main
from tests.reliability.failpoints.kinds import Kind
from tests.reliability.failpoints.scenario import FILES, Scenario, doubled_records

MATRIX = r"""
version: 1
defaults: {repeats: 1}
tasks:
  - task: quick
    command: [/bin/sh, -c, 'sleep 0.01 & echo speed {size}']
    params: {size: [1, 2]}
    metrics: {s: 'speed (\S+)'}
"""
PLANNED = 2


def prepare(folder: Path) -> None:
    """Write the matrix."""
    (folder / "matrix.yaml").write_text(MATRIX)


def measure(folder: Path) -> int:
    """Run the commands."""
    return main(["--matrix", "matrix.yaml", "--results", str(folder / "results")])


def incomplete(folder: Path) -> list[str]:
    """Return which commands have no record, and which were counted twice."""
    run = Results(folder / "results").latest()
    found = {record.cell_id for record in run.load()[0] if record.status == "ok"} if run else set()
    missing = [] if len(found) == PLANNED else [f"lost: {PLANNED - len(found)} of {PLANNED} commands have no record"]
    return [*missing, *doubled_records(folder / "results")]


SCENARIOS = (Scenario("task", measure, prepare, differences=incomplete, kinds=(*FILES, Kind.EAGAIN)),)
