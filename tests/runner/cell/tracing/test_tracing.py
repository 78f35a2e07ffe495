"""What a cell's process reports of its trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.records.identity import cell_id
from keras_matrix.records.schema import SCHEMA_VERSION, CellResult
from keras_matrix.records.traces import conversion
from keras_matrix.records.traces.request import Names, Trace, Traced, TraceOrder
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cell.tracing import with_trace
from tests.conftest import make_settings
from tests.records.traces.synthetic import chrome, event, mark, message, plane

HOST_ONLY = [mark("step:1", 0, 100), event("aten::mm", 5, 10)]
KERNEL = event("sgemm", 50, 100, "kernel", pid=0, tid=7)


class OneStep:
    """A cell of PyTorch's whose profiler leaves these events."""

    def __init__(self, *events: dict[str, object]) -> None:
        self._events = events

    def names(self) -> Names:
        return Names()

    def traced(self, order: TraceOrder) -> None:
        chrome(Path(order.folder) / conversion.file_name(2, 0, ".json"), self._events)


def traced(folder: Path, device: str, subject: OneStep) -> Traced:
    settings = make_settings(backend="torch", device=device)
    job = Job("nonce", cell_id(settings), 0, 0, settings, 1, str(folder), [], None, None)
    result = CellResult(SCHEMA_VERSION, job.nonce, job.cell_id, 0, 0)
    found = with_trace(job, Trace([2], 1), result, subject).trace
    assert found is not None
    return found


def test_gpu_cell_without_recorded_kernels_has_no_trace(tmp_path: Path) -> None:
    found = traced(tmp_path, "gpu", OneStep(*HOST_ONLY))
    assert found.folder is None
    assert found.problem == (
        "TraceError: the profiler recorded no kernel on the GPU; allow CUPTI to read it: run the container with "
        "--cap-add SYS_ADMIN, or load the driver with NVreg_RestrictProfilingToAdminUsers=0"
    )


def test_reason_of_a_missing_gpu_trace_has_the_profilers_own_error(tmp_path: Path) -> None:
    class OneStepOfJax(OneStep):
        def traced(self, order: TraceOrder) -> None:
            host = plane("/host:CPU", {"main": [("kbm:step:1", 0, 100, {})]})
            path = Path(order.folder) / conversion.file_name(2, 0, conversion.XPLANE)
            path.write_bytes(message(host, (2, "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")))

    found = traced(tmp_path, "gpu", OneStepOfJax())
    assert found.problem is not None
    assert "no kernel on the GPU (CUPTI_ERROR_INSUFFICIENT_PRIVILEGES); allow CUPTI" in found.problem


@pytest.mark.parametrize(("device", "events"), [("gpu", [*HOST_ONLY, KERNEL]), ("cpu", HOST_ONLY)])
def test_trace_with_work_on_the_cells_device_is_stored(
    tmp_path: Path, device: str, events: list[dict[str, object]]
) -> None:
    found = traced(tmp_path, device, OneStep(*events))
    assert (found.problem, found.folder is not None) == (None, True)
