"""Stored runs: finding one by the flags `--results` and `--run`, and writing its report."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from records.store import Results, Run, latest_attempts
from runner.errors import UsageError
from runner.grammar import near

if TYPE_CHECKING:
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
