"""Files to which lines of JSON are only ever appended, and the notes about changes in `history.jsonl`.

A line is appended completely or not at all, and never changed. Who has such a file opened is alone with it: other
commands wait. A damaged line is reported and skipped.

A note says that a change was intended or is acknowledged; withdrawing it appends another line.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from keras_matrix.records.codec import CodecError, decode, loads, may_have_surrogates, to_json, without_surrogates
from keras_matrix.records.files import UnfitFile, open_lock, read_plain
from keras_matrix.records.store import Problem
from keras_matrix.records.store_failure import StoreFailure

FILE = "history.jsonl"
VERSION = 2
NOTE_LIMIT = 500
T = TypeVar("T")


class NoteKind(StrEnum):
    """Intended: the change was wanted and starts a new baseline. Acknowledged: it was not, and is known."""

    INTENDED = "intended"
    ACKNOWLEDGED = "acknowledged"


@dataclass(frozen=True, slots=True)
class Annotation:
    """These cells differ on these hosts from `run_id` on: `note` says why. None withdraws the note of this kind."""

    run_id: str
    cells: list[str]
    hosts: list[str]
    note: str | None
    asked: str
    kind: NoteKind = NoteKind.INTENDED
    version: int = VERSION


def append(root: Path, annotations: Sequence[Annotation]) -> None:
    """Append a line for each and wait until it is on disk. Raises `StoreFailure`."""
    with opened_lines(root / FILE, "the note") as lines:
        for annotation in annotations:
            lines.append(annotation)


def load(root: Path) -> tuple[list[Annotation], list[Problem]]:
    """Return a folder's notes in the order in which they were written, and a problem for each damaged line."""
    return load_lines(root / FILE, Annotation, VERSION)


def in_force(annotations: Iterable[Annotation], kind: NoteKind) -> dict[tuple[str, str, str], str]:
    """Return the current notes of a kind by (cell_id, host_id, run_id), from the last line about each."""
    notes: dict[tuple[str, str, str], str | None] = {}
    for annotation in annotations:
        if annotation.kind is kind:
            notes.update(
                {
                    (cell, host, annotation.run_id): annotation.note
                    for cell in annotation.cells
                    for host in annotation.hosts
                }
            )
    return {key: note for key, note in notes.items() if note is not None}


def checked_note(text: str) -> str:
    """Return a note without surrounding blanks. Raises ValueError if it is empty, too long or more than a line."""
    note = text.strip()
    if not note or len(note) > NOTE_LIMIT or not note.isprintable():
        received = text if len(text) <= 60 else text[:57] + "..."
        raise ValueError(f"must be one line of 1 to {NOTE_LIMIT} printable characters, got {received!r}")
    return note


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
def opened_lines(path: Path, what: str) -> Iterator[Lines]:
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


def load_lines(path: Path, kind: type[T], version: int) -> tuple[list[T], list[Problem]]:
    """Return the lines of a file in their order, and a problem for each that is damaged or of a newer version."""
    try:
        lines = read_plain(path).split(b"\n")
    except FileNotFoundError:
        return [], []
    except (UnfitFile, OSError) as error:
        return [], [Problem(path, getattr(error, "strerror", None) or str(error))]
    entries, problems = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entries.append(_decoded(line, kind, version))
        except CodecError as error:
            problems.append(Problem(path, f"line {number}: {error}"))
    return entries, problems


def _append_whole(handle: int, line: bytes) -> None:
    size_bytes = os.fstat(handle).st_size
    # A line that a crash cut off must not be joined with this one.
    if size_bytes > 0 and os.pread(handle, 1, size_bytes - 1) != b"\n":
        line = b"\n" + line
    try:
        while line:  # a write may be partial, for example before the disk is full
            line = line[os.write(handle, line) :]
        os.fsync(handle)
    except OSError:
        os.ftruncate(handle, size_bytes)
        raise


def _decoded(line: bytes, kind: type[T], version: int) -> T:
    data = without_surrogates(loads(line)) if may_have_surrogates(line) else loads(line)
    if isinstance(data, dict) and isinstance(data.get("version"), int) and data["version"] > version:
        raise CodecError(f"version {data['version']} is newer than {version}")
    return decode(kind, data, kind.__name__.lower())


def _failure(path: Path, subject: str, error: OSError | UnfitFile) -> StoreFailure:
    reason = getattr(error, "strerror", None) or error
    return StoreFailure(f"{path}: cannot store {subject}: {reason}; nothing was changed")
