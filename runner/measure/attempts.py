"""How many attempts each repeat has had, and whether another one is left."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias
from weakref import WeakValueDictionary

from keras_matrix.records.store import Run

INFRA_ATTEMPTS = 3

Key: TypeAlias = tuple[str, str, int]
"""Arm, cell_id and number of a repeat."""


class Attempts:
    """Counts the attempts of each repeat: all that are stored, and those of this start of the runner.

    Several threads may use it, if only one at a time works on a repeat.
    """

    def __init__(self, runs: Mapping[str, Run]) -> None:
        """Read the stored attempts of the run of each arm."""
        self._next: Counter[Key] = Counter()
        for name, run in runs.items():
            self._next.update({(name, r.cell_id, r.repeat): r.attempt + 1 for r in run.load()[0]})
        self._tried: Counter[Key] = Counter()
        # Only while somebody uses it: a run may have thousands of comparisons.
        self._guard, self._calibrating = threading.Lock(), WeakValueDictionary[str, threading.Lock]()

    def calibrating(self, group: str) -> threading.Lock:
        """Return the lock of a comparison's calibration, which only one of its blocks may make."""
        with self._guard:
            return self._calibrating.setdefault(group, threading.Lock())

    def next(self, key: Key) -> int:
        """Return the number of the next attempt."""
        return self._next[key]

    def ended(self, key: Key) -> None:
        """Count an attempt that has ended."""
        self._next[key] += 1
        self._tried[key] += 1

    def exhaust(self, key: Key) -> None:
        """Leave no further attempt to a repeat."""
        self._tried[key] = INFRA_ATTEMPTS

    def again(self, key: Key) -> None:
        """Give a repeat all of its attempts again."""
        self._tried[key] = 0

    def are_left(self, key: Key) -> bool:
        """Return whether a repeat that the infrastructure failed may be tried again."""
        return self._tried[key] < INFRA_ATTEMPTS
