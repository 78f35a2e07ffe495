"""Bring in results that others measured: a CSV file or a BigQuery table, through a mapping of columns.

uploader import old.csv --map workload=test_name --map backend=keras_backend.type --map value=metrics.totaltime \\
    --map started_at=recorded_time --metric times.seed_total_time_s --source "lab 2017"

Foreign rows are marked (`source`), have runs of their own, and never enter a baseline: `analysis` reads records, of
which an import makes none."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from uploader.cli import flags, options

if TYPE_CHECKING:
    from uploader.foreign import Found

NAME = "import"
SHOWN = 20
HELP = "bring in foreign results through a mapping of columns"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("file", metavar="FILE", help="a CSV file, or bigquery://PROJECT.DATASET.TABLE")
    parser.add_argument(
        "--map", action="append", default=[], metavar="COLUMN=NAME", dest="mapping", help="our column, their column"
    )
    parser.add_argument("--metric", required=True, metavar="METRIC", help="what `value` is, such as times.step_time_s")
    parser.add_argument("--source", required=True, metavar="TEXT", help="where the rows come from")
    parser.add_argument("--dry-run", action="store_true", help="show the first rows as they would be and send nothing")
    options.add_warehouse_options(parser)
    flags.DEADLINE.add_to(parser)


def run(args: argparse.Namespace) -> int:
    """Read, map, seal and send."""
    from records.store import Results
    from uploader import foreign
    from uploader import push as pushing
    from uploader.outbox import seal_all
    from uploader.warehouse import is_local

    asked = foreign.Asked(foreign.mapping(args.mapping), args.metric, foreign.source(args.source))
    if "://" in args.file:  # how their dataset was made is read from it: --append-only is about ours
        theirs = foreign.read_table(args.file, args.results, replace(options.reached(args), append_only=False))
    else:
        theirs = foreign.read_csv(Path(args.file))
    found = foreign.rows_of(theirs, asked)
    if args.dry_run:
        print("\n".join(row.line for row in found.rows[:6]))
        return _told(found)
    target = options.target(args)
    outbox, done = options.outbox(target), pushing.Pushed()
    with options.warehouse(target) as warehouse:
        options.make_ready(warehouse, args.to)
        options.notice_emptied(Results(args.results), warehouse, outbox)
        with outbox.locked():
            seal_all(pushing.short_enough(found.rows, outbox), outbox)
            pushing.send(warehouse, outbox, done, print)
            done.dead = len(outbox.dead())
    print(f"{done.new:,} new rows, {done.known:,} were there")
    if not is_local(args.to) and (note := _days_of_views(found, args.to)):
        print(note)
    if done.dead:
        print(f"{done.dead} rows are set aside: uploader status says why")
    return 1 if done.dead else _told(found)


def _days_of_views(found: Found, address: str) -> str | None:
    """Return which days views show, and how they show all imported rows; None if there are no rows."""
    from uploader.rows import day_of
    from uploader.schema import RUNS
    from uploader.warehouse import MOST_DAYS

    days = [day_of(row.item) for row in found.rows if row.table is RUNS]
    if not days:
        return None
    return (
        f"the oldest row is of {min(days)}; views such as benchmarks show the last {MOST_DAYS} days unless they were "
        f"made to show more with: uploader migrate --to {address} --since {min(days)}"
    )


def _told(found: Found) -> int:
    for line in found.problems[:SHOWN]:
        print(f"left out: {line}")
    if (more := len(found.problems) - SHOWN) > 0:
        print(f"left out: {more:,} more")
    return 1 if found.problems else 0
