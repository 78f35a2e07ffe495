"""Writes TensorBoard's files for an attempt: an event file with curves and the model's graph, and a profile.

    LOG_DIR/<run_id>/<backend>-<workload>-<cell>/<repeat>.<attempt>/events.out.tfevents.0
                                                                    plugins/profile/<run_id>/<backend>.xplane.pb

Promise: `written` does not raise because of a disk or the files of a cell: the record lists what was written, and a
warning says what is missing and why. Status and figures never change. No file is written through a link or outside of
the log folder. The files of the cell are read as untrusted input.

The protobuf messages and the writer of files are tensorboardX's. `import tensorboardX` imports PyTorch if that is
installed: 3 s, and a backend in the runner's process. The parts that are used need only protobuf, so they are loaded
below a package whose own `__init__` has not run.

A module of its own: it imports tensorboardX, which only sessions with such files need.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

from keras_matrix.records.codec import loads
from keras_matrix.records.instruments.usage import UsageSeries
from keras_matrix.records.protobuf import encoded_number, encoded_piece
from keras_matrix.records.schema import Record, TensorBoardOutput
from keras_matrix.records.text import bytes_text, printable
from keras_matrix.records.traces.request import STEP, TRAIN
from keras_matrix.records.trees import walk
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.measure.judge import ResultRefused
from keras_matrix.runner.measure.record_builder import read_bounded

EVENTS = "events.out.tfevents.0"
VERSION = "brain.Event:2"
UNFIT, UNFIT_NODE = re.compile(r"[^A-Za-z0-9_.-]+"), re.compile(r"[^A-Za-z0-9_./-]+")
NAME_CHARACTERS, WORDS_CHARACTERS = 60, 400
LEFT_LIMIT_BYTES = 256 << 20
# Exceptions that malformed input may raise; numbers in JSON may be infinite.
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError, RecursionError)
TENSOR = "__keras_tensor__"
PACKAGE = "tensorboardX"
HOST = "/host:CPU"
ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
US_IN_NS, US_IN_PS = 1000, 1_000_000
# Of a step, by which XProf's pages group events: its number, and that it is the root of its group.
STEP_NUMBER, ROOT = (1, "step_num"), (2, "_r")
Plane = dict[str, list[tuple[float, float, str]]]
"""Lines by name, each a list of (begin in us, duration in us, name)."""
if PACKAGE not in sys.modules:  # register it without running it
    if (package := PathFinder.find_spec(PACKAGE)) is None:
        raise ModuleNotFoundError(f"{PACKAGE} is not installed: pip install tensorboardx", name=PACKAGE)
    sys.modules[PACKAGE] = module_from_spec(package)
Event = import_module(f"{PACKAGE}.proto.event_pb2").Event
GraphDef = import_module(f"{PACKAGE}.proto.graph_pb2").GraphDef
NodeDef = import_module(f"{PACKAGE}.proto.node_def_pb2").NodeDef
Summary = import_module(f"{PACKAGE}.proto.summary_pb2").Summary
RecordWriter = import_module(f"{PACKAGE}.record_writer").RecordWriter


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
    cell_name = UNFIT.sub("_", f"{settings.backend}-{settings.workload}")[:NAME_CHARACTERS].strip(".")
    return f"{record.run_id}/{cell_name}-{record.cell_id}/{record.repeat}.{record.attempt}"


def written(attempt: AttemptToWrite, log_dir: Path) -> Record:
    """Write TensorBoard's files for an attempt; return its record with the parts that were written and the problems."""
    name, written_parts, problems = folder_of(attempt.record), [], _undone(attempt.job)
    write_by_part = {"scalars": _scalars, "graph": _graph, "profile": _profile}
    folder: Path | None = None
    advice = "the figures are not affected"
    lost = {line.partition(":")[0] for line in problems}
    for part, write in write_by_part.items():
        if part in lost:
            continue
        try:
            folder = folder or _made(log_dir, name)
            written_parts += [part] if write(attempt, folder) else []
        except NotWritten as error:
            problems.append(f"{part}: {error}")
        except OSError as error:
            problems.append(f"{part}: {error.strerror or error}")
            advice = "the figures are not affected; free some space, or set another --log-dir"
    problem = "; ".join(problems) or None
    warnings = [f"tensorboard: {problem}; {advice}"] if problem else []
    board = TensorBoardOutput(name, written_parts, problem)
    return replace(attempt.record, tensorboard=board, warnings=[*attempt.record.warnings, *warnings])


def _undone(job: Job) -> list[str]:
    """Return the problems that the cell reported about its own files."""
    try:
        text = read_bounded(job.undone_path, WORDS_CHARACTERS) or b""
    except ResultRefused as refusal:
        return [str(refusal)]
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


def _made(parent: Path, name: str) -> Path:
    """Make a folder with this name below another, without following a link."""
    folder = parent / name
    folder.mkdir(parents=True, exist_ok=True)
    if folder.resolve() != parent.resolve() / name:
        raise NotWritten(f"{name} is outside of the log folder, because of a link")
    return folder


# Events. The graph has a separate event file, so that a problem affects only one of them.


def _scalars(attempt: AttemptToWrite, folder: Path) -> bool:
    events = [
        Event(wall_time=point.at_s, step=point.step, summary=Summary(value=[_value(point)]))
        for point in points(attempt.record, attempt.usage_series)
    ]
    return bool(events) and _write_events(folder / EVENTS, attempt.record, events)


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


def _nodes(job: Job) -> list[LayerNode]:
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


def _profiled(folder: Path) -> bytes | None:
    """Return the profile that the cell wrote, as an XSpace, or None."""
    if folder.is_symlink():
        raise NotWritten("the profile folder of the cell is a link")
    for path in sorted(path for path in walk(folder) if path.name.endswith(".xplane.pb")):
        return _left(path)
    trace = _left(folder / "trace.json")
    try:
        return xspace(json.loads(trace)["traceEvents"]) if trace else None
    except MALFORMED as error:
        raise NotWritten(f"the trace of the cell is invalid: {error!r}") from error


def _left(path: Path) -> bytes | None:
    try:
        data = read_bounded(path, LEFT_LIMIT_BYTES)
    except ResultRefused as refusal:
        raise NotWritten(str(refusal)) from refusal
    if data is not None and len(data) > LEFT_LIMIT_BYTES:
        raise NotWritten(f"{path.name} is larger than {bytes_text(LEFT_LIMIT_BYTES)}")
    return data


@dataclass(frozen=True, slots=True)
class LayerNode:
    """A layer: its scoped name, its class, and the names of its input nodes."""

    name: str
    kind: str
    inputs: tuple[str, ...]


def nodes_of(described: Mapping[str, Any]) -> list[LayerNode]:
    """Return the layers of a model as nodes. Raises `KeyError` or `TypeError` for an invalid description.

    The description, `model.to_json()`, is the same on every backend: layers, and for each call of a layer its input
    tensors with the layers that they came from (`keras_history`). A nested model becomes a scope with its name.

    Limits: the operations inside a layer, and models without a description (a subclass without `get_config`).
    """
    nodes: list[LayerNode] = []
    _expand(described, "", (), nodes)
    return nodes


def _expand(layer: Mapping[str, Any], scope: str, sources: Sequence[str], nodes: list[LayerNode]) -> tuple[str, ...]:
    """Add the nodes of a layer, or of a model's layers; return the names of its output nodes."""
    config = layer["config"]
    name = scope + str(config["name"])
    if "layers" not in config:
        nodes.append(LayerNode(name, str(layer["class_name"]), tuple(dict.fromkeys(sources))))
        return (name,)
    if "output_layers" in config:
        return _functional(config, name + "/", sources, nodes)
    ends = tuple(sources)
    for inner_layer in config["layers"]:
        ends = _expand(inner_layer, name + "/", ends, nodes)
    return ends


def _functional(
    config: Mapping[str, Any], scope: str, sources: Sequence[str], nodes: list[LayerNode]
) -> tuple[str, ...]:
    entrances = list(_references(config["input_layers"]))
    ends: dict[str, tuple[str, ...]] = {}
    for layer in config["layers"]:
        name = str(layer["config"]["name"])
        inner = [_end(ends, history) for history in _histories(layer.get("inbound_nodes"))]
        if name in entrances and entrances.index(name) < len(sources):
            inner = [sources[entrances.index(name)]]
        ends[name] = _expand(layer, scope, [end for end in inner if end], nodes)
    return tuple(end for name in _references(config["output_layers"]) for end in ends.get(name, ()))


def _end(ends: Mapping[str, Sequence[str]], history: Sequence[Any]) -> str | None:
    """Return the node that a tensor came from; a nested model has several outputs, a layer has one."""
    layer_ends = ends.get(str(history[0]), ())
    return layer_ends[min(int(history[2]), len(layer_ends) - 1)] if layer_ends else None


def _references(value: Any) -> Iterator[str]:
    """Yield the layers in a description of inputs or outputs: [name, 0, 0], or lists and maps of these."""
    if isinstance(value, list) and len(value) == 3 and isinstance(value[0], str):
        yield value[0]
    elif isinstance(value, (list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _references(inner)


def _histories(value: Any) -> Iterator[Sequence[Any]]:
    """Yield the origin of each tensor among the arguments of a layer's calls: [layer, call, output]."""
    if isinstance(value, dict) and value.get("class_name") == TENSOR:
        yield value["config"]["keras_history"]
    elif isinstance(value, (list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _histories(inner)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A value of a curve; `at_s`, in seconds since 1970, is a label for people."""

    tag: str
    step: int
    value: float
    at_s: float


def began_s(record: Record) -> float:
    """Return when an attempt began, as seconds since 1970: a label."""
    return datetime.fromisoformat(record.started_at).timestamp()


def points(record: Record, series: UsageSeries | None) -> Iterator[CurvePoint]:
    """Yield every point: epochs, usage over time, and the figures.

    Values that were not measured become no points. Epochs count from 0, the discarded ones first.
    """
    begun_s = began_s(record)
    yield from _epochs(record, begun_s)
    if series is not None:
        yield from _usage(series, begun_s)
    for metric in record.task.metrics if record.task else ():
        if metric.value is not None:
            yield CurvePoint(f"metric/{metric.name}", 0, metric.value, begun_s)
    if record.times.step_time_s is not None:
        yield CurvePoint("figure/step_time_s", 0, record.times.step_time_s, begun_s)


def _epochs(record: Record, begun_s: float) -> Iterator[CurvePoint]:
    times_s = [*record.times.discarded_epoch_times_s, *record.times.epoch_times_s]
    series: dict[str, Sequence[float | None]] = {"time_s": times_s, "loss": record.learning.loss}
    for name, values in {**series, **record.learning.metrics}.items():
        for epoch, value in enumerate(values):
            if value is not None:
                yield CurvePoint(f"epoch/{name}", epoch, value, begun_s + sum(times_s[: epoch + 1]))


def _usage(series: UsageSeries, begun_s: float) -> Iterator[CurvePoint]:
    for field in fields(UsageSeries):
        values = getattr(series, field.name)
        if field.name in ("times_s", "epochs_s"):
            continue
        for number, value in enumerate(values):
            if value is not None:
                yield CurvePoint(f"use/{field.name}", number, float(value), begun_s + series.times_s[number])


def xspace(events: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the XSpace of a Chrome trace's events; incomplete events are skipped.

    Pure. It is the file that TensorBoard's profile plugin opens, made of PyTorch's trace. The plugin reads no other
    format; TensorFlow's and JAX's profilers write it themselves. CPU operations become lines of the plane `/host:CPU`,
    one per thread; kernels become lines of `/device:GPU:N`, one per stream. Source of the layout:
    tsl/profiler/protobuf/xplane.proto of XLA. Times: traces use microseconds, lines nanoseconds, and events picoseconds
    from the begin of their line.
    """
    planes: dict[str, Plane] = {}
    for event in events:
        if event.get("ph") != "X" or "ts" not in event:
            continue
        begun_us, took_us = float(event["ts"]), float(event.get("dur", 0.0))
        plane, line = _place(event)
        planes.setdefault(plane, {}).setdefault(line, []).append((begun_us, took_us, str(event.get("name", ""))))
    begun_us = min((event[0] for plane in planes.values() for line in plane.values() for event in line), default=0.0)
    return b"".join(
        encoded_piece(1, _plane(number, name, plane, begun_us))
        for number, (name, plane) in enumerate(sorted(planes.items()), start=1)
    )


def _place(event: Mapping[str, Any]) -> tuple[str, str]:
    if event.get("cat") in ON_DEVICE:
        args = event.get("args") or {}
        device, stream = args.get("device", event.get("pid", 0)), args.get("stream", event.get("tid"))
        return f"/device:GPU:{device}", f"stream {stream}"
    return HOST, f"thread {event.get('tid', 0)}"


def _plane(number: int, name: str, plane: Plane, begun_us: float) -> bytes:
    event_names = {_shown(event[2])[0] for x in plane.values() for event in x}
    names = {text: index for index, text in enumerate(sorted(event_names), 1)}
    lines = (
        encoded_piece(3, _line(index, line, sorted(events), names, begun_us))
        for index, (line, events) in enumerate(sorted(plane.items()), start=1)
    )
    metadata = (
        encoded_piece(4, encoded_number(1, index) + encoded_piece(2, encoded_number(1, index) + _text(2, text)))
        for text, index in names.items()
    )
    statistics = (
        encoded_piece(5, encoded_number(1, index) + encoded_piece(2, encoded_number(1, index) + _text(2, text)))
        for index, text in (STEP_NUMBER, ROOT)
    )
    return b"".join([encoded_number(1, number), _text(2, name), *lines, *metadata, *statistics])


def _shown(name: str) -> tuple[str, bytes]:
    """Return the name of an event, and its statistics: those of a step if it is a mark of one."""
    number_text = name.removeprefix(STEP)
    if number_text == name or not (number_text.isascii() and number_text.isdigit()):
        return name, b""
    statistics = ((STEP_NUMBER[0], int(number_text)), (ROOT[0], 1))
    return TRAIN, b"".join(
        encoded_piece(4, encoded_number(1, metadata_id) + encoded_number(4, value)) for metadata_id, value in statistics
    )


def _line(
    number: int, name: str, events: list[tuple[float, float, str]], names: Mapping[str, int], begun_us: float
) -> bytes:
    begins_ns = round((events[0][0] - begun_us) * US_IN_NS)
    pieces = [encoded_number(1, number), _text(2, name), encoded_number(3, begins_ns)]
    for event_us, took_us, text in events:
        offset_ps = max(0, round((event_us - begun_us) * US_IN_PS) - begins_ns * 1000)
        event_name, statistics = _shown(text)
        times = encoded_number(2, offset_ps) + encoded_number(3, round(took_us * US_IN_PS))
        pieces.append(encoded_piece(4, encoded_number(1, names[event_name]) + times + statistics))
    return b"".join(pieces)


def _text(field: int, value: str) -> bytes:
    return encoded_piece(field, printable(value, " ").encode())
