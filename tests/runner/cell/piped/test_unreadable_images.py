"""Images that cannot be read while a cell of `finetune` trains: real processes, each pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keras_matrix.models.inputs.stored.source import open_source
from keras_matrix.records.schema import Status
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from tests.models.inputs.pipelines import jpegs
from tests.runner.cell.piped.finetune_cell import BATCH, DONE, measured

pytestmark = pytest.mark.process
PIPELINES = [
    ("tensorflow", {"pipeline": "tf_data"}),
    ("torch", {"pipeline": "data_loader", "worker_kind": "process"}),
    ("jax", {"pipeline": "grain"}),
]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Return a folder of 10 batches, whose last one is drawn within the first epoch."""
    return jpegs.folder(tmp_path / "images", count=10 * BATCH)


def last_image(images: Path) -> Path:
    """Return the file of the last sample in an order without shuffling: no sample of the first batch."""
    return open_source(images).files()[-1]


@pytest.mark.one_backend
@pytest.mark.parametrize(("backend", "params"), PIPELINES)
def test_image_that_cannot_be_decoded_is_named_in_the_reason(
    executor: ProcessExecutor, images: Path, backend: str, params: dict[str, Any]
) -> None:
    path = last_image(images)
    path.write_bytes(path.read_bytes()[:300])
    record = measured(executor, images, backend, params=params)
    assert record.status is Status.ERROR
    name = f"{path.parent.name}/{path.name}"
    assert (record.reason or "").startswith("InputDataError: "), record.reason
    assert name in (record.reason or "")
    assert "bad_images: skip" in (record.reason or "")


@pytest.mark.one_backend
@pytest.mark.parametrize(("backend", "params"), PIPELINES)
def test_image_that_cannot_be_decoded_is_replaced_and_named_if_bad_images_are_skipped(
    executor: ProcessExecutor, images: Path, backend: str, params: dict[str, Any]
) -> None:
    path = last_image(images)
    path.write_bytes(path.read_bytes()[:300])
    record = measured(executor, images, backend, params={**params, "bad_images": "skip"})
    assert record.status in DONE, (record.reason, record.evidence.output_tail)
    assert record.input is not None
    assert (record.input.bad_samples, record.input.bad_names) == (1, [f"{path.parent.name}/{path.name}"])


def test_classes_without_images_are_a_warning_of_the_cell(executor: ProcessExecutor, images: Path) -> None:
    (images / "empty").mkdir()
    record = measured(executor, images, "jax")
    assert record.status in DONE, (record.reason, record.evidence.output_tail)
    assert "data_set: class without images (1): empty" in record.warnings
