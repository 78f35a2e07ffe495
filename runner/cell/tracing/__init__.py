"""A cell's traced epochs: after everything measured, with the backend's own profiler.

Imported only where a cell is to be traced. Its figures are published by then (`publish_figures`), so that they stay
whatever becomes of the trace. Promise: what goes wrong is told in the result and ends nothing.
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


class Subject(Protocol):
    """What can be traced: a workload that Keras runs, or a crew of the FC modes."""

    def names(self) -> Names:
        """Return the names by which operations are known."""

    def traced(self, order: TraceOrder) -> None:
        """Run the epochs that are asked for, leaving the profiler's files. Raises what goes wrong."""


def with_trace(job: Job, trace: Trace, result: CellResult, subject: Subject) -> CellResult:
    """Trace; return the result with what became of the trace."""
    told = Traced(trace.all_steps)
    try:
        size_bytes = _trace(job, trace, subject)
        return replace(result, trace=replace(told, folder=job.traced_path.name, native_bytes=size_bytes))
    except Exception as error:  # noqa: BLE001 - a profiler may raise anything, and the figures stand
        traceback.print_exc()
        shutil.rmtree(job.traced_path, ignore_errors=True)
        return replace(result, trace=replace(told, problem=in_a_line(error)[:WORDS_CHARACTERS]))


def _trace(job: Job, trace: Trace, subject: Subject) -> int:
    """Leave the trace in the job's folder; return the size of the backend's own files."""
    own = job.traced_path / NATIVE_NAME
    own.mkdir(parents=True)
    subject.traced(TraceOrder(str(own), trace.epochs, trace.steps))
    names = subject.names()
    (own / NAMES_NAME).write_text(dumps(names), encoding="utf-8")
    files = conversion.files_in(own)
    head = conversion.make(files, job.traced_path / TRACE_NAME, job.settings.backend, names)
    if head.steps != trace.all_steps:
        raise TraceError(f"the profiler saw {head.steps or 0} of {trace.all_steps} steps")
    if job.settings.device == "gpu" and head.device != "gpu":
        reported = f" ({'; '.join(head.warnings)})" if head.warnings else ""
        raise TraceError(
            f"the profiler saw no kernel on the GPU{reported}; allow CUPTI to read it: run the container with "
            "--cap-add SYS_ADMIN, or load the driver with NVreg_RestrictProfilingToAdminUsers=0"
        )
    return sum(path.stat().st_size for path in files)
