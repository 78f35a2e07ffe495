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

    with options.target(args).opened() as warehouse:
        table_differences = differences(warehouse)
        if not table_differences:
            print("the tables have the schema of this version")
        elif args.dry_run:
            print("\n".join(line for table_difference in table_differences for line in table_difference.lines()))
        if args.dry_run:
            return 1 if table_differences else 0
        refuse(
            [
                table_difference
                for table_difference in table_differences
                if table_difference.wrong or table_difference.absent
            ],
            args.to,
        )
        for table_difference in table_differences:
            warehouse.add_columns(table_difference.table, table_difference.missing)
            print(
                "\n".join(f"added {table_difference.table.name}.{column.name}" for column in table_difference.missing)
            )
        created = warehouse.create()
        for name in (name for name in created if not name.startswith("view ")):
            print(f"created the {name}")
        if replaced_views := [name.removeprefix("view ") for name in created if name.startswith("view ")]:
            print(f"replaced the views {', '.join(replaced_views)}, which read {days_read(args.first_day)}")
    return 0
