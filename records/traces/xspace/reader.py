"""Reads operations, marks and clock times from JAX's and TensorFlow's own file.

Operations are instructions of XLA's programs (events with `hlo_op`), TensorFlow's operations (`node:Type`), and events
of a device's streams. XLA's CPU client may delegate an instruction to other threads: it ends at the event `end: ` with
its number, and is on a separate track, since its thread continues. Phase and layer come from the origin of an
instruction, in the programs stored with the events, or from the path of a node (`neutral`). `tracks` makes spans of
them. If a device has its own streams, its kernels and copies are the work; operations of the host, those of TensorFlow
included, launch them.

The layout of a stored program is that of `HloProto` in xla/service/hlo.proto. An instruction's origin is a path of
name scopes, such as `jit(train_step)/transpose(jvp(dense_1))/dot_general`; a fusion has that of its last
instruction.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_matrix.records.files import UnfitFile, read_plain
from keras_matrix.records.protobuf import Malformed, fields, piece, text
from keras_matrix.records.traces.neutral import NOT_WORK, Phase, copy_of
from keras_matrix.records.traces.request import CLOCK, MARK, PHASE, STEP, WORKER_SCOPE, TraceError
from keras_matrix.records.traces.xspace import xplane
from keras_matrix.records.traces.xspace.operations import (
    CORRELATION,
    NO_CORRELATION,
    NO_LAUNCHES,
    NO_RUN,
    NO_SIZE,
    NOTHING,
    Launches,
    LineKey,
    OperationColumns,
    OperationTable,
    ProgramOperation,
    StepMark,
    launches,
)
from keras_matrix.records.traces.xspace.xplane import UNTOLD, Events, Places, Plane, PlaneEvent, PlaneLine

DEVICE_PLANE = "/device:"
END = "end: "
MARKED = re.compile(rf"{MARK}(?!{CLOCK.removeprefix(MARK)})")
# A node's path, a colon, the type of its operation.
NODE = re.compile(r"^([\w./>=-]+):(_?[A-Z]\w*)$")
NUMBER = re.compile(r"(\.\d+)+$")
# TensorFlow does not report a node's logical device; with several workers in a process, scopes are named after them,
# like MirroredStrategy's replicas except the first.
WORKER = re.compile(rf"(?:^|/)(?:{WORKER_SCOPE}|replica_)(\d+)/")
# Fetches a batch within TensorFlow's step: an operation in another thread, without a node.
FETCH = re.compile(r"^IteratorGetNext\w*Op::DoCompute$")
# Lines of a device that tools derive from its streams, which repeat the same time, and lines that are not streams:
# samples of counters, and the profiler's own work (xla/tsl/profiler/utils/xplane_schema.cc, cupti_collector.cc).
DERIVED = ("Steps", "XLA ", "TensorFlow ", "Framework ", "Source code", "Async XLA", "Launch Stats")
NO_STREAMS = ("_counters_", "CUPTI overhead")
# In the text of a copy's statistic memcpy_details (cupti_collector.cc).
SIZE = re.compile(r"\bsize:(\d{1,18})\b")
# Of jax.profiler.StepTraceAnnotation and tf.profiler.experimental.Trace(..., step_num=N), which count from 0.
STEP_NUMBER = "step_num"
HOLDERS = frozenset({"fusion", "call", "custom-call"})
PROGRAM_STAT = "Hlo Proto"


class ProgramMark(NamedTuple):
    """A mark, or another event of the program's own thread."""

    place: LineKey
    start_ns: int
    end_ns: int
    name: str


@dataclass(slots=True)
class XSpaceRecording:
    """The content of a file. Times are nanoseconds of the profiler's clock.

    Steps are marks of a traced cell; in a file without these, the steps that another program has `annotated`.

    `device` is gpu if any event ran on one; `launches` are the steps that launched these events. `programs` are XLA's
    programs by their names, as stored (hlo_program.py reads them).
    """

    worked: OperationColumns = NOTHING
    whats: list[ProgramOperation] = field(default_factory=list)
    places: list[LineKey] = field(default_factory=list)
    marks: list[ProgramMark] = field(default_factory=list)
    fetches: list[ProgramMark] = field(default_factory=list)
    annotated: list[ProgramMark] = field(default_factory=list)
    clocks: list[tuple[int, int]] = field(default_factory=list)
    device: str = "cpu"
    launches: Launches = NO_LAUNCHES
    programs: dict[str, bytes] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


# What Python's own errors say of a damaged file, which is nothing to its reader.
_OF_PYTHON = {IndexError: "a message is truncated", OverflowError: "a number is out of range"}
PROFILE_LIMIT_BYTES = 0x7FFFF000  # which one call of the system reads; a message of Protocol Buffers has at most 2 GiB


def read(path: Path) -> XSpaceRecording:
    """Read a file. Raises `TraceError`."""
    try:
        profile_bytes = read_plain(os.path.realpath(path), PROFILE_LIMIT_BYTES)  # named by a user, who may name a link
        recording = _read(list(xplane.planes(profile_bytes)))
        recording.warnings = xplane.messages(profile_bytes)
        return recording
    except (UnfitFile, OSError) as error:
        raise TraceError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        text = _OF_PYTHON.get(type(error)) or str(error)
        raise TraceError(f"{path}: is not a complete profile of JAX or TensorFlow: {text}; record it again") from error


def _read(planes: list[Plane]) -> XSpaceRecording:
    programs, table = Programs(planes), OperationTable()
    recording = XSpaceRecording(programs=programs.stored)
    host_planes = [p for p in planes if not p.name.startswith(DEVICE_PLANE) and p.name != xplane.METADATA_PLANE]
    for plane in planes:
        if plane.name.startswith(DEVICE_PLANE):
            _read_device(recording, plane, programs, table)
    for plane in host_planes:
        host = _Host(recording, plane, programs, table)
        for line in plane.lines:
            host.read(line)
    if not any(mark.name.startswith(STEP) for mark in recording.marks):
        recording.marks += recording.annotated
    recording.worked, recording.whats, recording.places = table.worked(), list(table.whats), list(table.places)
    if (recording.worked.correlations != NO_CORRELATION).any():
        recording.launches = _launches(recording, host_planes)
    return recording


def _launches(recording: XSpaceRecording, host_planes: list[Plane]) -> Launches:
    """Return the steps that launched the events of the devices."""
    steps = [
        StepMark(*mark.place, mark.start_ns, mark.end_ns, int(mark.name.removeprefix(STEP)))
        for mark in recording.marks
        if mark.name.startswith(STEP)
    ]
    # Operations of a graph, which do not belong to a program of XLA, are TensorFlow's.
    of_graph = np.array([not operation.program for operation in recording.whats], np.bool_)
    return launches(host_planes, steps, bool(of_graph[recording.worked.whats[~recording.worked.on_device]].any()))


class Programs:
    """The programs stored with the events. An instruction that runs many times is looked up once."""

    def __init__(self, planes: Iterable[Plane]) -> None:
        self._instructions: dict[str, dict[str, Instruction]] = {}
        self.stored: dict[str, bytes] = {}
        self.instruction = cache(self._instruction)
        for plane in planes:
            if plane.name == xplane.METADATA_PLANE:
                for name, stats in plane.own_stats():
                    if isinstance(program := stats.get(PROGRAM_STAT), memoryview):
                        instructions = program_instructions(program)
                        self.stored[name] = bytes(program)
                        self._instructions[name] = self._instructions[name.partition("(")[0]] = instructions

    def _instruction(self, name: str, module: str, number: int | None) -> ProgramOperation:
        """Return the operation of an instruction; a program with this number precedes one with this name."""
        # A program's name contains its number as unsigned.
        program = f"{module}({None if number is None else number % (1 << 64)})"
        instructions = self._instructions.get(program) or self._instructions.get(module, {})
        instruction = instructions.get(name) or Instruction(NUMBER.sub("", name), "")
        return ProgramOperation(name, _op_of(instruction), instruction.origin, program)


def _op_of(instruction: Instruction) -> str:
    """Return the kind of an instruction; for one that contains others, also the last scope of its origin."""
    last_part = instruction.origin.rpartition("/")[2]
    return f"{instruction.opcode} ({last_part})" if last_part and instruction.opcode in HOLDERS else instruction.opcode


class _Role(Enum):
    """The role of all events with the same name."""

    MARK = 0
    END = 1
    NODE = 2
    FETCH = 3
    INSTRUCTION = 4
    OTHER = 5
    STEP = 6


class _Host:
    """Reads the plane of a host. The role of events with the same name is determined once."""

    def __init__(self, recording: XSpaceRecording, plane: Plane, programs: Programs, table: OperationTable) -> None:
        self._found, self._plane, self._programs, self._sheets = recording, plane, programs, table
        self._roles: dict[int, _Role] = {}
        self._nodes: dict[int, tuple[int, int]] = {}
        self._marks = {kind for kind, name in plane.event_names.items() if MARKED.match(name)}

    def read(self, line: PlaneLine) -> None:
        place = (self._plane.name, line.number)
        kinds, first_indices, inverse = np.unique(line.kinds(), return_index=True, return_inverse=True)
        distinct = kinds.tolist()
        self._learn(line, distinct, first_indices)
        roles = np.array([self._roles[kind].value for kind in distinct], np.int64)[inverse]
        readers: dict[Callable[[LineKey, Events], None], list[_Role]] = {
            self._end: [_Role.END],
            self._node: [_Role.NODE],
            self._instruction: [_Role.INSTRUCTION],
            self._fetch: [_Role.FETCH],
            # Other events of the marked thread are the program's; those of other threads are skipped.
            self._mark: [_Role.MARK] if self._marks.isdisjoint(distinct) else [_Role.MARK, _Role.OTHER],
            self._step: [_Role.STEP],
        }
        for reader, reader_roles in readers.items():
            positions = np.flatnonzero(np.isin(roles, [role.value for role in reader_roles]))
            if positions.size:
                reader(place, line.events(positions))

    def _learn(self, line: PlaneLine, kinds: list[int], first_indices: Places) -> None:
        """Determine the roles of events of these kinds, by their names or by the statistics of the first of them."""
        if new := [index for index, kind in enumerate(kinds) if kind not in self._roles]:
            self._roles |= {event.kind: _role(event) for event in line.events(first_indices[new])}

    def _mark(self, place: LineKey, events: Events) -> None:
        for event in events:
            if event.name.startswith(CLOCK):
                self._found.clocks.append((event.start_ns, int(event.name.removeprefix(CLOCK))))
            else:
                self._found.marks.append(_marked(place, event))

    def _step(self, place: LineKey, events: Events) -> None:
        numbers, _ = events.numbers(STEP_NUMBER)
        for event, number in zip(events, numbers.tolist(), strict=True):
            self._found.annotated.append(_marked(place, event)._replace(name=f"{STEP}{number + 1}"))

    def _fetch(self, place: LineKey, events: Events) -> None:
        fetch_name = f"{PHASE}{Phase.INPUT}"
        self._found.fetches += (_marked(place, event)._replace(name=fetch_name) for event in events)

    def _end(self, place: LineKey, events: Events) -> None:
        contexts, has_context = events.numbers("_c")
        self._sheets.end(contexts[has_context], events.end_ns[has_context])

    def _node(self, place: LineKey, events: Events) -> None:
        kinds, inverse = np.unique(events.kinds, return_inverse=True)
        nodes = np.array([self._nodes.get(kind) or self._new_node(kind) for kind in kinds.tolist()], np.int64)
        self._sheets.add(place, events, *nodes[inverse].T)

    def _new_node(self, kind: int) -> tuple[int, int]:
        """Return the operation of a node, and the number of its worker."""
        node, _, op = self._plane.event_names[kind].rpartition(":")
        match = WORKER.search(node)
        self._nodes[kind] = node_and_worker = (
            self._sheets.what(ProgramOperation(node, op, node)),
            int(match[1]) if match else 0,
        )
        return node_and_worker

    def _instruction(self, place: LineKey, events: Events) -> None:
        runs, has_run = events.numbers("run_id")
        devices, _ = events.numbers("device_ordinal")
        contexts, awaited = events.numbers("_p")
        self._sheets.add(
            place,
            events,
            self._instructions(events),
            devices.clip(0),
            runs=np.where(has_run, runs, NO_RUN),
            contexts=contexts,
            awaited=awaited,
        )

    def _instructions(self, events: Events) -> Places:
        """Return the operation of each of these instructions."""
        instructions, inverse = _instruction_of(events)
        numbers = []
        for instruction in instructions:
            if instruction is None:
                raise Malformed("one of several events with the same name is not an instruction")
            numbers.append(self._sheets.what(self._programs.instruction(*instruction)))
        return np.array(numbers, np.int64)[inverse]


def _role(event: PlaneEvent) -> _Role:
    name = event.name
    if name.startswith(MARK):
        return _Role.MARK
    if name.startswith(END):
        return _Role.END
    if NODE.match(name):
        return _Role.NODE
    if FETCH.match(name):
        return _Role.FETCH
    if STEP_NUMBER in event.stats:
        return _Role.STEP
    return _Role.INSTRUCTION if "hlo_op" in event.stats else _Role.OTHER


def _marked(place: LineKey, event: PlaneEvent) -> ProgramMark:
    return ProgramMark(place, event.start_ns, event.end_ns, event.name)


def _read_device(recording: XSpaceRecording, plane: Plane, programs: Programs, table: OperationTable) -> None:
    """Read the streams of a device; each event is a kernel or a copy."""
    number = plane.name.rpartition(":")[2]
    device = int(number) if number.isdecimal() else 0
    kind = plane.name.removeprefix(DEVICE_PLANE).partition(":")[0].lower()
    if kind != "gpu" and recording.device == "cpu":
        recording.device = kind
    for line in plane.lines:
        if line.name.startswith((*DERIVED, *NO_STREAMS)):
            continue
        events = _work(line, plane)
        if not len(events):
            continue
        if kind == "gpu":
            recording.device = kind
        correlations, has_correlation = events.numbers(CORRELATION)
        table.add(
            (plane.name, line.number),
            events,
            _kernels(events, plane, programs, table),
            np.full(len(events), device, np.int64),
            on_device=np.ones(len(events), np.bool_),
            correlations=np.where(has_correlation, correlations, NO_CORRELATION),
            sizes=_sizes(events),
        )


def _work(line: PlaneLine, plane: Plane) -> Events:
    """Return the events of a stream that are work of the device."""
    not_work = [kind for kind, name in plane.event_names.items() if name in NOT_WORK]
    return line.events(np.flatnonzero(~np.isin(line.kinds(), not_work))) if not_work else line.events()


def _sizes(events: Events) -> Places:
    """Return the bytes of each copy, `NO_SIZE` if unknown."""
    inverse, words = events.words("memcpy_details")
    sizes_bytes = [int(match[1]) if (match := SIZE.search(word)) else NO_SIZE for word in words]
    return np.array([*sizes_bytes, NO_SIZE], np.int64)[inverse]  # without details, `inverse` is -1


def _kernels(events: Events, plane: Plane, programs: Programs, table: OperationTable) -> Places:
    """Return the operation of each kernel, by the instruction or node for which it ran."""
    instructions, of_instruction = _instruction_of(events)
    paths, words = events.words("tf_op")
    rows, inverse = _distinct(events.kinds, of_instruction, paths)
    numbers = []
    for kind, index, path in rows:
        name = op = plane.event_names.get(kind, "")
        origin = program = ""
        if (instruction := instructions[index]) is not None:
            _, op, origin, program = programs.instruction(*instruction)
        elif path != UNTOLD and (match := NODE.match(words[path])):
            origin, op = match[1], match[2]
        numbers.append(table.what(ProgramOperation(name, copy_of(name) or op, origin, program)))
    return np.array(numbers, np.int64)[inverse]


def _instruction_of(events: Events) -> tuple[list[tuple[str, str, int | None] | None], Places]:
    """Return the distinct instructions (name, program's name and number; or None), and the index of each event's."""
    ops, names = events.words("hlo_op")
    modules, module_names = events.words("hlo_module")
    numbers, has_program = events.numbers("program_id")
    rows, inverse = _distinct(ops, modules, numbers, has_program.astype(np.int64))
    return [
        None
        if op == UNTOLD
        else (names[op], "" if module == UNTOLD else module_names[module], number if is_known else None)
        for op, module, number, is_known in rows
    ], inverse


def _distinct(*columns: Places) -> tuple[list[tuple[int, ...]], Places]:
    """Return the distinct rows of these columns, and the index of each row among them."""
    unique_columns = [np.unique(column, return_inverse=True) for column in columns]
    shape = tuple(max(1, values.size) for values, _ in unique_columns)
    codes, inverse = np.unique(
        np.ravel_multi_index(tuple(column_codes for _, column_codes in unique_columns), shape), return_inverse=True
    )
    rows = [
        values[indices].tolist()
        for (values, _), indices in zip(unique_columns, np.unravel_index(codes, shape), strict=True)
    ]
    return list(zip(*rows, strict=True)), inverse


class Instruction(NamedTuple):
    """The operation of an instruction, such as dot or fusion, and its path of scopes, empty if unknown."""

    opcode: str
    origin: str


def program_instructions(data: memoryview) -> dict[str, Instruction]:
    """Return the instructions of all computations of a program by name. Raises `IndexError` or `ValueError`."""
    instruction_by_name: dict[str, Instruction] = {}
    for key, module in fields(data):
        if key != 1:
            continue
        for inner, computation in fields(piece(module)):
            if inner == 3:
                instruction_by_name |= dict(
                    _instruction(piece(entry)) for name, entry in fields(piece(computation)) if name == 2
                )
    return instruction_by_name


def _instruction(data: memoryview) -> tuple[str, Instruction]:
    name = opcode = origin = ""
    for key, value in fields(data):
        if key == 1:
            name = text(value)
        elif key == 2:
            opcode = text(value)
        elif key == 7:
            origin = next((text(item) for inner, item in fields(piece(value)) if inner == 2), "")
    return name, Instruction(opcode, origin)
