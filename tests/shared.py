"""Folders that the pytest processes of one run share: what takes seconds to make is made by the first that needs it."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = "KERAS_MATRIX_TESTS_SHARED"  # the variable that pytest's workers inherit
TEMPORARY = "PYTEST_DEBUG_TEMPROOT"  # where ci/test lets pytest write


def begin() -> None:
    """Make the folder of a run, unless this is a worker, which has that of its run."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        os.environ[ROOT] = tempfile.mkdtemp(prefix="shared-", dir=os.environ.get(TEMPORARY))


def end() -> None:
    """Remove the folder of a run."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(os.environ.pop(ROOT), ignore_errors=True)


@contextmanager
def locked(name: str) -> Iterator[Path]:
    """Yield a folder that no other process of the run uses meanwhile; it is empty the first time."""
    folder = Path(os.environ[ROOT]) / name
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder.mkdir(exist_ok=True)
        yield folder
