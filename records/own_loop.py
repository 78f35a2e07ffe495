"""The two lines by which a training loop of one's own is measured: `keras_matrix.steps` and `keras_matrix.step`.

    for batch in keras_matrix.steps(dataset):     # an epoch is one pass over the data set
        train_step(batch)

    while training:                               # or: a step is what happens within, and until the next
        with keras_matrix.step():
            train_step(next_batch())

Outside of a measured program they do nothing, so that they can stay in it. Imports nothing else of this project.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

Batch = TypeVar("Batch")


class LoopObserver(Protocol):
    """What measures the loops of the program in this process."""

    def steps(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        """Return the batches of as many passes as are measured, after which the program ends."""

    def step(self) -> AbstractContextManager[None]:
        """Return the context of one step."""


observer: LoopObserver | None = None
"""Set by the cell's process before it runs the program."""


def steps(batches: Iterable[Batch]) -> Iterable[Batch]:
    """Return the batches of a training loop, each of which is one step; a measured program repeats their pass."""
    return batches if observer is None else observer.steps(batches)


def step() -> AbstractContextManager[None]:
    """Return a context for one training step of a loop."""
    return nullcontext() if observer is None else observer.step()


class Passes:
    """The batches of a measured loop, with the length and the attributes of what the program gave."""

    def __init__(self, batches: Iterable[Any], begin: Callable[[], Iterator[Any]]) -> None:
        self._batches, self._begin = batches, begin

    def __iter__(self) -> Iterator[Any]:
        return self._begin()

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type] # as without a measurement, a TypeError if it has none

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)
