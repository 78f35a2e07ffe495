"""The neutral trace: the work of workers in one vocabulary, as a Chrome trace for Perfetto and chrome://tracing.

A process of the trace is a worker, a thread of it a track: `steps`, `layers` (marks of the program), `input`,
`compute`, `communication`, `host` (which drives a device), `copy` (a device's memory transfers), `outside` (work of a
device that was launched before the traced steps, or after them, and does not count). Each kind has as many tracks as
threads or streams: `compute`, `compute 2`. Spans of a track nest and never cross. Times are of one clock, zero at the
first step.

Each event is on a separate line, so that `spans` can read the file as a stream. `phase`, `layer` and `step` are missing
if the backend does not report them: they are never guessed.

Also what the backends' names of operations and kernels are in it (`Scopes`, `copy_of`, `is_collective`), and which
marked step is none (`is_unfinished`).
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import re
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from keras_matrix.records import files
from keras_matrix.records.codec import decode, to_json
from keras_matrix.records.traces.request import LAYER, PHASE, Names, TraceError, problem_text, scope_of

T = TypeVar("T")
VERSION = 1
# Measured on a trace of 100 MB: level 6 takes three times as long as level 2 and saves a sixth of the size.
COMPRESSION = 2
LANES = 1000  # maximum number of tracks of one kind
MOST_WORKERS = 4096
MOST_NS = 1 << 62
BEGINNING = '{"displayTimeUnit":"ms","otherData":'
PACKED = b"\x1f\x8b"
MOST_HEAD_CHARACTERS = 10_000
MOST_LINE_CHARACTERS = 1 << 20
_FOREIGN = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
_UNREADABLE = (OSError, EOFError, zlib.error, *_FOREIGN)
H = TypeVar("H", bound=Hashable)
# A last step with less than this share of the operations of the step before has done something else, if anything.
FEW = 0.1
MOST = 0.8
# The content of a transformation such as jvp(...) belongs to the path; that of a call, jit(name), does not.
_WRAPPED = re.compile(r"^(?:jvp|transpose|vmap|checkpoint|custom_jvp|custom_vjp|shard_map)\((.*)\)$")
_TAPE = "gradient_tape"
# Scopes of marks; if there are any, other scopes are ignored.
_LAYER, _PHASE = scope_of(LAYER), scope_of(PHASE)
_COPY = re.compile(r"^Memcpy ?(?:([HDAP])(?:to|2)([HDAP])\b|Peer|PtoP|P2P|Other)?")
TO_DEVICE = "copy host to device"
_PLACES = {"H": "host", "D": "device", "A": "device"}
_COLLECTIVE = re.compile(r"^(?:nccl|rccl)(?:Dev)?(?:Kernel|Func)?[A-Z_]")
# Events of CUPTI on a stream's line that are not work of the device: the lifetime of allocated memory
# (`CuptiTracerEventType` in cupti_buffer_events.h).
NOT_WORK = frozenset({"MemoryAlloc", "MemoryFree", "MemoryResidency", "HostRegister", "HostUnregister", "Overhead"})


class Phase(StrEnum):
    """The phase of a step that a span belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"
    INPUT = "input"
    COMMUNICATION = "communication"


class TrackKind(StrEnum):
    """The kinds of tracks, in the order in which they are drawn."""

    STEPS = "steps"
    LAYERS = "layers"
    INPUT = "input"
    COMPUTE = "compute"
    COMMUNICATION = "communication"
    HOST = "host"
    COPY = "copy"
    OUTSIDE = "outside"  # new kinds follow: the position determines a track's number in a file


KINDS = tuple(TrackKind)
# Tracks with work of a worker's device.
WORKING = frozenset({TrackKind.COMPUTE, TrackKind.COMMUNICATION, TrackKind.COPY})
OF_DEVICE = ("stream", "bytes", "correlation")
NO_DEVICE = [None] * len(OF_DEVICE)
TEXT, WHOLE = frozenset({str, type(None)}), frozenset({int, type(None)})


class Track(NamedTuple):
    """One line of a worker, of a kind; the first of its kind has lane 0."""

    worker: int
    kind: TrackKind
    lane: int = 0

    @property
    def name(self) -> str:
        """Return the displayed name."""
        return f"{self.kind} {self.lane + 1}" if self.lane else str(self.kind)


class Span(NamedTuple):
    """An interval. `name` is the backend's own, `op` the kind of operation; `step` counts from 1.

    Work of a device has its `stream`, a copy its `size_bytes`; `correlation` is the profiler's number of the call that
    launched it. Each is None if unknown.

    A tuple, since a trace has millions of them.
    """

    track: Track
    name: str
    op: str
    start_ns: int
    duration_ns: int
    phase: Phase | None = None
    layer: str | None = None
    step: int | None = None
    stream: int | None = None
    size_bytes: int | None = None
    correlation: int | None = None

    @property
    def end_ns(self) -> int:
        """Return its end."""
        return self.start_ns + self.duration_ns


class FlowEnd(NamedTuple):
    """A time on a track, within the span at which a flow begins or ends."""

    track: Track
    at_ns: int


class Flow(NamedTuple):
    """A connection of two spans: `forward_backward` or `launch`."""

    name: str
    source: FlowEnd
    target: FlowEnd


@dataclass(frozen=True, slots=True)
class Head:
    """Metadata of a trace. `steps` counts the traced steps of a worker, None if they were not marked.

    The steps are in `epochs` separate epochs of equal length. `warnings` are those of the profiler itself, such as
    about dropped events; `notes` say what of the profiler's file is left out, and why.
    """

    backend: str
    workers: int
    device: str
    steps: int | None = None
    epochs: int = 1
    version: int = VERSION
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of these spans, each from start to end."""
    total, reached_end = 0.0, -math.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached_end))
        reached_end = max(reached_end, end)
    return total


def write(path: Path, head: Head, spans: Iterable[Span], flows: Iterable[Flow] = ()) -> None:
    """Write a trace atomically. Raises OSError."""
    with (
        files.replacing(path) as temporary,
        gzip.open(temporary, "wt", encoding="utf-8", compresslevel=COMPRESSION) as file,
    ):
        _write(file, head, spans, flows)


def plain(path: Path, target: Path) -> None:
    """Write a trace uncompressed, like the 2017 suite's `full_trace.ctf`. Raises `TraceError` or OSError."""
    try:
        with _source(path) as source, gzip.GzipFile(fileobj=source) as packed, target.open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
    except (EOFError, zlib.error, gzip.BadGzipFile, files.UnfitFile) as error:
        raise _damaged(path, error) from error


def is_one(path: Path) -> bool:
    """Return whether a file, compressed or not, begins like a neutral trace."""
    try:
        with _opened(path) as file:
            return file.read(len(BEGINNING)) == BEGINNING
    except _UNREADABLE:
        return False


def head_of(path: Path) -> Head:
    """Return the head of a trace, compressed or not. Raises `TraceError`."""
    try:
        with _opened(path) as file:
            line = file.readline(MOST_HEAD_CHARACTERS)
        data = json.loads(line.rstrip().removesuffix(",") + "}")["otherData"]
        if (version := data.get("version")) != VERSION:
            raise TraceError(f"{path}: has version {version!r}, this program reads {VERSION}; trace again")
        head = decode(Head, data, "otherData")
        if not (0 <= head.workers <= MOST_WORKERS and head.epochs >= 1):
            raise ValueError(f"it has {head.workers} workers and {head.epochs} epochs")
        return head
    except _UNREADABLE as error:
        advice = "create one with: runner trace FILE --to FILE"
        raise TraceError(f"{path}: is not a neutral trace ({problem_text(error)}); {advice}") from error


def spans(path: Path) -> Iterator[Span]:
    """Yield every span of a trace. Raises `TraceError`."""
    head_of(path)
    yield from _read(path, _span, '{"ph":"X"')


def flows(path: Path) -> Iterator[Flow]:
    """Yield every flow of a trace. Raises `TraceError`."""
    begun: dict[int, FlowEnd] = {}

    def ended(event: dict[str, Any]) -> Flow | None:
        point = FlowEnd(track_of(event["pid"], event["tid"]), round(event["ts"] * 1000))
        if event["ph"] == "s":
            begun[event["id"]] = point
            return None
        return Flow(event["name"], begun.pop(event["id"]), point)

    yield from (flow for flow in _read(path, ended, '{"ph":"s"', '{"ph":"f"') if flow)


def track_of(pid: int, tid: int) -> Track:
    """Return the track of a process and a thread of the file. Raises TypeError or LookupError."""
    if type(pid) is not int:
        raise TypeError(f"pid: must be an integer, got {pid!r}")
    if not 0 <= tid < len(KINDS) * LANES:
        raise LookupError(f"tid: must be from 0 to {len(KINDS) * LANES - 1}, got {tid}")
    return Track(pid, KINDS[tid // LANES], tid % LANES)


def _write(file: IO[str], head: Head, spans: Iterable[Span], flows: Iterable[Flow]) -> None:
    metadata = json.dumps(to_json(head), separators=(",", ":"))
    file.write(f'{BEGINNING}{metadata},\n"traceEvents":[\n')
    for worker in range(head.workers):
        _metadata(file, worker, 0, "process_name", {"name": f"{head.backend} worker {worker}"})
        _metadata(file, worker, 0, "process_sort_index", {"sort_index": worker})
    text = _Text()
    for span in spans:
        file.write(text.span(span))
    for number, flow in enumerate(flows):
        file.write(text.flow(number, flow))
    for track in sorted(text.tracks, key=lambda track: (track.worker, text.tracks[track])):
        tid = text.tracks[track]
        _metadata(file, track.worker, tid, "thread_name", {"name": track.name})
        _metadata(file, track.worker, tid, "thread_sort_index", {"sort_index": tid})
    # The last event of a JSON list has no comma.
    file.write('{"ph":"M","pid":0,"tid":0,"name":"end_of_trace","args":{}}\n]}\n')


def _metadata(file: IO[str], pid: int, tid: int, name: str, args: dict[str, Any]) -> None:
    event = {"ph": "M", "pid": pid, "tid": tid, "name": name, "args": args}
    file.write(json.dumps(event, separators=(",", ":")) + ",\n")


class _Text:
    """Formats the lines of a trace. The text of repeated names, phases and layers is formatted once."""

    def __init__(self) -> None:
        self.tracks: dict[Track, int] = {}
        self._places: dict[Track, str] = {}
        self._tails: dict[tuple[TrackKind, str, str, Phase | None, str | None], str] = {}

    def span(self, span: Span) -> str:
        track, name, op, start_ns, duration_ns, phase, layer, step, *of_device = span
        key = track[1], name, op, phase, layer
        tail_text = self._tails.get(key) or self._tail(key)
        numbers = "" if step is None else f',"step":{step}'
        if of_device != NO_DEVICE:
            pairs = zip(OF_DEVICE, of_device, strict=True)
            numbers += "".join(f',"{key}":{value}' for key, value in pairs if value is not None)
        times_text = f'"ts":{start_ns / 1000:.3f},"dur":{duration_ns / 1000:.3f}'
        return f'{{"ph":"X",{self._of(track)},{times_text},{tail_text}{numbers}}}}},\n'

    def flow(self, number: int, flow: Flow) -> str:
        name = json.dumps(flow.name)
        tail_text = f'"id":{number},"name":{name},"cat":{name}}},\n'
        source, target = (f'{self._of(point.track)},"ts":{point.at_ns / 1000:.3f}' for point in flow[1:])
        return f'{{"ph":"s",{source},{tail_text}{{"ph":"f","bp":"e",{target},{tail_text}'

    def _tail(self, key: tuple[TrackKind, str, str, Phase | None, str | None]) -> str:
        """Return the end of a span's line, without its step."""
        kind, name, op, phase, layer = key
        values = {"op": op, "phase": phase, "layer": layer}
        args = {name: value for name, value in values.items() if value is not None}
        members = {"name": name, "cat": phase or kind, "args": args}
        self._tails[key] = tail_text = json.dumps(members, separators=(",", ":"))[1:-2]
        return tail_text

    def _of(self, track: Track) -> str:
        if track not in self._places:
            tid = KINDS.index(track.kind) * LANES + min(track.lane, LANES - 1)
            self.tracks[track] = tid
            self._places[track] = f'"pid":{track.worker},"tid":{tid}'
        return self._places[track]


def _span(event: dict[str, Any]) -> Span:
    args, name = event["args"], event["name"]
    phase, layer, *numbers = (args.get(key) for key in ("phase", "layer", "step", *OF_DEVICE))
    track, op = track_of(event["pid"], event["tid"]), args.get("op", name)
    begin_ns, duration_ns = round(event["ts"] * 1000), round(event["dur"] * 1000)
    if not (-MOST_NS < begin_ns < MOST_NS and 0 <= duration_ns < MOST_NS):
        raise ValueError(f"a span out of range: ts {event['ts']}, dur {event['dur']}")
    if {type(name), type(op)} != {str} or type(layer) not in TEXT or not WHOLE.issuperset(map(type, numbers)):
        raise TypeError(f"a span of {name!r}, {op!r}, {layer!r}, {numbers!r}")
    return Span(track, name, op, begin_ns, duration_ns, Phase(phase) if phase else None, layer, *numbers)


def _read(path: Path, make: Callable[[dict[str, Any]], T], *beginnings: str) -> Iterator[T]:
    """Yield `make` of each event whose line has one of these beginnings. Raises `TraceError`."""
    try:
        with _opened(path) as file:
            for line in iter(partial(file.readline, MOST_LINE_CHARACTERS), ""):
                if line.startswith(beginnings):
                    yield make(json.loads(line.rstrip().removesuffix(",")))
    except _UNREADABLE as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> TraceError:
    return TraceError(f"{path}: is damaged ({problem_text(error)}); trace again")


@contextmanager
def _source(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that a user named, which may be a link. Raises OSError, and `UnfitFile` for a pipe or a device."""
    descriptor, _ = files.open_plain(os.path.realpath(path))
    with os.fdopen(descriptor, "rb") as source:
        yield source


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    """Open a trace, compressed or not."""
    with _source(path) as source:
        is_packed = source.read(len(PACKED)) == PACKED
        source.seek(0)
        with io.TextIOWrapper(gzip.GzipFile(fileobj=source) if is_packed else source, encoding="utf-8") as text:
            yield text


def is_unfinished(steps: Sequence[Sequence[str]]) -> bool:
    """Return whether the last of several steps is unfinished, by the names of what each did, in order.

    It is the beginning of the step before, but of no other step the whole, or nearly nothing of it.

    `torch.profiler` marks a step from each call of `step()` to the next one, and the last until it stops. So a loop
    that ends before its schedule does leaves a mark in which nothing, or only the beginning of a step, has happened. A
    device may still be at work on the last step when the profiler of JAX or TensorFlow stops.
    """
    if len(steps) < 2:
        return False
    last_step, step_before = list(steps[-1]), list(steps[-2])
    if len(last_step) >= len(step_before) or any(last_step == list(other_step) for other_step in steps[:-1]):
        return False
    # The operation in which the profiler stopped may be divided in another way.
    return last_step[:-1] == step_before[: len(last_step) - 1] or len(last_step) < FEW * len(step_before)


def is_part(steps: Sequence[Counter[H]]) -> bool:
    """Return whether the last of several steps has only a part of the operations of the step before.

    For operations without an order, such as those of a program on a pool of threads.
    """
    if len(steps) < 2:
        return False
    last_step, step_before = steps[-1], steps[-2]
    return last_step <= step_before and last_step.total() < MOST * step_before.total() and last_step not in steps[:-1]


class Scopes:
    """Finds phase and layer of paths of scopes, given the names of a cell's layers and optimiser.

    Phase and layer of an operation follow from its origin, as XLA and TensorFlow report it. XLA's origin is a path of
    scopes, `jit(train_step)/transpose(jvp(dense_1))/dot_general`; TensorFlow's node also has a path,
    `gradient_tape/functional_1/dense_1/MatMul`. Keras opens a scope named after the layer around each call, the FC
    modes one named after the phase. A phase or layer that the path does not contain is None.
    """

    def __init__(self, names: Names) -> None:
        self._layers = frozenset(names.layers)
        self._model, self._optimizer = names.model, names.optimizer
        self._phases = {str(phase): phase for phase in Phase} if names.phases else {}
        self.read = cache(self._read)

    def _read(self, origin: str) -> tuple[Phase | None, str | None]:
        """Return phase and layer of an operation with this origin."""
        scope_names = [_bare(scope_name) for scope_name in origin.split("/")]
        marked_names = [scope_name.removeprefix(_LAYER) for scope_name in scope_names if scope_name.startswith(_LAYER)]
        layer = (
            "/".join(marked_names or (scope_name for scope_name in scope_names if scope_name in self._layers)) or None
        )
        return self._phase(origin, scope_names, layer is not None or self._model in scope_names), layer

    def _phase(self, origin: str, scope_names: list[str], is_called: bool) -> Phase | None:
        if "transpose(" in origin or _TAPE in scope_names:
            return Phase.BACKWARD
        if marked_names := [
            scope_name.removeprefix(_PHASE) for scope_name in scope_names if scope_name.startswith(_PHASE)
        ]:
            return Phase(marked_names[-1])
        if self._optimizer is not None and self._optimizer in scope_names:
            return Phase.UPDATE
        phase = next(
            (self._phases[scope_name] for scope_name in reversed(scope_names) if scope_name in self._phases), None
        )
        if phase is not None:
            return phase
        return Phase.FORWARD if "jvp(" in origin or is_called else None


def _bare(scope_name: str) -> str:
    """Return a scope without the transformations around it."""
    while match := _WRAPPED.match(scope_name):
        scope_name = match[1]
    return scope_name


def copy_of(name: str) -> str | None:
    """Return the operation of a copy, such as "copy host to device"; None if `name` is not that of a copy.

    Events of a device's stream have names by CUPTI. XLA's and TensorFlow's collector names copies by direction, such as
    MemcpyH2D (`AddMemcpyActivityEvent` in xla/backends/profiler/gpu/cupti_buffer_events.cc); Kineto (`memcpyName` in
    libkineto/src/CuptiActivity.cpp) writes `Memcpy HtoD (Pageable -> Device)`.
    """
    match = _COPY.match(name)
    if match is None:
        return None
    source, target = match.groups()
    if source is None or target is None or "P" in (source, target):
        return "copy between devices" if re.search("Peer|PtoP|P2P", name) else "copy"
    return f"copy {_PLACES[source]} to {_PLACES[target]}"


def is_collective(name: str) -> bool:
    """Return whether this is the name of an NCCL kernel.

    NCCL's kernels are named ncclDevKernel_AllReduce_..., before version 2.19 ncclKernel_AllReduce_..., those of AMD's
    library rccl.
    """
    return _COLLECTIVE.match(name) is not None
