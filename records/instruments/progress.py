"""How far a session is, for displays: its cells, what runs at the moment, and what each machine of a cluster measures.

   results/<run_id>/progress.json       while the session is measured; replaced at each change, removed at its end
   results/<run_id>/placements.json     of a session at several machines; replaced at each change

The runner writes them when a repeat, or a comparison at a machine, begins and ends, never in between. They count
for no result: records say what was measured, and where. After a runner was killed they are out of date, until the
session goes on. A reader sees all of a file or the one before; as it need not survive a crash of the machine, a
measurement does not wait for the disk.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from keras_matrix.records.codec import CodecError, about, decode, dumps
from keras_matrix.records.files import show
from keras_matrix.records.store import Run

FILE = "progress.json"
PLACEMENTS_FILE = "placements.json"


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """A cell of a session in one arm."""

    cell_id: str
    backend: str
    arm: str = about("the environment; empty if the session has only one")
    title: str = about("its workload and the settings that tell it from the other cells")
    planned: int = about("its repeats, so far: `repeats: auto` adds some")
    expected_s: float | None = about("the expected duration of a repeat; null if unknown", default=None)


@dataclass(frozen=True, slots=True)
class RunningRepeat:
    """A repeat that is being measured."""

    cell_id: str
    arm: str
    repeat: int


@dataclass(frozen=True, slots=True)
class Progress:
    """The cells of a session in the order of the plan, and the repeats that are being measured."""

    started: str = about("when this start of the runner began to measure; wall-clock label, UTC, ISO 8601")
    cells: list[PlannedCell] = field(default_factory=list)
    running: list[RunningRepeat] = field(default_factory=list)


def keep(run: Run, progress: Progress) -> None:
    """Store the progress of a session in its first run. A display must not end a run: a full disk is ignored."""
    show(run.folder / FILE, dumps(progress))


def remove(run: Run) -> None:
    """Remove the progress of a session that is no longer measured."""
    with contextlib.suppress(OSError):
        (run.folder / FILE).unlink()


def load(run: Run) -> Progress | None:
    """Return the progress of a session; None if it is not being measured, or the file is damaged."""
    document = run.load_object(FILE)
    if document is None:
        return None
    try:
        return decode(Progress, document, FILE)
    except CodecError:
        return None


@dataclass(frozen=True, slots=True)
class Placement:
    """A machine of a session, and what it measures."""

    machine: str = about("the machine's name in the cluster")
    host_id: str | None = about("the machine in its records; null until one was published", default=None)
    work: str | None = about("the comparison and block that are measured there; null if none are", default=None)
    since: str | None = about("when that began; wall-clock label, UTC, ISO 8601", default=None)


@dataclass(frozen=True, slots=True)
class Placements:
    """The machines of a session that have got work, in the order of their first."""

    machines: list[Placement] = field(default_factory=list)


def keep_placements(run: Run, placements: Placements) -> None:
    """Store the placements of a session in its first run. A display must not end a run: a full disk is ignored."""
    show(run.folder / PLACEMENTS_FILE, dumps(placements))


def load_placements(run: Run) -> Placements:
    """Return the placements of a run; none if they are missing or damaged."""
    document = run.load_object(PLACEMENTS_FILE)
    if document is None:
        return Placements()
    try:
        return decode(Placements, document, PLACEMENTS_FILE)
    except CodecError as error:
        run.note_unread(run.folder / PLACEMENTS_FILE, error)
        return Placements()
