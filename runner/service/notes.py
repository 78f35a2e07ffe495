"""Writes what people know about changes into the history: intended ones, and acknowledged ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.analysis.history.change_points import Assessment, ChangeKind, kind_of
from keras_matrix.records import appended as stored_notes
from keras_matrix.records.appended import Annotation, NoteKind, in_force
from keras_matrix.records.history_reader import Past, PastRun
from keras_matrix.records.text import near, plural
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.service import histories
from keras_matrix.runner.service.histories import read

# What each use is called: its kind of note, the flag of its text, and what its message says.
USES = {
    "annotate": (NoteKind.INTENDED, "--note", "noted"),
    "ack": (NoteKind.ACKNOWLEDGED, "--reason", "acknowledged"),
}


@dataclass(frozen=True, slots=True)
class Note:
    """What is noted at a run; without a text the note is withdrawn."""

    use: str
    run_id: str
    text: str | None

    @property
    def kind(self) -> NoteKind:
        """Return the kind of the note."""
        return USES[self.use][0]

    @property
    def flag(self) -> str:
        """Return the flag of its text."""
        return USES[self.use][1]


def write(roots: Sequence[Path], cell: str, note: Note, run_length: int) -> str:
    """Note something about a cell from a run on; without a text, remove that note. Return what was done."""
    past, _ = read(roots, cell)
    run = _run(past, roots, cell, note.run_id)
    if note.kind is NoteKind.ACKNOWLEDGED and note.text is not None:
        places = _changed(histories.assessed(past, roots, run_length), cell, run.run_id)
    else:
        places = {(attempt.cell_id, attempt.host_id) for attempt in run.attempts}
    if note.text is None:
        noted = in_force(stored_notes.load(run.root)[0], note.kind)
        if not any((*place, run.run_id) in noted for place in places):
            raise UsageError(f"--withdraw: {cell!r} has no note at run {run.run_id} by `{note.use}`")
    cells = {host: sorted(name for name, own in places if own == host) for _, host in sorted(places)}
    lines = [Annotation(run.run_id, names, [host], note.text, cell, note.kind) for host, names in cells.items()]
    stored_notes.append(run.root, lines)
    done = "withdrawn" if note.text is None else USES[note.use][2]
    return f"{done} for {plural(len({name for name, _ in places}), 'cell')} from run {run.run_id} on"


def _run(past: Past, roots: Sequence[Path], cell: str, run_id: str) -> PastRun:
    run = next((run for run in past.runs if run.run_id == run_id), None)
    if run is None:
        named = ", ".join(map(str, roots))
        raise UsageError(f"--run: no run {run_id!r} in {named}{near(run_id, [r.run_id for r in past.runs])}")
    if not run.attempts:
        raise UsageError(f"CELL: run {run_id} has no cell named {cell!r}; name the first run with the change")
    return run


def _changed(assessed: Sequence[Assessment], cell: str, run_id: str) -> set[tuple[str, str]]:
    """Return the cells and hosts that became worse at this run. Raises `UsageError` if there are none."""
    worse = [
        (change.run_id, one.history)
        for one in assessed
        for change in one.changes
        if kind_of(change, one.history.figure.goal) not in (ChangeKind.FASTER, ChangeKind.INTENDED)
    ]
    places = {(history.cell_id, history.host_id) for at, history in worse if at == run_id}
    if not places:
        runs = sorted({at for at, _ in worse})
        known = f"it has changes for the worse at {', '.join(runs)}" if runs else "it has no change for the worse"
        raise UsageError(f"--run: {cell!r} has no change for the worse at {run_id}; {known}")
    return places
