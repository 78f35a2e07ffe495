"""The flags that several commands share, and what they become."""

from __future__ import annotations

import argparse
import errno
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from runner.errors import UsageError
from runner.executors import registry

if TYPE_CHECKING:
    from runner.matrix import Cell, Matrix
    from runner.overrides import Overrides

MATRIX = Path("matrix.yaml")
SIZE_UNITS = {"k": 10, "m": 20, "g": 30, "t": 40}


def check_output(flag: str, path: Path) -> None:
    """Refuse a place where no file can be written, before anything is measured. Raises `UsageError`."""
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{flag}: must be a file in a folder that is there, got {path}")


def count_gpus(device: str) -> int:
    """Return how many GPUs the caller may use, 0 for another device. Raises `UsageError` if none is visible."""
    from runner.executors.visible import NoGpu, visible_gpus

    try:
        return len(visible_gpus()) if device == "gpu" else 0
    except NoGpu as error:
        raise UsageError(str(error)) from error


def add_matrix_options(parser: argparse.ArgumentParser) -> None:
    """Add what chooses the cells."""
    group = parser.add_argument_group("which cells")
    group.add_argument("--matrix", type=Path, default=MATRIX, metavar="FILE", help="default: matrix.yaml")
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
    group.add_argument("--repeats", type=count_or_auto, metavar="N", help="processes per cell, or auto, over the file")


def add_measuring_options(parser: argparse.ArgumentParser) -> None:
    """Add how cells are measured."""
    group = parser.add_argument_group("how")
    add_results_option(group)
    group.add_argument(
        "--start",
        choices=tuple(dict.fromkeys(start for entry in registry.ENTRIES.values() for start in entry.starts)),
        help="fork cells from a server that has imported the backend, or start a fresh interpreter for each; "
        "accelerators always start fresh (default: fork; with --executor docker: fresh, or warm for fork)",
    )
    group.add_argument(
        "--budget", type=seconds, metavar="SECONDS", help="add repeats to auto cells for this long, over the file"
    )
    group.add_argument(
        "--order-seed", type=int, metavar="N", help="seed of the random order; default: a new one, recorded"
    )
    group.add_argument("--new", action="store_true", help="start a new run even where an unfinished one could go on")
    group.add_argument(
        "--log-dir",
        type=log_folder,
        metavar="FOLDER",
        help="write what TensorBoard shows of each cell into this folder; see runner tensorboard",
    )
    group.add_argument(
        "--datasets", type=Path, metavar="FOLDER", help="where data sets lie; default: ~/.keras/datasets"
    )
    group.add_argument(
        "--executor",
        choices=tuple(registry.ENTRIES),
        default=registry.DEFAULT,
        help=f"{', or '.join(entry.summary for entry in registry.ENTRIES.values())}; default: {registry.DEFAULT}",
    )
    for entry in registry.ENTRIES.values():
        if entry.options:
            _add_executor_options(parser.add_argument_group(f"in {entry.place} ({entry.guide})"), entry)


def _add_executor_options(group: argparse._ArgumentGroup, entry: registry.Entry) -> None:
    for option in entry.options:
        read = partial(size_bytes, option.flag) if option.is_size else str
        group.add_argument(option.flag, type=read, metavar=option.metavar, help=option.meaning)


def add_results_option(parser: argparse._ActionsContainer) -> None:
    """Add where results are."""
    parser.add_argument(
        "--results", type=folder, default=Path("results"), metavar="FOLDER", help="where results are; default: results"
    )


def count_or_auto(text: str) -> int | str:
    """Read a number of repeats, or the word auto. Raises `UsageError` for what is neither."""
    if text != "auto" and not text.lstrip("-").isdecimal():
        raise UsageError(f"--repeats: must be auto or a whole number from 1 to 1000, got {text!r}")
    return text if text == "auto" else int(text)


def share(text: str) -> float:
    """Read a tolerated slowdown. Raises `UsageError` for what is none."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 10:
        advice = "; write 0.05 for 5 %" if text.strip().endswith("%") else ""
        raise UsageError(f"--threshold: must be a share from 0 to 10, got {text!r}{advice}")
    return value


def size_bytes(flag: str, text: str) -> int:
    """Read the size given with a flag: in bytes, or in k, m, g or t of 1024. Raises `UsageError`."""
    number, unit = (text[:-1], text[-1:].lower()) if text[-1:].isalpha() else (text, "")
    if not (number.isascii() and number.isdigit() and int(number) > 0 and (not unit or unit in SIZE_UNITS)):
        raise UsageError(f"{flag}: must be a size such as 512m or 8g, got {text!r}")
    return int(number) << SIZE_UNITS.get(unit, 0)


def executors_of(args: argparse.Namespace) -> registry.Executors:
    """Return what the flags say that cells run in, the same one throughout a command. Raises `UsageError`."""
    if getattr(args, "executors", None) is None:
        args.executors = registry.chosen(args.executor, args.start, vars(args), args.seams.engine)
    found: registry.Executors = args.executors
    return found


def seconds(text: str) -> float:
    """Read a number of seconds. Raises `UsageError` for what is none."""
    from runner.grammar import WHOLE
    from runner.yaml_strict import resolve

    value = resolve(text)
    if (fault := WHOLE["budget"].fault(value)) or not isinstance(value, (int, float)):
        raise UsageError(f"--budget: {fault}")
    return float(value)


def folder(text: str) -> Path:
    """Read a folder's name. Raises `UsageError` for none."""
    if not text:
        raise UsageError("--results: must name a folder, got ''")
    return Path(text).expanduser()


# Of a run's folder: the log folder that the latest start with one wrote into.
LOG_DIR_NAME = "log_dir.json"


def log_folder(text: str) -> Path:
    """Read a folder for TensorBoard. Raises `UsageError` for what cannot be one."""
    path = Path(text).expanduser()
    if not text or (path.exists() and not path.is_dir()):
        raise UsageError(f"--log-dir: must name a folder, got {text!r}{', a file' if text else ''}")
    return path.resolve()


def log_dir(args: argparse.Namespace) -> Path | None:
    """Return where TensorBoard shall find what it shows, made; None for nowhere.

    Raises `UsageError` for a folder that cannot be made; that a disk is full costs no measurement, and is told later.
    """
    found: Path | None = args.log_dir
    try:
        if found is not None:
            found.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise UsageError(f"--log-dir: {found} cannot be made: {error.strerror}; name another folder") from error
    return found


def chosen_matrix(args: argparse.Namespace, *, largest: bool = False) -> tuple[Matrix, list[Cell]]:
    """Return the matrix and the cells that it and the flags ask for; `batch_size: largest` only for who asks for it.

    Raises `InputError`.
    """
    from runner.largest_cells import refuse
    from runner.matrix import load

    matrix, cells = chosen_of(args, load(args.matrix), overrides(args))
    if not largest:
        refuse(cells)
    return matrix, cells


def chosen_of(args: argparse.Namespace, matrix: Matrix, wanted: Overrides) -> tuple[Matrix, list[Cell]]:
    """Return the cells of a matrix that are asked for and, in a service, that it can run; `left_out` says which not.

    Raises `InputError`.
    """
    from runner.matrix import expand

    if args.service is None:
        return matrix, expand(matrix, wanted)
    from runner.mounted import missing
    from runner.service import chosen

    roots = [Path.cwd(), (args.matrix or MATRIX).resolve().parent]
    cells, left_out = chosen(matrix, args.service, wanted, lambda cell: missing(cell, roots))
    return replace(matrix, left_out=tuple(left_out)), cells


def budget_s(args: argparse.Namespace, matrix: Matrix) -> float | None:
    """Return the budget that the flags or else the matrix give."""
    return matrix.budget_s if args.budget is None else float(args.budget)


def overrides(args: argparse.Namespace) -> Overrides:
    """Return what the flags change. Raises `UsageError`."""
    from runner.overrides import Overrides, parse_assignment

    return Overrides(
        backends=tuple(args.backend),
        filters=tuple(args.filter),
        assignments=dict(map(parse_assignment, args.assignments)),
        repeats=args.repeats,
    )
