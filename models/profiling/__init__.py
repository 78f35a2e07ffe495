"""A backend's own profiler, started and stopped round a few steps, and the marks that tell where the program is.

A cell that is not traced, profiled for TensorBoard or watched for its collectives (models.fc.profiled) imports nothing
from here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Protocol, cast

from keras_matrix.records.traces.conversion import file_name
from keras_matrix.records.traces.request import CLOCK, STEP, TraceError, TraceOrder

# The first mark after a profiler's start may come late; of several, the nearest counts.
CLOCK_MARKS = 5


class Profiler(Protocol):
    """A backend's profiler; `ending` is that of the file it leaves.

    `marks_name_layers` is whether names of marks are part of the graph, and name the layers in its file;
    `steps_are_python` whether a step that is not compiled runs as Python, where marks would cut compiled ones.
    """

    ending: str
    marks_name_layers: bool
    steps_are_python: bool

    def start(self) -> None:
        """Begin to record. Raises `TraceError` where this build of the backend cannot."""

    def stop(self, path: Path) -> None:
        """Stop recording, and put the backend's own file there."""

    def mark(self, name: str) -> AbstractContextManager[Any]:
        """Return what marks with a name what is done within, where something records."""

    def scope(self, name: str) -> AbstractContextManager[Any] | None:
        """Return what names, with a mark's name, what is computed within; None where Keras's own scopes tell enough."""


def load(backend: str) -> Profiler:
    """Return a backend's profiler. Raises `TraceError` where it has none."""
    try:
        module = importlib.import_module(f"keras_matrix.models.profiling.{backend}")
        return cast(Profiler, module.Profiler())
    except (ImportError, AttributeError) as error:
        raise TraceError(f"profiler_unavailable: {backend}: {error}; install a build that has it") from error


@contextmanager
def recorded(profiler: Profiler, path: Path) -> Iterator[None]:
    """Record what is done within to a file, after marks of what the machine's monotonic clock says."""
    profiler.start()
    try:
        for _ in range(CLOCK_MARKS):
            with profiler.mark(f"{CLOCK}{perf_counter_ns()}"):
                pass
        yield
    finally:
        profiler.stop(path)


def record_epochs(profiler: Profiler, order: TraceOrder, step: Callable[[], None]) -> None:
    """Take the steps of the epochs up to the last that is asked for, and record those that are, step by step marked."""
    taken = 0
    for epoch in range(1, max(order.epochs) + 1):
        if epoch not in order.epochs:
            for _ in range(order.steps):
                step()
            continue
        with recorded(profiler, path_of(profiler, order, epoch)):
            for _ in range(order.steps):
                taken += 1
                with profiler.mark(f"{STEP}{taken}"):
                    step()


def path_of(profiler: Profiler, order: TraceOrder, epoch: int) -> Path:
    """Return where the file of an epoch goes."""
    return Path(order.folder) / file_name(epoch, order.worker, profiler.ending)
