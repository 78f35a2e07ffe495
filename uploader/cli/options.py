"""The flags that several commands share, and the warehouse they name."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from uploader.cli import flags
from uploader.errors import BadInput

if TYPE_CHECKING:
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


@contextmanager
def warehouse(args: argparse.Namespace) -> Iterator[Warehouse]:
    """Open the warehouse that the flags name. Raises `UploadError`."""
    from uploader.warehouse import open_warehouse

    opened = open_warehouse(args.to, args.results, reached(args))
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


def outbox(args: argparse.Namespace) -> Outbox:
    """Return the outbox of the warehouse that the flags name. Raises `BadInput` for what names none."""
    from uploader.outbox import Outbox
    from uploader.warehouse import outbox_folder

    return Outbox(outbox_folder(args.to, args.results))


def require_results(args: argparse.Namespace) -> None:
    """Raise `BadInput` where the results folder is missing, or is one run of it."""
    if not args.results.is_dir():
        raise BadInput(f"--results: {args.results} is no folder; measure with: runner --matrix matrix.yaml")
    if (args.results / "run.json").exists():
        holder = args.results.resolve().parent if args.results.is_symlink() else args.results.parent
        raise BadInput(f"--results: {args.results} is a run, name the folder that holds it: --results {holder}")


def folder(text: str) -> Path:
    """Read a folder's name. Raises `BadInput` for none."""
    if not text:
        raise BadInput("--results: must name a folder, got ''")
    return Path(text).expanduser()
