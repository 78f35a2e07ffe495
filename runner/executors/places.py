"""Places: machines of which each measures one comparison at a time, for executors that have several.

An executor without places, such as one of this machine, measures one comparison after the other. With places, all
cells of a comparison's block run at one of them, and the places work at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from keras_matrix.records.store import Run
from keras_matrix.runner.executors import Executor
from keras_matrix.runner.matrix.reader import Cell


class Stopped(Exception):
    """The session ends, and what a place still does is of no interest."""


class Place(Protocol):
    """A machine of a cluster, or several for cells whose workers are on as many; `name` is for people.

    `identity` is the `host_id` of its records; of several machines these are `parts`, joined by plus signs.
    """

    identity: str
    name: str

    @property
    def parts(self) -> Sequence[str]:
        """The identities of its machines."""

    def acquire(self, give_up: Callable[[], bool]) -> bool:
        """Wait until no other session measures here; False if `give_up` says so before.

        Raises `ExecutorError` if the place is gone. `release` follows in any case.
        """

    def executor(self, run: Run) -> Executor:
        """Return the executor of a run here; the place is acquired."""

    def lost(self) -> str | None:
        """Return why the place can measure nothing any more; None if it can."""

    def release(self) -> None:
        """Let other sessions measure here."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """Where the cells of a comparison can run: the identities of the places, or why at none.

    `nowhere` is whether they can run at no place that might join either.
    """

    places: frozenset[str]
    reason: str | None = None
    nowhere: bool = False


class Places(Protocol):
    """The places of a session, which may change."""

    def current(self) -> Sequence[Place]:
        """Return the places there are now, new ones after those that were returned before."""

    def fitting(self, cells: Sequence[Cell]) -> Fitting:
        """Return the places there are now at which all of these cells can run."""

    def changed(self) -> bool:
        """Return whether `fitting` may have other answers than when this was last asked."""

    def about(self) -> str:
        """Return the places in a line, for people."""

    def warnings(self) -> Mapping[str, str]:
        """Return what could disturb measurements, by the name of its place."""

    def stop(self) -> None:
        """End all work at once; calls that wait raise `Stopped`."""
