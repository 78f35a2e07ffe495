"""Make the dataset, its tables and its views where they are missing, and print the least rights that are needed."""

from __future__ import annotations

import argparse

from uploader.cli import options

NAME = "init"
HELP = "make dataset, tables and views; print the least IAM roles"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    options.add_warehouse_options(parser)
    options.add_first_day(parser)


def run(args: argparse.Namespace) -> int:
    """Make what is missing."""
    from uploader.bigquery import BigQueryWarehouse
    from uploader.ddl import days_read
    from uploader.rights import least_rights
    from uploader.warehouse import BIGQUERY

    with options.warehouse(options.target(args)) as warehouse:
        made = warehouse.create()
        kept_from = warehouse.kept_from()
        append_only = isinstance(warehouse, BigQueryWarehouse) and warehouse.append_only
    print("\n".join(made) if made else "nothing was missing")
    if any(one.startswith("view ") for one in made):
        print(f"the views read {days_read(args.first_day)}")
    if kept_from is not None:
        print(f"rows of days before {kept_from} are not kept: the dataset's partitions expire (docs/bigquery.md)")
    if found := BIGQUERY.fullmatch(args.to):
        print("\n" + least_rights(found["project"], found["dataset"], append_only=append_only))
    return 0
