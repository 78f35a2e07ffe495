"""What the commands that write data sets share: their request, their worker processes, progress, signals and exit code.

A command runs as a child of `runner`, as `python -m keras_matrix.models.inputs.stored.convert REQUEST` with a JSON
object, because the host side imports neither these modules nor their packages. Exit codes: 0 done, 2 the request or
the data is invalid, 3 the disk or a worker failed, 130 interrupted; each failure is one message on standard error.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, cast

from keras_matrix.models.inputs.stored import shards
from keras_matrix.models.inputs.stored.sample import InputDataError
from keras_matrix.models.inputs.stored.shards import Manifest
from keras_matrix.models.process import end_with
from keras_matrix.records.host.platform import PLATFORM
from keras_matrix.records.text import bytes_text

PROGRESS_INTERVAL_S = 0.2
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class WriterStopped(Exception):
    """A worker was asked to stop."""


class WorkerLost(OSError):
    """A worker process was killed."""


def main(run: Callable[[dict[str, Any]], str]) -> int:
    """Run a command with the request of the command line, print its summary, and return the exit code.

    With `parent` in the request it ends with that process; without, as for a command in the background, it does not.
    """
    for number in SIGNALS:
        signal.signal(number, _interrupt)
    try:
        request = json.loads(sys.argv[1])
        end_with(request.get("parent"), signal.SIGTERM)
        print(run(request))
    except InputDataError as error:
        return _complain(str(error), 2)
    except OSError as error:
        return _complain(_disk_problem(error), 3)
    except KeyboardInterrupt:
        return _complain("stopped; the same command continues", 130)
    return 0


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(PLATFORM.usable_cpus())


class WriteProgress:
    """One line on standard error, rewritten while the command runs; silent unless that is a terminal."""

    def __init__(self, verb: str, total: int) -> None:
        self._verb, self._total, self._done, self._bytes = verb, total, 0, 0
        self._shown = sys.stderr.isatty()
        self._begun_s = time.monotonic()
        self._last_s = 0.0

    def add(self, sample_count: int, written_bytes: int) -> None:
        """Count finished samples and their bytes."""
        self._done, self._bytes = self._done + sample_count, self._bytes + written_bytes
        now_s = time.monotonic()
        if self._shown and (now_s - self._last_s > PROGRESS_INTERVAL_S or self._done == self._total):
            self._last_s = now_s
            print(f"\r\x1b[K{self._verb} {self._done} of {self._total} images, {self.speed()}", end="", file=sys.stderr)
            sys.stderr.flush()

    def speed(self) -> str:
        """Return the size so far, the time, and the bytes per second."""
        taken_s = max(time.monotonic() - self._begun_s, 1e-9)
        return f"{bytes_text(self._bytes)} in {taken_s:.1f} s, {bytes_text(self._bytes / taken_s)}/s"

    def end(self) -> None:
        """Erase the line."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def start_output(folder: Path, begun: Manifest) -> Manifest | None:
    """Create the output folder, or return the manifest of an earlier start with the same settings.

    Raises `InputDataError` if the folder contains something else, which is never overwritten.
    """
    if folder.exists() and not folder.is_dir():
        raise InputDataError(f"{folder}: is a file; give another --output-path")
    stored_manifest = shards.read(folder) if folder.is_dir() else None
    if stored_manifest is not None:
        if (stored_manifest.kind, stored_manifest.settings) != (begun.kind, begun.settings):
            raise InputDataError(
                f"{folder}: contains another data set, or one with other settings "
                f"({_differences(stored_manifest, begun)}); "
                f"give another --output-path, or repeat the command with the same settings"
            )
        return stored_manifest
    if folder.is_dir() and any(folder.iterdir()):
        raise InputDataError(f"{folder}: is not empty; give a new or an empty folder as --output-path")
    folder.mkdir(parents=True, exist_ok=True)
    shards.write(folder, begun)
    return None


def require_space(folder: Path, needed_bytes: int) -> None:
    """Raise OSError if the disk has less room than this."""
    status = os.statvfs(folder)
    if (free_bytes := status.f_bavail * status.f_frsize) < needed_bytes:
        text = f"needs {bytes_text(needed_bytes)}, but the disk has {bytes_text(free_bytes)} left; free some space"
        raise OSError(errno.ENOSPC, text, str(folder))


def in_parallel(function: Callable[[Any], Any], tasks: Sequence[Any], workers: int) -> Generator[Any, None, None]:
    """Yield the results of `function` for each task, in the order in which they end, from forked worker processes.

    Workers inherit the module's state and have one task at a time. When this generator is closed or fails, they stop at
    their next `check_stopped`; if this process is killed, they are, too. Raises the error of a task, or `WorkerLost`.
    """
    context = multiprocessing.get_context("fork")
    links: dict[Connection, ForkProcess] = {}
    waiting_tasks = iter(tasks)
    try:
        for task in islice(waiting_tasks, workers):
            parent_end, child_end = context.Pipe()
            process = context.Process(target=_serve, args=(function, child_end, [*links, parent_end], os.getpid()))
            with _signals_blocked():  # a new process must not be interrupted before it ignores signals
                process.start()
                links[parent_end] = process
            child_end.close()
            parent_end.send(task)
        while links:
            for link in cast("list[Connection]", wait(list(links))):
                yield _result(link)
                try:
                    link.send(next(waiting_tasks))
                except StopIteration:
                    link.close()
                    links.pop(link).join()
                except BrokenPipeError:
                    raise _lost() from None
    finally:
        for link in links:
            link.close()
        for process in links.values():
            process.join()


def check_stopped() -> None:
    """In a worker: raise `WriterStopped` if the command was interrupted or another worker failed."""
    # A worker is sent nothing while it has a task: readable means closed.
    if _LINK and _LINK[0].poll():
        raise WriterStopped


_LINK: list[Connection] = []


def _result(link: Connection) -> Any:
    try:
        result = link.recv()
    except (EOFError, ConnectionResetError):
        raise _lost() from None
    if isinstance(result, Exception):
        raise result
    return result


def _lost() -> WorkerLost:
    return WorkerLost(errno.ECHILD, "was killed, perhaps for lack of memory; use fewer --workers", "worker process")


@contextmanager
def _signals_blocked() -> Iterator[None]:
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


def _serve(function: Callable[[Any], Any], link: Connection, parents: list[Connection], parent: int) -> None:
    """Carry out tasks until the connection closes. A copy of a parent's end, inherited here, would keep it open."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal interrupts the whole group; the parent says when to stop
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    PLATFORM.end_with_parent(parent)
    for inherited in parents:
        inherited.close()
    _LINK[:] = [link]
    while True:
        try:
            link.send(_outcome(function, link.recv()))
        except (EOFError, OSError, WriterStopped):
            return


def _outcome(function: Callable[[Any], Any], task: Any) -> Any:
    """Return a task's result, or its error."""
    try:
        return function(task)
    except WriterStopped:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent raises it
        return error


def _interrupt(number: int, _: object) -> None:
    """Interrupt the command once; while it stops, further signals are ignored."""
    if threading.current_thread() is threading.main_thread():
        for signal_number in SIGNALS:
            signal.signal(signal_number, signal.SIG_IGN)
        raise KeyboardInterrupt


def _differences(stored_manifest: Manifest, begun: Manifest) -> str:
    if stored_manifest.kind != begun.kind:
        return f"it is {stored_manifest.kind}, not {begun.kind}"
    keys = [key for key in begun.settings if stored_manifest.settings.get(key) != begun.settings[key]]
    return ", ".join(f"{key} was {stored_manifest.settings.get(key)!r}, not {begun.settings[key]!r}" for key in keys)


def _disk_problem(error: OSError) -> str:
    return f"{error.filename or 'disk'}: {error.strerror or error}; the same command continues"


def _complain(message: str, code: int) -> int:
    text = message.encode("utf-8", "backslashreplace").decode()
    print(f"runner: {text}", file=sys.stderr)
    return code
