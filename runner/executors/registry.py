"""The ways to run a cell, one row each: its name for `--executor`, flags, contract and module.

A new one is a module (or a package) with `make(entry, request) -> Executors`, a function or a class, and a row of
`ENTRIES`. Importing this module does not import them.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors import Contract

SIZE_UNITS = {"k": 10, "m": 20, "g": 30, "t": 40}

if TYPE_CHECKING:
    from keras_matrix.records.store import Run
    from keras_matrix.runner.executors import Executor
    from keras_matrix.runner.executors.places import Places
    from keras_matrix.runner.matrix.reader import Cell


@dataclass(frozen=True, slots=True)
class Option:
    """A flag that belongs to one executor; its value is a text or, with `is_size`, a size in bytes."""

    name: str
    metavar: str
    meaning: str
    is_size: bool = False

    @property
    def flag(self) -> str:
        """Its spelling on the command line."""
        return f"--{self.name.replace('_', '-')}"


@dataclass(frozen=True, slots=True)
class ExecutorEntry:
    """One way to run a cell.

    `starts` are its values of --start, the default first. Help and messages state what its options apply to (`place`),
    the page that describes them (`guide`) and what it does (`summary`).
    """

    name: str
    module: str
    summary: str
    contract: Contract
    starts: tuple[str, ...]
    place: str = ""
    guide: str = ""
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecutorRequest:
    """The command line's request to an executor: `options` by name, None for those not given.

    `service` replaces, in tests, the service that runs cells, such as a container engine.
    """

    start: str
    options: Mapping[str, Any] = field(default_factory=dict)
    service: Any = None


class Executors(ABC):
    """Creates the executors of a command: one per run, and so one per arm of a comparison."""

    def __init__(self, entry: ExecutorEntry, request: ExecutorRequest) -> None:
        """Take the request. Raises `UsageError` for an option that cannot be used."""
        self.entry, self.request = entry, request

    @property
    def contract(self) -> Contract:
        """Which parts of its cells are on this machine."""
        return self.entry.contract

    @property
    def started(self) -> str:
        """How cells start, as stored in `run.json`: an executor cannot continue the run of another."""
        return self.request.start if self.entry.name == DEFAULT else f"{self.entry.name} {self.request.start}"

    @abstractmethod
    def software(self, cells: Sequence[Cell]) -> Mapping[str, str]:
        """Return names and versions of the software that these cells use; a run is continued only with the same."""

    @abstractmethod
    def end_leftovers(self, results: Path) -> None:
        """End the processes that a killed runner left for this results folder."""

    @abstractmethod
    def executor(self, run: Run, python: str | None) -> Executor:
        """Return the executor of a run, under another Python if one is given (only with local software)."""

    def places(self, results: Path) -> Places | None:
        """Return the machines at which cells of this results folder run at the same time; None if it is only one."""
        return None


DEFAULT = "process"
ENTRIES = {
    entry.name: entry
    for entry in (
        ExecutorEntry(
            name=DEFAULT,
            module="keras_matrix.runner.executors.process.registration",
            summary="run cells as processes of this machine",
            contract=Contract(),
            starts=("fork", "fresh"),
        ),
        ExecutorEntry(
            name="docker",
            module="keras_matrix.runner.executors.docker.registration",
            summary="each in a container from its backend's image",
            contract=Contract(local_software=False),
            starts=("fresh", "warm"),
            place="containers",
            guide="docs/containers.md",
            options=(
                Option(
                    "images",
                    "NAME",
                    "repository of the images, or REPOSITORY:VERSION of a release; default: keras-benchmark-matrix",
                ),
                Option("memory", "SIZE", "of one container, as in 8g; default: nearly all", is_size=True),
                Option("shm_size", "SIZE", "of its /dev/shm; default: 1g", is_size=True),
                Option("seccomp", "FILE", "its seccomp profile, or unconfined; default: the engine's own"),
            ),
        ),
        ExecutorEntry(
            name="ray",
            module="keras_matrix.runner.executors.ray.registration",
            summary="on the nodes of a Ray cluster",
            contract=Contract(local_machine=False, local_pids=False, local_files=False, local_software=False),
            starts=("fork", "fresh"),
            place="a cluster",
            guide="docs/cluster.md",
            options=(
                Option("address", "ADDRESS", "of the cluster, such as ray://head:10001; default: RAY_ADDRESS, or here"),
            ),
        ),
    )
}


def size_bytes(flag: str, text: str) -> int:
    """Read the size given with a flag: in bytes, or in k, m, g or t of 1024. Raises `UsageError`."""
    number, unit = (text[:-1], text[-1:].lower()) if text[-1:].isalpha() else (text, "")
    if not (number.isascii() and number.isdigit() and int(number) > 0 and (not unit or unit in SIZE_UNITS)):
        raise UsageError(f"{flag}: must be a size such as 512m or 8g, got {text!r}")
    return int(number) << SIZE_UNITS.get(unit, 0)


def chosen(name: str, start: str | None, options: Mapping[str, Any], service: Any = None) -> Executors:
    """Return the executors of a command. `options` has the values of all executors' options.

    Raises `UsageError` for a start or an option that this executor does not have.
    """
    entry = ENTRIES[name]
    if start is not None and start not in entry.starts:
        raise UsageError(f"--start: must be {' or '.join(entry.starts)} with --executor {name}, got {start}")
    for other in ENTRIES.values():
        for option in other.options:
            if option not in entry.options and options.get(option.name) is not None:
                raise UsageError(f"{option.flag}: applies only to {other.place}: add --executor {other.name}")
    own_options = {option.name: options.get(option.name) for option in entry.options}
    executors = importlib.import_module(entry.module).make(
        entry, ExecutorRequest(start or entry.starts[0], own_options, service)
    )
    return cast(Executors, executors)
