"""Reads a Kineto file: its events by thread and stream, and what it says about its rank.

Of an event a few numbers are stored. What an operator's arguments say is shared by all events with equal ones, so that
memory stays well below the size of the file. An error names the file and the event.

Bytes, floating-point operations and dtype of an operator, from the shapes of its inputs (`record_shapes`).

Only matrix products and convolutions have floating-point operations here: they are nearly all of a network's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from keras_matrix.records.dtypes import ELEMENT_BYTES
from keras_matrix.records.traces import kineto
from keras_matrix.records.traces.kineto import category_of, kinds
from keras_matrix.records.traces.request import CLOCK, MARK, TraceError
from keras_matrix.records.traces.torch import ANNOTATIONS, BACKWARD, DEVICE, OPERATORS, step_in

RUNTIME = frozenset({"cuda_runtime", "cuda_driver"})
SYNC = frozenset({"cuda_sync"})
ON_DEVICE = DEVICE | SYNC
ON_HOST = OPERATORS | ANNOTATIONS | RUNTIME
CATEGORIES = ON_HOST | ON_DEVICE
NO_NUMBER = -1
AGAIN = "record it again"
GLOO = "gloo:"
Place = tuple[Any, Any]  # a process and a thread, or a device and a stream
# By the names of C++ types, and by those that c10d gives to collectives.
DTYPES: Mapping[str, str] = {
    "float": "float32",
    "double": "float64",
    "c10::half": "float16",
    "half": "float16",
    "c10::bfloat16": "bfloat16",
    "bfloat16": "bfloat16",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "short int": "int16",
    "short": "int16",
    "signed char": "int8",
    "char": "int8",
    "unsigned char": "uint8",
    "byte": "uint8",
    "bool": "bool",
}
Shape = tuple[int, ...]


class Message(NamedTuple):
    """What an event says about a collective: elements before and after, dtype, process group and its ranks."""

    operation: str
    elements_in: int
    elements_out: int
    dtype: str
    group: str
    ranks: tuple[int, ...]


class Wait(NamedTuple):
    """What a synchronisation waits for: a stream (None: all) up to the record of an event (-1: all that was issued)."""

    stream: int | None
    record: int


class RankEvent(NamedTuple):
    """An event. Times in nanoseconds; sequence number, correlation and external id are -1 if missing."""

    start_ns: int
    end_ns: int
    name: str
    category: str
    sequence: int
    correlation: int
    external: int
    operands: Operands
    message: Message | None = None
    wait: Wait | None = None
    peer: int = NO_NUMBER


@dataclass(slots=True)
class RankRecording:
    """The content of a file: events by thread and by stream, and separately gloo's collectives and marks of steps.

    `gone_back` are the sequence numbers of backward operators, `backward` their threads, `marked` those with marks of
    this project. `groups` are the ranks of each process group, by its name. `others` counts the events that are not
    read, by their category.
    """

    path: Path
    threads: dict[Place, list[RankEvent]] = field(default_factory=dict)
    streams: dict[Place, list[RankEvent]] = field(default_factory=dict)
    gloo: dict[Place, list[RankEvent]] = field(default_factory=dict)
    steps: dict[Place, list[RankEvent]] = field(default_factory=dict)
    clocks: list[tuple[int, int]] = field(default_factory=list)
    gone_back: set[int] = field(default_factory=set)
    backward: set[Place] = field(default_factory=set)
    marked: set[Place] = field(default_factory=set)
    base_ns: int = 0
    host: str | None = None
    rank: int | None = None
    world_size: int | None = None
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    library: str | None = None
    devices: list[str] = field(default_factory=list)
    events: int = 0
    on_device: bool = False
    others: Counter[str] = field(default_factory=Counter)

    def forget_events(self) -> None:
        """Free the memory of the events."""
        for places in (self.threads, self.streams, self.gloo, self.steps):
            places.clear()
        self.gone_back.clear()


def read(path: Path) -> RankRecording:
    """Read a file. Raises `TraceError`."""
    recording = RankRecording(path)
    taker = _Taking(recording)
    last_event = None
    try:
        for member, value in kineto.members(path):
            if member == kineto.EVENTS:
                recording.events += 1
                last_event = value
                taker.take(value)
            else:
                _take_member(recording, member, value)
    except TraceError as error:
        raise TraceError(f"{error}{_after(recording.events, last_event)}") from error
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise kineto.invalid(path, member, value, recording.events, error) from error
    recording.on_device = bool(recording.streams)
    if not (recording.threads or recording.on_device or recording.gloo):
        raise TraceError(
            f"{path}: contains no operation of a profiler among its {recording.events} "
            f"events{kinds(recording.others)}; name a file that torch.profiler's export_chrome_trace wrote"
        )
    return recording


def _after(event_count: int, last_event: Any) -> str:
    name = last_event.get("name") if isinstance(last_event, dict) else last_event
    return f" (after event {event_count}, {name!r})" if event_count else ""


def _take_member(recording: RankRecording, member: str, value: Any) -> None:
    if member == "baseTimeNanoseconds":
        recording.base_ns = int(value)
    elif member == "host_name":
        recording.host = str(value)
    elif member == "deviceProperties" and isinstance(value, list):
        recording.devices = [str(device["name"]) for device in value if isinstance(device, dict) and "name" in device]
    elif member == "distributedInfo" and isinstance(value, dict):
        recording.rank, recording.world_size = (_count(recording.path, value, name) for name in ("rank", "world_size"))
        recording.library = value.get("backend")
        for group in value.get("pg_config") or []:
            recording.groups[str(group.get("pg_name"))] = tuple(group.get("ranks") or ())


def _count(path: Path, member: Mapping[str, Any], name: str) -> int | None:
    value = member.get(name)
    if value is not None and type(value) is not int:
        raise TraceError(f"{path}: distributedInfo.{name}: must be an integer, got {value!r}; {AGAIN}")
    return value


class _Taking:
    """Adds events to a recording."""

    def __init__(self, recording: RankRecording) -> None:
        self._found = recording
        self._names: dict[str, str] = {}
        self._operands: dict[tuple[str, str], Operands] = {}

    def take(self, event: Mapping[str, Any]) -> None:
        """Add an event, if it is of a known category. Raises KeyError, TypeError or ValueError."""
        if event.get("ph") != "X":
            return
        category = category_of(event)
        if category is None or category not in CATEGORIES:
            self._found.others[str(category)] += 1
            return
        name, start, duration, args = event["name"], event["ts"], event["dur"], event.get("args") or {}
        name = self._names.setdefault(name, name)  # one object for equal names
        start_ns, end_ns = round(start * 1000), round((start + duration) * 1000)
        if end_ns < start_ns:
            if category not in ON_DEVICE:
                raise ValueError(f"lasts {duration!r} us: the clock ran backwards")
            end_ns = start_ns  # a device's clock is converted to the host's, with a small error
        get = args.get
        sequence, external = get("Sequence number", NO_NUMBER), get("External id", NO_NUMBER)
        correlation = get("correlation", NO_NUMBER)
        if not type(sequence) is type(external) is type(correlation) is int:
            raise ValueError("its sequence number, external id or correlation is not an integer")
        place = event["pid"], event["tid"]
        if category in RUNTIME:
            rank_event = RankEvent(start_ns, end_ns, name, category, sequence, correlation, external, NOTHING)
            self._list(self._found.threads, place).append(rank_event)
            return
        details = self._details(name, category, args)
        rank_event = RankEvent(start_ns, end_ns, name, category, sequence, correlation, external, *details)
        if category in ANNOTATIONS:
            self._annotation(place, rank_event)
        elif category in ON_DEVICE:
            self._list(self._found.streams, place).append(rank_event)
        else:
            if name.startswith(BACKWARD):
                self._found.gone_back.add(sequence)
                self._found.backward.add(place)
            self._list(self._found.threads, place).append(rank_event)

    def _annotation(self, place: Place, event: RankEvent) -> None:
        recording = self._found
        if event.name.startswith(CLOCK):
            recording.clocks.append((event.start_ns, int(event.name.removeprefix(CLOCK))))
        elif event.name.startswith(GLOO):
            self._list(recording.gloo, place).append(event)
        elif step_in(event.name) is not None:
            self._list(recording.steps, place).append(event)
        else:
            self._list(recording.threads, place).append(event)
        if event.name.startswith(MARK):
            recording.marked.add(place)

    @staticmethod
    def _list(places: dict[Place, list[RankEvent]], place: Place) -> list[RankEvent]:
        events = places.get(place)
        if events is None:
            places[place] = events = []
        return events

    def _details(
        self, name: str, category: str, args: Mapping[str, Any]
    ) -> tuple[Operands, Message | None, Wait | None, int]:
        if category in SYNC:
            return NOTHING, None, _wait(args), NO_NUMBER
        if category in DEVICE:
            size = args.get("bytes")
            return Operands(size) if type(size) is int else NOTHING, _message(args), None, NO_NUMBER
        operands = self._inputs(name, args) if "Input Dims" in args else NOTHING
        return operands, _message(args), None, _peer(name, args)

    def _inputs(self, name: str, args: Mapping[str, Any]) -> Operands:
        # The text of the shapes is a key; it is much cheaper than to compute from them for each event.
        key = name, f"{args['Input Dims']}{args.get('Input type')}{args.get('Concrete Inputs')}"
        operands = self._operands.get(key)
        if operands is None:
            self._operands[key] = operands = operands_of(name, args)
        return operands


def _wait(args: Mapping[str, Any]) -> Wait:
    kind = args.get("cuda_sync_kind")
    if kind == "Context Sync":
        return Wait(None, NO_NUMBER)
    stream = args.get("wait_on_stream", args.get("stream"))
    return Wait(stream, args.get("wait_on_cuda_event_record_corr_id", NO_NUMBER))


def _message(args: Mapping[str, Any]) -> Message | None:
    name = args.get("Collective name")
    if name is None:
        return None
    ranks_text = str(args.get("Process Group Ranks", "")).strip("[]")
    numbers = tuple(int(rank) for rank in ranks_text.split(",") if rank.strip().isdigit())
    in_elements, out_elements = (int(args.get(key) or 0) for key in ("In msg nelems", "Out msg nelems"))
    return Message(
        str(name),
        in_elements,
        out_elements,
        str(args.get("dtype", "")),
        str(args.get("Process Group Name", "")),
        numbers,
    )


def _peer(name: str, args: Mapping[str, Any]) -> int:
    """Return the other rank of a transfer between two, the third argument of its operator."""
    if not name.startswith(("c10d::send", "c10d::recv")):
        return NO_NUMBER
    values = args.get("Concrete Inputs")
    return int(values[2]) if isinstance(values, list) and len(values) > 2 and str(values[2]).isdigit() else NO_NUMBER


class Operands(NamedTuple):
    """The inputs of an operator: their bytes, dtype and shape of the first; operations if it is a product."""

    bytes: int | None = None
    dtype: str | None = None
    shape: Shape | None = None
    flops: float | None = None


NOTHING = Operands()


def dtype_of(name: str) -> str | None:
    """Return the dtype, None if unknown."""
    return DTYPES.get(name.lower())


def operands_of(name: str, args: Mapping[str, Any]) -> Operands:
    """Return what the arguments of an operator's event say. Shapes that do not have the usual form are ignored."""
    dims, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list):
        return NOTHING
    tensors = [
        (tuple(shape), dtype)
        for shape, text in zip(dims, types, strict=False)
        if (dtype := dtype_of(text) if isinstance(text, str) else None) and _is_shape(shape)
    ]
    if not tensors:
        return NOTHING
    size = sum(prod(shape) * ELEMENT_BYTES[dtype] for shape, dtype in tensors)
    count = FLOPS.get(name)
    try:
        flops = count([tuple(shape) if _is_shape(shape) else () for shape in dims], args) if count else None
    except (LookupError, ValueError, TypeError, ZeroDivisionError):
        flops = None
    return Operands(size, tensors[0][1], tensors[0][0], flops)


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int for size in value)


def _matmul(left: Shape, right: Shape) -> float:
    return 2.0 * prod(left) * right[-1]


def _convolution(dims: Sequence[Shape], args: Mapping[str, Any]) -> float | None:
    """Return the operations of a convolution, whose arguments have its strides, padding and dilation as text."""
    image, weight = dims[0], dims[1]
    texts = args.get("Concrete Inputs")
    if not isinstance(texts, list) or texts[6] != "False":
        return None
    stride, padding, dilation = ([int(part) for part in text.strip("[]").split(",")] for text in texts[3:6])
    sizes = image[2:]
    output = 1
    for axis, size in enumerate(sizes):
        step, pad, spread = (values[axis % len(values)] for values in (stride, padding, dilation))
        output *= (size + 2 * pad - spread * (weight[2 + axis] - 1) - 1) // step + 1
    return 2.0 * image[0] * output * prod(weight)


def _convolution_backward(dims: Sequence[Shape], args: Mapping[str, Any]) -> float:
    """Return the operations for both gradients, each as many as those of the forward pass."""
    gradient, weight = dims[0], dims[2]
    return 4.0 * gradient[0] * prod(gradient[2:]) * prod(weight)


FLOPS: Mapping[str, Callable[[Sequence[Shape], Mapping[str, Any]], float | None]] = {
    "aten::mm": lambda dims, args: _matmul(dims[0], dims[1]),
    "aten::bmm": lambda dims, args: _matmul(dims[0], dims[1]),
    "aten::addmm": lambda dims, args: _matmul(dims[1], dims[2]),
    "aten::baddbmm": lambda dims, args: _matmul(dims[1], dims[2]),
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
}
