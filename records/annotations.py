"""Notes about intended changes: one JSON line each in `history.jsonl` of a results folder.

A line is appended completely or not at all, and never changed: withdrawing a note appends another line. Concurrent
commands wait for each other. A damaged line is reported and skipped.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.records.codec import CodecError, decode, loads, to_json
from keras_matrix.records.store import Problem, StoreFailure

FILE = "history.jsonl"
VERSION = 1
NOTE_LIMIT = 500


@dataclass(frozen=True, slots=True)
class Annotation:
    """From `run_id` on, these cells differ on these hosts by intention: `note` says why. None withdraws the note."""

    run_id: str
    cells: list[str]
    hosts: list[str]
    note: str | None
    asked: str
    version: int = VERSION


def append(root: Path, annotation: Annotation) -> None:
    """Append one line and wait until it is on disk. Raises `StoreFailure`."""
    path = root / FILE
    line = json.dumps(to_json(annotation), allow_nan=False).encode("ascii") + b"\n"
    try:
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            _append_whole(handle, line)
        finally:
            os.close(handle)
    except OSError as error:
        raise StoreFailure(f"{path}: cannot store the note: {error.strerror or error}; nothing was changed") from error


def load(root: Path) -> tuple[list[Annotation], list[Problem]]:
    """Return a folder's notes in the order in which they were written, and a problem for each damaged line."""
    path = root / FILE
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [Problem(path, error.strerror or str(error))]
    found, problems = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(_decoded(line))
        except CodecError as error:
            problems.append(Problem(path, f"line {number}: {error}"))
    return found, problems


def in_force(annotations: Iterable[Annotation]) -> dict[tuple[str, str, str], str]:
    """Return the current note by (cell_id, host_id, run_id), from the last line about each."""
    notes: dict[tuple[str, str, str], str | None] = {}
    for one in annotations:
        notes.update({(cell, host, one.run_id): one.note for cell in one.cells for host in one.hosts})
    return {key: note for key, note in notes.items() if note is not None}


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


def _decoded(line: bytes) -> Annotation:
    data = loads(line)
    if isinstance(data, dict) and isinstance(data.get("version"), int) and data["version"] > VERSION:
        raise CodecError(f"version {data['version']} is newer than {VERSION}")
    return decode(Annotation, data, "annotation")


def checked_note(text: str) -> str:
    """Return a note without surrounding blanks. Raises ValueError if it is empty, too long or more than a line."""
    note = text.strip()
    if not note or len(note) > NOTE_LIMIT or not note.isprintable():
        received = text if len(text) <= 60 else text[:57] + "..."
        raise ValueError(f"must be one line of 1 to {NOTE_LIMIT} printable characters, got {received!r}")
    return note
