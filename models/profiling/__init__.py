"""Starts and stops a backend's own profiler around a few steps, and marks the steps of the program.

Those of JAX and TensorFlow write one file into a folder. Only cells that are traced, profiled for TensorBoard or
measured for their collectives (models.fc.profiled) import it.
"""

from __future__ import annotations

import importlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Protocol, cast

from keras_matrix.records.settings import KERAS
from keras_matrix.records.traces.conversion import XPLANE, file_name
from keras_matrix.records.traces.programs import ProgramSummary
from keras_matrix.records.traces.request import CLOCK, STEP, TRAIN, TraceError, TraceOrder, untraceable

# The first mark after a profiler's start may be late; the most accurate of several counts.
CLOCK_MARKS = 5


class Profiler(Protocol):
    """A backend's profiler; `ending` is that of its file.

    `marks_name_layers` is whether names of marks are part of the graph, and name the layers in its file;
    `steps_are_python` whether a step that is not compiled runs as Python, where marks would cut compiled ones.
    `steps_are_equal` is set to False where the shapes of batches may differ: then shapes are recorded in each step.
    """

    ending: str
    marks_name_layers: bool
    steps_are_python: bool
    steps_are_equal: bool

    def start(self) -> None:
        """Start recording. Raises `TraceError` if this build of the backend does not support it."""

    def stop(self, path: Path) -> None:
        """Stop recording, and write the backend's own file to `path`."""

    def mark(self, name: str) -> AbstractContextManager[Any]:
        """Return a context that marks the work within it with a name, while recording."""

    def step(self, number: int) -> AbstractContextManager[Any]:
        """Return a context that marks the work within it as a training step, also for TensorBoard's own pages."""

    def scope(self, name: str) -> AbstractContextManager[Any] | None:
        """Return a context that names the operations within it; None if Keras's own scopes suffice."""

    def note_loss(self, loss: Any) -> None:
        """Remember the graph that computes a step's loss, if the backend's own file does not contain it."""

    def graph(self) -> ProgramSummary | None:
        """Return the summary of that graph; None if there is none, or if the file contains it."""


def load(backend: str) -> Profiler:
    """Return a backend's profiler. Raises `TraceError` if it is not available."""
    if problem := untraceable(KERAS, backend=backend):
        raise TraceError(f"profiler_unavailable: {problem}")
    try:
        module = importlib.import_module(f"keras_matrix.models.profiling.{backend}")
        return cast(Profiler, module.Profiler())
    except (ImportError, AttributeError) as error:
        raise TraceError(f"profiler_unavailable: {backend}: {error}; install a build that has it") from error


@contextmanager
def recorded(profiler: Profiler, path: Path) -> Iterator[None]:
    """Record the work within to a file, after marks with the time of the machine's monotonic clock."""
    profiler.start()
    try:
        for _ in range(CLOCK_MARKS):
            with profiler.mark(f"{CLOCK}{perf_counter_ns()}"):
                pass
        yield
    finally:
        profiler.stop(path)


def record_epochs(profiler: Profiler, order: TraceOrder, step: Callable[[], None]) -> None:
    """Run the epochs up to the last requested one, and record the requested ones with a mark per step."""
    steps_taken = 0
    for epoch in range(1, max(order.epochs) + 1):
        if epoch not in order.epochs:
            for _ in range(order.steps):
                step()
            continue
        with recorded(profiler, path_of(profiler, order, epoch)):
            for _ in range(order.steps):
                steps_taken += 1
                with profiler.step(steps_taken):
                    step()


def path_of(profiler: Profiler, order: TraceOrder, epoch: int) -> Path:
    """Return the path of an epoch's file."""
    return Path(order.folder) / file_name(epoch, order.worker, profiler.ending)


class XPlaneProfiler:
    """A profiler that `begin` starts with the name of a folder, and `end` stops. It works on any device."""

    ending = XPLANE
    marks_name_layers = False
    steps_are_python = False

    def __init__(self, begin: Callable[[str], Any], end: Callable[[], Any]) -> None:
        self._begin, self._end = begin, end
        self._folder = ""
        self.steps_are_equal = True

    def mark(self, name: str) -> AbstractContextManager[Any]:
        """Return a context that marks the work within it with a name."""
        raise NotImplementedError

    def root(self, name: str, number: int) -> AbstractContextManager[Any]:
        """Return a context that marks the work within it as the step with this number, for XProf's pages."""
        raise NotImplementedError

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Mark the work within as a training step."""
        with self.root(TRAIN, number), self.mark(f"{STEP}{number}"):
            yield

    def start(self) -> None:
        """Start recording into a new temporary folder."""
        self._folder = tempfile.mkdtemp(prefix="profiler-")
        try:
            self._begin(self._folder)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def stop(self, path: Path) -> None:
        """Stop recording and move the file to `path`. Raises `TraceError` unless there is exactly one file."""
        try:
            self._end()
            files = list(Path(self._folder).rglob(f"*{XPLANE}"))
            if len(files) != 1:
                raise TraceError(f"the profiler left {len(files)} files that end in {XPLANE}, not one")
            shutil.move(files[0], path)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
