"""Synthetic results folders with everything the uploader sends, and failures at any file operation."""

from __future__ import annotations

import atexit
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.findings import Finding, FindingKind, keep
from keras_matrix.records.schema import Learning, Memory, Surroundings
from keras_matrix.records.store import Results, Run
from keras_matrix.uploader.cli.main import main
from tests.conftest import MACHINE, NIGHTLY, make_settings
from tests.sessions import processes, run_name, store_session


def results_with(root: Path, runs: int = 2, count: int = 3, first: int = 0) -> Results:
    """Return a results folder with runs of one cell on consecutive days, each with a finding."""
    for number in range(first, first + runs):
        store_run(root, number, count)
    return Results(root)


def pushed_results(root: Path) -> Results:
    """Return a results folder with two runs that were pushed into its warehouse: a file of each table."""
    return Results(shutil.copytree(_pushed(), root, symlinks=True))


@cache
def _pushed() -> Path:
    """The folder that is pushed once in a process of tests, from which each test gets a copy."""
    root = Path(tempfile.mkdtemp(prefix="pushed-"))
    atexit.register(shutil.rmtree, root)
    assert uploader(results_with(root, runs=2, count=1), "push", "--quiet") == 0
    return root


def uploader(results: Results, *arguments: str) -> int:
    """Run a command of the uploader on a results folder."""
    return main([*arguments, "--results", str(results.root)])


def store_run(root: Path, number: int, count: int = 3, **changes: Any) -> Run:
    """Store the run of one night with its findings."""
    records = processes(
        0.01 + number / 1000,
        count=count,
        learning=Learning([2.0, 1.5, 1.2, 1.0], {"accuracy": [0.1, 0.3, None, 0.6]}),
        memory=Memory(500 << 20),
        surroundings=Surroundings(0.5, 0.7, 0.0, 0.01),
        settings=changes.pop("settings", make_settings()),
        **changes,
    )
    machine = {"host_id": MACHINE.host_id, "cpu_model": MACHINE.cpu_model, "logical_cpus": MACHINE.logical_cpus}
    folder = store_session(
        root, run_name(number), records, started_at="2026-01-01T02:00:00+00:00", planned=count, machine=machine
    )
    run = Run(folder)
    keep(run, [found(records[0].cell_id, 0.01 + number / 1000)])
    return run


def found(cell_id: str, estimate: float = 0.01, **changes: Any) -> Finding:
    """Return a finding on a cell."""
    fields: dict[str, Any] = {"unit": "s", "count": 3, "workload": "mnist_mlp", "backend": "jax", "cell_id": cell_id}
    return Finding(
        FindingKind.FIGURE,
        "times.step_time_s",
        "mnist_mlp",
        "geometric mean over processes",
        1,
        estimate=estimate,
        **fields | changes,
    )


def import_two_rows(results: Results, tmp_path: Path) -> None:
    """Import two attempts that have no record."""
    path = tmp_path / "old.csv"
    path.write_text("name,lib,seconds,when\nmlp,theano,1.5,2017-10-02\nmlp,cntk,2,2017-10-02\n")
    maps = [f"--map={one}" for one in ("workload=name", "backend=lib", "value=seconds", "started_at=when")]
    command = ["import", str(path), "--metric", "times.suite_total_time_s", "--source", "lab", *maps]
    assert main([*command, "--results", str(results.root)]) == 0


# The operations at which tests fail a command that they run again and again: all of them only in the nightly run.
FAILED_OPERATIONS = range(0, 500, 1 if NIGHTLY else 3)


class Killed(BaseException):
    """Simulates SIGKILL."""


OPERATIONS = ((os, "fsync"), (os, "link"), (os, "replace"), (Path, "unlink"), (Path, "replace"), (Path, "mkdir"))


GROWING = tuple(one for one in OPERATIONS if one[1] != "unlink")  # operations that fail on a full disk


@contextmanager
def dying_at(monkeypatch: pytest.MonkeyPatch, count: int) -> Iterator[Callable[[], bool]]:
    """Raise `Killed` at file operation number `count` and later ones; yields a function that says whether it did.

    As after SIGKILL there is no cleanup: files that `finally` would remove remain.
    """
    with _failing_at(monkeypatch, count, Killed, OPERATIONS) as failed:
        yield failed


@contextmanager
def full_at(monkeypatch: pytest.MonkeyPatch, count: int) -> Iterator[Callable[[], bool]]:
    """Simulate a full disk from file operation number `count` on; yields a function that returns whether it was."""
    with _failing_at(monkeypatch, count, lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), GROWING) as failed:
        yield failed


@contextmanager
def _failing_at(
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    error: Callable[[], BaseException],
    operations: Sequence[tuple[Any, str]],
) -> Iterator[Callable[[], bool]]:
    left = [count]

    def fail() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise error()

    with _before_each(monkeypatch, operations, fail):
        yield lambda: left[0] < 0


def states_if_killed(monkeypatch: pytest.MonkeyPatch, folder: Path, work: Callable[[], object]) -> list[Path]:
    """Return copies of a folder as a kill before any file operation of `work` leaves it, and as it is at the end.

    A state that several operations begin with is copied once.
    """
    states = dict[frozenset[tuple[str, bytes | None]], Path]()

    def keep() -> None:
        if (state := content_of(folder)) not in states:
            states[state] = shutil.copytree(folder, folder.with_name(f"{folder.name}-{len(states)}"))

    with _before_each(monkeypatch, OPERATIONS, keep):
        work()
    keep()
    return list(states.values())


def tried(states: Sequence[Path]) -> Sequence[Path]:
    """Return all states in the nightly run, and for every change a third of them with the last."""
    return states if NIGHTLY else [*states[:-1:3], states[-1]]


def content_of(folder: Path) -> frozenset[tuple[str, bytes | None]]:
    """Return the files of a folder by their paths in it, with what they contain; None for a folder."""
    files = {(str(path.relative_to(folder)), path) for path in folder.rglob("*")}
    return frozenset((name, None if path.is_dir() else path.read_bytes()) for name, path in files)


@contextmanager
def _before_each(
    monkeypatch: pytest.MonkeyPatch, operations: Sequence[tuple[Any, str]], act: Callable[[], None]
) -> Iterator[None]:
    def preceded(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            act()
            return call(*args, **kwargs)

        return wrapped

    with monkeypatch.context() as patched:
        for holder, name in operations:
            patched.setattr(holder, name, preceded(getattr(holder, name)))
        yield
