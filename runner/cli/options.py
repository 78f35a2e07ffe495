"""The flags that several commands share, and what they become."""

from __future__ import annotations

import argparse
import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors import registry

if TYPE_CHECKING:
    from keras_matrix.runner.request import CellChoice, RunRequest

MATRIX = Path("matrix.yaml")
SIZE_UNITS = {"k": 10, "m": 20, "g": 30, "t": 40}


def check_output(flag: str, path: Path) -> None:
    """Refuse a place where no file can be written, before anything is measured. Raises `UsageError`."""
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{flag}: must be a file in a folder that is there, got {path}")


def count_gpus(device: str) -> int:
    """Return how many GPUs the caller may use, 0 for another device. Raises `UsageError` if none is visible."""
    from keras_matrix.runner.executors.supervise.visible_gpus import NoGpu, visible_gpus

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


def seconds(text: str) -> float:
    """Read a number of seconds. Raises `UsageError` for what is none."""
    from keras_matrix.runner.matrix.grammar import FILE_RULES
    from keras_matrix.runner.matrix.strict_yaml import resolve

    value = resolve(text)
    if (problem := FILE_RULES["budget"].problem(value)) or not isinstance(value, (int, float)):
        raise UsageError(f"--budget: {problem}")
    return float(value)


def folder(text: str) -> Path:
    """Read a folder's name. Raises `UsageError` for none."""
    if not text:
        raise UsageError("--results: must name a folder, got ''")
    return Path(text).expanduser()


def log_folder(text: str) -> Path:
    """Read a folder for TensorBoard. Raises `UsageError` for what cannot be one."""
    path = Path(text).expanduser()
    if not text or (path.exists() and not path.is_dir()):
        raise UsageError(f"--log-dir: must name a folder, got {text!r}{', a file' if text else ''}")
    return path.resolve()


def cell_choice(args: argparse.Namespace) -> CellChoice:
    """Return which cells are meant by those of the flags of `add_matrix_options` that a command has.

    Raises `UsageError`.
    """
    from keras_matrix.runner.matrix.overrides import Overrides, parse_assignment
    from keras_matrix.runner.request import CellChoice

    overrides = Overrides(
        backends=tuple(getattr(args, "backend", ())),
        filters=tuple(getattr(args, "filter", ())),
        assignments=dict(map(parse_assignment, getattr(args, "assignments", ()))),
        repeats=getattr(args, "repeats", None),
    )
    return CellChoice(getattr(args, "matrix", None) or MATRIX, overrides, args.service)


def run_request(args: argparse.Namespace, choice: CellChoice | None = None) -> RunRequest:
    """Return what the flags of `add_measuring_options` ask for, of the cells that are chosen. Raises `UsageError`."""
    from keras_matrix.runner.request import RunRequest

    return RunRequest(
        command=("runner", *args.given),
        choice=choice or cell_choice(args),
        results=args.results,
        executors=registry.chosen(args.executor, args.start, vars(args), args.seams.engine),
        memory_bytes=args.memory,
        budget_s=args.budget,
        order_seed=args.order_seed,
        new=args.new,
        log_dir=args.log_dir,
        datasets=args.datasets,
        in_service=args.in_service,
        seams=args.seams,
    )
