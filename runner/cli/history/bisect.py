"""Find the version, day or commit from which on a cell is slower, with its size and the confidence of the path.

    runner bisect jax:lstm --package keras --good 3.13.0 --bad 3.15.1
    runner bisect jax:lstm --dates --good 2026-05-01 --bad 2026-10-01
    runner bisect mine:build --checkout . --good v1.0 --bad main

Both ends are measured first; each candidate is measured alternately with both, in an environment of its own, until the
gate's test has decided; the found version is confirmed against the one before it. One that cannot be measured, or stays
undecided, is skipped. The same command continues. --budget begins no trial that should exceed it. docs/bisect.md

found and confirmed: exit 0. Exit 1: an end was not measured. Exit 3: no network, or an end cannot be installed.
Exit 4: the bad end is not slower, or by less than --smallest. Exit 5: undecided, or the budget is spent.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from keras_matrix.analysis.regression.bisection import THRESHOLD
from keras_matrix.runner.cli.options import add_measuring_options, number, run_request
from keras_matrix.runner.cli.render.format import document
from keras_matrix.runner.environments.rebuilt import cache_folder
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.plan.plan import estimates
from keras_matrix.runner.progress.lines import TerminalDisplay
from keras_matrix.runner.service import bisect_axes, cells, exit_codes
from keras_matrix.runner.service.bisect import SearchRange, VersionSearch, axis_of, cell_named, search_for, suspects
from keras_matrix.runner.service.bisect_axes import Cache
from keras_matrix.runner.service.script import with_own_call


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("cell", metavar="CELL", help=f"{cells.HELP}; of the matrix, or else of a stored run")
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--package", metavar="NAME", help="search the versions of this package")
    group.add_argument("--dates", action="store_true", help="search the days of the complete lock; needs uv")
    group.add_argument("--checkout", type=Path, metavar="FOLDER", help="search the commits of this git checkout")
    parser.add_argument("--good", required=True, metavar="A", help="a fast version, day or commit")
    parser.add_argument("--bad", required=True, metavar="B", help="a later, slower one")
    parser.add_argument("--pre", action="store_true", help="with --package: pre-releases and nightly wheels, too")
    parser.add_argument(
        "--requirements", type=Path, metavar="FILE", help="with --dates: what is locked; default: Keras, NumPy, backend"
    )
    parser.add_argument("--env", type=Path, metavar="FOLDER", help="environment of the other packages; default: this")
    parser.add_argument("--good-run", metavar="RUN", help="stored run before the change; default of both: history")
    parser.add_argument("--bad-run", metavar="RUN", help="stored run after it")
    parser.add_argument(
        "--smallest", metavar="SHARE", default=str(THRESHOLD), help=f"smallest slowdown to search; default: {THRESHOLD}"
    )
    parser.add_argument("--matrix", type=Path, metavar="FILE", help="matrix with the cell; default: matrix.yaml")
    parser.add_argument(
        "--out", type=Path, default=Path("bisect"), metavar="FOLDER", help="state and runs; default: bisect"
    )
    parser.add_argument("--plan", action="store_true", help="print the versions and the cost; measure nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_measuring_options(parser)


def run(args: argparse.Namespace) -> int:
    """Search, and print the result. Returns the exit code."""
    smallest = number("--smallest", 0, 10, args.smallest)
    request = run_request(args)
    if not request.executors.contract.local_software:
        raise UsageError(f"--executor {args.executor}: its cells bring their own environment; leave it out")
    display = TerminalDisplay(args.json)
    written = cell_named(request, args.cell)
    cell = with_own_call(request, written, display)
    differing = suspects(request.results, cell.cell_id, args.good_run, args.bad_run)
    if differing is not None and differing.lines():
        print("\n".join(differing.lines()), file=sys.stderr if args.json else sys.stdout, flush=True)
    axis = axis_of(_span(args), cell, Cache(cache_folder(), display.say))
    process_s = estimates(request.results, [cell]).within_limit_s[cell.cell_id]
    display.say("\n".join(bisect_axes.plan_lines(axis, process_s)))
    if args.plan:
        if args.json:
            print(document(bisect_axes.plan_values(axis, process_s)))
        return 0
    machine = differing.machine if differing else ()
    version_search = VersionSearch(cell, axis, args.out, smallest, process_s, machine, written)
    result = search_for(request, version_search, display)
    print(document(result.document) if args.json else "\n".join([*result.lines, f"measured in {result.folder}"]))
    return exit_codes.VERDICTS["bisect"][result.outcome]


def _span(args: argparse.Namespace) -> SearchRange:
    return SearchRange(
        good=args.good,
        bad=args.bad,
        package=args.package or "",
        checkout=args.checkout,
        days=args.dates,
        requirements=args.requirements,
        environment=args.env,
        pre=args.pre,
    )
