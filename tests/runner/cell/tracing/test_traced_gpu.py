"""Cells that are traced on a GPU: what can be tested only there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from keras_matrix.analysis.traces import read_table
from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.traces.neutral import WORKING, TrackKind
from keras_matrix.records.traces.request import TRACE_NAME
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from tests.runner.cell.tracing.test_traced_processes import spans_of, traced

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def executor() -> Iterator[ProcessExecutor]:
    if not Path("/dev/nvidia0").exists():
        pytest.skip("there is no NVIDIA GPU here")
    made = ProcessExecutor()
    yield made
    made.close()


@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_kernels_of_each_backend_have_a_step_and_none_begins_before_it(
    executor: ProcessExecutor, tmp_path: Path, backend: str
) -> None:
    if why := executor.missing(backend):
        pytest.skip(why)
    record, folder, _ = traced(executor, tmp_path, "nested", backend=backend, device="gpu")
    spans = spans_of(record, folder)
    begins = {one.step: one.start_ns for one in spans if one.track.kind is TrackKind.STEPS}
    last_step_ns = max(one.end_ns for one in spans if one.track.kind is TrackKind.STEPS)
    kernels = [one for one in spans if one.track.kind in WORKING and 0 <= one.start_ns < last_step_ns]
    known = [one for one in kernels if one.step is not None]
    assert len(known) >= 0.95 * len(kernels) > 0
    # CUPTI brings the clocks of device and host together to within some microseconds.
    assert [one for one in known if one.start_ns < begins[one.step] - 50_000] == []
    table = read_table(folder / str(record.trace and record.trace.folder) / TRACE_NAME)
    assert (table.device, table.steps) == ("gpu", 3)
