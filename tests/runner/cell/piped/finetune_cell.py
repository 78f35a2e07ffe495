"""A small cell of `finetune` that reads images, run in a real process."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from keras_matrix.records.identity import cell_id
from keras_matrix.records.schema import Record, Status
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from keras_matrix.runner.measure.judge import judge
from keras_matrix.runner.measure.record_builder import build_record, read_result
from keras_matrix.runner.measure.scheduler import utc_now
from tests.conftest import MACHINE, make_settings

DONE = (Status.OK, Status.UNSTABLE)
BATCH, STEPS = 4, 3
SMALL = {"base": "timed_wait", "step_time_ms": 1.0, "image_size": 32, "input_workers": 1, "shuffle": "none"}


def measured(executor: ProcessExecutor, images: Path, backend: str, **changes: Any) -> Record:
    """Return the record of a cell; `changes` are settings, those of the workload in `params`."""
    usual = {"batch_size": BATCH, "steps_per_epoch": STEPS, "epochs": 2, "discard": 1, "feed": "pipeline"}
    params = {**SMALL, **changes.pop("params", {}), "dataset_path": str(images)}
    settings = make_settings(workload="finetune", backend=backend, params=params, **(usual | changes))
    folder = images.parent / "scratch"
    folder.mkdir()
    job = Job(uuid.uuid4().hex, cell_id(settings), 1, 0, settings, STEPS, str(folder), [], None, None)
    outcome = executor.start(job, 120.0).finish()
    result, problem = read_result(job)
    verdict = judge(job, outcome, result, problem)
    return build_record(job, outcome, (result, problem, verdict), ("20260101T000000Z-abcdef", MACHINE, utc_now()))
