"""Writing what TensorBoard reads of one attempt: a folder of its own with an event file and a profile.

    LOG_DIR/<run_id>/<backend>-<workload>-<cell>/<repeat>.<attempt>/events.out.tfevents.0
                                                                    plugins/profile/<run_id>/<backend>.xplane.pb

Promise: `written` raises nothing for what a disk or the cell's leavings do: the record says what was written, and a
warning what was not and why. Status and figures are never touched. Nothing is written through a link, nor outside of
the folder that was asked for. What the cell left is read as if it were hostile.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from keras_matrix.records.codec import loads
from keras_matrix.records.instruments.usage import UsageSeries
from keras_matrix.records.schema import Record, TensorBoardOutput
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors.supervise.output import printable
from keras_matrix.runner.measure.judge import ResultRefused
from keras_matrix.runner.measure.record_builder import read_bounded
from keras_matrix.runner.measure.tensorboard.graph import Node, nodes_of
from keras_matrix.runner.measure.tensorboard.messages import Event, GraphDef, NodeDef, RecordWriter, Summary
from keras_matrix.runner.measure.tensorboard.scalars import Point, began_s, points
from keras_matrix.runner.measure.tensorboard.xspace import xspace

EVENTS = "events.out.tfevents.0"
VERSION = "brain.Event:2"
UNFIT, UNFIT_NODE = re.compile(r"[^A-Za-z0-9_.-]+"), re.compile(r"[^A-Za-z0-9_./-]+")
NAME_CHARACTERS, WORDS_CHARACTERS = 60, 400
LEFT_LIMIT_BYTES = 256 << 20
# What reading something malformed may raise; JSON's numbers may be infinite.
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError, RecursionError)


class NotWritten(Exception):
    """Something of it could not be written; the message says why."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is written of: the record, its course if there is one, and the scratch folder that its process left."""

    record: Record
    course: UsageSeries | None
    job: Job


def folder_of(record: Record) -> str:
    """Return where an attempt's folder lies below the log folder, in names that every file system takes."""
    settings = record.settings
    cell = UNFIT.sub("_", f"{settings.backend}-{settings.workload}")[:NAME_CHARACTERS].strip(".")
    return f"{record.run_id}/{cell}-{record.cell_id[:8]}/{record.repeat}.{record.attempt}"


def written(attempt: Attempt, log_dir: Path) -> Record:
    """Write what TensorBoard is to show of an attempt; return its record with what was written and what was not."""
    name, done, problems = folder_of(attempt.record), [], _undone(attempt.job)
    parts: dict[str, Callable[[Path], bool]] = {
        "scalars": partial(_scalars, attempt),
        "graph": partial(_graph, attempt),
        "profile": partial(_profile, attempt),
    }
    folder: Path | None = None
    advice = "what was measured is not touched by it"
    lost = {line.partition(":")[0] for line in problems}
    for part, write in parts.items():
        if part in lost:
            continue
        try:
            folder = folder or _made(log_dir, name)
            done += [part] if write(folder) else []
        except NotWritten as error:
            problems.append(f"{part}: {error}")
        except OSError as error:
            problems.append(f"{part}: {error.strerror or error}")
            advice = "what was measured is not touched by it; free some space, or name another --log-dir"
    problem = "; ".join(problems) or None
    warnings = [f"tensorboard: {problem}; {advice}"] if problem else []
    board = TensorBoardOutput(name, done, problem)
    return replace(attempt.record, tensorboard=board, warnings=[*attempt.record.warnings, *warnings])


def _undone(job: Job) -> list[str]:
    """Return what the cell could not leave, in its own words."""
    try:
        told = read_bounded(job.undone_path, WORDS_CHARACTERS) or b""
    except ResultRefused as refused:
        return [str(refused)]
    lines = printable(told.decode("utf-8", errors="replace")).splitlines()
    return [line.strip() for line in lines if line.strip()]


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Write a file anew, never through a link; leave no part behind of one that could not be written whole."""
    path.unlink(missing_ok=True)
    try:
        yield
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def _made(above: Path, name: str) -> Path:
    """Make a folder of this name below another, through no link."""
    folder = above / name
    folder.mkdir(parents=True, exist_ok=True)
    if folder.resolve() != above.resolve() / name:
        raise NotWritten(f"{name} leads elsewhere, by a link")
    return folder


# Events. The graph has an event file of its own, so that neither takes the other with it.


def _scalars(attempt: Attempt, folder: Path) -> bool:
    found = [
        Event(wall_time=one.at_s, step=one.step, summary=Summary(value=[_value(one)]))
        for one in points(attempt.record, attempt.course)
    ]
    return bool(found) and _write_events(folder / EVENTS, attempt.record, found)


def _value(point: Point) -> Any:
    # The name of a metric is whatever a command said: JSON may hold half a surrogate pair, a message may not.
    tag = point.tag.encode("utf-8", errors="replace").decode("utf-8")
    return Summary.Value(tag=tag, simple_value=point.value)


def _graph(attempt: Attempt, folder: Path) -> bool:
    nodes = _nodes(attempt.job)
    event = Event(wall_time=began_s(attempt.record), graph_def=_graph_def(nodes))
    return bool(nodes) and _write_events(folder / f"{EVENTS}.graph", attempt.record, [event])


def _write_events(path: Path, record: Record, events: Sequence[Any]) -> bool:
    with _whole(path), contextlib.closing(RecordWriter(str(path))) as writer:
        for event in (Event(wall_time=began_s(record), file_version=VERSION), *events):
            writer.write(event.SerializeToString())
    return True


def _graph_def(nodes: Sequence[Node]) -> bytes:
    found = [NodeDef(name=_fit(one.name), op=_fit(one.kind), input=map(_fit, one.inputs)) for one in nodes]
    made: bytes = GraphDef(node=found).SerializeToString()
    return made


def _fit(name: str) -> str:
    return UNFIT_NODE.sub("_", name)


def _nodes(job: Job) -> list[Node]:
    """Return the nodes of the model that the cell described; none where it described none."""
    described = _left(job.model_path)
    try:
        return nodes_of(loads(described)) if described else []
    except MALFORMED as error:
        raise NotWritten(f"the description that was left is none of a model: {error!r}") from error


# The profile.


def _profile(attempt: Attempt, folder: Path) -> bool:
    content = _profiled(attempt.job.profile_dir)
    if content is None:
        return False
    record = attempt.record
    target = _made(folder, f"plugins/profile/{record.run_id}") / f"{record.settings.backend}.xplane.pb"
    with _whole(target):
        target.write_bytes(content)
    return True


def _profiled(left: Path) -> bytes | None:
    """Return the profile that the cell left, as an XSpace; None for none."""
    if left.is_symlink():
        raise NotWritten("the folder of the profile that was left is a link")
    for path in sorted(left.rglob("*.xplane.pb")):
        return _left(path)
    trace = _left(left / "trace.json")
    try:
        return xspace(json.loads(trace)["traceEvents"]) if trace else None
    except MALFORMED as error:
        raise NotWritten(f"the trace that was left is none: {error!r}") from error


def _left(path: Path) -> bytes | None:
    try:
        found = read_bounded(path, LEFT_LIMIT_BYTES)
    except ResultRefused as refused:
        raise NotWritten(str(refused)) from refused
    if found is not None and len(found) > LEFT_LIMIT_BYTES:
        raise NotWritten(f"{path.name} is larger than {LEFT_LIMIT_BYTES >> 20} MiB")
    return found
