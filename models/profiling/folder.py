"""Starts and stops the profilers of JAX and TensorFlow, which write one file into a folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from keras_matrix.records.traces.conversion import XPLANE
from keras_matrix.records.traces.request import STEP, TRAIN, TraceError


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
            found = list(Path(self._folder).rglob(f"*{XPLANE}"))
            if len(found) != 1:
                raise TraceError(f"the profiler left {len(found)} files that end in {XPLANE}, not one")
            shutil.move(found[0], path)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
