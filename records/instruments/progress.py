"""How far a session is, for displays: its cells with their planned repeats, and what runs at the moment.

    results/<run_id>/progress.json     while the session is measured; replaced at each change, removed at its end

The runner writes it when a repeat begins and when it has ended, never in between. It counts for no result: records say
what was measured. After a runner was killed it is out of date, until the session goes on. A reader sees all of it or
the one before; as it need not survive a crash of the machine, a measurement does not wait for the disk.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from keras_matrix.records.codec import CodecError, about, decode, dumps
from keras_matrix.records.files import show
from keras_matrix.records.store import Run

FILE = "progress.json"


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
    found = run.load_object(FILE)
    if found is None:
        return None
    try:
        return decode(Progress, found, FILE)
    except CodecError:
        return None
