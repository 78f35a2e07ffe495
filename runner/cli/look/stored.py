"""Stored runs: finding one by the flags `--results` and `--run`, and writing its report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from keras_matrix.records import left_out
from keras_matrix.records.store import Problem, Results, Run, latest_attempts
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors.supervise.output import printable
from keras_matrix.runner.matrix.grammar import near

if TYPE_CHECKING:
    from keras_matrix.analysis.comparison.context import RunContext, ShownTrace
    from keras_matrix.analysis.comparison.table import Row
    from keras_matrix.records.instruments.usage import UsageSeries
    from keras_matrix.records.left_out import LeftOut
    from keras_matrix.records.schema import Record


LOOKED_BACK = 400  # finding changes among n sessions takes time as n squared


@dataclass(frozen=True, slots=True)
class Findings:
    """A run as it is shown: its table, its records, and what stands beside them."""

    rows: list[Row]
    records: list[Record]
    run_context: RunContext
    left_out: tuple[LeftOut, ...] = ()


def chosen_run(results: Path, name: str | None) -> Run:
    """Return the run of a name, by default the newest. Raises `UsageError`."""
    runs = {run.run_id: run for run in Results(results).runs()}
    if not runs:
        raise UsageError(f"--results: {results} holds no run; measure one with: runner --matrix matrix.yaml")
    if name is None:
        return runs[max(runs)]
    if name not in runs:
        raise UsageError(f"--run: {results} holds no run {name!r}{near(name, runs)}; it holds {', '.join(runs)}")
    return runs[name]


def notes(name: str, run: Run, records: Sequence[Record], problems: Sequence[Problem]) -> list[str]:
    """Return what else must be known of one side of a comparison: what cannot be read, and that it is unfinished."""
    from keras_matrix.dashboards.charts.format import plural
    from keras_matrix.runner.plan.session import FINISHED

    told = []
    if problems:
        first = f"{problems[0].path.name}: {printable(problems[0].reason)}"
        told.append(f"{name}: {plural(len(problems), 'file')} of {run.run_id} passed over, first {first}")
    if run.load_object(FINISHED) is None:
        ended = sum(record.status != "infra" for record in latest_attempts(records))
        so_far = plural(ended, "process", "processes")
        told.append(f"{name}: {run.run_id} is not finished, {so_far} so far; what follows may change")
    return told


def findings_of(run: Run) -> Findings:
    """Return a stored run's table, with what its results folder knows beside it. Measures nothing."""
    from keras_matrix.analysis.comparison.table import table
    from keras_matrix.runner.cli.render.default_settings import usual_values
    from keras_matrix.runner.plan.stopping import looks_of

    records, _ = run.load()
    about = run.about()
    rows = table(records, usual_values(), looks_of(about))
    return Findings(rows, records, replace(run_context(run, rows), traces=_traces(run, records)), left_out.read(about))


def run_context(run: Run, rows: Sequence[Row]) -> RunContext:
    """Return what the results folder of a run knows beside its speeds: twins compared, peaks measured, courses."""
    from keras_matrix.analysis.comparison.context import RunContext
    from keras_matrix.records.instruments import parity
    from keras_matrix.runner.checks.roofline import stored

    results = run.folder.parent
    found = stored(results, rows, run.about())
    shares = {share.cell_id: share for share in found.shares}
    return RunContext(tuple(parity.load(results)[0]), shares, found.notes, usage_series=_courses(run, rows))


def _courses(run: Run, rows: Sequence[Row]) -> dict[tuple[str, int, int], UsageSeries]:
    """Return what the attempts that are shown used over time, where it was kept."""
    shown = (record for row in rows for cell in row.cells.values() for record in cell.records)
    kept = ((one.key, run.usage_series(one)) for one in shown if one.usage and one.usage.course)
    return {key: course for key, course in kept if course is not None}


def _traces(run: Run, records: Sequence[Record]) -> dict[str, ShownTrace]:
    """Return the traces of a run that lie where its records say, by cell; what cannot be read is left out."""
    traced = [record for record in records if record.trace]
    if not traced:
        return {}
    from keras_matrix.analysis.comparison.context import ShownTrace
    from keras_matrix.records.traces.request import TraceError
    from keras_matrix.runner.measure.traces import kept_in, table_of

    found = {}
    for record, path in kept_in(run, traced):
        with suppress(TraceError):
            found[record.cell_id] = ShownTrace(path.relative_to(run.folder).as_posix(), table_of(path))
    return found


def write_reports(runs: Iterable[Run]) -> None:
    """Write each run's page where it belongs, in its folder."""
    for run in runs:
        write_report(run, run.folder / "report.html")


def update_findings(run: Run) -> Findings:
    """Compute a run's findings from what is stored, and keep them with its records; return its table.

    This is the one way to findings: reports, pushes and dashboards read what it keeps. It renders no page.
    """
    found = findings_of(run)
    keep_findings(run, found)
    return found


def keep_findings(run: Run, shown: Findings) -> None:
    """Keep the findings of a run's table and histories, which reach from `LOOKED_BACK` runs before up to this one."""
    from keras_matrix.analysis.findings import of_run
    from keras_matrix.records import findings, history_reader
    from keras_matrix.runner.cli.compare.histories import assessed

    cells = {record.cell_id for record in shown.records}
    root = run.folder.parent
    read = history_reader.read([root], lambda cell_id, workload, backend: cell_id in cells)
    known = replace(read, runs=tuple(one for one in read.runs if one.run_id <= run.run_id)[-LOOKED_BACK:])
    findings.keep(run, of_run(shown.rows, shown.run_context, assessed(known, [root]), run.run_id))


def write_report(run: Run, page: Path) -> Findings:
    """Update a run's findings, then write its page; return what the page shows."""
    found = update_findings(run)
    write_page(run, found, page)
    return found


def write_page(run: Run, found: Findings, page: Path) -> None:
    """Write the page of a run's table."""
    from keras_matrix.dashboards.report import page as report

    about = run.about()
    report.write(
        page, report.render(found.records, found.rows, about, pending_of(about, found.records), found.run_context)
    )


def pending_of(about: Mapping[str, object], records: Sequence[Record]) -> int:
    """Return how many planned repeats of a run have no record yet, by its `run.json`."""
    ended = [record for record in latest_attempts(records) if record.status != "infra"]
    planned = about.get("planned")
    return max(0, planned - len(ended)) if isinstance(planned, int) else 0
