"""Converts a recording of JAX or TensorFlow to spans: the track, phase, layer and step of each operation.

The instructions of a step are those of its program runs: if the number of a program's runs is a multiple of the number
of steps (without a last one during which nothing began), the first runs belong to the first step. TensorFlow's
operations end within the step that calls them. Events on the streams of a device belong to the step that launched them
(`launches`); in a file without launches, instructions are divided like runs. In all other cases the step is unknown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keras_matrix.records.traces.neutral import KINDS, Phase, Scopes, Span, Track, TrackKind, copy_of, is_collective
from keras_matrix.records.traces.request import PHASE, STEP, Names
from keras_matrix.records.traces.xspace.operations import (
    NO_CORRELATION,
    NO_RUN,
    NO_SIZE,
    NO_STEP,
    Flags,
    LineKey,
    OperationColumns,
    ProgramOperation,
)
from keras_matrix.records.traces.xspace.reader import XSpaceRecording
from keras_matrix.records.traces.xspace.xplane import Places

COLLECTIVE = re.compile(
    r"^(all-reduce|all-gather|reduce-scatter|all-to-all|collective-|ragged-all-to-all|Collective|Nccl)"
)
# The scope of a collective in a traced step of the FC modes (models.fc.native.tensorflow_workers).
COLLECTIVE_SCOPE = re.compile(r"(?:^|/)collective_of_\d+")
INPUT = re.compile(r"^(Iterator\w*GetNext\w*|IteratorV2|MultiDeviceIteratorGetNextFromShard)$")

Objects = NDArray[np.object_]


def spans(recording: XSpaceRecording, worker: int, names: Names) -> list[Span]:
    """Return the spans of a file, in the profiler's own clock; its devices are the workers from `worker` on."""
    worked = _in_order(recording.worked)
    program_operations, scopes = recording.whats, Scopes(names)
    read_operations = [_read(operation, scopes) for operation in program_operations]

    def of_each(values: Iterable[Any]) -> Objects:
        return _objects(list(values))[worked.whats]

    marks = list(_marks(recording, worker))
    kinds = np.array([KINDS.index(kind) for kind, _, _ in read_operations], np.int64)[worked.whats]
    if worked.on_device.any():
        kinds[~worked.on_device] = KINDS.index(TrackKind.HOST)
        kinds[recording.launches.before(worked.correlations) & worked.on_device] = KINDS.index(TrackKind.OUTSIDE)
    inverse, tracks = _tracks(worked, kinds, worker, {mark.track for mark in marks})
    columns = (
        _objects(tracks)[inverse],
        of_each(operation.name for operation in program_operations),
        of_each(operation.op for operation in program_operations),
        worked.start_ns,
        worked.end_ns - worked.start_ns,
        of_each(phase for _, phase, _ in read_operations),
        of_each(layer for _, _, layer in read_operations),
        _Steps(recording).of(worked),
        *_of_device(recording, worked),
    )
    return [*marks, *map(Span, *(column.tolist() for column in columns))]


def operations(recording: XSpaceRecording) -> list[ProgramOperation]:
    """Return the operation of each span of work, in the order in which `spans` ends with them."""
    return [recording.whats[number] for number in _in_order(recording.worked).whats.tolist()]


def _in_order(worked: OperationColumns) -> OperationColumns:
    """Return operations in the order of their beginning, the outer one first."""
    return worked.at(np.lexsort((-worked.end_ns, worked.start_ns)))


def _objects(values: list[Any]) -> Objects:
    objects = np.empty(len(values), np.object_)
    objects[:] = values
    return objects


def _of_device(recording: XSpaceRecording, worked: OperationColumns) -> list[Objects]:
    """Return stream, size and correlation of each operation on a device, None for others."""
    streams = _objects([line for _, line in recording.places])[worked.places]
    numbers = (
        (streams, worked.on_device),
        (worked.sizes, worked.sizes != NO_SIZE),
        (worked.correlations, worked.correlations != NO_CORRELATION),
    )
    columns = [np.full(worked.places.size, None, np.object_) for _ in numbers]
    for column, (values, is_known) in zip(columns, numbers, strict=True):
        column[is_known] = values[is_known]
    return columns


def _read(operation: ProgramOperation, scopes: Scopes) -> tuple[TrackKind, Phase | None, str | None]:
    """Return the kind of track, the phase and the layer of an operation."""
    phase, layer = scopes.read(operation.origin)
    if operation.op == copy_of(operation.name):
        return TrackKind.COPY, phase, layer
    if is_collective(operation.name) or COLLECTIVE.match(operation.op) or COLLECTIVE_SCOPE.search(operation.origin):
        return TrackKind.COMMUNICATION, Phase.COMMUNICATION, layer
    return TrackKind.COMPUTE, Phase.INPUT if INPUT.match(operation.op) else phase, layer


def _tracks(
    worked: OperationColumns, kinds: Places, first_worker: int, taken_tracks: set[Track]
) -> tuple[Places, list[Track]]:
    """Return the index of each operation's track, and the tracks; those in `taken_tracks` are used by others.

    The operations of a thread or a stream share a track, since they nest. Operations that ended elsewhere, and kernels
    that overlap on a stream, are on further tracks, on which they follow one another.
    """
    devices, inverse = np.unique(worked.devices, return_inverse=True)
    groups = len(KINDS) * inverse + kinds
    places = worked.places.copy()
    apart_rows = np.flatnonzero(worked.apart | _overlapping(worked))
    places[apart_rows] = places.max(initial=0) + 1 + _follow(worked, groups, apart_rows)
    width = int(places.max(initial=0)) + 1
    distinct, first_indices, inverse = np.unique(groups * width + places, return_index=True, return_inverse=True)
    lane_counts = Counter((track.worker, track.kind) for track in taken_tracks)
    tracks: dict[int, Track] = {}
    for index in np.argsort(first_indices).tolist():
        device, kind = divmod(int(distinct[index]) // width, len(KINDS))
        group = first_worker + int(devices[device]), KINDS[kind]
        tracks[index] = Track(*group, lane_counts[group])
        lane_counts[group] += 1
    return inverse, [tracks[index] for index in range(len(tracks))]


def _overlapping(worked: OperationColumns) -> Flags:
    """Return which operations of a device's stream, in order of their beginning, overlap with an earlier one.

    Kernels of a CUDA graph, and those of programmatic dependent launch, do.
    """
    overlaps = np.zeros(worked.places.size, np.bool_)
    for place in np.unique(worked.places[worked.on_device]):
        positions = np.flatnonzero(worked.on_device & (worked.places == place))
        overlaps[positions[1:]] = np.maximum.accumulate(worked.end_ns[positions])[:-1] > worked.start_ns[positions[1:]]
    return overlaps


def _follow(worked: OperationColumns, groups: Places, positions: Places) -> Places:
    """Return for each of these operations the number of its group's first track that is free when it begins."""
    free_ns: dict[int, list[int]] = {}
    numbers = []
    for group, start_ns, end_ns in zip(
        groups[positions].tolist(), worked.start_ns[positions].tolist(), worked.end_ns[positions].tolist(), strict=True
    ):
        lane_ends_ns = free_ns.setdefault(group, [])
        number = next(
            (number for number, free_from_ns in enumerate(lane_ends_ns) if free_from_ns <= start_ns), len(lane_ends_ns)
        )
        lane_ends_ns[number : number + 1] = [end_ns]
        numbers.append(number)
    return np.array(numbers, np.int64)


class _Steps:
    """Finds the step of each operation."""

    def __init__(self, recording: XSpaceRecording) -> None:
        steps = sorted(
            (mark.start_ns, mark.end_ns, mark.name) for mark in recording.marks if mark.name.startswith(STEP)
        )
        self._begins = np.array([begin for begin, _, _ in steps], np.int64)
        self._ends = np.array([end for _, end, _ in steps], np.int64)
        self._numbers = [int(name.removeprefix(STEP)) for _, _, name in steps]
        self._launches = recording.launches
        self._worked = len(self._numbers)  # how many of them have work: the profiler may have stopped in the last one
        # Operations without a program have the number 0.
        self._programs = _numbered(["", *(operation.program for operation in recording.whats)])[1:]

    def of(self, worked: OperationColumns) -> Objects:
        """Return the number of each operation's step, None if unknown; operations are in order."""
        steps = np.zeros(worked.whats.size, np.int64)
        if self._numbers:
            if self._worked > 1 and not (worked.start_ns >= self._begins[-1]).any():
                self._worked -= 1
            of_run = worked.runs != NO_RUN
            positions = np.flatnonzero(of_run)
            steps[positions] = self._of_runs(
                worked.start_ns[positions], self._programs[worked.whats[positions]], worked.runs[positions]
            )
            step_indices = np.searchsorted(self._begins, worked.start_ns, side="right") - 1
            in_step = ~of_run & ~worked.on_device & (step_indices >= 0) & (worked.end_ns <= self._ends[step_indices])
            steps[in_step] = step_indices[in_step] + 1
            positions = np.flatnonzero(worked.on_device)
            steps[positions] = self._of_launches(worked.at(positions))
        return _objects([None, *self._numbers])[steps]

    def _of_launches(self, worked: OperationColumns) -> Places:
        """Return for operations on devices the position of their step, counted from 1; 0 if unknown."""
        numbers = self._launches.steps_of(worked.correlations)
        if (numbers == NO_STEP).all():
            return self._of_repetitions(worked)
        order = np.argsort(self._numbers)
        places = order[np.searchsorted(self._numbers, numbers, sorter=order).clip(0, order.size - 1)]
        return np.where(numbers == NO_STEP, 0, 1 + places)

    def _of_repetitions(self, worked: OperationColumns) -> Places:
        """Return the same for the kernels of XLA's instructions, by how often each ran on its device."""
        steps = np.zeros(worked.whats.size, np.int64)
        positions = np.flatnonzero((self._programs[worked.whats] != 0) & (worked.start_ns >= self._begins[0]))
        keys = worked.devices[positions] * len(self._programs) + worked.whats[positions]
        for key in np.unique(keys):
            ran = positions[keys == key]
            times, remainder = divmod(ran.size, self._worked)
            if not remainder:
                steps[ran] = 1 + np.arange(ran.size) // times
        return steps

    def _of_runs(self, start_ns: Places, programs: Places, runs: Places) -> Places:
        """Return for operations of these runs the position of their step, counted from 1; 0 if unknown."""
        distinct_runs, numbers = np.unique(runs, return_inverse=True)
        pairs, pair = np.unique(programs * distinct_runs.size + numbers, return_inverse=True)
        # Operations before the first step belong to no step.
        called_pairs, first_indices = np.unique(pair[start_ns >= self._begins[0]], return_index=True)
        called_pairs = called_pairs[np.argsort(first_indices)]
        steps = np.zeros(pairs.size, np.int64)
        of_program = pairs[called_pairs] // max(1, distinct_runs.size)
        for program in np.unique(of_program):
            positions = called_pairs[of_program == program]
            times, remainder = divmod(positions.size, self._worked)
            if not remainder:
                steps[positions] = 1 + np.arange(positions.size) // times
        return steps[pair]


def _numbered(words: list[str]) -> Places:
    """Return a number for each word, equal for equal words."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(word, len(numbers)) for word in words], np.int64)


def _marks(recording: XSpaceRecording, worker: int) -> Iterator[Span]:
    places: dict[tuple[LineKey, TrackKind], int] = {}
    marks = [*recording.marks, *recording.fetches]
    for mark in sorted(marks, key=lambda mark: (mark.start_ns, -mark.end_ns)):
        name, kind, step, phase = mark.name, TrackKind.HOST, None, None
        if name.startswith(STEP):
            name, kind, step = f"step {name.removeprefix(STEP)}", TrackKind.STEPS, int(name.removeprefix(STEP))
        elif name.startswith(PHASE):
            name = name.removeprefix(PHASE)
            kind, phase = (TrackKind.INPUT if name == Phase.INPUT else TrackKind.LAYERS), Phase(name)
        lane = places.setdefault((mark.place, kind), sum(other_kind is kind for _, other_kind in places))
        op = "step" if kind is TrackKind.STEPS else name
        track = Track(worker, kind, lane)
        yield Span(track, name, op, mark.start_ns, mark.end_ns - mark.start_ns, phase, None, step)
