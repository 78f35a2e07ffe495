"""Stored histories of named cells: their change points, and what people wrote about them.

Notes say that a change was intended or is acknowledged.
"""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from keras_matrix.analysis.comparison.primary_metric import cost
from keras_matrix.analysis.history.change_points import (
    USUAL_RUN_LENGTH,
    Assessment,
    ChangeKind,
    Notes,
    assess,
    kind_of,
)
from keras_matrix.analysis.history.sessions import (
    History,
    SessionRatio,
    SessionSpread,
    across_sessions,
    histories,
)
from keras_matrix.analysis.views.history_view import HistoryView, history_views
from keras_matrix.records import appended as stored_notes
from keras_matrix.records import history_reader
from keras_matrix.records.appended import Annotation, NoteKind, in_force, load
from keras_matrix.records.codec import CodecError, decode
from keras_matrix.records.history_reader import Past, PastRun, Wanted
from keras_matrix.records.schema import Record
from keras_matrix.records.settings import Settings
from keras_matrix.records.store import Problem, Results
from keras_matrix.records.text import near, plural, printable
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.matrix.scalars import value_text
from keras_matrix.runner.matrix.settings_text import LENGTHS, differing, settings_text

# What each use is called: its kind of note, the flag of its text, and what its message says.
USES = {
    "annotate": (NoteKind.INTENDED, "--note", "noted"),
    "ack": (NoteKind.ACKNOWLEDGED, "--reason", "acknowledged"),
}


def without_run(results_folders: Sequence[Path], advice: str = "measure one with: runner --matrix matrix.yaml") -> str:
    """Return that these results folders contain no run, or none that can be read with the first reason."""
    folders_text = ", ".join(map(str, results_folders))
    unread = [problem for root in results_folders for problem in Results(root).left_out()]
    if unread:
        return f"{folders_text} contains no run that can be read: {unread[0].path}: {printable(unread[0].reason)}"
    return f"{folders_text} contains no run; {advice}"


def read(results_folders: Sequence[Path], pattern: str | None) -> tuple[Past, list[Problem]]:
    """Return the stored history of the named cells. Raises `UsageError` if there is none."""
    folders_text = ", ".join(map(str, results_folders))
    if not any(Results(root).runs() for root in results_folders):
        raise UsageError(f"--results: {without_run(results_folders)}")
    names: set[str] = set()
    past = history_reader.read(results_folders, _choice(pattern, names))
    if not any(run.attempts for run in past.runs):
        if pattern is not None and names:
            message = f"CELL: no stored cell is named {pattern!r}; there are {_some(names)}{near(pattern, names)}"
            skipped_texts = (f"skipped: {problem.path}: {problem.reason}" for problem in past.problems)
            raise UsageError("\n".join([message, *skipped_texts]))
        reasons = [*(f"{problem.path}: {problem.reason}" for problem in past.problems), *past.caveats]
        kind_text = "readable record" if past.problems else "run for a history"
        raise UsageError(
            f"--results: {folders_text} contains no {kind_text}{''.join(f': {reason}' for reason in reasons[:1])}"
        )
    return past, [*past.problems, *(problem for root in results_folders for problem in load(root)[1])]


def _choice(pattern: str | None, seen_names: set[str]) -> Wanted:
    """Return the test whether a cell is named; it adds the name of every cell it is called for to `seen_names`."""

    def wanted(cell_id: str, workload: str, backend: str) -> bool:
        names = (workload, f"{backend}:{workload}")
        seen_names.add(names[1])
        return pattern is None or names_cell(pattern, cell_id, workload, backend)

    return wanted


def names_cell(pattern: str, cell_id: str, workload: str, backend: str) -> bool:
    """Return whether a pattern of the command line names this cell."""
    return cell_id.startswith(pattern) or any(
        fnmatchcase(name, pattern) for name in (workload, f"{backend}:{workload}")
    )


def _some(seen_names: set[str], shown_count: int = 12) -> str:
    names = sorted(seen_names)
    return ", ".join(names[:shown_count]) + (
        f" and {len(names) - shown_count} more" if len(names) > shown_count else ""
    )


def assessed_histories(
    past: Past, results_folders: Sequence[Path], run_length: int = USUAL_RUN_LENGTH
) -> list[Assessment]:
    """Return every history with its changes; what is noted about changes in these folders is theirs."""
    lines = [line for root in results_folders for line in load(root)[0]]
    intended, acknowledged = (in_force(lines, kind) for kind in (NoteKind.INTENDED, NoteKind.ACKNOWLEDGED))
    return [
        assess(history, Notes(_of(history, intended), _of(history, acknowledged)), run_length)
        for history in histories(past)
    ]


def _of(history: History, notes: Mapping[tuple[str, str, str], str]) -> dict[str, str]:
    """Return the notes of a history by run."""
    place = history.cell_id, history.host_id
    return {run_id: note for (cell_id, host_id, run_id), note in notes.items() if (cell_id, host_id) == place}


def across_stored(
    results_folders: Sequence[Path], compared_runs: Collection[str], cells: Collection[str]
) -> Callable[[Sequence[Record], Sequence[Record]], SessionRatio | None]:
    """Return a function that compares a cell's records of two sessions, with the spread stored in these folders.

    `cells` are the cells it will be called for. The compared runs are left out of the spread, because a regression must
    not widen the interval that shows it.
    """
    spread_of = spread_stored(results_folders, compared_runs, cells)

    def ratio(base: Sequence[Record], new: Sequence[Record]) -> SessionRatio | None:
        base_s, new_s = ([session_cost for r in side if (session_cost := cost(r))] for side in (base, new))
        return across_sessions(base_s, new_s, spread_of([*base, *new]))

    return ratio


def spread_stored(
    results_folders: Sequence[Path], compared_runs: Collection[str], cells: Collection[str]
) -> Callable[[Sequence[Record]], SessionSpread | None]:
    """Return a function that returns the spread between stored sessions of a cell; None for records of several places.

    The runs in `compared_runs` are left out; `cells` are the cells it will be called for.
    """
    past = history_reader.read(results_folders, lambda cell_id, workload, backend: cell_id in cells)
    other_runs = replace(past, runs=tuple(run for run in past.runs if run.run_id not in compared_runs))
    spreads = {
        (assessment.history.cell_id, assessment.history.host_id, assessment.history.device): assessment.spread
        for assessment in assessed_histories(other_runs, results_folders)
    }

    def spread_of(records: Sequence[Record]) -> SessionSpread | None:
        places = {_place(record) for record in records}
        return spreads.get(places.pop()) if len(places) == 1 else None

    return spread_of


def _place(record: Record) -> tuple[str, str, tuple[str, str] | None]:
    device = (record.device.platform, record.device.model or record.device.name) if record.device else None
    return record.cell_id, record.machine.host_id, device


def title(history: History) -> str:
    """Return the title of a cell: its workload, the settings that are not the default, and its backend."""
    backend = str(history.settings.get("backend"))
    try:
        text = settings_text(decode(Settings, dict(history.settings)))
    except CodecError:  # settings of an earlier schema
        text = f"{history.settings.get('workload')}"
    return printable(f"{text} on {backend}" if f"backend={backend}" not in text else text)


def views(assessed: Sequence[Assessment]) -> list[HistoryView]:
    """Return what is shown of these histories."""
    return history_views(assessed, _titles(assessed))


def _titles(assessed: Iterable[Assessment]) -> dict[str, str]:
    """Return the title of each cell by its id: with the id if others have the same, as commands of two definitions."""
    title_by_cell = {assessment.history.cell_id: title(assessment.history) for assessment in assessed}
    count_by_title = Counter(title_by_cell.values())
    return {
        cell_id: text if count_by_title[text] == 1 else f"{text} (cell {cell_id})"
        for cell_id, text in title_by_cell.items()
    }


def filters(history: History) -> list[str]:
    """Return what selects a cell among others of its workload and backend in a matrix, as in `batch_size=32`."""
    try:
        differing_settings = differing(decode(Settings, dict(history.settings)))
    except CodecError:
        return []
    selecting = [(key, value) for key, value in differing_settings if key not in {"backend", *LENGTHS}]
    return [f"{key}={glob.escape(value_text(value))}" for key, value in selecting if value is not None]


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


def write(results_folders: Sequence[Path], pattern: str, note: Note, run_length: int) -> str:
    """Note something about a cell from a run on; without a text, remove that note. Return what was done."""
    past, _ = read(results_folders, pattern)
    run = _run(past, results_folders, pattern, note.run_id)
    if note.kind is NoteKind.ACKNOWLEDGED and note.text is not None:
        places = _changed(assessed_histories(past, results_folders, run_length), pattern, run.run_id)
    else:
        places = {(attempt.cell_id, attempt.host_id) for attempt in run.attempts}
    if note.text is None:
        notes_in_force = in_force(stored_notes.load(run.root)[0], note.kind)
        if not any((*place, run.run_id) in notes_in_force for place in places):
            raise UsageError(f"--withdraw: {pattern!r} has no note at run {run.run_id} by `{note.use}`")
    cell_ids_by_host = {
        host: sorted(cell_id for cell_id, place_host in places if place_host == host) for _, host in sorted(places)
    }
    lines = [
        Annotation(run.run_id, cell_ids, [host], note.text, pattern, note.kind)
        for host, cell_ids in cell_ids_by_host.items()
    ]
    stored_notes.append(run.root, lines)
    action = "withdrawn" if note.text is None else USES[note.use][2]
    return f"{action} for {plural(len({cell_id for cell_id, _ in places}), 'cell')} from run {run.run_id} on"


def _run(past: Past, results_folders: Sequence[Path], pattern: str, run_id: str) -> PastRun:
    run = next((run for run in past.runs if run.run_id == run_id), None)
    if run is None:
        folders_text = ", ".join(map(str, results_folders))
        raise UsageError(f"--run: no run {run_id!r} in {folders_text}{near(run_id, [r.run_id for r in past.runs])}")
    if not run.attempts:
        raise UsageError(f"CELL: run {run_id} has no cell named {pattern!r}; name the first run with the change")
    return run


def _changed(assessed: Sequence[Assessment], pattern: str, run_id: str) -> set[tuple[str, str]]:
    """Return the cells and hosts that became worse at this run. Raises `UsageError` if there are none."""
    worse = [
        (change.run_id, assessment.history)
        for assessment in assessed
        for change in assessment.changes
        if kind_of(change, assessment.history.figure.goal) not in (ChangeKind.FASTER, ChangeKind.INTENDED)
    ]
    places = {(history.cell_id, history.host_id) for changed_at, history in worse if changed_at == run_id}
    if not places:
        run_ids = sorted({changed_at for changed_at, _ in worse})
        changes_text = (
            f"it has changes for the worse at {', '.join(run_ids)}" if run_ids else "it has no change for the worse"
        )
        raise UsageError(f"--run: {pattern!r} has no change for the worse at {run_id}; {changes_text}")
    return places
