"""The seam: counts the operations of a process, and lets the one with a chosen number fail.

An operation is a call that reaches the file system (below one folder), another process or the network, made by code of
the project, however many libraries are in between. Each is appended to a journal, which survives SIGKILL, with its call
site in the project. `patches` calls `Seam.reach` before each operation.

It does not see what a library does in C, such as the writes of DuckDB: a file-size limit fails these (`kinds.LIMIT`).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from tests.reliability.failpoints.kinds import PERSISTENT, Failure, Kind, applies

PACKAGE = "keras_matrix."
HELPER = "keras_matrix.records.files"
# The operations themselves, before anything is patched.
KILL, WRITE = os.kill, os.write


current: list[Seam] = []  # of this process: the last one counts


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: its number from 1, its name, the call site in the project's code, and its file or peer."""

    number: int
    name: str
    site: str
    path: str

    @property
    def point(self) -> tuple[str, str]:
        """What makes it distinct within a scenario."""
        return self.name, self.site


class Seam:
    """Counts operations below `root` and fails the chosen one, or the next one that can fail in this way."""

    def __init__(self, root: Path, journal: Path, failure: Failure | None = None) -> None:
        """Without a failure only count."""
        self.root = str(root)
        self._failure = failure
        self._journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._number = 0
        self._writing = False
        self._failed = False
        current.append(self)

    def covers(self, path: str) -> bool:
        """Return whether operations on a path are counted."""
        return path == self.root or path.startswith(self.root + "/")

    def reach(self, name: str, path: str) -> Kind | None:
        """Count an operation that comes next. Return how the caller must let it fail, None if it must be done.

        A kill and a signal happen here, except the kill of a write, half of which comes first.
        """
        site = call_site()
        if site is None or self._writing:
            return None
        self._number += 1
        self.note("operation", [self._number, name, site, path])
        failure = self._failure
        if failure is None or not self._due(failure, name):
            return None
        self.note("failed", [self._number, name, site, path])
        if failure.kind is Kind.SIGNAL:
            KILL(os.getpid(), signal.SIGINT)
            return None
        if failure.kind.kills and name != "write":
            self.die()
        return failure.kind

    def _due(self, failure: Failure, name: str) -> bool:
        if self._number < failure.number or not applies(failure.kind, name):
            return False
        once, self._failed = self._failed, True
        return failure.kind in PERSISTENT or not once  # a full disk stays full

    def note(self, what: str, value: Any) -> None:
        """Append a line to the journal."""
        self._writing = True
        WRITE(self._journal, (json.dumps([what, value]) + "\n").encode())
        self._writing = False

    def die(self) -> None:
        """End this process as a kill or a power failure does."""
        KILL(os.getpid(), signal.SIGKILL)


def call_site() -> str | None:
    """Return file, function and line of the innermost frame of the project; None if there is no such frame.

    All files are written by the functions of `records.files`: for those it is their caller, then theirs.
    """
    frame: FrameType | None = sys._getframe(1)
    inner = ""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith(PACKAGE):
            file = name.removeprefix(PACKAGE).replace(".", "/") + ".py"
            site = f"{file}:{frame.f_code.co_name}:{frame.f_lineno}"
            if name != HELPER:
                return f"{site} {inner}".rstrip()
            inner = inner or site
        frame = frame.f_back
    return inner or None


@dataclass(frozen=True, slots=True)
class Journal:
    """What a process did: its operations, the one that failed, and the notes of others by their name."""

    operations: list[Operation]
    failed: Operation | None
    notes: dict[str, list[Any]]


def read_journal(path: Path) -> Journal:
    """Return the journal of a process."""
    operations, failed, notes = [], [], dict[str, list[Any]]()
    for what, value in _lines(path):
        if what == "operation":
            operations.append(Operation(*value))
        elif what == "failed":
            failed.append(Operation(*value))
        else:
            notes.setdefault(what, []).append(value)
    return Journal(operations, failed[0] if failed else None, notes)


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    if path.exists():
        for line in path.read_text().splitlines():
            yield tuple(json.loads(line))
