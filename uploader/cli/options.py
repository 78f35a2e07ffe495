"""The flags that several commands share, and the warehouse they name."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from uploader.cli import flags
from uploader.errors import BadInput
from uploader.warehouse import MOST_DAYS

if TYPE_CHECKING:
    from records.store import Results
    from uploader.outbox import Outbox
    from uploader.warehouse import Options, Warehouse


def add_warehouse_options(parser: argparse.ArgumentParser) -> None:
    """Add which warehouse, and how it is reached."""
    parser.add_argument("--to", "--from", dest="to", default="local", metavar="ADDRESS", help="default: local")
    parser.add_argument(
        "--results", type=folder, default=Path("results"), metavar="FOLDER", help="where results are; default: results"
    )
    flags.add(parser.add_argument_group("BigQuery"), flags.BIGQUERY)


def reached(args: argparse.Namespace) -> Options:
    """Return how the flags that a command has say a warehouse is reached."""
    from uploader.warehouse import Options

    names = (field.name for field in fields(Options))
    return Options(**{name: getattr(args, name) for name in names if hasattr(args, name)})


def add_first_day(parser: argparse.ArgumentParser) -> None:
    """Add which days the views of a dataset read."""
    parser.add_argument(
        "--since",
        type=day,
        dest="first_day",
        metavar="DATE",
        help=f"BigQuery: the first day that the views read, such as 2026-01-31; default: {MOST_DAYS} days ago, on each "
        "day anew; what they read costs money",
    )


@dataclass(frozen=True, slots=True)
class Target:
    """The warehouse that the flags name, and the results folder that it is filled from."""

    address: str
    results: Path
    options: Options


def target(args: argparse.Namespace) -> Target:
    """Return what the flags of `add_warehouse_options` name."""
    return Target(args.to, args.results, reached(args))


@contextmanager
def warehouse(named: Target) -> Iterator[Warehouse]:
    """Open the warehouse that the flags name. Raises `UploadError`."""
    from uploader.opening import open_warehouse

    opened = open_warehouse(named.address, named.results, named.options)
    try:
        yield opened
    finally:
        opened.close()


def make_ready(warehouse: Warehouse, address: str) -> None:
    """Make the local warehouse where it is missing. Raises `SchemaDiffers` where another's tables are not as needed."""
    from uploader import differences

    if address.startswith("local"):
        warehouse.create()
    else:
        differences.refuse(differences.differences(warehouse), address)


def notice_emptied(results: Results, warehouse: Warehouse, outbox: Outbox) -> bool:
    """Let everything be sent again to a warehouse that has no row now, and say so; return whether attempts are lost."""
    from uploader.repair import forget_if_emptied

    found = forget_if_emptied(results, warehouse, outbox)
    if found is None:
        return False
    print(f"{warehouse.address} has no row, though {found.sent:,} attempts had been sent there: all are sent again")
    if found.without_record:
        print(f"{found.without_record:,} of these have no record here: import what was imported again")
    return bool(found.without_record)


def outbox(named: Target) -> Outbox:
    """Return the outbox of the warehouse that the flags name. Raises `BadInput` for what names none."""
    from uploader.outbox import Outbox
    from uploader.warehouse import outbox_folder

    return Outbox(outbox_folder(named.address, named.results))


def require_results(results: Path) -> None:
    """Raise `BadInput` where the results folder is missing, or is one run of it."""
    if not results.is_dir():
        raise BadInput(f"--results: {results} is no folder; measure with: runner --matrix matrix.yaml")
    if (results / "run.json").exists():
        holder = results.resolve().parent if results.is_symlink() else results.parent
        raise BadInput(f"--results: {results} is a run, name the folder that holds it: --results {holder}")


def day(text: str) -> str:
    """Read a day and return it as 2026-01-31. Raises `ArgumentTypeError`."""
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a day such as 2026-01-31, got {text!r}") from None


def folder(text: str) -> Path:
    """Read a folder's name. Raises `BadInput` for none."""
    if not text:
        raise BadInput("--results: must name a folder, got ''")
    return Path(text).expanduser()
