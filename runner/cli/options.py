"""Flags that several commands share, their checks, and the values that they become.

The modules of a matrix are imported where cells are chosen: most commands that read results need none of them.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from keras_matrix.records.backends import BACKENDS, backends_for
from keras_matrix.records.host.inherited_environment import without_user
from keras_matrix.records.settings import FIT, Scalar
from keras_matrix.records.store import DEFAULT_RESULTS
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.matrix.grammar import ANY_BACKEND, FILE_RULES, MATRIX
from keras_matrix.runner.matrix.scalars import resolve

if TYPE_CHECKING:
    from keras_matrix.analysis.cost import Prices
    from keras_matrix.runner.matrix.overrides import Overrides
    from keras_matrix.runner.measure.request import CellChoice, RunRequest


def check_output(flag: str, path: Path) -> None:
    """Refuse a file that could not be written, before anything is measured. Raises `UsageError`."""
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{flag}: must be a file in an existing folder, got {path}")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{flag}: {path.parent} is not writable; name a file in another folder")


def number(flag: str, least: float, most: float, text: str) -> float:
    """Read the number given with a flag. Raises `UsageError`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise UsageError(f"{flag}: must be a number from {least:g} to {most:g}, got {text!r}")
    return value


def add_matrix_options(parser: argparse.ArgumentParser, *, workload: bool = False) -> None:
    """Add the flags that choose the cells; with `workload` also the one that replaces a matrix file."""
    group = parser.add_argument_group("which cells")
    add_several = partial(group.add_argument, action="append", default=[])
    group.add_argument("--matrix", type=Path, default=MATRIX, metavar="FILE", help="default: matrix.yaml")
    if workload:
        meaning = "one workload (a name of runner list, or module:function) on the installed backends"
        parser.add_argument_group("instead of a matrix").add_argument("--workload", metavar="NAME", help=meaning)
    add_several("--backend", metavar="NAME", help="only this backend; may be repeated")
    filter_help = "only cells whose setting or parameter matches, as in workload=mnist*; several must all match"
    add_several("--filter", metavar="KEY=PATTERN", help=filter_help)
    setting_help = "set a setting or parameter on every cell, over the file"
    add_several("--set", metavar="KEY=VALUE", dest="assignments", help=setting_help)
    add_several(
        "--allow-env", metavar="NAME", help="a variable of your own that env in the file may set; may be repeated"
    )
    group.add_argument("--repeats", type=count_or_auto, metavar="N", help="processes per cell, or auto, over the file")


def add_python_option(group: argparse._ActionsContainer, meaning: str) -> None:
    """Add the flag for the environments of backends, with what one is."""
    help_text = f"{meaning}; may be repeated for single backends"
    group.add_argument(
        "--python", type=environment, action="append", default=[], metavar="[BACKEND=]ENV", help=help_text
    )


def add_measuring_options(parser: argparse.ArgumentParser, new_run_flag: str = "--new") -> None:
    """Add the flags that say how cells are measured, that which starts a new run under this name."""
    from keras_matrix.runner.executors import registry  # plan and others that measure nothing need no executor

    group = parser.add_argument_group("how")
    add_results_option(group)
    group.add_argument(
        "--start",
        choices=tuple(dict.fromkeys(start for entry in registry.ENTRIES.values() for start in entry.starts)),
        help="fork cells from a server that has imported the backend, or start a fresh interpreter for each; "
        "accelerators always start fresh (default: fork; with --executor docker: fresh, or warm for fork)",
    )
    add_python_option(group, "virtual environment of the cells, or its Python, over the file")
    for flag, converter, metavar, meaning in (
        ("--budget", seconds, "TIME", "add repeats to auto cells for so many seconds, or 30m, 2h; over the file"),
        ("--order-seed", int, "N", "seed of the random order; default: a new one, recorded"),
        ("--log-dir", log_folder, "FOLDER", "write files for TensorBoard into this folder: runner tensorboard"),
        ("--datasets", Path, "FOLDER", "folder of the data sets; default: ~/.keras/datasets"),
    ):
        group.add_argument(flag, type=converter, metavar=metavar, help=meaning)
    new_run_help = "start a new run even if an unfinished one can be continued"
    group.add_argument(new_run_flag, action="store_true", dest="new", help=new_run_help)
    group.add_argument(
        "--executor",
        choices=tuple(registry.ENTRIES),
        default=registry.DEFAULT,
        help=f"{', or '.join(entry.summary for entry in registry.ENTRIES.values())}; default: {registry.DEFAULT}",
    )
    for entry in registry.ENTRIES.values():
        options = parser.add_argument_group(f"in {entry.place} ({entry.guide})") if entry.options else group
        for option in entry.options:
            read_value = partial(registry.size_bytes, option.flag) if option.is_size else str
            options.add_argument(option.flag, type=read_value, metavar=option.metavar, help=option.meaning)


def add_results_option(parser: argparse._ActionsContainer) -> None:
    """Add the flag that names the results folder."""
    parser.add_argument(
        "--results", type=folder, default=DEFAULT_RESULTS, metavar="FOLDER", help="folder of results; default: results"
    )


def add_prices_option(parser: argparse._ActionsContainer) -> None:
    """Add the flag that names a file of prices."""
    parser.add_argument(
        "--prices",
        type=Path,
        metavar="FILE",
        help="also show what a million samples cost: docs/instruments.md#energy-and-money",
    )


def prices_of(args: argparse.Namespace) -> Prices | None:
    """Return the prices in the named file; None without one. Raises `UsageError`."""
    if args.prices is None:
        return None
    from keras_matrix.runner.matrix.prices import load

    return load(args.prices)


def count_or_auto(text: str) -> int | str:
    """Read a number of repeats, or the word auto. Raises `UsageError`."""
    if text != "auto" and not text.lstrip("-").isdecimal():
        raise UsageError(f"--repeats: must be auto or a whole number from 1 to 1000, got {text!r}")
    return text if text == "auto" else int(text)


def share(text: str) -> float:
    """Read a tolerated slowdown. Raises `UsageError`."""
    try:
        return number("--threshold", 0, 10, text)
    except UsageError as error:
        advice = "; write 0.05 for 5 %" if text.strip().endswith("%") else ""
        raise UsageError(f"{error}{advice}") from error


def seconds(text: str) -> float:
    """Read a number of seconds, or of minutes or hours as in 30m and 2h. Raises `UsageError`."""
    value, size = resolve(text), {"s": 1, "m": 60, "h": 3600}.get(text[-1:])
    number_before = resolve(text[:-1])
    if size and isinstance(number_before, (int, float)):
        value = number_before * size
    if (fault := FILE_RULES["budget"].problem(value)) or not isinstance(value, (int, float)):
        raise UsageError(f"--budget: {fault}")
    return float(value)


def folder(text: str) -> Path:
    """Read the name of a results folder. Raises `UsageError`."""
    if not text:
        raise UsageError("--results: must name a folder, got ''")
    return Path(text).expanduser()


def environment(text: str) -> tuple[str, Path]:
    """Read the environment of all cells, or of a backend's, as in jax=envs/jax. Raises `UsageError`."""
    name, equals, path = text.partition("=")
    backend, path = (name, path) if equals and name in BACKENDS else ("", text)
    if not path:
        raise UsageError(f"--python: must name a virtual environment or its Python, got {text!r}")
    return backend, Path(path).expanduser().absolute()


def installed_for(environments: Mapping[str, Path], phase: object) -> list[str]:
    """Return the backends that run a phase and are installed in their environments, by default the runner's own."""
    from keras_matrix.runner.executors.process.interpreter import Interpreter, installed_backends, of_environment

    names = []
    for name in backends_for(phase):
        path = environments.get(name, environments.get(ANY_BACKEND))
        interpreter = of_environment(path, "--python") if path else Interpreter(sys.executable)
        names += [name] * (name in installed_backends(interpreter))
    return names


def log_folder(text: str) -> Path:
    """Read the name of a folder for TensorBoard. Raises `UsageError`."""
    path = Path(text).expanduser()
    if not text or (path.exists() and not path.is_dir()):
        raise UsageError(f"--log-dir: must name a folder, got {text!r}{', a file' if text else ''}")
    return path.resolve()


def cell_choice(args: argparse.Namespace) -> CellChoice:
    """Return the choice of cells made by those flags of `add_matrix_options` that a command has.

    Raises `UsageError`.
    """
    from keras_matrix.runner.matrix.overrides import Overrides, parse_assignment
    from keras_matrix.runner.measure.request import CellChoice

    overrides = Overrides(
        backends=tuple(getattr(args, "backend", ())),
        filters=tuple(getattr(args, "filter", ())),
        assignments=dict(map(parse_assignment, getattr(args, "assignments", ()))),
        repeats=getattr(args, "repeats", None),
        allowed_variables=tuple(getattr(args, "allow_env", ())),
    )
    if (workload := getattr(args, "workload", None)) is not None:
        if args.matrix is not MATRIX:
            raise UsageError(f"--workload: replaces a matrix file, but --matrix {args.matrix} was given: leave one out")
        environments = dict(getattr(args, "python", ()))
        choice = workload_choice("--workload", workload, overrides, environments=environments)
        return replace(choice, service=args.service)
    matrix = getattr(args, "matrix", None) or MATRIX
    return CellChoice(matrix, overrides, args.service, optional=matrix is MATRIX)  # the same path may be given, too


def workload_choice(
    flag: str,
    workload: str,
    overrides: Overrides,
    defaults: Mapping[str, Scalar] = MappingProxyType({}),
    *,
    environments: Mapping[str, Path] = MappingProxyType({}),
) -> CellChoice:
    """Return the choice of one workload's cells on the backends that were named, or else are installed.

    Without any they are all backends, whose cells name what to install. Raises `UsageError`, naming `flag`.
    """
    from keras_matrix.runner.measure.request import check_backends, one_workload

    check_backends(overrides.backends)
    phase = overrides.assignments.get("phase", defaults.get("phase", FIT))
    backends = overrides.backends or installed_for(environments, phase) or backends_for(phase)
    try:
        return one_workload(workload, backends, overrides, defaults)
    except UsageError as error:
        raise UsageError(f"{flag}: {error}") from error


def run_request(args: argparse.Namespace, choice: CellChoice | None = None) -> RunRequest:
    """Return the request made by the flags of `add_measuring_options`, for the chosen cells. Raises `UsageError`."""
    from keras_matrix.runner.executors import registry
    from keras_matrix.runner.measure.request import RunRequest

    return RunRequest(
        command=("runner", *map(without_user, args.given)),
        choice=choice or cell_choice(args),
        results=args.results,
        executors=registry.chosen(args.executor, args.start, vars(args), args.seams.engine),
        memory_bytes=args.memory,
        budget_s=args.budget,
        order_seed=args.order_seed,
        new=args.new,
        log_dir=args.log_dir,
        datasets=args.datasets,
        seams=args.seams,
        environments=dict(args.python),
    )
