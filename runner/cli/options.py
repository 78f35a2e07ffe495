"""The flags that several commands share, and what they become."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from runner.errors import UsageError

if TYPE_CHECKING:
    from runner.matrix import Cell, Overrides

BACKEND_VARIABLE = "KERAS_BENCHMARK_BACKENDS"


def add_matrix_options(parser: argparse.ArgumentParser) -> None:
    """Add what chooses the cells."""
    group = parser.add_argument_group("which cells")
    group.add_argument("--matrix", type=Path, default=Path("matrix.yaml"), metavar="FILE", help="default: matrix.yaml")
    group.add_argument(
        "--backend", action="append", default=[], metavar="NAME", help="only this backend; may be repeated"
    )
    group.add_argument(
        "--filter",
        action="append",
        default=[],
        metavar="KEY=PATTERN",
        help="only cells whose setting or parameter matches, as in workload=mnist*; several must all match",
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="assignments",
        help="set a setting or parameter on every cell, over the file",
    )
    group.add_argument("--repeats", type=int, metavar="N", help="processes per cell, over the file")


def add_results_option(parser: argparse.ArgumentParser) -> None:
    """Add where results are."""
    parser.add_argument(
        "--results", type=folder, default=Path("results"), metavar="FOLDER", help="where results are; default: results"
    )


def folder(text: str) -> Path:
    """Read a folder's name. Raises `UsageError` for none."""
    if not text:
        raise UsageError("--results: must name a folder, got ''")
    return Path(text).expanduser()


def chosen_cells(args: argparse.Namespace) -> list[Cell]:
    """Return the cells that the matrix file and the flags ask for. Raises `InputError`."""
    from runner.matrix import expand, load

    return expand(load(args.matrix), overrides(args))


def overrides(args: argparse.Namespace) -> Overrides:
    """Return what the flags change. Raises `UsageError`."""
    from runner.matrix import Overrides, parse_assignment

    return Overrides(
        backends=tuple(args.backend),
        filters=tuple(args.filter),
        assignments=dict(map(parse_assignment, args.assignments)),
        repeats=args.repeats,
    )
