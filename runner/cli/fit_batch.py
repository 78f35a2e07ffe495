"""Find the largest batch of a cell that fits the memory of its device, on each backend.

The batch is doubled from 1 until it does not fit, then bisected to an eighth of a power of two; each try is a process
of its own. CELL is a cell of the matrix; a workload stands for it on every backend. On a CPU the limit is that of a
container: --executor docker --memory 8g. A matrix may say batch_size: largest to measure with what fits. docs/gpu.md"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from runner.cli import cells
from runner.cli.options import add_matrix_options, add_measuring_options, chosen_matrix, executors_of

if TYPE_CHECKING:
    from runner.largest_cells import Found
    from runner.matrix import Cell

NAME = "fit-batch"
HELP = "find the largest batch that fits a device's memory"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("cell", metavar="CELL", help=cells.HELP)
    add_matrix_options(parser)
    add_measuring_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Search on each backend and print what was found."""
    from runner.cli.largest import find, line
    from runner.cli.preflight import printed

    executors_of(args)
    chosen = _chosen(args)
    found = [(cell, find(args, cell)) for cell in chosen]
    if args.json:
        print(json.dumps({"version": 1, "cells": [_row(*one) for one in found]}, indent=1, allow_nan=False))
    else:
        print(
            "\n".join(line(f"{c.settings.backend:<10}  {c.settings.workload}", one, printed(args)) for c, one in found)
        )
    return max(_exit_code(one) for _, one in found)


def _chosen(args: argparse.Namespace) -> list[Cell]:
    """Return the cells to search, one a backend. Raises `UsageError`."""
    from runner.largest_cells import check_limit

    there = {cell.cell_id: cell for cell in chosen_matrix(args, largest=True)[1] if cell.task is None}
    settings = {name: cell.settings for name, cell in there.items()}
    names = cells.matching(args.cell, settings)
    if not names:
        cells.refuse(args.cell, settings, str(args.matrix))
    if len({settings[name].backend for name in names}) < len(names):
        cells.ask(args.cell, names, settings)
    check_limit([there[name] for name in names], args.memory, "--memory")
    return [there[name] for name in names]


def _row(cell: Cell, found: Found) -> dict[str, object]:
    return {
        "backend": cell.settings.backend,
        "workload": cell.settings.workload,
        "largest_batch": found.largest,
        "smallest_too_large": found.smallest_too_large,
        "peak_memory_bytes": found.peak_memory_bytes,
        "tries": found.tries,
        "stopped": found.stopped,
    }


def _exit_code(found: Found) -> int:
    from records.schema import Status

    if (found.stopped or "").startswith(f"{Status.INFRA}:"):
        return 3
    return 1 if found.largest is None else 0
