"""Stored runs: finding one by its id, computing its findings, and writing its report.

What only some runs have, such as traces, is an `OptionalPart`: a row of a table, whose module is imported for those
runs alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from keras_matrix.analysis.comparison.context import RunContext, UnreadFile
from keras_matrix.analysis.comparison.table import Row, table
from keras_matrix.analysis.findings import run_findings
from keras_matrix.analysis.views.result_table import ResultTable, result_table
from keras_matrix.dashboards.report import page as report
from keras_matrix.records import findings, history_reader, left_out, run_files
from keras_matrix.records.left_out import LeftOut
from keras_matrix.records.run_files import Measurements, RunFiles
from keras_matrix.records.schema import Record
from keras_matrix.records.settings import PIPELINE
from keras_matrix.records.store import FINISHED, VERIFICATION, Problem, Results, Run, latest_attempts
from keras_matrix.records.text import near, plural, printable
from keras_matrix.runner.checks.roofline import roofline_of, source_digest
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.matrix.settings_text import title_defaults
from keras_matrix.runner.plan.stopping import looks_of
from keras_matrix.runner.service import exit_codes
from keras_matrix.runner.service.commands import measuring_again
from keras_matrix.runner.service.histories import assessed_histories, without_run

if TYPE_CHECKING:
    from keras_matrix.analysis.cost import Prices
    from keras_matrix.runner.measure.experiment import Display

UNREAD_SHOWN = 20

RUNS_NAMED = 5  # in a message about an unknown run
LOOKED_BACK = 400  # runs; the time to find changes grows with the square of the number of sessions


@dataclass(frozen=True, slots=True)
class OptionalPart:
    """A part of `RunContext` that only some runs have: whether a run `has` it, and what reads and stores it.

    The functions are names, `module:function`, of the run and its records, and of the run and the part; without
    `stored_by` a part is only read.
    """

    name: str
    has: Callable[[Run, Sequence[Record]], bool]
    read_by: str
    stored_by: str | None = None

    def read(self, run: Run, records: Sequence[Record]) -> Any:
        """Return the part of a run that has it."""
        return resolve_name(self.read_by)(run, records)


PARTS = (
    OptionalPart(
        "traces",
        lambda run, records: any(record.trace for record in records),
        "keras_matrix.runner.measure.traces:shown_traces",
    ),
    OptionalPart(
        "stalls",
        lambda run, records: any(record.settings.feed == PIPELINE for record in records),
        "keras_matrix.runner.measure.stalls:stall_reports",
        stored_by="keras_matrix.runner.measure.stalls:store_reports",
    ),
    OptionalPart(
        "verification",
        lambda run, records: os.path.lexists(run.folder / VERIFICATION),
        "keras_matrix.runner.whatif.measurement:stored",
    ),
)


@dataclass(frozen=True)
class Findings:
    """The findings of a run: its rows, its records and their context, and its `run.json`, empty for a merged table.

    Its table is made when it is first shown.
    """

    rows: list[Row]
    records: list[Record]
    run_context: RunContext
    left_out: tuple[LeftOut, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def table(self) -> ResultTable:
        """The table of the rows, which every output renders."""
        return result_table(self.rows, self.run_context)


def newest_runs(run_ids: Collection[str]) -> str:
    """Return the names of the newest runs, for a message about an unknown one."""
    if not run_ids:
        return "there is no run"
    return f"the {'newest are' if len(run_ids) > 1 else 'only one is'} {', '.join(sorted(run_ids)[-RUNS_NAMED:])}"


def chosen_run(results: Path, name: str | None, flag: str = "--run") -> Run:
    """Return the run with the id that a flag names, by default the newest. Raises `UsageError`."""
    runs = {run.run_id: run for run in Results(results).runs()}
    if not runs:
        asked_flag = "--results" if name is None else flag
        raise UsageError(f"{asked_flag}: {without_run([results])}")
    if name is None:
        return runs[max(runs)]
    if name not in runs:
        raise UsageError(f"{flag}: {results} contains no run {name!r}; {newest_runs(runs)}{near(name, runs)}")
    return runs[name]


def notes(name: str, run: Run, records: Sequence[Record], problems: Sequence[Problem]) -> list[str]:
    """Return notes on one side of a comparison: files that cannot be read, and that the run is not finished."""
    texts = []
    if problems:
        first_text = f"{problems[0].path.name}: {printable(problems[0].reason)}"
        texts.append(f"{name}: {plural(len(problems), 'file')} of {run.run_id} skipped, first {first_text}")
    if run.load_object(FINISHED) is None:
        ended_count = sum(record.status != "infra" for record in latest_attempts(records))
        so_far = plural(ended_count, "process", "processes")
        texts.append(f"{name}: {run.run_id} is not finished, {so_far} so far; the figures may change")
    return texts


def findings_of(run: Run, prices: Prices | None = None) -> Findings:
    """Return the findings of a stored run, with the context from its results folder. Measures nothing."""
    files = run_files.read(run)
    measurements = run_files.read_measurements(files, source_digest())
    content_by_part = {part.name: part.read(run, files.records) for part in PARTS if part.has(run, files.records)}
    table_of_run = _table_of(files)
    context = replace(
        _with_peaks(files, measurements, table_of_run),
        usage_series=measurements.usage_series,
        prices=prices,
        **content_by_part,
    )
    unread = (*context.unread, *(unread_file(files.results, problem) for problem in run.unread.values()))
    return replace(table_of_run, run_context=replace(context, unread=unread))


def read_table(run: Run) -> Findings:
    """Return the table of a stored run; of its context only the checks, since the rest needs many more files."""
    return _table_of(run_files.read(run))


def _table_of(files: RunFiles) -> Findings:
    """Return the table of a run, with what the sentences of a row need: the checks that backends do the same work, and
    the command that measures it again."""
    checks = files.checks
    lines = [printable(line.removeprefix(f"{files.results}/"), " ").partition(": ") for line in checks.problems]
    context = RunContext(
        checks.parity,
        proofs=checks.proofs,
        replica_proofs=checks.replica_proofs,
        command=measuring_again(files.about),
        influences=checks.influences,
        unread=(
            *(unread_file(files.results, problem) for problem in files.problems),
            *(UnreadFile(file, reason) for file, _, reason in lines),
        ),
    )
    rows = table(files.records, title_defaults(), looks_of(files.about))
    return Findings(rows, files.records, context, left_out.read(files.about), files.about)


def unread_file(results: Path, problem: Problem) -> UnreadFile:
    """Return a problem with the path in the results folder, as text that every output can show."""
    path = problem.path.relative_to(results) if problem.path.is_relative_to(results) else problem.path
    return UnreadFile(printable(path.as_posix(), " "), printable(problem.reason, " "))


def passed_over(run: Run, problems: Sequence[Problem], display: Display) -> int:
    """Warn of the files of a run that cannot be read: they may belong to what is sought. Return the exit code.

    For a command that looks through the runs, the newest first.
    """
    for problem in problems:
        display.warn(f"{unread_file(run.folder.parent, problem)}; skipped, although it may belong to this cell")
    return exit_codes.NOT_OK if problems else exit_codes.OK


def unread_runs(results: Path, name: str | None) -> tuple[UnreadFile, ...]:
    """Return what has the name of a run and is none, if the newest run was chosen: it may have been newer."""
    return () if name else tuple(unread_file(results, problem) for problem in Results(results).left_out())


def _with_peaks(files: RunFiles, measurements: Measurements, stored_findings: Findings) -> RunContext:
    """Return the context with the shares of the machine's peak, without them if the peaks cannot be read."""
    context = stored_findings.run_context
    if refusal := measurements.refused_peaks:
        file, _, reason = refusal.removeprefix(f"{files.results}/").partition(": ")
        return replace(context, unread=(*context.unread, UnreadFile(printable(file, " "), printable(reason, " "))))
    roofline = roofline_of(stored_findings.rows, measurements)
    return replace(context, shares={share.cell_id: share for share in roofline.shares}, notes=roofline.notes)


def update_findings(run: Run, prices: Prices | None = None) -> Findings:
    """Compute the findings of a stored run, and store them with its records.

    Reports, pushes and dashboards read the findings that are stored here. No page is rendered.
    """
    shown_findings = findings_of(run, prices)
    cell_ids = {record.cell_id for record in shown_findings.records}
    root = run.folder.parent
    past = history_reader.read([root], lambda cell_id, workload, backend: cell_id in cell_ids)
    # The histories reach from `LOOKED_BACK` runs before up to this run.
    known_past = replace(
        past, runs=tuple(past_run for past_run in past.runs if past_run.run_id <= run.run_id)[-LOOKED_BACK:]
    )
    for part in PARTS:
        if part.stored_by and (content := getattr(shown_findings.run_context, part.name)):
            resolve_name(part.stored_by)(run, content)
    findings.keep(run, run_findings(shown_findings.table, assessed_histories(known_past, [root]), run.run_id))
    return shown_findings


def write_report(run: Run, page: Path | None = None, prices: Prices | None = None) -> Findings:
    """Update a run's findings and write its page, by default into its folder; return the findings."""
    stored_findings = update_findings(run, prices)
    write_page(stored_findings, page or run.folder / "report.html")
    return stored_findings


def write_page(stored_findings: Findings, page: Path) -> None:
    """Write the page of a run's table."""
    report.write(page, page_of(stored_findings))


def page_of(stored_findings: Findings) -> str:
    """Return the page of a run's table."""
    return report.render(
        stored_findings.records,
        stored_findings.table,
        stored_findings.about,
        pending_of(stored_findings.about, stored_findings.records),
    )


def pending_of(about: Mapping[str, object], records: Sequence[Record]) -> int:
    """Return how many planned repeats of a run have no record yet, by its `run.json`."""
    ended_records = [record for record in latest_attempts(records) if record.status != "infra"]
    planned = about.get("planned")
    return max(0, planned - len(ended_records)) if isinstance(planned, int) else 0


def unread_lines(unread: Sequence[UnreadFile]) -> list[str]:
    """Return a line for each file that cannot be used, and what that means; at most `UNREAD_SHOWN` files."""
    if not unread:
        return []
    unlisted_count = len(unread) - UNREAD_SHOWN
    return [
        f"{plural(len(unread), 'file')} cannot be read, and no figure rests on {'it' if len(unread) == 1 else 'them'}:",
        *(f"  {file}" for file in unread[:UNREAD_SHOWN]),
        *([f"  and {unlisted_count} more"] if unlisted_count > 0 else []),
    ]
