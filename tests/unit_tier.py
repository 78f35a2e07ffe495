"""What every test of the unit tier has in common: it starts no process and waits for no disk."""

from __future__ import annotations

import functools
import gc
import importlib.util
import multiprocessing.util
import os
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.runner.executors.process import interpreter
from keras_matrix.runner.machine import tree_memory
from keras_matrix.uploader.local import parquet

# Events of sys.audit; the last is our own, since Python has none for what `multiprocessing` starts without a fork.
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "multiprocessing.spawn"}
frozen_count = gc.get_freeze_count
_fsync, _scans, _facts = os.fsync, tree_memory.EMPTY_SCANS, interpreter._facts
_absent = interpreter.Interpreter.absent
_running: list[str] = []  # the unit test, if one runs


def prepare() -> None:
    """Prepare a pytest process for `enter`."""
    parquet.engine = _Engines(parquet.engine)
    platform.processor()  # starts `uname` at its first call in a process
    multiprocessing.util.spawnv_passfds = functools.partial(_spawn, multiprocessing.util.spawnv_passfds)
    sys.addaudithook(_refuse)


def enter(name: str | None) -> None:
    """Apply the rules to the unit test that begins, or lift them for a test of another tier, which gives no name.

    `os.fsync` returns at once, since no power fails: it took a third of many tests. One scan of /proc looks for
    processes that a session left, not three. What is installed for this Python is not asked of another process, and the
    backends that train count as installed for it.
    """
    _running[:] = [name] if name else []
    os.fsync = os.fstat if name else _fsync
    tree_memory.EMPTY_SCANS = 1 if name else _scans
    interpreter._facts = _facts_here if name else _facts
    interpreter.Interpreter.absent = _absent_here if name else _absent  # type: ignore[method-assign]


def freeze() -> None:
    """Exclude what exists from garbage collections. A session asks for their number: to count took half its time."""
    gc.collect()
    gc.freeze()
    gc.get_freeze_count = lambda: 1


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if event in STARTS and _running:
        command = arguments[0] if arguments else "a copy of itself"
        pytest.fail(f"{_running[0]} starts a process, {command}: mark it `process`, or fake what the process answers")


def _spawn(spawn: Callable[..., int], path: bytes, arguments: Sequence[object], descriptors: Iterable[int]) -> int:
    """Start a process as `multiprocessing` does: a spawned one, the fork server or the tracker of its resources."""
    sys.audit("multiprocessing.spawn", os.fsdecode(path))
    return spawn(path, arguments, descriptors)


class _Engines:
    """Engines of the local warehouse as databases of one instance, which takes 40 ms to start.

    One thread: several take more CPU time for a test's few rows. An engine that reads only one folder is its own
    instance, whose settings it locks.
    """

    def __init__(self, engine: Callable[[Path | None], Any]) -> None:
        self._engine = engine
        self._count = 0

    def __call__(self, only_in: Path | None = None) -> Any:
        if only_in is not None:
            return self._engine(only_in)
        self._count += 1
        connection = self._instance.cursor()
        connection.execute(f"ATTACH ':memory:' AS engine_{self._count}")
        connection.execute(f"USE engine_{self._count}")
        connection.execute("SET TimeZone = 'UTC'")
        return connection

    @functools.cached_property
    def _instance(self) -> Any:
        connection = self._engine(None)
        connection.execute("SET threads = 1")
        return connection


def _facts_here(python: str, packages: tuple[str, ...]) -> dict[str, Any]:
    if python != sys.executable:
        return _facts(python, packages)
    absent = [name for name in packages if importlib.util.find_spec(name) is None]
    return {"python": list(sys.version_info[:3]), "absent": absent, "versions": interpreter.installed_versions()}


def _absent_here(python: interpreter.Interpreter, packages: Iterable[str]) -> list[str]:
    """Count the backends that train as installed here: no unit test runs one, and some Pythons have no build of one."""
    here = python.python == sys.executable
    return [name for name in _absent(python, packages) if not here or name not in TRAINING_BACKENDS]
