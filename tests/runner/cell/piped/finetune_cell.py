"""A small cell of `finetune` that reads images, run in a real process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from keras_matrix.records.schema import Record, Status
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from tests.conftest import make_settings
from tests.real_cells import real_cell

DONE = (Status.OK, Status.UNSTABLE)
BATCH, STEPS = 4, 3
SMALL = {"base": "timed_wait", "step_time_ms": 1.0, "image_size": 32, "input_workers": 1, "shuffle": "none"}


def measured(executor: ProcessExecutor, images: Path, backend: str, **changes: Any) -> Record:
    """Return the record of a cell; `changes` are settings, those of the workload in `params`."""
    usual = {"batch_size": BATCH, "steps_per_epoch": STEPS, "epochs": 2, "discard": 1, "feed": "pipeline"}
    params = {**SMALL, **changes.pop("params", {}), "dataset_path": str(images)}
    settings = make_settings(workload="finetune", backend=backend, params=params, **(usual | changes))
    return real_cell(executor, images.parent / "scratch", settings, STEPS)
