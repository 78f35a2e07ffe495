"""The flags of `--executor docker`, and what they become: the engine, the limits, the executor of a run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.cli.options import start_of
from runner.errors import UsageError

if TYPE_CHECKING:
    from records.store import Run
    from runner.executors.docker import DockerExecutor
    from runner.executors.engine import Engine, Image, Limits, Seccomp
    from runner.matrix import Cell

FLAGS = ("images", "memory", "shm_size", "seccomp")
# What the machine itself is left, so that a cell that needs too much is ended before the machine is short of memory.
MACHINES_SHARE = 1 / 16


def check(args: argparse.Namespace) -> None:
    """Refuse flags of containers where none are made, and a profile that cannot be read. Raises `UsageError`."""
    start_of(args)
    given = [name for name in FLAGS if getattr(args, name) is not None]
    if args.executor != "docker" and given:
        raise UsageError(f"--{given[0].replace('_', '-')}: is for containers: add --executor docker")
    _seccomp(args)


def engine_of(args: argparse.Namespace) -> Engine:
    """Return the engine, the same one throughout. Raises `ExecutorError` where none answers."""
    if getattr(args, "engine", None) is None:
        from runner.executors.engine import connect

        args.engine = args.seams.engine or connect()
    engine: Engine = args.engine
    return engine


def images_here(args: argparse.Namespace, cells: Sequence[Cell]) -> dict[str, str]:
    """Return the digests of the images that these cells need and that are here: the software of a run in containers."""
    from runner.executors.engine import Image

    found = {name: _found(args, name) for name in _names(args, cells)}
    return {f"image {name}": image.image_id for name, image in found.items() if isinstance(image, Image)}


def executor(args: argparse.Namespace, run: Run) -> DockerExecutor:
    """Return what runs a run's cells in containers, of the images that were found when it began."""
    from runner.executors.docker import DockerExecutor, Place

    place = Place(str(args.results.resolve()), run.run_id, _images(args), _all_found(args))
    return DockerExecutor(engine_of(args), place, limits(args), warm=start_of(args) == "warm")


def end_leftovers(args: argparse.Namespace) -> None:
    """Remove the containers of a runner on this results folder that was killed."""
    from runner.executors.docker import end_leftovers as end

    end(engine_of(args), str(args.results.resolve()))


def limits(args: argparse.Namespace) -> Limits:
    """Return what a container may use. Raises `UsageError`."""
    from records.host import usable_memory_bytes
    from runner.executors.engine import Limits

    here = usable_memory_bytes()
    memory = args.memory or (round(here * (1 - MACHINES_SHARE)) if here else None)
    if memory is None:
        raise UsageError("--memory: must be given, since this machine does not tell how much it has")
    usual = Limits(memory)
    return Limits(memory, args.shm_size or usual.shared_memory_bytes, usual.processes, _seccomp(args))


def _names(args: argparse.Namespace, cells: Sequence[Cell]) -> list[str]:
    """Return the names of the images that these cells need."""
    from runner.executors.docker import image_name

    own = [cell.task.image for cell in cells if cell.task and cell.task.image]
    measured = [cell.settings for cell in cells if cell.task is None]
    return [*dict.fromkeys([image_name(_images(args), one.backend, one.device) for one in measured] + own)]


def _found(args: argparse.Namespace, name: str) -> Image | str:
    """Return what the engine said of an image when it was first asked for it."""
    from runner.executors.docker import looked_up

    found = _all_found(args)
    if name not in found:
        found[name] = looked_up(engine_of(args), name)
    return found[name]


def _all_found(args: argparse.Namespace) -> dict[str, Image | str]:
    found: dict[str, Image | str] = vars(args).setdefault("found_images", {})
    return found


def _images(args: argparse.Namespace) -> str:
    from runner.executors.docker import IMAGES

    return args.images or IMAGES


def _seccomp(args: argparse.Namespace) -> Seccomp | None:
    if args.seccomp is None:
        return None
    from runner.executors.engine import Seccomp

    if args.seccomp == "unconfined":
        return Seccomp("unconfined", "unconfined")
    path = Path(args.seccomp)
    try:
        profile = path.read_text(encoding="utf-8")
        json.loads(profile)
        return Seccomp(path.name, profile)
    except (OSError, ValueError) as error:  # the engine would refuse each container by itself
        raise UsageError(f"--seccomp: must be a profile's file or unconfined, got {args.seccomp!r}: {error}") from error
