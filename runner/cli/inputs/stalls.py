"""Measure how long a cell waits for its input, where, and what would fix it.

The cell is measured with synthetic batches, with batches from host memory, with its input pipeline on a warm and on a
cold page cache, and with timers, all interleaved. CELL is a cell of the matrix or of a stored run; a workload means its
cells on every backend, one analysis each. --verify applies the best advice and measures it; --run RUN --verify does so
for a stored analysis, whose arms are not measured again. docs/inputs.md"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from keras_matrix.analysis.stalls.report import StallReport
from keras_matrix.records.codec import to_json
from keras_matrix.records.store import Run
from keras_matrix.records.text import printable
from keras_matrix.runner.cli.options import add_matrix_options, add_measuring_options, run_request
from keras_matrix.runner.cli.render.format import document
from keras_matrix.runner.cli.render.stall_text import report_lines
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.measure.input_tools import ChildProcesses
from keras_matrix.runner.measure.request import MATRIX, check_range
from keras_matrix.runner.progress.display import TerminalDisplay
from keras_matrix.runner.service import cells
from keras_matrix.runner.service.stalls import (
    Analysis,
    Work,
    analysed,
    data_folders,
)

APPLIED = 2


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("cell", metavar="CELL", help=cells.HELP)
    parser.add_argument(
        "--run",
        metavar="RUN",
        help="show the analyses of this stored run; only --verify measures, and probes what was not",
    )
    cold = "also measure with the data set's files evicted from the page cache before each epoch; default: yes"
    parser.add_argument("--cold", action=argparse.BooleanOptionalAction, help=cold)
    parser.add_argument("--verify", action="store_true", help="apply the best advice and measure it")
    top = f"with --verify: how many changes to apply, one at a time; default: {APPLIED}"
    parser.add_argument("--top", type=int, metavar="N", help=top)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_matrix_options(parser)
    add_measuring_options(parser)


def run(args: argparse.Namespace) -> int:
    """Measure the arms and print the analyses, or show those of a stored run. Returns the exit code."""
    _check_flags(args.top, args.run, verify=args.verify, cold=args.cold)
    request = run_request(args)
    tools = request.seams.input_tools or ChildProcesses()
    work = Work(request, TerminalDisplay(args.json), tools, data_folders(request))
    most = (APPLIED if args.top is None else args.top) if args.verify else None
    in_matrix = request.choice.matrix != MATRIX or MATRIX.is_file()
    found, reports, code = analysed(
        work, Analysis(args.cell, args.run, args.cold is not False, most), in_matrix=in_matrix
    )
    return max(code, _show(found, reports, as_json=args.json))


def _check_flags(top: int | None, run: str | None, *, verify: bool, cold: bool | None) -> None:
    """Refuse flags that would have no effect. Raises `UsageError`."""
    if top is not None:
        check_range("--top", top, 1)
        if not verify:
            raise UsageError(
                "--top: is of --verify, which applies changes; without it all advice is shown: leave it out"
            )
    if run is not None and cold is not None:
        name = "--cold" if cold else "--no-cold"
        raise UsageError(f"{name}: must not be given with --run, whose arms have been measured: leave it out")


def _show(run: Run, reports: Sequence[StallReport], *, as_json: bool) -> int:
    """Print the analyses; return 1 if one has no result."""
    failed = not reports or any(one.reason is not None for one in reports)
    if as_json:
        print(document({"run": run.run_id, "reports": to_json(list(reports))}))
        return int(failed)
    for one in reports:
        print("\n".join(["", *map(printable, report_lines(one))]))
    if not reports:
        print("no analysis: no arm with an input pipeline was measured")
    print(f"\nreport: {run.folder / 'report.html'}   analysis: {run.folder / 'stalls.json'}")
    return int(failed)
