"""A cell's traced epochs: after everything measured, with the backend's own profiler.

Imported only if a cell is traced. Its figures are published before (`publish_figures`), so that they do not depend on
the trace. Errors are reported in the result and do not end the process.
"""

from __future__ import annotations

import shutil
import traceback
from dataclasses import replace
from typing import Protocol

from keras_matrix.records.codec import dumps
from keras_matrix.records.schema import CellResult
from keras_matrix.records.traces import conversion
from keras_matrix.records.traces.request import (
    NAMES_NAME,
    NATIVE_NAME,
    TRACE_NAME,
    Names,
    Trace,
    Traced,
    TraceError,
    TraceOrder,
)
from keras_matrix.runner.cell.job import Job, in_a_line

WORDS_CHARACTERS = 500


class TraceSubject(Protocol):
    """What can be traced: a workload that Keras runs, or the workers of the FC modes."""

    def names(self) -> Names:
        """Return the names of the operations."""

    def traced(self, order: TraceOrder) -> None:
        """Run the requested epochs and write the profiler's files. Raises any error of the profiler."""


def with_trace(job: Job, trace: Trace, result: CellResult, subject: TraceSubject) -> CellResult:
    """Trace; return the result with the trace's outcome."""
    traced = Traced(trace.all_steps)
    try:
        size_bytes = _trace(job, trace, subject)
        return replace(result, trace=replace(traced, folder=job.traced_path.name, native_bytes=size_bytes))
    except Exception as error:  # noqa: BLE001 - a profiler may raise anything, and the figures remain valid
        traceback.print_exc()
        shutil.rmtree(job.traced_path, ignore_errors=True)
        return replace(result, trace=replace(traced, problem=in_a_line(error)[:WORDS_CHARACTERS]))


def _trace(job: Job, trace: Trace, subject: TraceSubject) -> int:
    """Write the trace into the job's folder; return the size of the backend's own files."""
    own = job.traced_path / NATIVE_NAME
    own.mkdir(parents=True)
    subject.traced(TraceOrder(str(own), trace.epochs, trace.steps))
    names = subject.names()
    (own / NAMES_NAME).write_text(dumps(names), encoding="utf-8")
    files = conversion.files_in(own)
    head = conversion.make(files, job.traced_path / TRACE_NAME, job.settings.backend, names)
    if head.steps != trace.all_steps:
        raise TraceError(f"steps: the profiler recorded {head.steps or 0} of {trace.all_steps}")
    if job.settings.device == "gpu" and head.device != "gpu":
        reported = f" ({'; '.join(head.warnings)})" if head.warnings else ""
        raise TraceError(
            f"the profiler recorded no kernel on the GPU{reported}; allow CUPTI to read it: run the container with "
            "--cap-add SYS_ADMIN, or load the driver with NVreg_RestrictProfilingToAdminUsers=0"
        )
    return sum(path.stat().st_size for path in files)
