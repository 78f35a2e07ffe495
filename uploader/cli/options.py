"""Options that several subcommands share, and the warehouse, outbox and results folder that they name."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from keras_matrix.records.text import plural
from keras_matrix.uploader.cli import flags
from keras_matrix.uploader.errors import BadInput
from keras_matrix.uploader.warehouse import MOST_DAYS

if TYPE_CHECKING:
    from keras_matrix.records.store import Results
    from keras_matrix.uploader.outbox import Outbox
    from keras_matrix.uploader.warehouse import Options, Warehouse


def add_warehouse_options(parser: argparse.ArgumentParser) -> None:
    """Add the address, the results folder and the options of BigQuery."""
    parser.add_argument("--to", "--from", dest="to", default="local", metavar="ADDRESS", help="default: local")
    parser.add_argument(
        "--results", type=folder, default=Path("results"), metavar="FOLDER", help="the results folder; default: results"
    )
    flags.add(parser.add_argument_group("BigQuery"), flags.BIGQUERY)


def warehouse_options(args: argparse.Namespace) -> Options:
    """Return the warehouse options from the arguments of a command."""
    from keras_matrix.uploader.warehouse import Options

    names = (field.name for field in fields(Options))
    return Options(**{name: getattr(args, name) for name in names if hasattr(args, name)})


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


@dataclass(frozen=True, slots=True)
class Target:
    """The warehouse of a command's arguments, and the results folder that it is filled from."""

    address: str
    results: Path
    options: Options


def target(args: argparse.Namespace) -> Target:
    """Return the target of the flags of `add_warehouse_options`."""
    return Target(args.to, args.results, warehouse_options(args))


def warehouse(target: Target) -> AbstractContextManager[Warehouse]:
    """Open the warehouse of a target. Raises `UploadError`."""
    from keras_matrix.uploader.opening import open_warehouse

    return closing(open_warehouse(target.address, target.results, target.options))


def prepare(warehouse: Warehouse, address: str) -> None:
    """Create a local warehouse if it is missing. Raises `SchemaMismatch` if a dataset's tables differ."""
    if address.startswith("local"):
        warehouse.create()
    else:
        from keras_matrix.uploader.bigquery import schema_check

        schema_check.refuse(schema_check.differences(warehouse), address)


def resend_if_emptied(results: Results, warehouse: Warehouse, outbox: Outbox) -> bool:
    """Send everything again if the warehouse was emptied, and print that; return whether attempts are lost."""
    from keras_matrix.uploader.push import reset_if_emptied

    sent_count, without_record = reset_if_emptied(results, warehouse, outbox)
    if sent_count:
        print(
            f"{warehouse.address} has no rows, but {plural(sent_count, 'attempt')} had been sent to it before: "
            "sending all again"
        )
    if without_record:
        print(f"{without_record:,} of these have no record here: repeat their import")
    return bool(without_record)


def outbox(target: Target) -> Outbox:
    """Return the outbox of a target. Raises `BadInput` for an invalid address."""
    from keras_matrix.uploader.outbox import Outbox
    from keras_matrix.uploader.warehouse import outbox_folder

    return Outbox(outbox_folder(target.address, target.results))


def require_results(results: Path) -> None:
    """Raise `BadInput` if the results folder is missing or is the folder of a run."""
    if not results.is_dir():
        raise BadInput(f"--results: must be a folder, got {results}; measure with: runner --matrix matrix.yaml")
    if (results / "run.json").exists():
        parent = results.resolve().parent if results.is_symlink() else results.parent
        raise BadInput(f"--results: {results} is a run; name the folder above it: --results {parent}")


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
