"""A cell's trace, from its process's scratch folder to the run's: kept, or told why there is none.

Promise: whatever goes wrong with a trace, the record's figures and status stay as they are.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from keras_matrix.analysis.traces import read_table
from keras_matrix.records.codec import CodecError, decode, dumps, loads
from keras_matrix.records.schema import Evidence, Record
from keras_matrix.records.store import Run
from keras_matrix.records.traces.neutral import plain
from keras_matrix.records.traces.request import BEGUN, TABLE_NAME, TRACE_NAME, Traced, TraceError
from keras_matrix.records.traces.table import Table
from keras_matrix.runner.cell.job import Job

FOLDER = "traces"


def with_trace_kept(run: Run, job: Job, record: Record) -> Record:
    """Return the record of a traced attempt, its trace being in the run's folder or its problem among the warnings."""
    if record.trace is None:
        return record
    trace = _kept(run, job, record.trace, record.evidence)
    if trace.problem is None:
        return replace(record, trace=trace)
    warning = f"no_trace: {trace.problem}; the figures were measured before"
    return replace(record, trace=trace, warnings=[*record.warnings, warning])


def path_in(run: Run, trace: Traced) -> Path | None:
    """Return where a record's trace lies, None where it has none or none any more."""
    path = run.folder / trace.folder / TRACE_NAME if trace.folder else None
    return path if path and path.is_file() else None


def kept_in(run: Run, records: Iterable[Record]) -> Iterator[tuple[Record, Path]]:
    """Yield the records that have a trace, each with where it lies."""
    for record in records:
        if record.trace and (path := path_in(run, record.trace)):
            yield record, path


def left_plain(run: Run, records: Sequence[Record], target: Path) -> list[Path]:
    """Write the traces of these records uncompressed, and return where: at `target` that of one cell.

    Of several cells, which are of one FC mode, backend and workers come into the name.
    """
    several = len({record.cell_id for record in records}) > 1
    left = []
    for record, path in kept_in(run, records):
        own = f".{record.settings.backend}.{record.settings.params['workers']}" if several else ""
        left.append(target.with_suffix(own + target.suffix))
        plain(path, left[-1])
    return left


def table_of(path: Path) -> Table:
    """Return what a stored trace comes to: as kept beside it, else found anew. Raises `TraceError`."""
    try:
        return decode(Table, loads((path.parent / TABLE_NAME).read_bytes()), "table")
    except (OSError, CodecError):
        return read_table(path)


def _kept(run: Run, job: Job, trace: Traced, evidence: Evidence) -> Traced:
    if trace.problem == BEGUN:
        return replace(trace, problem=f"{BEGUN}: {_ended(evidence)}")
    if trace.problem is not None:
        return trace
    name = f"{FOLDER}/{job.cell_id}.{job.repeat}.{job.attempt}"
    target = run.folder / name
    try:
        target.parent.mkdir(exist_ok=True)
        # What a runner left that ended before it published the record; a move would go into that folder.
        shutil.rmtree(target, ignore_errors=True)
        shutil.move(job.traced_path, target)
        _write_table(target)
        return replace(trace, folder=name)
    except (OSError, TraceError) as error:
        shutil.rmtree(target, ignore_errors=True)
        return replace(trace, folder=None, problem=f"{type(error).__name__}: {error}"[:500])


def _write_table(folder: Path) -> None:
    path = folder / TRACE_NAME
    if path.is_symlink() or not path.is_file():
        raise TraceError(f"{path.name}: the process left no such file")
    (folder / TABLE_NAME).write_text(dumps(read_table(path)), encoding="utf-8")


def _ended(evidence: Evidence) -> str:
    if evidence.deadline_exceeded:
        return "the time limit passed (timeout_s)"
    if evidence.signal is not None:
        return f"ended by signal {evidence.signal}"
    return f"exit code {evidence.exit_code}; as a rule the disk was full"
