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
from dataclasses import replace
from functools import cache
from pathlib import Path

from keras_matrix.analysis.regression.bisection import THRESHOLD, Bisection, Outcome, search
from keras_matrix.analysis.stats.sequential import PRECISION_TARGET
from keras_matrix.records.backends import TABLE
from keras_matrix.records.packages import KERAS_HUB
from keras_matrix.records.text import near
from keras_matrix.runner.cli.bisect import text
from keras_matrix.runner.cli.bisect.axes import Axis, Cache, CheckoutAxis, DateAxis, PackageAxis
from keras_matrix.runner.cli.bisect.state import VERSION, State, Stored
from keras_matrix.runner.cli.bisect.suspects import Suspects, suspects
from keras_matrix.runner.cli.bisect.trials import Trials
from keras_matrix.runner.cli.options import add_measuring_options, number, run_request
from keras_matrix.runner.cli.render.display import TerminalDisplay
from keras_matrix.runner.cli.render.format import document
from keras_matrix.runner.environments import commits, dated, package_versions
from keras_matrix.runner.environments.layered import Base, base_of
from keras_matrix.runner.environments.local_wheels import local_wheels
from keras_matrix.runner.environments.rebuilt import CannotRebuild, NoNetwork, cache_folder, pip, with_cuda
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors.process import interpreter
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.request import MATRIX, RunRequest
from keras_matrix.runner.measure.scheduler import utc_now
from keras_matrix.runner.plan.estimates import estimates
from keras_matrix.runner.plan.largest_cells import refuse
from keras_matrix.runner.service import cells
from keras_matrix.runner.service.named_cells import named_cells, searched

EXIT_CODES = {
    Outcome.FOUND: 0,
    Outcome.NOT_MEASURED: 1,
    Outcome.NOT_SLOWER: 4,
    Outcome.ENDS_UNDECIDED: 5,
    Outcome.RANGE: 5,
    Outcome.NOT_CONFIRMED: 5,
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("cell", metavar="CELL", help=f"{cells.HELP}; of the matrix, or else of a stored run")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--package", metavar="NAME", help="search the versions of this package")
    what.add_argument("--dates", action="store_true", help="search the days of the complete lock; needs uv")
    what.add_argument("--checkout", type=Path, metavar="FOLDER", help="search the commits of this git checkout")
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
    cell = _cell(request, args.cell, in_matrix=args.matrix is not None or MATRIX.is_file())
    differing = suspects(request.results, cell.cell_id, args.good_run, args.bad_run)
    if differing is not None and differing.lines():
        print("\n".join(differing.lines()), file=sys.stderr if args.json else sys.stdout, flush=True)
    axis = axis_of(args, cell, Cache(cache_folder(), display.say))
    process_s = estimates(request.results, [cell]).within_limit_s[cell.cell_id]
    display.say("\n".join(text.plan_lines(axis, process_s)))
    if args.plan:
        print(document(text.plan_values(axis, process_s)) if args.json else "", end="")
        return 0
    try:
        state = _state(args.out, axis, cell, request)
        trials = Trials(replace(request, results=state.folder), cell, axis, state, display, smallest, process_s)
        if state.continued:
            display.say(f"continuing {state.folder} after {len(state.answers)} trials")
        found = search(len(axis.labels), trials.measure, smallest)
        return _show(found, axis, state, differing, as_json=args.json)
    finally:
        axis.close()


def _show(found: Bisection, axis: Axis, state: State, differing: Suspects | None, *, as_json: bool) -> int:
    known = found.outcome in (Outcome.FOUND, Outcome.RANGE, Outcome.NOT_CONFIRMED)
    differences = axis.differences(found.last_good, found.first_bad) if known else []
    values = text.values(found, axis, differences, differing.machine if differing else ())
    state.finish(values)
    if as_json:
        print(document(values))
    else:
        print("\n".join([*text.result_lines(found, axis.labels, differences), f"measured in {state.folder}"]))
    return EXIT_CODES[found.outcome]


def _state(folder: Path, axis: Axis, cell: Cell, request: RunRequest) -> State:
    identity = {**axis.identity, "cell_id": cell.cell_id, "start": request.executors.started}
    empty = Stored(VERSION, axis.subject, list(axis.labels), cell.settings)
    return State(folder, identity, empty, new=request.new)


def _cell(request: RunRequest, name: str, *, in_matrix: bool) -> Cell:
    """Return the named cell, whose repeats are added until a test has decided. Raises `UsageError`."""
    there = named_cells(request, name, in_matrix=in_matrix)
    matrix = request.choice.matrix
    if not there:
        raise UsageError(f"CELL: there is no {matrix} and {request.results} contains no run; name a --matrix")
    found = there[cells.one_of(name, {one: cell.settings for one, cell in there.items()}, searched(matrix))]
    if found.task is not None:
        raise UsageError(f"CELL: {name!r} is an external command, whose environment is not known")
    refuse([found])
    return replace(found, repeats=1, precision_target=PRECISION_TARGET)


def axis_of(args: argparse.Namespace, cell: Cell, stored: Cache) -> Axis:
    """Return what the flags search. Raises `UsageError`."""
    for flag, given, needed in (("--pre", args.pre, args.package), ("--requirements", args.requirements, args.dates)):
        if given and not needed:
            raise UsageError(f"{flag}: belongs to {'--package' if flag == '--pre' else '--dates'}")
    base = _base(args.env, cell, complete=args.dates)
    if args.checkout is not None:
        tree = commits.checkout(args.checkout)
        return CheckoutAxis(tree, tree.commits(args.good, args.bad), base, stored)
    if args.dates:
        today = utc_now().date()
        good, bad = (dated.day(flag, given, today) for flag, given in (("--good", args.good), ("--bad", args.bad)))
        lock = dated.lock_on(_wanted(args.requirements, base, cell), base.python)
        return DateAxis(dated.locks_between(good, bad, lock), base.python, stored)
    tool = pip(stored.folder, stored.say)
    listing = cache(lambda name: package_versions.listed(name, tool, base.python, pre=args.pre))
    name = package_versions.installed_name(args.package, base.versions)
    try:
        known = listing(name)
    except NoNetwork:
        raise
    except CannotRebuild as error:
        unknown = near(name, base.versions) if name not in base.versions else ""
        raise CannotRebuild(f"--package: {error}{unknown}") from error
    versions = package_versions.between(name, known, args.good, args.bad)
    wheels = local_wheels([f"{name}=={one}" for one in versions], tool)
    return PackageAxis(name, versions, base, listing, stored, wheels)


def _base(folder: Path | None, cell: Cell, *, complete: bool) -> Base:
    """Return the environment of the packages that do not change. Raises `UsageError` if it lacks one of the cell's."""
    python = interpreter.Interpreter(sys.executable) if folder is None else interpreter.of_environment(folder, "--env")
    absent = [] if complete else python.absent(["keras", "numpy", cell.settings.backend])
    if absent:
        raise UsageError(f"--env: {python.python} has no {', '.join(absent)}; install them there, or name another one")
    return base_of(python.python)


def _wanted(requirements: Path | None, base: Base, cell: Cell) -> list[str]:
    """Return what is locked: the requirements of a file, or the installed packages of the cell, without versions."""
    if requirements is None:
        hub = [KERAS_HUB] if catalog.needs_keras_hub(cell.settings.workload) else []
        backend = TABLE[cell.settings.backend]
        plugins = () if cell.settings.device == "cpu" else backend.plugins
        names = ("keras", "numpy", *hub, *backend.packages, *plugins)
        return [with_cuda(name) for name in names if name in base.versions]
    try:
        return requirements.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--requirements: {requirements} cannot be read: {error}") from error
