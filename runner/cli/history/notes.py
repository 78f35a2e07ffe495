"""Write what people know about changes into the history: intended ones (`annotate`) and acknowledged ones (`ack`)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.analysis.history.change_kinds import ChangeKind, kind_of
from keras_matrix.analysis.history.change_points import Assessment
from keras_matrix.dashboards.charts.format import plural
from keras_matrix.records.appended import annotations as stored_notes
from keras_matrix.records.appended.annotations import Annotation, NoteKind, checked_note, in_force
from keras_matrix.records.history_reader import Past, PastRun
from keras_matrix.records.text import near
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


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags of these uses."""
    group = parser.add_argument_group("with annotate and ack")
    group.add_argument("--run", metavar="RUN", help="the first run with the change")
    group.add_argument("--note", metavar="TEXT", help="annotate: what was changed on purpose")
    group.add_argument("--reason", metavar="TEXT", help="ack: why the change is accepted")
    group.add_argument("--withdraw", action="store_true", help="remove the note of this run")


def asked(args: argparse.Namespace) -> Note | None:
    """Return the note that is asked for, if any. Raises `UsageError` for flags that do not go together."""
    use = args.words[0] if args.words[:1] and args.words[0] in USES else None
    texts = {"--note": args.note, "--reason": args.reason}
    given = {"--run": args.run, **texts, "--withdraw": args.withdraw or None}
    for flag in (flag for flag, value in given.items() if value is not None):
        users = [name for name, (_, text, _) in USES.items() if flag not in texts or flag == text]
        if use not in users:
            shown = " or ".join(f"runner history {name} CELL --run RUN {USES[name][1]} TEXT" for name in users)
            raise UsageError(f"{flag}: belongs to: {shown}")
    if use is None:
        return None
    text = texts[USES[use][1]]
    if not (args.words[1:] and args.run and (text is None) == args.withdraw):
        raise UsageError(f"{use}: needs CELL, --run RUN, and one of {USES[use][1]} TEXT and --withdraw")
    try:
        return Note(use, args.run, None if text is None else checked_note(text))
    except ValueError as error:
        raise UsageError(f"{USES[use][1]}: {error}") from error


def write(roots: Sequence[Path], cell: str, note: Note, run_length: int) -> int:
    """Note something about a cell from a run on; without a text, remove that note."""
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
    print(f"{done} for {plural(len({name for name, _ in places}), 'cell')} from run {run.run_id} on")
    return 0


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
