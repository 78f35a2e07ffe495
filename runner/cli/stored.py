"""Stored runs: finding one by the flags `--results` and `--run`, and writing its report."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from records.store import Problem, Results, Run, latest_attempts
from runner.errors import UsageError
from runner.executors.output import printable
from runner.grammar import near

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analysis.compare import Row
    from records.schema import Record


def chosen_run(args: argparse.Namespace) -> Run:
    """Return the run that the flags name, by default the newest. Raises `UsageError`."""
    runs = {run.run_id: run for run in Results(args.results).runs()}
    if not runs:
        raise UsageError(f"--results: {args.results} holds no run; measure one with: runner --matrix matrix.yaml")
    if args.run is None:
        return runs[max(runs)]
    if args.run not in runs:
        raise UsageError(
            f"--run: {args.results} holds no run {args.run!r}{near(args.run, runs)}; it holds {', '.join(runs)}"
        )
    return runs[args.run]


def notes(name: str, run: Run, records: Sequence[Record], problems: Sequence[Problem]) -> list[str]:
    """Return what else must be known of one side of a comparison: what cannot be read, and that it is unfinished."""
    from dashboards.format import plural
    from runner.session import FINISHED

    told = []
    if problems:
        first = f"{problems[0].path.name}: {printable(problems[0].reason)}"
        told.append(f"{name}: {plural(len(problems), 'file')} of {run.run_id} passed over, first {first}")
    if run.kept(FINISHED) is None:
        ended = sum(record.status != "infra" for record in latest_attempts(records))
        so_far = plural(ended, "process", "processes")
        told.append(f"{name}: {run.run_id} is not finished, {so_far} so far; what follows may change")
    return told


def write_report(run: Run, page: Path) -> tuple[list[Row], list[Record]]:
    """Write a run's page; return its rows and its records."""
    from analysis.compare import table
    from dashboards import report
    from runner.cli.present import usual_values
    from runner.stopping import looks_of

    records, _ = run.load()
    about = run.about()
    rows = table(records, usual_values(), looks_of(about))
    ended = [record for record in latest_attempts(records) if record.status != "infra"]
    report.write(page, report.render(records, rows, about, max(0, int(about["planned"]) - len(ended))))
    return rows, records
