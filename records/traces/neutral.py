"""The neutral trace: what workers did, in one vocabulary, as a Chrome trace that Perfetto and chrome://tracing open.

A process of the picture is a worker, a thread of it a track: `steps`, `layers` (marks of the program), `input`,
`compute`, `communication`, `host` (what drives a device), `copy` (a device's transfers of memory). Of a kind there are
as many tracks as threads or streams: `compute`, `compute 2`. Spans of a track nest and never cross. Times are of one
clock, zero at the first step.

Each event stands on a line of its own, which is what makes `spans` a stream. `phase`, `layer` and `step` are missing
where the backend does not tell them: nothing is guessed.
"""

from __future__ import annotations

import gzip
import json
import math
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from keras_matrix.records import files
from keras_matrix.records.codec import decode, to_json
from keras_matrix.records.traces.request import TraceError

T = TypeVar("T")

VERSION = 1
# Measured on a trace of 100 MB: level 6 takes three times as long as level 2 and saves a sixth of the size.
COMPRESSION = 2
LANES = 1000  # tracks of one kind, at most
MOST_WORKERS = 4096
MOST_NS = 1 << 62

BEGINNING = '{"displayTimeUnit":"ms","otherData":'
PACKED = b"\x1f\x8b"
MOST_HEAD_CHARACTERS = 10_000
_UNREADABLE = (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, AttributeError, OverflowError)


class Phase(StrEnum):
    """What a span is for."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"
    INPUT = "input"
    COMMUNICATION = "communication"


class Kind(StrEnum):
    """What a track shows, in the order in which they are drawn."""

    STEPS = "steps"
    LAYERS = "layers"
    INPUT = "input"
    COMPUTE = "compute"
    COMMUNICATION = "communication"
    HOST = "host"
    COPY = "copy"  # the last one: a track's number in a file is that of its kind


KINDS = tuple(Kind)
# Where a worker's device works.
WORKING = frozenset({Kind.COMPUTE, Kind.COMMUNICATION, Kind.COPY})
# What a span that is read back may have for a layer and a step.
OF_DEVICE = ("stream", "bytes", "correlation")
NO_DEVICE = [None] * len(OF_DEVICE)
TEXT, FILE_RULES = frozenset({str, type(None)}), frozenset({int, type(None)})


class Track(NamedTuple):
    """One line of the picture: a worker's, of a kind, the first of its kind being lane 0."""

    worker: int
    kind: Kind
    lane: int = 0

    @property
    def name(self) -> str:
        """Return the name that is shown."""
        return f"{self.kind} {self.lane + 1}" if self.lane else str(self.kind)


class Span(NamedTuple):
    """Something that took time. `name` is the backend's own, `op` the kind of operation; `step` counts from 1.

    Work of a device has its `stream`, a copy its `size_bytes`; `correlation` is the number of the call that launched
    it, which the profiler gave. Each is None if not known.

    A tuple, since a trace holds a million of them.
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
        """Return when it was over."""
        return self.start_ns + self.duration_ns


class Point(NamedTuple):
    """A moment on a track, within the span that a flow leaves or reaches."""

    track: Track
    at_ns: int


class Flow(NamedTuple):
    """That one span led to another: `forward_backward` or `launch`."""

    name: str
    source: Point
    target: Point


@dataclass(frozen=True, slots=True)
class Head:
    """What a trace is of. `steps` counts the traced steps of a worker, None where they were not marked.

    They lie in so many `epochs` of equal length, apart from each other. `warnings` are those of the profiler itself,
    such as that it dropped events.
    """

    backend: str
    workers: int
    device: str
    steps: int | None = None
    epochs: int = 1
    version: int = VERSION
    warnings: list[str] = field(default_factory=list)


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return how long at least one of these spans, each from its start to its end, lasts."""
    total, reached = 0.0, -math.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def write(path: Path, head: Head, spans: Iterable[Span], flows: Iterable[Flow] = ()) -> None:
    """Write a trace whole or not at all. Raises OSError."""
    with (
        files.replacing(path) as temporary,
        gzip.open(temporary, "wt", encoding="utf-8", compresslevel=COMPRESSION) as file,
    ):
        _write(file, head, spans, flows)


def plain(path: Path, target: Path) -> None:
    """Write a trace uncompressed, as the seed's `full_trace.ctf` was. Raises `TraceError` or OSError."""
    try:
        with gzip.open(path, "rb") as packed, target.open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(path, error) from error


def is_one(path: Path) -> bool:
    """Return whether a file, packed or plain, begins as a neutral trace does."""
    try:
        with _opened(path) as file:
            return file.read(len(BEGINNING)) == BEGINNING
    except _UNREADABLE:
        return False


def head_of(path: Path) -> Head:
    """Return what a trace, packed or plain, is of. Raises `TraceError`."""
    try:
        with _opened(path) as file:
            line = file.readline(MOST_HEAD_CHARACTERS)
        told = json.loads(line.rstrip().removesuffix(",") + "}")["otherData"]
        if told.get("version") != VERSION:
            raise TraceError(
                f"{path}: is of version {told.get('version')!r}, this program reads {VERSION}; trace again"
            )
        head = decode(Head, told, "otherData")
        if not (0 <= head.workers <= MOST_WORKERS and head.epochs >= 1):
            raise ValueError(f"it is of {head.workers} workers and {head.epochs} epochs")
        return head
    except _UNREADABLE as error:
        raise TraceError(
            f"{path}: is no neutral trace ({error}); make one with: runner trace FILE --to FILE"
        ) from error


def spans(path: Path) -> Iterator[Span]:
    """Yield every span of a trace. Raises `TraceError`."""
    head_of(path)
    yield from _read(path, _span, '{"ph":"X"')


def flows(path: Path) -> Iterator[Flow]:
    """Yield every flow of a trace. Raises `TraceError`."""
    begun: dict[int, Point] = {}

    def ended(event: dict[str, Any]) -> Flow | None:
        point = Point(track_of(event["pid"], event["tid"]), round(event["ts"] * 1000))
        if event["ph"] == "s":
            begun[event["id"]] = point
            return None
        return Flow(event["name"], begun.pop(event["id"]), point)

    yield from (flow for flow in _read(path, ended, '{"ph":"s"', '{"ph":"f"') if flow)


def track_of(pid: int, tid: int) -> Track:
    """Return the track that a process and a thread of the picture stand for. Raises TypeError or LookupError."""
    if type(pid) is not int:
        raise TypeError(f"a process of number {pid!r}")
    return Track(pid, KINDS[tid // LANES], tid % LANES)


def _write(file: IO[str], head: Head, spans: Iterable[Span], flows: Iterable[Flow]) -> None:
    told = json.dumps(to_json(head), separators=(",", ":"))
    file.write(f'{BEGINNING}{told},\n"traceEvents":[\n')
    for worker in range(head.workers):
        _metadata(file, worker, 0, "process_name", {"name": f"{head.backend} worker {worker}"})
        _metadata(file, worker, 0, "process_sort_index", {"sort_index": worker})
    text = _Text()
    for span in spans:
        file.write(text.span(span))
    for number, flow in enumerate(flows):
        file.write(text.flow(number, flow))
    for track in sorted(text.tracks, key=lambda one: (one.worker, text.tracks[one])):
        tid = text.tracks[track]
        _metadata(file, track.worker, tid, "thread_name", {"name": track.name})
        _metadata(file, track.worker, tid, "thread_sort_index", {"sort_index": tid})
    # What ends a list in JSON is no comma.
    file.write('{"ph":"M","pid":0,"tid":0,"name":"end_of_trace","args":{}}\n]}\n')


def _metadata(file: IO[str], pid: int, tid: int, name: str, told: dict[str, Any]) -> None:
    event = {"ph": "M", "pid": pid, "tid": tid, "name": name, "args": told}
    file.write(json.dumps(event, separators=(",", ":")) + ",\n")


class _Text:
    """Lines of a trace. Names, phases and layers come again and again: their text is made once."""

    def __init__(self) -> None:
        self.tracks: dict[Track, int] = {}
        self._places: dict[Track, str] = {}
        self._tails: dict[tuple[Kind, str, str, Phase | None, str | None], str] = {}

    def span(self, span: Span) -> str:
        track, name, op, start_ns, duration_ns, phase, layer, step, *of_device = span
        key = track[1], name, op, phase, layer
        tail = self._tails.get(key) or self._tail(key)
        numbers = "" if step is None else f',"step":{step}'
        if of_device != NO_DEVICE:
            named = zip(OF_DEVICE, of_device, strict=True)
            numbers += "".join(f',"{key}":{value}' for key, value in named if value is not None)
        times = f'"ts":{start_ns / 1000:.3f},"dur":{duration_ns / 1000:.3f}'
        return f'{{"ph":"X",{self._of(track)},{times},{tail}{numbers}}}}},\n'

    def flow(self, number: int, flow: Flow) -> str:
        name = json.dumps(flow.name)
        told = f'"id":{number},"name":{name},"cat":{name}}},\n'
        source, target = (f'{self._of(point.track)},"ts":{point.at_ns / 1000:.3f}' for point in flow[1:])
        return f'{{"ph":"s",{source},{told}{{"ph":"f","bp":"e",{target},{told}'

    def _tail(self, key: tuple[Kind, str, str, Phase | None, str | None]) -> str:
        """Return what a span's line ends with, less its step."""
        kind, name, op, phase, layer = key
        told = {"op": op, "phase": phase, "layer": layer}
        args = {name: value for name, value in told.items() if value is not None}
        found = {"name": name, "cat": phase or kind, "args": args}
        self._tails[key] = tail = json.dumps(found, separators=(",", ":"))[1:-2]
        return tail

    def _of(self, track: Track) -> str:
        if track not in self._places:
            tid = KINDS.index(track.kind) * LANES + min(track.lane, LANES - 1)
            self.tracks[track] = tid
            self._places[track] = f'"pid":{track.worker},"tid":{tid}'
        return self._places[track]


def _span(event: dict[str, Any]) -> Span:
    told, name = event["args"], event["name"]
    phase, layer, *numbers = (told.get(key) for key in ("phase", "layer", "step", *OF_DEVICE))
    track, op = track_of(event["pid"], event["tid"]), told.get("op", name)
    begin_ns, duration_ns = round(event["ts"] * 1000), round(event["dur"] * 1000)
    if not (-MOST_NS < begin_ns < MOST_NS and 0 <= duration_ns < MOST_NS):
        raise ValueError(f"a span begins at {event['ts']} and lasts {event['dur']}")
    if (
        type(name) is not str
        or type(op) is not str
        or type(layer) not in TEXT
        or not FILE_RULES.issuperset(map(type, numbers))
    ):
        raise TypeError(f"a span of {name!r}, {op!r}, {layer!r}, {numbers!r}")
    return Span(track, name, op, begin_ns, duration_ns, Phase(phase) if phase else None, layer, *numbers)


def _read(path: Path, made: Callable[[dict[str, Any]], T], *beginnings: str) -> Iterator[T]:
    """Yield what is made of each event whose line begins so. Raises `TraceError`."""
    try:
        with _opened(path) as file:
            for line in file:
                if line.startswith(beginnings):
                    yield made(json.loads(line.rstrip().removesuffix(",")))
    except _UNREADABLE as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> TraceError:
    return TraceError(f"{path}: is damaged ({error}); trace again")


def _opened(path: Path) -> IO[str]:
    """Open a trace, whether it is packed or plain."""
    with path.open("rb") as file:
        packed = file.read(len(PACKED)) == PACKED
    return gzip.open(path, "rt", encoding="utf-8") if packed else path.open(encoding="utf-8")
