"""One table of several stored runs: the newest run of each backend on one machine and matrix, and its page.

Runs that do not fit are left out, with the reason. Only the page is written: the folders and findings of the runs do
not change.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from keras_matrix.analysis.comparison.context import RunContext, ShownTrace
from keras_matrix.analysis.comparison.merge import (
    LeftOutBackend,
    Merge,
    MergeCandidate,
    MergedRun,
    MergeSummary,
    candidate,
    choose,
    shortened,
)
from keras_matrix.analysis.comparison.table import in_order, rows_of
from keras_matrix.analysis.cost import Prices
from keras_matrix.analysis.stats.sessions import SeparateSessions
from keras_matrix.dashboards.report import page as report
from keras_matrix.records.history_reader import left_out
from keras_matrix.records.schema import Record
from keras_matrix.records.store import FINISHED, Problem, Run
from keras_matrix.records.store_failure import StoreFailure
from keras_matrix.records.text import near, printable
from keras_matrix.runner.errors import StoreError, UsageError
from keras_matrix.runner.matrix.settings_text import title_defaults
from keras_matrix.runner.plan.stopping import looks_of
from keras_matrix.runner.service import commands
from keras_matrix.runner.service.histories import spread_stored, without_run
from keras_matrix.runner.service.stored import Findings, findings_of, newest_runs, notes, pending_of

LOOKED_BACK = 100  # runs; a backend that is in none of them counts as not measured
FOLDER = "merged"  # not the id of a run, so that readers of runs skip it


@dataclass(frozen=True, slots=True)
class MergeRequest:
    """The runs to merge: exactly `runs`, or those that fit `reference`, by default the newest; the page, and prices."""

    results: Path
    runs: Sequence[str]
    reference: str | None
    page: Path | None
    prices: Prices | None = None


@dataclass(slots=True)
class MergeReader:
    """Reads each stored run once for the choice, and lists those that cannot be merged, with the reason."""

    runs: Mapping[str, Run]
    abouts: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: dict[str, Sequence[Problem]] = field(default_factory=dict)
    left_out: list[LeftOutBackend] = field(default_factory=list)

    def candidates(self, names: Sequence[str]) -> Iterator[MergeCandidate]:
        """Yield the named runs that can be read and are the base of a session."""
        for name in names:
            run = self.runs[name]
            try:
                about = run.about()
                records, self.problems[name] = run.load()
            except (StoreFailure, OSError) as error:
                self.left_out.append(LeftOutBackend(name, "", printable(str(error))))
                continue
            self.abouts[name] = about
            if reason := left_out(about) or _without_records(records, self.problems[name]):
                self.left_out.append(LeftOutBackend(name, "", reason))
                continue
            yield candidate(name, about, records, run.load_object(FINISHED) is not None)


def _without_records(records: Sequence[Record], problems: Sequence[Problem]) -> str | None:
    """Return why a run without records has nothing to merge, else None."""
    if records:
        return None
    if not problems:
        return "no cell was measured"
    count, first_problem = len(problems), problems[0]
    text = f"its {count} files are not records" if count > 1 else "its only file is not a record"
    return f"{text}: {first_problem.path.name}: {printable(first_problem.reason)}"


def chosen(request: MergeRequest, reader: MergeReader) -> Merge:
    """Return the runs to merge. Raises `UsageError` if there are none, or if named runs do not fit."""
    if not reader.runs:
        advice = "measure one with: runner --matrix matrix.yaml, or with a service: docker compose run --rm jax-cpu"
        raise UsageError(f"--results: {without_run([request.results], advice)}")
    named_ids = list(dict.fromkeys(request.runs or ([request.reference] if request.reference else [])))
    for name in named_ids:
        if name not in reader.runs:
            raise UsageError(
                f"report --merge: {request.results} contains no run {name!r}; "
                f"{newest_runs(reader.runs)}{near(name, reader.runs)}"
            )
    newest = sorted(reader.runs, reverse=True)[:LOOKED_BACK]
    names = sorted(named_ids, reverse=True) if request.runs else list(dict.fromkeys([*named_ids, *newest]))
    merge = choose(reader.candidates(names))
    merge = replace(merge, left_out=(*reader.left_out, *merge.left_out))
    if request.runs or request.reference not in (None, merge.reference):
        _check_named(named_ids, merge)
    merge = replace(merge, left_out=tuple(shortened(merge.left_out)))
    if not merge.runs:
        reasons_text = "; ".join(map(str, merge.left_out))
        raise UsageError(f"report --merge: no run in {request.results} has a measured cell: {reasons_text}")
    return merge


def _check_named(named_ids: Sequence[str], merge: Merge) -> None:
    """Refuse named runs that are not in the table, all in one message. Raises `UsageError`."""
    reasons = [str(omission) for omission in merge.left_out if omission.run_id in named_ids]
    reasoned_ids = {omission.run_id for omission in merge.left_out}
    unused = [run_id for run_id in named_ids if run_id not in merge.run_ids and run_id not in reasoned_ids]
    reasons += [f"run {run_id}: each of its backends is in a newer run that was named" for run_id in unused]
    if reasons:
        raise UsageError("report --merge: these runs do not make one table:\n" + "\n".join(f"  {r}" for r in reasons))


# The table.


@dataclass(frozen=True, slots=True)
class MergedTable:
    """A merged table: its findings and summary, the runs that it is from, and the path of its page."""

    found: Findings
    summary: MergeSummary
    merge: Merge
    reader: MergeReader
    page: Path


def read(request: MergeRequest, stored_runs: Sequence[Run]) -> MergedTable:
    """Choose among the stored runs and return their table: the cells of each run's own table. Raises `UsageError`."""
    page = request.page or request.results / FOLDER / "report.html"
    reader = MergeReader({run.run_id: run for run in stored_runs})
    merge = chosen(request, reader)
    runs = {run_id: findings_of(reader.runs[run_id]) for run_id in merge.run_ids}
    backends_by_run = {
        run_id: {b for b, backend_run_id in merge.runs.items() if backend_run_id == run_id} for run_id in runs
    }
    cells = [
        cell
        for run_id, run_findings in runs.items()
        for row in run_findings.rows
        for backend, cell in row.cells.items()
        if backend in backends_by_run[run_id]
    ]
    separate = _separate(reader, merge, {cell.cell_id for cell in cells})
    records = [
        r
        for run_id, run_findings in runs.items()
        for r in run_findings.records
        if r.settings.backend in backends_by_run[run_id]
    ]
    merged = _summary(reader, merge, records)
    owners = {record.cell_id: merge.runs[record.settings.backend] for record in records}
    run_context = replace(_run_context(reader, runs, owners, page), merge=merged, prices=request.prices)
    merged_findings = Findings(rows_of(cells, title_defaults(), separate=separate), records, run_context)
    return MergedTable(merged_findings, merged, merge, reader, page)


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
    contexts = {run_id: run_findings.run_context for run_id, run_findings in runs.items()}
    newest = next(reversed(contexts.values()))  # what is from the results folder is the same in all
    return RunContext(
        newest.parity,
        {
            cell_id: share
            for run_id, run_context in contexts.items()
            for cell_id, share in run_context.shares.items()
            if owners.get(cell_id) == run_id
        },
        tuple(dict.fromkeys(note for run_context in contexts.values() for note in run_context.notes)),
        {
            cell_id: _linked(trace, reader.runs[run_id].folder, page)
            for run_id, run_context in contexts.items()
            for cell_id, trace in run_context.traces.items()
            if owners.get(cell_id) == run_id
        },
        {
            k: series
            for run_id, run_context in contexts.items()
            for k, series in run_context.usage_series.items()
            if owners.get(k[0]) == run_id
        },
        proofs=newest.proofs,
        replica_proofs=newest.replica_proofs,
        influences=newest.influences,
        unread=tuple(
            dict.fromkeys(unread_file for run_context in contexts.values() for unread_file in run_context.unread)
        ),
    )


def _linked(trace: ShownTrace, folder: Path, page: Path) -> ShownTrace:
    return replace(trace, link=os.path.relpath(folder / trace.link, page.parent))


def write(merged: MergedTable) -> StoreError | None:
    """Write the page; return the error if it cannot be written, so that the table is still printed."""
    merged_findings, reader, page = merged.found, merged.reader, merged.page
    about = reader.abouts[merged.merge.reference]
    pending = pending_of_all(merged)
    shown_facts: dict[str, object] = {key: about[key] for key in ("matrix_path", "matrix_text") if key in about}
    html = report.render(merged_findings.records, merged_findings.table, shown_facts, pending)
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
    return sum(pending_of(merged.reader.abouts[run_id], runs[run_id].load()[0]) for run_id in merged.merge.run_ids)


# The summary.


def _summary(reader: MergeReader, merge: Merge, records: Sequence[Record]) -> MergeSummary:
    """Return the summary: the runs, what was left out, what to measure next."""
    runs = tuple(
        _merged_run(reader, run_id, [r for r in records if merge.runs[r.settings.backend] == run_id])
        for run_id in merge.run_ids
    )
    lines = [*_left_out_lines(reader, merge, records), *(f"note: {note}" for note in _notes(reader, merge))]
    about, (device, is_service) = reader.abouts[merge.reference], _where(merge, records)
    is_separate = len(runs) > 1
    command = commands.alternating(about, device, service=is_service) if is_separate else None
    return MergeSummary(runs, tuple(lines), command)


def _merged_run(reader: MergeReader, name: str, records: Sequence[Record]) -> MergedRun:
    about, backends = reader.abouts[name], in_order(record.settings.backend for record in records)
    packages = ("keras", *backends)
    package_versions = {(p, r.versions[p]) for r in records for p in packages if p in r.versions}
    versions = sorted(
        package_versions, key=lambda package_version: (packages.index(package_version[0]), package_version[1])
    )
    images = {f"{r.container.image}, {r.container.image_id[:19]}" for r in records if r.container}
    return MergedRun(
        name,
        str(about.get("started_at") or ""),
        tuple(backends),
        ", ".join(f"{package} {version}" for package, version in versions),
        str(about.get("matrix_path") or ""),
        tuple(sorted(images)),
    )


def _where(merge: Merge, records: Sequence[Record]) -> tuple[str, bool]:
    """Return the device of the reference run, and whether it was measured in a service of compose.yaml."""
    first_record = next(r for r in records if merge.runs[r.settings.backend] == merge.reference)
    return first_record.settings.device, first_record.machine.container is not None and first_record.container is None


def _left_out_lines(reader: MergeReader, merge: Merge, records: Sequence[Record]) -> Iterator[str]:
    """Yield the left out runs and the missing backends, each with advice, once per backend."""
    device, is_service = _where(merge, records)
    about = reader.abouts[merge.reference]
    advice = {
        backend: f"measure {backend} on this machine: {command}"
        for backend in merge.missing
        if (command := commands.one_backend(about, backend, device, service=is_service))
    }
    if len(merge.run_ids) == 1:
        yield f"nothing to merge: {merge.reference} is the only run that fits"
    for omission in merge.left_out:
        used_run_id = merge.runs.get(omission.backend)
        next_step = f"used instead: {used_run_id}" if used_run_id else advice.pop(omission.backend, None)
        yield "; ".join(filter(None, (f"left out: {omission}", next_step)))
    omitted_backends = {omission.backend for omission in merge.left_out}
    for backend in merge.missing:
        if backend not in omitted_backends:
            yield "; ".join(filter(None, (f"no run of {backend} is merged", advice.get(backend))))


def _notes(reader: MergeReader, merge: Merge) -> Iterator[str]:
    """Yield notes on the runs: unfinished runs, files that cannot be read, differences in the work."""
    for run_id in merge.run_ids:
        run = reader.runs[run_id]
        backends_text = "+".join(backend for backend, backend_run_id in merge.runs.items() if backend_run_id == run_id)
        yield from notes(backends_text, run, run.load()[0], reader.problems[run_id])
    yield from merge.notes
