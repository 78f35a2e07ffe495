"""Add missing columns as NULLABLE and replace the views; report any other difference as an error."""

from __future__ import annotations

import argparse

from keras_matrix.uploader.cli import options


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    options.add_warehouse_options(parser)
    options.add_first_day(parser)
    parser.add_argument("--dry-run", action="store_true", help="only print the differences")


def run(args: argparse.Namespace) -> int:
    """Compare the tables, add missing columns, and replace the views by those of this version."""
    from keras_matrix.uploader.bigquery.ddl import days_read
    from keras_matrix.uploader.bigquery.schema_check import differences, refuse

    with options.warehouse(options.target(args)) as warehouse:
        found = differences(warehouse)
        if not found:
            print("the tables have the schema of this version")
        elif args.dry_run:
            print("\n".join(line for one in found for line in one.lines()))
        if args.dry_run:
            return 1 if found else 0
        refuse([one for one in found if one.wrong or one.absent], args.to)
        for one in found:
            warehouse.add_columns(one.table, one.missing)
            print("\n".join(f"added {one.table.name}.{column.name}" for column in one.missing))
        made = warehouse.create()
        for name in (name for name in made if not name.startswith("view ")):
            print(f"created the {name}")
        if replaced := [one.removeprefix("view ") for one in made if one.startswith("view ")]:
            print(f"replaced the views {', '.join(replaced)}, which read {days_read(args.first_day)}")
    return 0
