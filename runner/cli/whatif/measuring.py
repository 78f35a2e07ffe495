"""Measures cells interleaved, as one run, for probes and for verification."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from keras_matrix.records.codec import to_json
from keras_matrix.records.store import Run
from keras_matrix.runner.cli.measure.run import finished
from keras_matrix.runner.cli.render.display import TerminalDisplay
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.experiment import Experiment
from keras_matrix.runner.measure.experiment import measured as measured_session
from keras_matrix.runner.measure.request import RunRequest
from keras_matrix.runner.service.stored import Findings
from keras_matrix.runner.whatif.measurement import Measured, measured


@dataclass(frozen=True, slots=True)
class Session:
    """A run that has ended, what it measured of each setting by its name, its findings, and the exit code."""

    run: Run
    found: dict[str, Measured]
    findings: Findings
    exit_code: int


def measure(request: RunRequest, display: TerminalDisplay, cells: Mapping[str, Cell], command: str) -> Session:
    """Measure the cells, by the names of their settings, equal ones once; `command` is stored as their origin."""
    text = json.dumps({name: to_json(cell.settings) for name, cell in cells.items()}, indent=1)
    unique = list({cell.cell_id: cell for cell in cells.values()}.values())
    experiment = Experiment(unique, {"matrix_path": command, "matrix_text": text})
    done = finished(measured_session(request, experiment, display))
    return Session(done.run, measured(cells, done.latest), done.found, done.exit_code)
