"""The flags that several commands share, and what they become."""

from __future__ import annotations

import argparse
import json
import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from runner.errors import UsageError

if TYPE_CHECKING:
    from runner.executors.chosen import Executors
    from runner.executors.engine import Seccomp
    from runner.request import CellChoice, RunRequest

MATRIX = Path("matrix.yaml")
EXECUTORS = ("process", "docker")
# What each executor takes as --start, its default first.
STARTS = {"process": ("fork", "fresh"), "docker": ("fresh", "warm")}
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
        choices=("fork", "fresh", "warm"),
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
    _add_container_options(parser)


def _add_container_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("in containers (docs/containers.md)")
    group.add_argument(
        "--executor",
        choices=EXECUTORS,
        default=EXECUTORS[0],
        help="run cells as processes of this machine, or each in a container from its backend's image",
    )
    group.add_argument(
        "--images", metavar="NAME", help="where those images are tagged; default: keras-benchmark-matrix, as built here"
    )
    group.add_argument(
        "--memory",
        type=partial(size_bytes, "--memory"),
        metavar="SIZE",
        help="of one container, as in 8g; default: nearly all",
    )
    group.add_argument(
        "--shm-size", type=partial(size_bytes, "--shm-size"), metavar="SIZE", help="of its /dev/shm; default: 1g"
    )
    group.add_argument(
        "--seccomp", metavar="FILE", help="its seccomp profile, or unconfined; default: the engine's own"
    )


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
    from runner.overrides import Overrides, parse_assignment
    from runner.request import CellChoice

    overrides = Overrides(
        backends=tuple(getattr(args, "backend", ())),
        filters=tuple(getattr(args, "filter", ())),
        assignments=dict(map(parse_assignment, getattr(args, "assignments", ()))),
        repeats=getattr(args, "repeats", None),
    )
    return CellChoice(getattr(args, "matrix", None) or MATRIX, overrides, args.service)


def run_request(args: argparse.Namespace, choice: CellChoice | None = None) -> RunRequest:
    """Return what the flags of `add_measuring_options` ask for, of the cells that are chosen. Raises `UsageError`."""
    from runner.request import RunRequest

    return RunRequest(
        command=("runner", *args.given),
        choice=choice or cell_choice(args),
        results=args.results,
        executors=_executors(args),
        memory_bytes=args.memory,
        budget_s=args.budget,
        order_seed=args.order_seed,
        new=args.new,
        log_dir=args.log_dir,
        datasets=args.datasets,
        in_service=args.in_service,
        seams=args.seams,
    )


def _executors(args: argparse.Namespace) -> Executors:
    """Return what the flags say that cells run in.

    Raises `UsageError` for flags of containers where none are made, and for a profile that cannot be read.
    """
    from runner.executors.chosen import InContainers, InProcesses, container_limits

    offered = STARTS[args.executor]
    if args.start is not None and args.start not in offered:
        raise UsageError(f"--start: must be {' or '.join(offered)} with --executor {args.executor}, got {args.start}")
    start = args.start or offered[0]
    if args.executor == "docker":
        limits = container_limits(args.memory, args.shm_size, _seccomp(args.seccomp))
        return InContainers(start, args.images, limits, args.seams.engine)
    for name in ("images", "memory", "shm_size", "seccomp"):
        if getattr(args, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')}: is for containers: add --executor docker")
    return InProcesses(start)


def _seccomp(text: str | None) -> Seccomp | None:
    """Return the profile that a file has, which the engine would otherwise refuse for each container by itself."""
    from runner.executors.engine import Seccomp

    if text is None or text == "unconfined":
        return Seccomp(text, text) if text else None
    path = Path(text)
    try:
        profile = path.read_text(encoding="utf-8")
        json.loads(profile)
        return Seccomp(path.name, profile)
    except (OSError, ValueError) as error:
        raise UsageError(f"--seccomp: must be a profile's file or unconfined, got {text!r}: {error}") from error
