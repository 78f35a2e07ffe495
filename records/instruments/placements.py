"""What each machine of a cluster measures at the moment, for displays.

    results/<run_id>/placements.json     of a session at several machines; replaced at each change

The runner writes it when a comparison begins at a machine and when it ends. It counts for no result: records say what
was measured where. After a runner was killed it is out of date, until the session goes on. A reader sees all of it or
the one before; as it need not survive a crash of the machine, a measurement does not wait for the disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from keras_matrix.records.codec import CodecError, about, decode, dumps
from keras_matrix.records.files import show
from keras_matrix.records.store import Run

FILE = "placements.json"


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


def keep(run: Run, placements: Placements) -> None:
    """Store the placements of a session in its first run. A display must not end a run: a full disk is ignored."""
    show(run.folder / FILE, dumps(placements))


def load(run: Run) -> Placements:
    """Return the placements of a run; none if they are missing or damaged."""
    found = run.load_object(FILE)
    if found is None:
        return Placements()
    try:
        return decode(Placements, found, FILE)
    except CodecError as error:
        run.note_unread(run.folder / FILE, error)
        return Placements()
