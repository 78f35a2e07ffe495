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
    whats, scopes = recording.whats, Scopes(names)
    read = [_read(what, scopes) for what in whats]

    def of_each(values: Iterable[Any]) -> Objects:
        return _objects(list(values))[worked.whats]

    marks = list(_marks(recording, worker))
    kinds = np.array([KINDS.index(kind) for kind, _, _ in read], np.int64)[worked.whats]
    if worked.on_device.any():
        kinds[~worked.on_device] = KINDS.index(TrackKind.HOST)
        kinds[recording.launches.before(worked.correlations) & worked.on_device] = KINDS.index(TrackKind.OUTSIDE)
    which, tracks = _tracks(worked, kinds, worker, {mark.track for mark in marks})
    columns = (
        _objects(tracks)[which],
        of_each(what.name for what in whats),
        of_each(what.op for what in whats),
        worked.start_ns,
        worked.end_ns - worked.start_ns,
        of_each(phase for _, phase, _ in read),
        of_each(layer for _, _, layer in read),
        _Steps(recording).of(worked),
        *_of_device(recording, worked),
    )
    return [*marks, *map(Span, *(column.tolist() for column in columns))]


def operations(recording: XSpaceRecording) -> list[ProgramOperation]:
    """Return the operation of each span of work, in the order in which `spans` ends with them."""
    return [recording.whats[at] for at in _in_order(recording.worked).whats.tolist()]


def _in_order(worked: OperationColumns) -> OperationColumns:
    """Return operations in the order of their beginning, the outer one first."""
    return worked.at(np.lexsort((-worked.end_ns, worked.start_ns)))


def _objects(values: list[Any]) -> Objects:
    found = np.empty(len(values), np.object_)
    found[:] = values
    return found


def _of_device(recording: XSpaceRecording, worked: OperationColumns) -> list[Objects]:
    """Return stream, size and correlation of each operation on a device, None for others."""
    streams = _objects([line for _, line in recording.places])[worked.places]
    numbers = (
        (streams, worked.on_device),
        (worked.sizes, worked.sizes != NO_SIZE),
        (worked.correlations, worked.correlations != NO_CORRELATION),
    )
    found = [np.full(worked.places.size, None, np.object_) for _ in numbers]
    for column, (values, known) in zip(found, numbers, strict=True):
        column[known] = values[known]
    return found


def _read(what: ProgramOperation, scopes: Scopes) -> tuple[TrackKind, Phase | None, str | None]:
    """Return the kind of track, the phase and the layer of an operation."""
    phase, layer = scopes.read(what.origin)
    if what.op == copy_of(what.name):
        return TrackKind.COPY, phase, layer
    if is_collective(what.name) or COLLECTIVE.match(what.op) or COLLECTIVE_SCOPE.search(what.origin):
        return TrackKind.COMMUNICATION, Phase.COMMUNICATION, layer
    return TrackKind.COMPUTE, Phase.INPUT if INPUT.match(what.op) else phase, layer


def _tracks(
    worked: OperationColumns, kinds: Places, first_worker: int, taken: set[Track]
) -> tuple[Places, list[Track]]:
    """Return the index of each operation's track, and the tracks; those in `taken` are used by others.

    The operations of a thread or a stream share a track, since they nest. Operations that ended elsewhere, and kernels
    that overlap on a stream, are on further tracks, on which they follow one another.
    """
    devices, which = np.unique(worked.devices, return_inverse=True)
    groups = len(KINDS) * which + kinds
    places = worked.places.copy()
    apart = np.flatnonzero(worked.apart | _overlapping(worked))
    places[apart] = places.max(initial=0) + 1 + _follow(worked, groups, apart)
    width = int(places.max(initial=0)) + 1
    distinct, first, which = np.unique(groups * width + places, return_index=True, return_inverse=True)
    lanes = Counter((track.worker, track.kind) for track in taken)
    tracks: dict[int, Track] = {}
    for at in np.argsort(first).tolist():
        device, kind = divmod(int(distinct[at]) // width, len(KINDS))
        group = first_worker + int(devices[device]), KINDS[kind]
        tracks[at] = Track(*group, lanes[group])
        lanes[group] += 1
    return which, [tracks[at] for at in range(len(tracks))]


def _overlapping(worked: OperationColumns) -> Flags:
    """Return which operations of a device's stream, in order of their beginning, overlap with an earlier one.

    Kernels of a CUDA graph, and those of programmatic dependent launch, do.
    """
    found = np.zeros(worked.places.size, np.bool_)
    for place in np.unique(worked.places[worked.on_device]):
        at = np.flatnonzero(worked.on_device & (worked.places == place))
        found[at[1:]] = np.maximum.accumulate(worked.end_ns[at])[:-1] > worked.start_ns[at[1:]]
    return found


def _follow(worked: OperationColumns, groups: Places, at: Places) -> Places:
    """Return for each of these operations the number of its group's first track that is free when it begins."""
    free_ns: dict[int, list[int]] = {}
    found = []
    for group, start_ns, end_ns in zip(
        groups[at].tolist(), worked.start_ns[at].tolist(), worked.end_ns[at].tolist(), strict=True
    ):
        free = free_ns.setdefault(group, [])
        number = next((number for number, free_from_ns in enumerate(free) if free_from_ns <= start_ns), len(free))
        free[number : number + 1] = [end_ns]
        found.append(number)
    return np.array(found, np.int64)


class _Steps:
    """Finds the step of each operation."""

    def __init__(self, recording: XSpaceRecording) -> None:
        steps = sorted((one.start_ns, one.end_ns, one.name) for one in recording.marks if one.name.startswith(STEP))
        self._begins = np.array([begin for begin, _, _ in steps], np.int64)
        self._ends = np.array([end for _, end, _ in steps], np.int64)
        self._numbers = [int(name.removeprefix(STEP)) for _, _, name in steps]
        self._launches = recording.launches
        self._worked = len(self._numbers)  # how many of them have work: the profiler may have stopped in the last one
        # Operations without a program have the number 0.
        self._programs = _numbered(["", *(what.program for what in recording.whats)])[1:]

    def of(self, worked: OperationColumns) -> Objects:
        """Return the number of each operation's step, None if unknown; operations are in order."""
        found = np.zeros(worked.whats.size, np.int64)
        if self._numbers:
            if self._worked > 1 and not (worked.start_ns >= self._begins[-1]).any():
                self._worked -= 1
            of_run = worked.runs != NO_RUN
            its = np.flatnonzero(of_run)
            found[its] = self._of_runs(worked.start_ns[its], self._programs[worked.whats[its]], worked.runs[its])
            at = np.searchsorted(self._begins, worked.start_ns, side="right") - 1
            within = ~of_run & ~worked.on_device & (at >= 0) & (worked.end_ns <= self._ends[at])
            found[within] = at[within] + 1
            its = np.flatnonzero(worked.on_device)
            found[its] = self._of_launches(worked.at(its))
        return _objects([None, *self._numbers])[found]

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
        its = np.flatnonzero((self._programs[worked.whats] != 0) & (worked.start_ns >= self._begins[0]))
        keys = worked.devices[its] * len(self._programs) + worked.whats[its]
        for key in np.unique(keys):
            ran = its[keys == key]
            times, rest = divmod(ran.size, self._worked)
            if not rest:
                steps[ran] = 1 + np.arange(ran.size) // times
        return steps

    def _of_runs(self, start_ns: Places, programs: Places, runs: Places) -> Places:
        """Return for operations of these runs the position of their step, counted from 1; 0 if unknown."""
        each, numbers = np.unique(runs, return_inverse=True)
        pairs, pair = np.unique(programs * each.size + numbers, return_inverse=True)
        # Operations before the first step belong to no step.
        called, first = np.unique(pair[start_ns >= self._begins[0]], return_index=True)
        called = called[np.argsort(first)]
        steps = np.zeros(pairs.size, np.int64)
        of_program = pairs[called] // max(1, each.size)
        for program in np.unique(of_program):
            its = called[of_program == program]
            times, rest = divmod(its.size, self._worked)
            if not rest:
                steps[its] = 1 + np.arange(its.size) // times
        return steps[pair]


def _numbered(words: list[str]) -> Places:
    """Return a number for each word, equal for equal words."""
    known: dict[str, int] = {}
    return np.array([known.setdefault(word, len(known)) for word in words], np.int64)


def _marks(recording: XSpaceRecording, worker: int) -> Iterator[Span]:
    places: dict[tuple[LineKey, TrackKind], int] = {}
    marks = [*recording.marks, *recording.fetches]
    for mark in sorted(marks, key=lambda one: (one.start_ns, -one.end_ns)):
        name, kind, step, phase = mark.name, TrackKind.HOST, None, None
        if name.startswith(STEP):
            name, kind, step = f"step {name.removeprefix(STEP)}", TrackKind.STEPS, int(name.removeprefix(STEP))
        elif name.startswith(PHASE):
            name = name.removeprefix(PHASE)
            kind, phase = (TrackKind.INPUT if name == Phase.INPUT else TrackKind.LAYERS), Phase(name)
        lane = places.setdefault((mark.place, kind), sum(other is kind for _, other in places))
        op = "step" if kind is TrackKind.STEPS else name
        track = Track(worker, kind, lane)
        yield Span(track, name, op, mark.start_ns, mark.end_ns - mark.start_ns, phase, None, step)
