"""Cells whose steps are not those of `fit`: real processes, on each backend."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from tests.conftest import make_settings
from tests.real_cells import real_cell

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("implementations")]
STEPS, BATCH = 3, 8
CellOf = Callable[..., Record]


@pytest.fixture
def cell(executor: ProcessExecutor, tmp_path: Path) -> CellOf:
    def run(**changes: Any) -> Record:
        given = {"workload": "mnist_mlp", "params": {"image_size": 6}, "batch_size": BATCH, "samples": 2 * BATCH}
        settings = make_settings(**given, steps_per_epoch=STEPS, epochs=3, **changes)
        record = real_cell(executor, tmp_path / uuid.uuid4().hex, settings, STEPS)
        assert record.status in MEASURED, (record.reason, record.evidence.output_tail)
        return record

    return run


def counts(record: Record) -> list[tuple[object, object]]:
    """Return the updates and samples of each epoch of each call."""
    assert record.work is not None
    return [(one.updates, one.samples) for one in record.work.stretches]


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_native_steps_are_counted_and_checked(cell: CellOf, backend: str) -> None:
    record = cell(backend=backend, implementation="native")
    assert record.work is not None
    assert record.resolved is not None
    counted = (record.work.updates_per_step, record.work.samples_per_step, record.work.batches_drawn)
    assert counted == (1.0, BATCH, STEPS * 3)
    assert record.work.changed_variables == record.work.trainable_variables == 10
    assert (len(record.times.epoch_times_s), len(record.learning.loss)) == (2, 3)
    assert record.resolved.implementation_deviation is not None
    assert record.resolved.implementation_deviation <= 1e-5
    assert [text for text in record.warnings if text.startswith("work_not_counted")] == []


@pytest.mark.one_backend("tensorflow")
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_keras_step_in_a_loop_trains_as_fit(cell: CellOf, backend: str) -> None:
    """Dropout included: the same step draws the same masks. Mutation: the loop begins with the second batch."""
    within = 0.1 if backend == "torch" else 0.0  # fit's DataLoader draws from the generator of the masks
    fit, loop = (cell(backend=backend, implementation=name) for name in ("keras", "loop"))
    assert loop.learning.loss == pytest.approx(fit.learning.loss, rel=within, abs=0)
    assert loop.learning.metrics["accuracy"] == pytest.approx(fit.learning.metrics["accuracy"], abs=3 * within)
    assert counts(loop) == counts(fit)
