"""Find the largest batch of a cell that fits into the memory of its device, on each backend.

The batch is doubled from 1 until it does not fit, then bisected to an eighth of a power of two; each try is a separate
process. CELL is a cell of the matrix; a workload means its cells on every backend. On a CPU the limit is that of a
container: --executor docker --memory 8g. With batch_size: largest a matrix is measured with that batch.
docs/gpu-settings.md"""

from __future__ import annotations

import argparse

from keras_matrix.runner.cli.options import add_matrix_options, add_measuring_options, run_request
from keras_matrix.runner.cli.render.format import document
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.plan.largest_batch import LargestCell
from keras_matrix.runner.progress.lines import TerminalDisplay, cell_name, line
from keras_matrix.runner.service import cells
from keras_matrix.runner.service.fit_batch import exit_code, find, searched_cells


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("cell", metavar="CELL", help=cells.HELP)
    add_matrix_options(parser)
    add_measuring_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Search on each backend and print the results."""
    request, display = run_request(args), TerminalDisplay(args.json)
    largest_by_cell = [(cell, find(request, cell, display)) for cell in searched_cells(request, args.cell)]
    if args.json:
        print(document({"cells": [_row(*cell_and_largest) for cell_and_largest in largest_by_cell]}))
    else:
        print(
            "\n".join(
                line(cell_name(cell), largest_cell, display.known_problems) for cell, largest_cell in largest_by_cell
            )
        )
    return max(exit_code(largest_cell) for _, largest_cell in largest_by_cell)


def _row(cell: Cell, largest_cell: LargestCell) -> dict[str, object]:
    return {
        "backend": cell.settings.backend,
        "workload": cell.settings.workload,
        "largest_batch": largest_cell.largest,
        "smallest_too_large": largest_cell.smallest_too_large,
        "peak_memory_bytes": largest_cell.peak_memory_bytes,
        "tries": largest_cell.tries,
        "stopped": largest_cell.stopped,
    }
