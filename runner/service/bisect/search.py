"""Searches the version, day or commit from which on a cell is slower, and keeps what it has measured."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from keras_matrix.analysis.regression.bisection import Bisection, Outcome, search
from keras_matrix.analysis.stats.sequential import PRECISION_TARGET
from keras_matrix.records.backends import TABLE
from keras_matrix.records.packages import KERAS_HUB
from keras_matrix.records.text import near
from keras_matrix.runner.environments import commits, dated, package_versions
from keras_matrix.runner.environments.layered import Base, base_of
from keras_matrix.runner.environments.local_wheels import local_wheels
from keras_matrix.runner.environments.rebuilt import CannotRebuild, NoNetwork, pip, with_cuda
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors.process import interpreter
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.experiment import Display
from keras_matrix.runner.measure.request import RunRequest
from keras_matrix.runner.measure.scheduler import utc_now
from keras_matrix.runner.service.bisect import text
from keras_matrix.runner.service.bisect.axes import Axis, Cache, CheckoutAxis, DateAxis, PackageAxis
from keras_matrix.runner.service.bisect.state import VERSION, State, Stored
from keras_matrix.runner.service.bisect.trials import Trials
from keras_matrix.runner.service.named_cells import chosen_cell


@dataclass(frozen=True, slots=True)
class Span:
    """The two ends of a search, and what they are: versions of a package, days, or commits of a checkout.

    `requirements` is the file of what is locked on each day; `environment` has the packages that do not change.
    """

    good: str
    bad: str
    package: str = ""
    checkout: Path | None = None
    days: bool = False
    requirements: Path | None = None
    environment: Path | None = None
    pre: bool = False


@dataclass(frozen=True, slots=True)
class Search:
    """One search: the cell, the versions, where its state is kept, and the slowdown from which on it is one.

    `process_s` is how long a process takes, `suspects` what differs of the machine between the stored runs.
    """

    cell: Cell
    axis: Axis
    root: Path
    smallest: float
    process_s: float
    suspects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a search: the outcome, its document, its lines for a terminal, and the folder of its runs."""

    outcome: Outcome
    document: Mapping[str, Any]
    lines: list[str]
    folder: Path


def search_for(request: RunRequest, wanted: Search, display: Display) -> Result:
    """Measure the trials that the stored state has not answered, and store the result.

    Raises `BudgetSpent`, `EndFailed` or `InfrastructureError`; then the same call continues.
    """
    axis = wanted.axis
    try:
        state = _state(request, wanted)
        own = replace(request, results=state.folder)
        trials = Trials(own, wanted.cell, axis, state, display, wanted.smallest, wanted.process_s)
        if state.continued:
            display.say(f"continuing {state.folder} after {len(state.answers)} trials")
        return _result(search(len(axis.labels), trials.measure, wanted.smallest), wanted, state)
    finally:
        axis.close()


def _result(bisection: Bisection, wanted: Search, state: State) -> Result:
    axis = wanted.axis
    known = bisection.outcome in (Outcome.FOUND, Outcome.RANGE, Outcome.NOT_CONFIRMED)
    differences = axis.differences(bisection.last_good, bisection.first_bad) if known else []
    values = text.values(bisection, axis, differences, wanted.suspects)
    state.finish(values)
    return Result(bisection.outcome, values, text.result_lines(bisection, axis.labels, differences), state.folder)


def _state(request: RunRequest, wanted: Search) -> State:
    cell, axis = wanted.cell, wanted.axis
    identity = {**axis.identity, "cell_id": cell.cell_id, "start": request.executors.started}
    empty = Stored(VERSION, axis.subject, list(axis.labels), cell.settings)
    return State(wanted.root, identity, empty, new=request.new)


def cell_named(request: RunRequest, name: str) -> Cell:
    """Return the named cell, whose repeats are added until a test has decided. Raises `UsageError`."""
    cell = chosen_cell(request, name, ", whose environment is not known")
    return replace(cell, repeats=1, precision_target=PRECISION_TARGET)


def axis_of(span: Span, cell: Cell, stored: Cache) -> Axis:
    """Return the versions of a span, the good end first. Raises `UsageError`."""
    for flag, given, needed in (("--pre", span.pre, span.package), ("--requirements", span.requirements, span.days)):
        if given and not needed:
            raise UsageError(f"{flag}: belongs to {'--package' if flag == '--pre' else '--dates'}")
    base = _base(span.environment, cell, complete=span.days)
    if span.checkout is not None:
        tree = commits.checkout(span.checkout)
        return CheckoutAxis(tree, tree.commits(span.good, span.bad), base, stored)
    if span.days:
        today = utc_now().date()
        good, bad = (dated.day(flag, given, today) for flag, given in (("--good", span.good), ("--bad", span.bad)))
        lock = dated.lock_on(_wanted(span.requirements, base, cell), base.python)
        return DateAxis(dated.locks_between(good, bad, lock), base.python, stored)
    tool = pip(stored.folder, stored.say)
    listing = cache(lambda name: package_versions.listed(name, tool, base.python, pre=span.pre))
    name = package_versions.installed_name(span.package, base.versions)
    try:
        known = listing(name)
    except NoNetwork:
        raise
    except CannotRebuild as error:
        unknown = near(name, base.versions) if name not in base.versions else ""
        raise CannotRebuild(f"--package: {error}{unknown}") from error
    versions = package_versions.between(name, known, span.good, span.bad)
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
