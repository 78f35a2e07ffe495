"""Notes about intended and acknowledged changes: one JSON line each in `history.jsonl` of a results folder.

Lines are only ever appended (`records.appended.json_lines`): withdrawing a note appends another line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from keras_matrix.records.appended import json_lines
from keras_matrix.records.store import Problem

FILE = "history.jsonl"
VERSION = 2
NOTE_LIMIT = 500


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
    with json_lines.opened(root / FILE, "the note") as lines:
        for annotation in annotations:
            lines.append(annotation)


def load(root: Path) -> tuple[list[Annotation], list[Problem]]:
    """Return a folder's notes in the order in which they were written, and a problem for each damaged line."""
    return json_lines.load(root / FILE, Annotation, VERSION)


def in_force(annotations: Iterable[Annotation], kind: NoteKind) -> dict[tuple[str, str, str], str]:
    """Return the current notes of a kind by (cell_id, host_id, run_id), from the last line about each."""
    notes: dict[tuple[str, str, str], str | None] = {}
    for one in annotations:
        if one.kind is kind:
            notes.update({(cell, host, one.run_id): one.note for cell in one.cells for host in one.hosts})
    return {key: note for key, note in notes.items() if note is not None}


def checked_note(text: str) -> str:
    """Return a note without surrounding blanks. Raises ValueError if it is empty, too long or more than a line."""
    note = text.strip()
    if not note or len(note) > NOTE_LIMIT or not note.isprintable():
        received = text if len(text) <= 60 else text[:57] + "..."
        raise ValueError(f"must be one line of 1 to {NOTE_LIMIT} printable characters, got {received!r}")
    return note
