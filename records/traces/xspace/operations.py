"""What worked, as a file of JAX or TensorFlow tells it: operations as columns, for there may be millions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keras_matrix.records.traces.xspace.columns import Places
from keras_matrix.records.traces.xspace.launches import NO_CORRELATION
from keras_matrix.records.traces.xspace.xplane import Events

NO_SIZE = -1
NO_RUN = -1  # any other number is one, negative ones too

LineKey = tuple[str, int]  # a plane and a line's number
Flags = NDArray[np.bool_]


class Operation(NamedTuple):
    """What an operation was: what it is called, its kind, where it comes from, and of which program it is a part."""

    name: str
    op: str
    origin: str
    program: str = ""


class OperationColumns(NamedTuple):
    """Operations, as columns: on which line, when, what, on which device, in which run of its program or `NO_RUN`.

    `places` and `whats` number what a recording has of those. `contexts` are the numbers by which ends are told, where
    one is `awaited`; `apart` is what ended later than its line went on. `on_device` is what ran on a device's stream,
    launched by the call with the number in `correlations`, `NO_CORRELATION` if not known; a copy moved `sizes` bytes,
    `NO_SIZE` if not known.
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
    """What worked, line by line, and what was told of ends, until both are put together."""

    def __init__(self) -> None:
        self.whats: dict[Operation, int] = {}
        self.places: dict[LineKey, int] = {}
        self._ends = [(NONE, NONE)]
        self._worked = [NOTHING]

    def what(self, what: Operation) -> int:
        """Return the number of what an operation was."""
        return self.whats.setdefault(what, len(self.whats))

    def end(self, contexts: Places, end_ns: Places) -> None:
        """Keep when what had these numbers ended."""
        self._ends.append((contexts, end_ns))

    def add(self, place: LineKey, events: Events, whats: Places, devices: Places, **told: NDArray[Any]) -> None:
        """Keep operations of a line; `told` may hold any of the columns that begin with `runs`."""
        size, number = len(events), self.places.setdefault(place, len(self.places))
        columns: dict[str, NDArray[Any]] = {
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
        self._worked.append(OperationColumns(**columns | told))

    def worked(self) -> OperationColumns:
        """Return all that worked, with the ends that were told apart where those are later."""
        found = OperationColumns(*map(np.concatenate, zip(*self._worked, strict=True)))
        contexts, end_ns = map(np.concatenate, zip(*self._ends, strict=True))
        if not contexts.size:
            return found
        order = np.argsort(contexts, kind="stable")  # of several ends the last one counts
        at = np.searchsorted(contexts[order], found.contexts, side="right") - 1
        at = order[at.clip(0)]
        apart = found.awaited & (contexts[at] == found.contexts) & (end_ns[at] > found.end_ns)
        return found._replace(end_ns=np.where(apart, end_ns[at], found.end_ns), apart=apart)
