"""The merged table and its page.

Only the page is written: the folders and findings of the runs do not change.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from keras_matrix.analysis.comparison.context import RunContext, ShownTrace
from keras_matrix.analysis.comparison.merge import Merge, MergeSummary
from keras_matrix.analysis.comparison.table import rows_of
from keras_matrix.analysis.stats.sessions import SeparateSessions
from keras_matrix.dashboards.report import page as report
from keras_matrix.records.store import Results, Run
from keras_matrix.runner.cli.compare.histories import spread_stored
from keras_matrix.runner.cli.look.merge import summary
from keras_matrix.runner.cli.look.merge.choice import MergeReader, MergeRequest, chosen
from keras_matrix.runner.cli.look.stored import Findings, findings_of, pending_of
from keras_matrix.runner.cli.render.findings import as_document, print_table
from keras_matrix.runner.cli.render.format import title_defaults
from keras_matrix.runner.errors import StoreError
from keras_matrix.runner.plan.stopping import looks_of

FOLDER = "merged"  # not the id of a run, so that readers of runs skip it


@dataclass(frozen=True, slots=True)
class MergedTable:
    """A merged table: its findings and summary, the runs that it is from, and the path of its page."""

    found: Findings
    summary: MergeSummary
    merge: Merge
    reader: MergeReader
    page: Path


def merge(request: MergeRequest) -> int:
    """Choose the runs, print their table, write their page. Returns the exit code."""
    merged = read(request, Results(request.results).runs())
    problem = write(merged) if request.page or not request.as_json else None
    code = 1 if merged.found.run_context.unread else 0
    if request.as_json:
        print(as_document({"merge": summary.as_json(merged.merge, merged.summary), "exit_code": code}, merged.found))
    else:
        print(summary.heading(merged.summary))
        print_table(merged.found)
        print(f"\n{summary.how_to_alternate(merged.summary)}", flush=True)
    if problem is not None:
        raise problem
    if not request.as_json:
        print(f"report: {merged.page}")
    return code


def read(request: MergeRequest, stored: Sequence[Run]) -> MergedTable:
    """Choose among the stored runs and return their table: the cells of each run's own table. Raises `UsageError`."""
    page = request.page or request.results / FOLDER / "report.html"
    reader = MergeReader({run.run_id: run for run in stored})
    merge = chosen(request, reader)
    runs = {name: findings_of(reader.runs[name]) for name in merge.run_ids}
    own = {name: {b for b, of in merge.runs.items() if of == name} for name in runs}
    cells = [
        cell
        for name, found in runs.items()
        for row in found.rows
        for backend, cell in row.cells.items()
        if backend in own[name]
    ]
    separate = _separate(reader, merge, {cell.cell_id for cell in cells})
    records = [r for name, found in runs.items() for r in found.records if r.settings.backend in own[name]]
    merged = summary.merge_summary(reader, merge, records)
    owners = {record.cell_id: merge.runs[record.settings.backend] for record in records}
    run_context = replace(_run_context(reader, runs, owners, page), merge=merged)
    found = Findings(rows_of(cells, title_defaults(), separate=separate), records, run_context)
    return MergedTable(found, merged, merge, reader, page)


def _separate(reader: MergeReader, merge: Merge, cells: set[str]) -> SeparateSessions:
    looks = {backend: looks_of(reader.abouts[name]) for backend, name in merge.runs.items()}
    if len(merge.run_ids) < 2:
        return SeparateSessions(merge.runs, looks, lambda records: None)
    folders = sorted({run.folder.parent for run in reader.runs.values()})
    return SeparateSessions(merge.runs, looks, spread_stored(folders, merge.run_ids, cells))


def _run_context(
    reader: MergeReader, runs: Mapping[str, Findings], owners: Mapping[str, str], page: Path
) -> RunContext:
    """Return the context of the cells, each from its own run in `owners`; links are relative to the page's folder."""
    contexts = {name: found.run_context for name, found in runs.items()}
    newest = next(reversed(contexts.values()))  # what is from the results folder is the same in all
    return RunContext(
        newest.parity,
        {cell: one for name, own in contexts.items() for cell, one in own.shares.items() if owners.get(cell) == name},
        tuple(dict.fromkeys(note for own in contexts.values() for note in own.notes)),
        {
            cell: _linked(trace, reader.runs[name].folder, page)
            for name, own in contexts.items()
            for cell, trace in own.traces.items()
            if owners.get(cell) == name
        },
        {k: one for name, own in contexts.items() for k, one in own.usage_series.items() if owners.get(k[0]) == name},
        proofs=newest.proofs,
        replica_proofs=newest.replica_proofs,
        influences=newest.influences,
        unread=tuple(dict.fromkeys(one for own in contexts.values() for one in own.unread)),
    )


def _linked(trace: ShownTrace, folder: Path, page: Path) -> ShownTrace:
    return replace(trace, link=os.path.relpath(folder / trace.link, page.parent))


def write(merged: MergedTable) -> StoreError | None:
    """Write the page; return the error if it cannot be written, so that the table is still printed."""
    found, reader, page = merged.found, merged.reader, merged.page
    about = reader.abouts[merged.merge.reference]
    pending = pending_of_all(merged)
    shown: dict[str, object] = {key: about[key] for key in ("matrix_path", "matrix_text") if key in about}
    html = report.render(found.records, found.rows, shown, pending, found.run_context)
    try:
        page.parent.mkdir(exist_ok=True)
        report.write(page, html)
    except OSError as error:
        return StoreError(
            f"{page}: cannot be written: {error.strerror or error}; "
            "name another file with --out, or use --json, which writes none"
        )
    return None


def pending_of_all(merged: MergedTable) -> int:
    """Return how many planned repeats of the merged runs have no record yet."""
    runs = merged.reader.runs
    return sum(pending_of(merged.reader.abouts[name], runs[name].load()[0]) for name in merged.merge.run_ids)
