"""Create the dataset, its tables and its views if they are missing, and print the minimum IAM roles."""

from __future__ import annotations

import argparse

from keras_matrix.uploader.cli import options


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    options.add_warehouse_options(parser)
    options.add_first_day(parser)


def run(args: argparse.Namespace) -> int:
    """Create what is missing and print what was created."""
    from keras_matrix.uploader.bigquery.ddl import days_read, minimum_roles
    from keras_matrix.uploader.bigquery.warehouse import BigQueryWarehouse
    from keras_matrix.uploader.warehouse import BIGQUERY

    with options.target(args).opened() as warehouse:
        created = warehouse.create()
        retained_from = warehouse.retained_from()
        append_only = isinstance(warehouse, BigQueryWarehouse) and warehouse.append_only
    print("\n".join(created) if created else "nothing was missing")
    if any(name.startswith("view ") for name in created):
        print(f"the views read {days_read(args.first_day)}")
    if retained_from is not None:
        print(f"days before {retained_from} are not retained: the dataset's partitions expire (docs/bigquery.md)")
    if match := BIGQUERY.fullmatch(args.to):
        print("\n" + minimum_roles(match["project"], match["dataset"], append_only=append_only))
    return 0
