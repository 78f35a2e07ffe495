"""Writes TensorBoard's files for an attempt: a folder with an event file and a profile.

    LOG_DIR/<run_id>/<backend>-<workload>-<cell>/<repeat>.<attempt>/events.out.tfevents.0
                                                                    plugins/profile/<run_id>/<backend>.xplane.pb

Promise: `written` does not raise because of a disk or the files of a cell: the record lists what was written, and a
warning says what is missing and why. Status and figures never change. No file is written through a link or outside of
the log folder. The files of the cell are read as untrusted input.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from keras_matrix.records.codec import loads
from keras_matrix.records.instruments.usage import UsageSeries
from keras_matrix.records.schema import Record, TensorBoardOutput
from keras_matrix.records.text import printable
from keras_matrix.records.trees import walk
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.measure.judge import ResultRefused
from keras_matrix.runner.measure.record_builder import read_bounded
from keras_matrix.runner.measure.tensorboard.graph import Node, nodes_of
from keras_matrix.runner.measure.tensorboard.messages import Event, GraphDef, NodeDef, RecordWriter, Summary
from keras_matrix.runner.measure.tensorboard.scalars import CurvePoint, began_s, points
from keras_matrix.runner.measure.tensorboard.xspace import xspace

EVENTS = "events.out.tfevents.0"
VERSION = "brain.Event:2"
UNFIT, UNFIT_NODE = re.compile(r"[^A-Za-z0-9_.-]+"), re.compile(r"[^A-Za-z0-9_./-]+")
NAME_CHARACTERS, WORDS_CHARACTERS = 60, 400
LEFT_LIMIT_BYTES = 256 << 20
# Exceptions that malformed input may raise; numbers in JSON may be infinite.
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError, RecursionError)


class NotWritten(Exception):
    """A part could not be written; the message says why."""


@dataclass(frozen=True, slots=True)
class AttemptToWrite:
    """An attempt to be written: its record, its usage over time if available, and the job with its scratch folder."""

    record: Record
    usage_series: UsageSeries | None
    job: Job


def folder_of(record: Record) -> str:
    """Return an attempt's folder relative to the log folder, with names that every file system accepts."""
    settings = record.settings
    cell = UNFIT.sub("_", f"{settings.backend}-{settings.workload}")[:NAME_CHARACTERS].strip(".")
    return f"{record.run_id}/{cell}-{record.cell_id}/{record.repeat}.{record.attempt}"


def written(attempt: AttemptToWrite, log_dir: Path) -> Record:
    """Write TensorBoard's files for an attempt; return its record with the parts that were written and the problems."""
    name, done, problems = folder_of(attempt.record), [], _undone(attempt.job)
    parts = {"scalars": _scalars, "graph": _graph, "profile": _profile}
    folder: Path | None = None
    advice = "the figures are not affected"
    lost = {line.partition(":")[0] for line in problems}
    for part, write in parts.items():
        if part in lost:
            continue
        try:
            folder = folder or _made(log_dir, name)
            done += [part] if write(attempt, folder) else []
        except NotWritten as error:
            problems.append(f"{part}: {error}")
        except OSError as error:
            problems.append(f"{part}: {error.strerror or error}")
            advice = "the figures are not affected; free some space, or set another --log-dir"
    problem = "; ".join(problems) or None
    warnings = [f"tensorboard: {problem}; {advice}"] if problem else []
    board = TensorBoardOutput(name, done, problem)
    return replace(attempt.record, tensorboard=board, warnings=[*attempt.record.warnings, *warnings])


def _undone(job: Job) -> list[str]:
    """Return the problems that the cell reported about its own files."""
    try:
        text = read_bounded(job.undone_path, WORDS_CHARACTERS) or b""
    except ResultRefused as refused:
        return [str(refused)]
    lines = printable(text.decode("utf-8", errors="replace")).splitlines()
    return [line.strip() for line in lines if line.strip()]


@contextlib.contextmanager
def _replaced(path: Path) -> Iterator[None]:
    """Replace a file, never through a link; remove it if it could not be written completely."""
    path.unlink(missing_ok=True)
    try:
        yield
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def _made(above: Path, name: str) -> Path:
    """Make a folder with this name below another, without following a link."""
    folder = above / name
    folder.mkdir(parents=True, exist_ok=True)
    if folder.resolve() != above.resolve() / name:
        raise NotWritten(f"{name} is outside of the log folder, because of a link")
    return folder


# Events. The graph has a separate event file, so that a problem affects only one of them.


def _scalars(attempt: AttemptToWrite, folder: Path) -> bool:
    found = [
        Event(wall_time=one.at_s, step=one.step, summary=Summary(value=[_value(one)]))
        for one in points(attempt.record, attempt.usage_series)
    ]
    return bool(found) and _write_events(folder / EVENTS, attempt.record, found)


def _value(point: CurvePoint) -> Any:
    return Summary.Value(tag=printable(point.tag, " "), simple_value=point.value)


def _graph(attempt: AttemptToWrite, folder: Path) -> bool:
    nodes = [NodeDef(name=_fit(n.name), op=_fit(n.kind), input=map(_fit, n.inputs)) for n in _nodes(attempt.job)]
    event = Event(wall_time=began_s(attempt.record), graph_def=GraphDef(node=nodes).SerializeToString())
    return bool(nodes) and _write_events(folder / f"{EVENTS}.graph", attempt.record, [event])


def _write_events(path: Path, record: Record, events: Sequence[Any]) -> bool:
    with _replaced(path), contextlib.closing(RecordWriter(str(path))) as writer:
        for event in (Event(wall_time=began_s(record), file_version=VERSION), *events):
            writer.write(event.SerializeToString())
    return True


def _fit(name: str) -> str:
    return UNFIT_NODE.sub("_", name)


def _nodes(job: Job) -> list[Node]:
    """Return the nodes of the model that the cell described, empty without a description."""
    described = _left(job.model_path)
    try:
        return nodes_of(loads(described)) if described else []
    except MALFORMED as error:
        raise NotWritten(f"the model description of the cell is invalid: {error!r}") from error


# The profile.


def _profile(attempt: AttemptToWrite, folder: Path) -> bool:
    content = _profiled(attempt.job.profile_dir)
    if content is None:
        return False
    record = attempt.record
    target = _made(folder, f"plugins/profile/{record.run_id}") / f"{record.settings.backend}.xplane.pb"
    with _replaced(target):
        target.write_bytes(content)
    return True


def _profiled(left: Path) -> bytes | None:
    """Return the profile that the cell wrote, as an XSpace, or None."""
    if left.is_symlink():
        raise NotWritten("the profile folder of the cell is a link")
    for path in sorted(path for path in walk(left) if path.name.endswith(".xplane.pb")):
        return _left(path)
    trace = _left(left / "trace.json")
    try:
        return xspace(json.loads(trace)["traceEvents"]) if trace else None
    except MALFORMED as error:
        raise NotWritten(f"the trace of the cell is invalid: {error!r}") from error


def _left(path: Path) -> bytes | None:
    try:
        found = read_bounded(path, LEFT_LIMIT_BYTES)
    except ResultRefused as refused:
        raise NotWritten(str(refused)) from refused
    if found is not None and len(found) > LEFT_LIMIT_BYTES:
        raise NotWritten(f"{path.name} is larger than {LEFT_LIMIT_BYTES >> 20} MiB")
    return found
