"""A scenario of the loop: a command, the state in which it starts, and what must be true after each failure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_matrix.records.store import RECORD_NAME, Results, Run
from keras_matrix.records.store_failure import StoreFailure
from tests.reliability.failpoints.kinds import Kind

FILES = (Kind.KILL, Kind.POWER, Kind.CACHE, Kind.ENOSPC, Kind.EIO, Kind.SIGNAL)
REMOTE = (Kind.KILL, Kind.RESET, Kind.BUSY, Kind.UNANSWERED, Kind.EIO, Kind.SIGNAL)
Hashes = dict[str, str]


def nothing(*arguments: Any) -> None:
    """Do nothing."""


def no_differences(folder: Path) -> list[str]:
    """Return no line."""
    return []


@dataclass(frozen=True, slots=True)
class Scenario:
    """A command that is failed at each of its operations, in a copy of a prepared folder.

    Every function runs in a forked process, in the folder. `prepare` fills the folder that is copied for each failure,
    and `arrange` adds to a copy what only one failure may have, by its number. `command` returns an exit code; it is
    failed, and then run again untouched: `complete` are the exit codes of a run to its end, `partial` those of one that
    did all but what it names. `around` is entered once by each process that fails the command. `warm` is done once in
    each of these, to fill caches; it may leave no thread. `differences` returns a
    line for each thing that is lost, doubled or torn after that; each begins with one of these words.
    """

    name: str
    command: Callable[[Path], int]
    prepare: Callable[[Path], None] = nothing
    arrange: Callable[[Path, int], None] = nothing
    differences: Callable[[Path], list[str]] = no_differences
    kinds: Collection[Kind] = FILES
    complete: Collection[int] = (0,)
    partial: Collection[int] = ()
    limits_bytes: int = 0
    warm: Callable[[Path], object] | None = None
    around: Callable[[], AbstractContextManager[None]] = nullcontext


def record_hashes(results: Path) -> Hashes:
    """Return the hash of each record by its path below the results folder."""
    found = [
        path
        for path in results.glob("*/records/*.json")
        if RECORD_NAME.fullmatch(path.name) and not path.parent.parent.is_symlink()
    ]
    return {path.relative_to(results).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def lost_records(results: Path, published: Hashes) -> list[str]:
    """Return a line for each published record that is missing or has another content."""
    there = record_hashes(results)
    return [f"lost: {name}" for name, content in published.items() if there.get(name) != content]


def torn_files(results: Path) -> list[str]:
    """Return a line for each file in `records` that cannot be loaded, and each that was set aside."""
    found = []
    for run in Results(results).runs():
        found += _torn_of(run)
        found += [f"torn: {path}" for path in (run.folder / "records" / "corrupt").glob("*")]
    return found


def _torn_of(run: Run) -> list[str]:
    try:
        run.about()
        return [f"torn: {problem.path}: {problem.reason}" for problem in run.load()[1]]
    except StoreFailure as error:
        return [f"torn: {error}"]


def doubled_records(results: Path) -> list[str]:
    """Return a line for each repeat of a cell that was measured twice although its first attempt was published.

    What other programs disturbed, or the infrastructure failed, is measured again.
    """
    found = []
    for run in Results(results).runs():
        records, _ = run.load()
        final = [record for record in records if record.status != "infra" and not record.surroundings.disturbed]
        ok = [(record.cell_id, record.repeat) for record in final]
        found += [f"doubled: {run.run_id}: {key}" for key in sorted(set(ok)) if ok.count(key) > 1]
    return found
