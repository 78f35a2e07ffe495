"""What the traces on both sides of a change show, if both sides have one."""

from __future__ import annotations

from contextlib import suppress

from keras_matrix.analysis.history.change_points import Assessment, Change
from keras_matrix.analysis.traces import OperationShift, largest_shifts
from keras_matrix.records.history_reader import Past, PastRun
from keras_matrix.records.store import Run
from keras_matrix.records.traces.request import TraceError
from keras_matrix.records.traces.table import TraceSummary
from keras_matrix.runner.measure.traces import FOLDER, stored_traces, table_of


def shifts_of(past: Past, one: Assessment, change: Change) -> list[OperationShift] | None:
    """Return the operations whose time differs most between the newest traces of both levels; None without two."""
    at = [level.first for level in one.levels].index(change.index)
    tables = []
    for level in one.levels[at - 1 : at + 1]:
        runs = {session.run_id for session in one.history.valued[level.first : level.last + 1]}
        ordered = (run for run in reversed(past.runs) if run.run_id in runs)
        tables.append(next((table for run in ordered if (table := _table(run, one))), None))
    before, after = tables
    return largest_shifts(before, after) if before and after else None


def _table(run: PastRun, one: Assessment) -> TraceSummary | None:
    stored = Run(run.root / run.run_id)
    if not any((stored.folder / FOLDER).glob(f"{one.history.cell_id}.*")):
        return None
    for record, path in stored_traces(stored, stored.load()[0]):
        if (record.cell_id, record.machine.host_id) == (one.history.cell_id, one.history.host_id):
            with suppress(TraceError):
                return table_of(path)
    return None
