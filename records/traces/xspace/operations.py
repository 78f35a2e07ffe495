"""The operations in a file of JAX or TensorFlow, as columns: there may be millions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keras_matrix.records.traces.xspace.columns import Places
from keras_matrix.records.traces.xspace.launches import NO_CORRELATION
from keras_matrix.records.traces.xspace.xplane import Events

NO_SIZE = -1
NO_RUN = -1  # any other number, also a negative one, is a run

LineKey = tuple[str, int]  # a plane and a line's number
Flags = NDArray[np.bool_]


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

    def what(self, what: ProgramOperation) -> int:
        """Return the index of an operation."""
        return self.whats.setdefault(what, len(self.whats))

    def end(self, contexts: Places, end_ns: Places) -> None:
        """Add the ends of the operations with these numbers."""
        self._ends.append((contexts, end_ns))

    def add(self, place: LineKey, events: Events, whats: Places, devices: Places, **columns: NDArray[Any]) -> None:
        """Add operations of a line; `columns` are any of those from `runs` on."""
        size, number = len(events), self.places.setdefault(place, len(self.places))
        defaults: dict[str, NDArray[Any]] = {
            "places": np.full(size, number),
            "start_ns": events.start_ns,
            "end_ns": events.end_ns,
            "whats": whats,
            "devices": devices,
            "runs": np.full(size, NO_RUN),
            "contexts": np.zeros(size, np.int64),
            "awaited": np.zeros(size, np.bool_),
            "apart": np.zeros(size, np.bool_),
            "on_device": np.zeros(size, np.bool_),
            "correlations": np.full(size, NO_CORRELATION),
            "sizes": np.full(size, NO_SIZE),
        }
        self._worked.append(OperationColumns(**defaults | columns))

    def worked(self) -> OperationColumns:
        """Return all operations, with their separate end events if those are later."""
        found = OperationColumns(*map(np.concatenate, zip(*self._worked, strict=True)))
        contexts, end_ns = map(np.concatenate, zip(*self._ends, strict=True))
        if not contexts.size:
            return found
        order = np.argsort(contexts, kind="stable")  # the last of several ends counts
        at = np.searchsorted(contexts[order], found.contexts, side="right") - 1
        at = order[at.clip(0)]
        apart = found.awaited & (contexts[at] == found.contexts) & (end_ns[at] > found.end_ns)
        return found._replace(end_ns=np.where(apart, end_ns[at], found.end_ns), apart=apart)
