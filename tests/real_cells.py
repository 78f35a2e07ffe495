"""Runs one cell as a real process, and judges it as the runner does."""

from __future__ import annotations

import uuid
from pathlib import Path

from keras_matrix.records.identity import cell_id
from keras_matrix.records.schema import Record
from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors import Executor
from keras_matrix.runner.measure.judge import judge
from keras_matrix.runner.measure.record_builder import build_record, read_result
from keras_matrix.runner.measure.scheduler import utc_now
from tests.conftest import MACHINE

ROOT = str(Path(__file__).parents[1])
LIMIT_S = 120.0


def real_cell(executor: Executor, folder: Path, settings: Settings, steps: int | None, repeat: int = 1) -> Record:
    """Return the record of a cell that can import the tests' workloads; makes `folder`, its scratch folder."""
    folder.mkdir()
    job = Job(uuid.uuid4().hex, cell_id(settings), repeat, 0, settings, steps, str(folder), [ROOT], None, None)
    outcome = executor.start(job, LIMIT_S).finish()
    result, problem = read_result(job)
    verdict = judge(job, outcome, result, problem)
    return build_record(job, outcome, (result, problem, verdict), ("20260101T000000Z-abcdef", MACHINE, utc_now()))
