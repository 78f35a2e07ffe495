"""The stall analyses of a run: computed from its records and probes, stored in `stalls.json` of its folder.

Promise: they are computed again from what is stored whenever the run's findings are; only the probes and the verified
advice cannot be computed, and are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from keras_matrix.analysis.stalls.analysis import reports
from keras_matrix.analysis.stalls.report import FILE, VERSION, StallReport, StallReports, VerifiedAdvice
from keras_matrix.records.codec import CodecError, decode, to_json
from keras_matrix.records.instruments.input_use import InputProbe
from keras_matrix.records.schema import Record
from keras_matrix.records.store import Run

PROBES = "input_probes.json"


def stored_probes(run: Run) -> dict[str, InputProbe]:
    """Return the probes of a run by the cell_id of the warm arm; damaged ones are left out."""
    probes = {}
    for cell_id, value in (run.load_object(PROBES) or {}).items():
        try:
            probes[cell_id] = decode(InputProbe, value, PROBES)
        except CodecError as error:
            run.note_unread(run.folder / PROBES, error)
    return probes


def store_probes(run: Run, probes: Mapping[str, InputProbe]) -> None:
    """Store probes of a run in addition to those that it has."""
    run.store_object(PROBES, to_json({**stored_probes(run), **probes}))


def stall_reports(run: Run, records: Sequence[Record]) -> tuple[StallReport, ...]:
    """Return the analyses that a run's records contain, with its probes and what was verified."""
    verified = {report.cell_id: report.verified for report in _stored(run)}
    analysed = reports(records, stored_probes(run))
    return tuple(replace(report, verified=verified.get(report.cell_id, [])) for report in analysed)


def store_reports(run: Run, new_reports: Sequence[StallReport]) -> None:
    """Store the analyses of a run, if it has any, unless they are stored already."""
    if new_reports and list(new_reports) != _stored(run):
        run.store_object(FILE, to_json(StallReports(reports=list(new_reports))))


def store_verified(run: Run, verified: Mapping[str, list[VerifiedAdvice]]) -> list[StallReport]:
    """Store the results of applied advice, by the cell_id of the analysis, and return the analyses with them."""
    with_verified = [replace(report, verified=verified.get(report.cell_id, report.verified)) for report in _stored(run)]
    store_reports(run, with_verified)
    return with_verified


def _stored(run: Run) -> list[StallReport]:
    """Return the stored analyses; none if the file is missing, damaged or of another version."""
    data = run.load_object(FILE)
    if data is None or data.get("version") != VERSION:
        return []
    try:
        return decode(StallReports, data, FILE).reports
    except CodecError as error:
        run.note_unread(run.folder / FILE, error)
        return []
