"""Images that cannot be read while a cell of `finetune` trains: real processes, each pipeline."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.models.inputs.stored.source import open_source
from keras_matrix.records.identity import cell_id
from keras_matrix.records.schema import Record, Status
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from keras_matrix.runner.measure.judge import judge
from keras_matrix.runner.measure.record_builder import build_record, read_result
from keras_matrix.runner.measure.scheduler import utc_now
from tests.conftest import MACHINE, make_settings
from tests.models.inputs.pipelines import jpegs

pytestmark = pytest.mark.process
BATCH, STEPS, SEED = 4, 3, 0
SMALL = {"base": "timed_wait", "step_time_ms": 1.0, "image_size": 32, "input_workers": 1, "shuffle": "none"}
PIPELINES = [
    ("tensorflow", {"pipeline": "tf_data"}),
    ("torch", {"pipeline": "data_loader", "worker_kind": "process"}),
    ("jax", {"pipeline": "grain"}),
]


@pytest.fixture(scope="module")
def executor() -> Iterator[ProcessExecutor]:
    """One executor, whose server of each backend forks every cell of this module."""
    made = ProcessExecutor(start="fork", mark=uuid.uuid4().hex)
    yield made
    made.close()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Return a folder of 10 batches, whose last one is drawn within the first epoch."""
    return jpegs.folder(tmp_path / "images", count=10 * BATCH)


def last_image(images: Path) -> Path:
    """Return the file of the last sample in an order without shuffling: no sample of the first batch."""
    return open_source(images).files()[-1]


def measured(executor: ProcessExecutor, images: Path, backend: str, **params: Any) -> Record:
    changes = {"batch_size": BATCH, "steps_per_epoch": STEPS, "epochs": 2, "discard": 1, "feed": "pipeline"}
    given = {**SMALL, **params, "dataset_path": str(images)}
    settings = make_settings(workload="finetune", backend=backend, params=given, **changes)
    folder = images.parent / "scratch"
    folder.mkdir()
    job = Job(uuid.uuid4().hex, cell_id(settings), 1, 0, settings, STEPS, str(folder), [], None, None)
    outcome = executor.start(job, 120.0).finish()
    result, problem = read_result(job)
    verdict = judge(job, outcome, result, problem)
    return build_record(job, outcome, (result, problem, verdict), ("20260101T000000Z-abcdef", MACHINE, utc_now()))


@pytest.mark.parametrize(("backend", "params"), PIPELINES)
def test_image_that_cannot_be_decoded_is_named_in_the_reason(
    executor: ProcessExecutor, images: Path, backend: str, params: dict[str, Any]
) -> None:
    path = last_image(images)
    path.write_bytes(path.read_bytes()[:300])
    record = measured(executor, images, backend, **params)
    assert record.status is Status.ERROR
    name = f"{path.parent.name}/{path.name}"
    assert (record.reason or "").startswith("InputDataError: "), record.reason
    assert name in (record.reason or "")
    assert "bad_images: skip" in (record.reason or "")


@pytest.mark.parametrize(("backend", "params"), PIPELINES)
def test_image_that_cannot_be_decoded_is_replaced_and_named_if_bad_images_are_skipped(
    executor: ProcessExecutor, images: Path, backend: str, params: dict[str, Any]
) -> None:
    path = last_image(images)
    path.write_bytes(path.read_bytes()[:300])
    record = measured(executor, images, backend, bad_images="skip", **params)
    assert record.status in (Status.OK, Status.UNSTABLE), (record.reason, record.evidence.output_tail)
    assert record.input is not None
    assert (record.input.bad_samples, record.input.bad_names) == (1, [f"{path.parent.name}/{path.name}"])
