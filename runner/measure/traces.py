"""Moves a cell's trace from its process's scratch folder to the run, or records why it is missing.

A problem with a trace never changes the figures or the status of the record. Of what the process left, only regular
files and folders are moved: through a link, the runner would read or write outside of the run's folder.
"""

from __future__ import annotations

import shutil
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from keras_matrix.analysis.comparison.context import ShownTrace
from keras_matrix.analysis.traces import read_table
from keras_matrix.records.codec import CodecError, decode, dumps
from keras_matrix.records.files import read_json
from keras_matrix.records.schema import Evidence, Record
from keras_matrix.records.store import Run
from keras_matrix.records.traces.neutral import plain
from keras_matrix.records.traces.request import BEGUN, TABLE_NAME, TRACE_NAME, Traced, TraceError
from keras_matrix.records.traces.table import TraceSummary
from keras_matrix.records.trees import remove_tree, walk
from keras_matrix.runner.cell.job import Job

FOLDER = "traces"


def with_trace_stored(run: Run, job: Job, record: Record) -> Record:
    """Return the record of a traced attempt, with its trace in the run's folder or a warning."""
    if record.trace is None:
        return record
    trace = _stored(run, job, record.trace, record.evidence)
    warnings = [f"no_trace: {trace.problem}; the figures were measured before"] if trace.problem is not None else []
    return replace(record, trace=trace, warnings=[*record.warnings, *warnings])


def stored_traces(run: Run, records: Iterable[Record]) -> Iterator[tuple[Record, Path]]:
    """Yield the records that have a trace, each with its path."""
    for record in records:
        folder = record.trace.folder if record.trace else None
        if folder and (path := run.inside(f"{folder}/{TRACE_NAME}")):
            yield record, path


def shown_traces(run: Run, records: Iterable[Record]) -> dict[str, ShownTrace]:
    """Return the traces of a run by cell, the newest of each; those that cannot be read are left out and noted."""
    trace_by_cell = {}
    for record, path in stored_traces(run, records):
        try:
            trace_by_cell[record.cell_id] = ShownTrace(path.relative_to(run.folder).as_posix(), table_of(path))
        except TraceError as error:
            run.note_unread(path, error)
    return trace_by_cell


def write_uncompressed(run: Run, records: Sequence[Record], target: Path) -> list[Path]:
    """Write these traces uncompressed; return the paths: `target`, with backend and workers if there are several."""
    names = {r.cell_id: f".{r.settings.backend}.{r.settings.params['workers']}" for r in records}
    count_by_name = Counter(names.values())
    written_paths = []
    for record, path in stored_traces(run, records):
        suffix = names[record.cell_id] if len(names) > 1 else ""
        suffix += f".{record.cell_id}" if count_by_name[names[record.cell_id]] > 1 else ""
        written_paths.append(target.with_suffix(suffix + target.suffix))
        plain(path, written_paths[-1])
    return written_paths


def table_of(path: Path) -> TraceSummary:
    """Return the table of a stored trace, read from its folder or else computed again. Raises `TraceError`."""
    try:
        return decode(TraceSummary, read_json(path.parent / TABLE_NAME), "table")
    except (OSError, CodecError):
        return read_table(path)


def _stored(run: Run, job: Job, trace: Traced, evidence: Evidence) -> Traced:
    if trace.problem == BEGUN:
        return replace(trace, problem=f"{BEGUN}: {_ended(evidence)}")
    if trace.problem is not None:
        return trace
    name = f"{FOLDER}/{job.cell_id}.{job.repeat}.{job.attempt}"
    target = run.folder / name
    try:
        target.parent.mkdir(exist_ok=True)
        # Remains of a runner that ended before it published the record; a move would go into that folder.
        remove_tree(target)
        _remove_special_files(job.traced_path)
        shutil.move(job.traced_path, target)
        _write_table(target)
        return replace(trace, folder=name)
    except (OSError, TraceError) as error:
        remove_tree(target)
        return replace(trace, folder=None, problem=f"{type(error).__name__}: {error}"[:500])


def _remove_special_files(folder: Path) -> None:
    """Remove links, pipes and devices from a folder. Raises `TraceError` if it is a link itself."""
    if folder.is_symlink():
        raise TraceError(f"{folder.name}: the process left a link instead of a folder")
    for path in walk(folder):
        if not (stat.S_ISREG(kind := path.lstat().st_mode) or stat.S_ISDIR(kind)):
            path.unlink()


def _write_table(folder: Path) -> None:
    path = folder / TRACE_NAME
    if not path.is_file():
        raise TraceError(f"{path.name}: the process did not write it")
    (folder / TABLE_NAME).write_text(dumps(read_table(path)), encoding="utf-8")


def _ended(evidence: Evidence) -> str:
    if evidence.deadline_exceeded:
        return "the time limit passed (timeout_s)"
    if evidence.signal is not None:
        return f"ended by signal {evidence.signal}"
    return f"exit code {evidence.exit_code}; usually because the disk was full"
