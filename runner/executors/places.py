"""Places: machines, or GPUs of this machine, of which each measures one comparison at a time.

Without places one comparison is measured after the other. With places, all cells of a comparison's block run at one of
them, and the places work at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from keras_matrix.records.host.device_lists import GpuChoice
from keras_matrix.records.store import Run
from keras_matrix.runner.executors import Executor
from keras_matrix.runner.executors.supervise.visible_gpus import gpus_needed
from keras_matrix.runner.matrix.reader import Cell


class SessionEnded(Exception):
    """The session ends, and what a place still does is of no interest."""


class Place(Protocol):
    """A machine of a cluster or a GPU of this machine, or several for cells that need as many; `name` is for people.

    `identity` is the `place` of its records; `parts` are the identities of single ones that it consists of. `gpus` are
    the GPUs that its cells may use, None for those that their placement names.
    """

    identity: str
    name: str
    gpus: GpuChoice | None

    @property
    def parts(self) -> Sequence[str]:
        """The identities of its machines or GPUs."""

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


def gpus_needed_by(cell: Cell) -> int:
    """Return the GPUs that a cell or an external command needs on each machine."""
    if cell.task is not None:
        return cell.task.gpus or 0
    return gpus_needed(cell.settings) if cell.settings.device == "gpu" else 0


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

    def none_left(self, comparisons: int, why: str) -> str:
        """Return the message that no place is left for so many comparisons; `why` is empty or says how they ended."""

    def stop(self) -> None:
        """End all work at once; calls that wait raise `SessionEnded`."""
