"""The operations in a file of JAX or TensorFlow, as columns: there may be millions.

Finds the step that launched the work of a device, in a file of JAX or TensorFlow.

CUPTI numbers each call that launches work. The call, on the host's thread, and the kernel or copy, on the device's
stream, have that number as `correlation_id` (`CreateXEvent` in xla/backends/profiler/gpu/cupti_collector.cc; the
post-processing of a session merges the calls into the plane /host:CPU). A call belongs to the current step of its
thread. If another thread launches, an event around the call identifies the producer of its work: the consumer's `_ct`
and `_c` equal the producer's `_pt` and `_p` (tsl/profiler/lib/connected_traceme.h). TensorFlow's step returns only
after its operations are launched, so that a call on any thread during it belongs to it.

The time of a kernel never determines its step: it may run while the host is in a later one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keras_matrix.records.traces.xspace.xplane import Events, Places, Plane, PlaneLine

NO_SIZE = -1
NO_RUN = -1  # any other number, also a negative one, is a run
LineKey = tuple[str, int]  # a plane and a line's number
Flags = NDArray[np.bool_]
CORRELATION = "correlation_id"
NO_CORRELATION = NO_STEP = -1
# Maximum number of thread changes between a step and a launch.
MOST_HOPS = 8
Key = tuple[int, int]  # type and number of a connection


class ProgramOperation(NamedTuple):
    """An operation: its name, its kind, its origin, and its program."""

    name: str
    op: str
    origin: str
    program: str = ""


class OperationColumns(NamedTuple):
    """Executed operations as columns: line, times, operation, device, and run of the program or `NO_RUN`.

    `places` and `whats` are indices of a recording's lines and operations. `contexts` are the numbers of separate end
    events, if one is `awaited`; `apart` marks operations that ended after their line continued. `on_device` marks those
    of a device's stream, launched by the call with the number in `correlations`, `NO_CORRELATION` if unknown; a copy
    moved `sizes` bytes, `NO_SIZE` if unknown.
    """

    places: Places
    start_ns: Places
    end_ns: Places
    whats: Places
    devices: Places
    runs: Places
    contexts: Places
    awaited: Flags
    apart: Flags
    on_device: Flags
    correlations: Places
    sizes: Places

    def at(self, places: Places) -> OperationColumns:
        """Return the operations at these places of the columns."""
        return OperationColumns._make(column[places] for column in self)


NONE = np.zeros(0, np.int64)
NOTHING = OperationColumns(*(NONE,) * 7, *(NONE.astype(np.bool_),) * 3, NONE, NONE)


class OperationTable:
    """Collects operations line by line, and their separate end events."""

    def __init__(self) -> None:
        self.whats: dict[ProgramOperation, int] = {}
        self.places: dict[LineKey, int] = {}
        self._ends = [(NONE, NONE)]
        self._worked = [NOTHING]

    def what(self, operation: ProgramOperation) -> int:
        """Return the index of an operation."""
        return self.whats.setdefault(operation, len(self.whats))

    def end(self, contexts: Places, end_ns: Places) -> None:
        """Add the ends of the operations with these numbers."""
        self._ends.append((contexts, end_ns))

    def add(self, place: LineKey, events: Events, whats: Places, devices: Places, **columns: NDArray[Any]) -> None:
        """Add operations of a line; `columns` are any of those from `runs` on."""
        event_count, number = len(events), self.places.setdefault(place, len(self.places))
        defaults: dict[str, NDArray[Any]] = {
            "places": np.full(event_count, number),
            "start_ns": events.start_ns,
            "end_ns": events.end_ns,
            "whats": whats,
            "devices": devices,
            "runs": np.full(event_count, NO_RUN),
            "contexts": np.zeros(event_count, np.int64),
            "awaited": np.zeros(event_count, np.bool_),
            "apart": np.zeros(event_count, np.bool_),
            "on_device": np.zeros(event_count, np.bool_),
            "correlations": np.full(event_count, NO_CORRELATION),
            "sizes": np.full(event_count, NO_SIZE),
        }
        self._worked.append(OperationColumns(**defaults | columns))

    def worked(self) -> OperationColumns:
        """Return all operations, with their separate end events if those are later."""
        columns = OperationColumns(*map(np.concatenate, zip(*self._worked, strict=True)))
        contexts, end_ns = map(np.concatenate, zip(*self._ends, strict=True))
        if not contexts.size:
            return columns
        order = np.argsort(contexts, kind="stable")  # the last of several ends counts
        positions = np.searchsorted(contexts[order], columns.contexts, side="right") - 1
        positions = order[positions.clip(0)]
        apart = columns.awaited & (contexts[positions] == columns.contexts) & (end_ns[positions] > columns.end_ns)
        return columns._replace(end_ns=np.where(apart, end_ns[positions], columns.end_ns), apart=apart)


class StepMark(NamedTuple):
    """A marked step of a thread; its number counts from 1."""

    plane: str
    line: int
    start_ns: int
    end_ns: int
    number: int


class Launches(NamedTuple):
    """Numbers of calls that launched work, in ascending order, and the step of each, `NO_STEP` if unknown."""

    correlations: Places
    steps: Places

    def steps_of(self, correlations: Places) -> Places:
        """Return the step that launched the work with each of these numbers, `NO_STEP` if unknown."""
        if not self.correlations.size:
            return np.full(correlations.size, NO_STEP)
        positions = np.searchsorted(self.correlations, correlations, side="right") - 1
        is_known = (
            (positions >= 0) & (self.correlations[positions.clip(0)] == correlations) & (correlations != NO_CORRELATION)
        )
        return np.where(is_known, self.steps[positions.clip(0)], NO_STEP)

    def before(self, correlations: Places) -> Flags:
        """Return which work was launched before the profile began: it has a number, and no call of the file has it."""
        if (self.steps == NO_STEP).all():
            return np.zeros(correlations.size, np.bool_)
        launched_before: Flags = (correlations != NO_CORRELATION) & ~np.isin(correlations, self.correlations)
        return launched_before


NO_LAUNCHES = Launches(np.zeros(0, np.int64), np.zeros(0, np.int64))


def launches(planes: Iterable[Plane], marks: Sequence[StepMark], synchronous: bool) -> Launches:
    """Return the calls on these planes of hosts. Raises `Malformed`.

    `synchronous` means that a step lasts until its work is launched, on any thread.
    """
    threads = [thread for plane in planes for line in plane.lines if (thread := _thread(plane, line)) is not None]
    for thread in threads:
        thread.take_marked([mark for mark in marks if (mark.plane, mark.line) == thread.place])
    for _ in range(MOST_HOPS):
        producers = _producers(threads)
        if not sum([thread.take_consumed(producers) for thread in threads]):
            break
    if synchronous:
        for thread in threads:
            if not thread.marked:
                thread.take_timed(marks)
    return _sorted(threads)


@dataclass(slots=True)
class _Thread:
    """The calls and producers of a thread, in order: their times, steps and numbers.

    `consumed` are the connections of its consumers, each with the range of calls within that event, the outer first.
    """

    place: tuple[str, int]
    starts_ns: Places
    steps: Places
    correlations: Places
    produced: list[Key | None]
    consumed: list[tuple[Key, int, int]]
    marked: bool = False

    def take_marked(self, marks: Sequence[StepMark]) -> None:
        """Assign the steps that were marked on this thread."""
        self.marked = bool(marks)
        self.take_timed(marks)

    def take_timed(self, marks: Sequence[StepMark]) -> None:
        """Assign the step during which each call was made, if its step is still unknown."""
        for mark in marks:
            first, end = np.searchsorted(self.starts_ns, (mark.start_ns, mark.end_ns))
            marked_steps = self.steps[first:end]
            marked_steps[marked_steps == NO_STEP] = mark.number

    def take_consumed(self, producers: dict[Key, int]) -> int:
        """Assign the steps of the producers, the innermost event's last; return how many are new."""
        unknown_before = int((self.steps == NO_STEP).sum())
        has_step = self.steps != NO_STEP
        steps = self.steps.copy()
        for key, first, end in self.consumed:
            if (step := producers.get(key, NO_STEP)) != NO_STEP:
                steps[first:end] = step
        self.steps = np.where(has_step, self.steps, steps)
        return unknown_before - int((self.steps == NO_STEP).sum())


def _thread(plane: Plane, line: PlaneLine) -> _Thread | None:
    """Return the calls and connections of a line, None if it has none."""
    events = line.events()
    correlations, launched = events.numbers(CORRELATION)
    producers, produced = _connections(events, "_pt", "_p")
    positions = np.flatnonzero(launched | produced)
    if not positions.size:
        return None
    positions = positions[np.argsort(events.start_ns[positions], kind="stable")]
    starts_ns = events.start_ns[positions]
    return _Thread(
        (plane.name, line.number),
        starts_ns,
        np.full(positions.size, NO_STEP),
        np.where(launched, correlations, NO_CORRELATION)[positions],
        [producers[place] if produced[place] else None for place in positions.tolist()],
        list(_consumed(events, starts_ns)),
    )


def _consumed(events: Events, starts_ns: Places) -> Iterator[tuple[Key, int, int]]:
    """Yield the connection of each consumer, and the range of these times within it."""
    keys, is_connected = _connections(events, "_ct", "_c")
    first, end = (np.searchsorted(starts_ns, times) for times in (events.start_ns, events.end_ns))
    positions = np.flatnonzero(is_connected & (first < end))
    order = positions[np.lexsort((-events.end_ns[positions], events.start_ns[positions]))]
    for place in order.tolist():
        yield keys[place], int(first[place]), int(end[place])


def _connections(events: Events, kind: str, number: str) -> tuple[list[Key], Flags]:
    """Return type and number of each event's connection, and which events have one."""
    kinds, _ = events.numbers(kind)
    numbers, is_present = events.numbers(number)
    return list(zip(kinds.tolist(), numbers.tolist(), strict=True)), is_present


def _producers(threads: Iterable[_Thread]) -> dict[Key, int]:
    """Return the step of each connection, `NO_STEP` for a number that several steps used."""
    steps: dict[Key, int] = {}
    for thread in threads:
        for key, step in zip(thread.produced, thread.steps.tolist(), strict=True):
            if key is not None and step != NO_STEP:
                steps[key] = step if steps.setdefault(key, step) == step else NO_STEP
    return steps


def _sorted(threads: Sequence[_Thread]) -> Launches:
    if not threads:
        return NO_LAUNCHES
    correlations = np.concatenate([thread.correlations for thread in threads])
    steps = np.concatenate([thread.steps for thread in threads])
    of_call = np.flatnonzero(correlations != NO_CORRELATION)
    # Of several calls with the same number, such as a runtime's and a driver's, one with a known step.
    order = of_call[np.lexsort((steps[of_call], correlations[of_call]))]
    return Launches(correlations[order], steps[order])
