"""Import external results from a CSV file or a BigQuery table, with a mapping of columns.

    uploader import old.csv --map workload=test_name --map backend=keras_backend.type --map value=metrics.totaltime \\
        --map started_at=recorded_time --metric times.suite_total_time_s --source "lab 2017"

Imported rows have a `source` and separate runs. They never enter a baseline: `analysis` reads records, and an import
creates none."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from keras_matrix.records.text import plural
from keras_matrix.uploader.cli import flags, options

if TYPE_CHECKING:
    from keras_matrix.uploader.external_import import ImportedRows

SHOWN = 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("file", metavar="FILE", help="a CSV file, or bigquery://PROJECT.DATASET.TABLE")
    parser.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="COLUMN=NAME",
        dest="mapping",
        help="column of cells, external column",
    )
    parser.add_argument(
        "--metric", required=True, metavar="METRIC", help="the metric of `value`, such as times.step_time_s"
    )
    parser.add_argument("--source", required=True, metavar="TEXT", help="the origin of the rows")
    parser.add_argument("--dry-run", action="store_true", help="print the first converted rows and send nothing")
    options.add_warehouse_options(parser)
    flags.DEADLINE.add_to(parser)


def run(args: argparse.Namespace) -> int:
    """Read, convert, seal and send the rows."""
    from keras_matrix.records.store import Results
    from keras_matrix.uploader import external_import
    from keras_matrix.uploader import push as pushing
    from keras_matrix.uploader.outbox import seal_all
    from keras_matrix.uploader.warehouse import is_local

    spec = external_import.ImportSpec(
        external_import.mapping(args.mapping), args.metric, external_import.source(args.source)
    )
    if "://" in args.file:  # --append-only describes our dataset, not theirs
        foreign_rows = external_import.read_table(
            args.file, args.results, replace(options.warehouse_options(args), append_only=False)
        )
    else:
        foreign_rows = external_import.read_csv(Path(args.file))
    imported = external_import.rows_of(foreign_rows, spec)
    if args.dry_run:
        print("\n".join(row.line for row in imported.rows[:6]))
        return _print_problems(imported)
    target = options.target(args)
    outbox, summary = target.outbox(), pushing.PushSummary()
    with target.opened() as warehouse:
        pushing.prepare(warehouse, args.to)
        pushing.resend_if_emptied(Results(args.results), warehouse, outbox, print)
        with outbox.locked():
            seal_all(pushing.short_enough(imported.rows, outbox), outbox)
            pushing.send(warehouse, outbox, summary, print)
            summary.dead = len(outbox.dead())
    print(f"{summary.new:,} new rows, {summary.known:,} already present")
    if not is_local(args.to) and (note := _days_of_views(imported, args.to)):
        print(note)
    for line in summary.conflicts + summary.uncompared:
        print(line)
    if summary.dead:
        print(f"{plural(summary.dead, 'row')} set aside: uploader status lists the reasons")
    return 1 if summary.dead or summary.uncompared else _print_problems(imported)


def _days_of_views(imported: ImportedRows, address: str) -> str | None:
    """Return which days the views read, and how to include all imported rows; None if there are no rows."""
    from keras_matrix.uploader.rows import day_of
    from keras_matrix.uploader.schema import RUNS
    from keras_matrix.uploader.warehouse import MOST_DAYS

    days = [day_of(row.item) for row in imported.rows if row.table is RUNS]
    if not days:
        return None
    return (
        f"the oldest row is from {min(days)}; views such as benchmarks read the last {MOST_DAYS} days by default; "
        f"include all rows with: uploader migrate --to {address} --since {min(days)}"
    )


def _print_problems(imported: ImportedRows) -> int:
    """Print the rows that were not imported; return the exit code."""
    for line in imported.problems[:SHOWN]:
        print(f"skipped: {line}")
    if (unlisted_count := len(imported.problems) - SHOWN) > 0:
        print(f"skipped: {unlisted_count:,} more")
    return 1 if imported.problems else 0
