"""Options that several subcommands share, and the warehouse and results folder that they name."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import fields
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from keras_matrix.uploader.cli import flags
from keras_matrix.uploader.errors import BadInput
from keras_matrix.uploader.warehouse import MOST_DAYS

if TYPE_CHECKING:
    from keras_matrix.uploader.opening import Target
    from keras_matrix.uploader.warehouse import Options


def add_warehouse_options(parser: argparse.ArgumentParser) -> None:
    """Add the address, the results folder and the options of BigQuery."""
    parser.add_argument("--to", "--from", dest="to", default="local", metavar="ADDRESS", help="default: local")
    parser.add_argument(
        "--results", type=folder, default=Path("results"), metavar="FOLDER", help="the results folder; default: results"
    )
    flags.add(parser.add_argument_group("BigQuery"), flags.BIGQUERY)


def warehouse_options(args: argparse.Namespace) -> Options:
    """Return the warehouse options from the arguments of a command."""
    return options_of(vars(args))


def options_of(values: Mapping[str, object]) -> Options:
    """Return the warehouse options among values of arguments by name."""
    from keras_matrix.uploader.warehouse import Options

    return Options(**{field.name: values[field.name] for field in fields(Options) if field.name in values})  # type: ignore[arg-type]


def add_first_day(parser: argparse.ArgumentParser) -> None:
    """Add --since, the first day that the views of a dataset read."""
    parser.add_argument(
        "--since",
        type=day,
        dest="first_day",
        metavar="DATE",
        help=f"BigQuery: the first day that the views read, such as 2026-01-31; default: {MOST_DAYS} days before each "
        "query; bytes read are billed",
    )


def target(args: argparse.Namespace) -> Target:
    """Return the target of the flags of `add_warehouse_options`."""
    from keras_matrix.uploader.opening import Target

    return Target(args.to, args.results, warehouse_options(args))


def day(text: str) -> str:
    """Parse a date and return it as 2026-01-31. Raises `ArgumentTypeError`."""
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a day such as 2026-01-31, got {text!r}") from None


def folder(text: str) -> Path:
    """Parse the name of a folder. Raises `BadInput` if it is empty."""
    if not text:
        raise BadInput("--results: must name a folder, got ''")
    return Path(text).expanduser()
