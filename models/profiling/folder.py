"""The folder into which JAX's and TensorFlow's profilers write, and the one file that is taken of it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from keras_matrix.records.traces.conversion import XPLANE
from keras_matrix.records.traces.request import TraceError


class Folder:
    """A folder for as long as a profiler records."""

    def __init__(self) -> None:
        self._path = ""

    @contextmanager
    def kept_if_begun(self) -> Iterator[str]:
        """Make the folder; it stays if what is done within succeeds."""
        self._path = tempfile.mkdtemp(prefix="profiler-")
        try:
            yield self._path
        except BaseException:
            self._remove()
            raise

    @contextmanager
    def left_at(self, path: Path) -> Iterator[None]:
        """Put the file that is there after what is done within at `path`. Raises `TraceError` where there is none."""
        try:
            yield
            found = list(Path(self._path).rglob(f"*{XPLANE}"))
            if len(found) != 1:
                raise TraceError(f"the profiler left {len(found)} files that end in {XPLANE}, not one")
            shutil.move(found[0], path)
        finally:
            self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)
