"""Files of one JSON object a line, to which lines are only ever appended.

A line is appended completely or not at all, and never changed. Who has such a file opened is alone with it: other
commands wait. A damaged line is reported and skipped.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from keras_matrix.records.codec import CodecError, decode, loads, may_have_surrogates, to_json, without_surrogates
from keras_matrix.records.files import UnfitFile, open_lock, read_plain
from keras_matrix.records.store import Problem
from keras_matrix.records.store_failure import StoreFailure

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lines:
    """An opened file; `what` names a line in messages."""

    path: Path
    what: str
    handle: int

    def append(self, value: object) -> None:
        """Append one line and wait until it is on disk. Raises `StoreFailure`."""
        line = json.dumps(to_json(value), allow_nan=False).encode("ascii") + b"\n"
        try:
            _append_whole(self.handle, line)
        except OSError as error:
            raise _failure(self.path, self.what, error) from error


@contextmanager
def opened(path: Path, what: str) -> Iterator[Lines]:
    """Open a file to append to it, alone. Raises `StoreFailure`."""
    try:
        handle = open_lock(path)
        os.set_blocking(handle, True)
        fcntl.fcntl(handle, fcntl.F_SETFL, fcntl.fcntl(handle, fcntl.F_GETFL) | os.O_APPEND)
    except (UnfitFile, OSError) as error:
        raise _failure(path, what, error) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield Lines(path, what, handle)
    finally:
        os.close(handle)


def load(path: Path, kind: type[T], version: int) -> tuple[list[T], list[Problem]]:
    """Return the lines of a file in their order, and a problem for each that is damaged or of a newer version."""
    try:
        lines = read_plain(path).split(b"\n")
    except FileNotFoundError:
        return [], []
    except (UnfitFile, OSError) as error:
        return [], [Problem(path, getattr(error, "strerror", None) or str(error))]
    found, problems = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(_decoded(line, kind, version))
        except CodecError as error:
            problems.append(Problem(path, f"line {number}: {error}"))
    return found, problems


def _append_whole(handle: int, line: bytes) -> None:
    size = os.fstat(handle).st_size
    # A line that a crash cut off must not be joined with this one.
    if size > 0 and os.pread(handle, 1, size - 1) != b"\n":
        line = b"\n" + line
    try:
        while line:  # a write may be partial, for example before the disk is full
            line = line[os.write(handle, line) :]
        os.fsync(handle)
    except OSError:
        os.ftruncate(handle, size)
        raise


def _decoded(line: bytes, kind: type[T], version: int) -> T:
    data = without_surrogates(loads(line)) if may_have_surrogates(line) else loads(line)
    if isinstance(data, dict) and isinstance(data.get("version"), int) and data["version"] > version:
        raise CodecError(f"version {data['version']} is newer than {version}")
    return decode(kind, data, kind.__name__.lower())


def _failure(path: Path, what: str, error: OSError | UnfitFile) -> StoreFailure:
    reason = getattr(error, "strerror", None) or error
    return StoreFailure(f"{path}: cannot store {what}: {reason}; nothing was changed")
