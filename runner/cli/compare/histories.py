"""Stored histories for commands: their change points with annotations, and the spread between sessions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from keras_matrix.analysis.comparison.primary_metric import cost
from keras_matrix.analysis.history.change_points import USUAL_RUN_LENGTH, Assessment, Notes, assess
from keras_matrix.analysis.history.sessions import History, SessionRatio, SessionSpread, across_sessions, histories
from keras_matrix.records import history_reader
from keras_matrix.records.appended.annotations import NoteKind, in_force, load
from keras_matrix.records.history_reader import Past
from keras_matrix.records.schema import Record


def assessed(found: Past, roots: Sequence[Path], run_length: int = USUAL_RUN_LENGTH) -> list[Assessment]:
    """Return every history with its changes; what is noted about changes in these folders is theirs."""
    lines = [line for root in roots for line in load(root)[0]]
    intended, acknowledged = (in_force(lines, kind) for kind in (NoteKind.INTENDED, NoteKind.ACKNOWLEDGED))
    return [assess(one, Notes(_of(one, intended), _of(one, acknowledged)), run_length) for one in histories(found)]


def _of(history: History, notes: Mapping[tuple[str, str, str], str]) -> dict[str, str]:
    """Return the notes of a history by run."""
    place = history.cell_id, history.host_id
    return {run: note for (cell, host, run), note in notes.items() if (cell, host) == place}


def across_stored(
    roots: Sequence[Path], compared: Collection[str], cells: Collection[str]
) -> Callable[[Sequence[Record], Sequence[Record]], SessionRatio | None]:
    """Return a function that compares a cell's records of two sessions, with the spread stored in these folders.

    `cells` are the cells it will be called for. The compared runs are left out of the spread, because a regression must
    not widen the interval that shows it.
    """
    spread_of = spread_stored(roots, compared, cells)

    def ratio(base: Sequence[Record], new: Sequence[Record]) -> SessionRatio | None:
        base_s, new_s = ([found for r in side if (found := cost(r))] for side in (base, new))
        return across_sessions(base_s, new_s, spread_of([*base, *new]))

    return ratio


def spread_stored(
    roots: Sequence[Path], compared: Collection[str], cells: Collection[str]
) -> Callable[[Sequence[Record]], SessionSpread | None]:
    """Return a function that returns the spread between stored sessions of a cell; None for records of several places.

    The runs in `compared` are left out; `cells` are the cells it will be called for.
    """
    found = history_reader.read(roots, lambda cell_id, workload, backend: cell_id in cells)
    others = replace(found, runs=tuple(run for run in found.runs if run.run_id not in compared))
    spreads = {
        (one.history.cell_id, one.history.host_id, one.history.device): one.spread for one in assessed(others, roots)
    }

    def spread_of(records: Sequence[Record]) -> SessionSpread | None:
        places = {_place(record) for record in records}
        return spreads.get(places.pop()) if len(places) == 1 else None

    return spread_of


def _place(record: Record) -> tuple[str, str, tuple[str, str] | None]:
    device = (record.device.platform, record.device.model or record.device.name) if record.device else None
    return record.cell_id, record.machine.host_id, device
