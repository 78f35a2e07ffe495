"""The commands that write data sets: what they share, and how a record file is written, verified and then renamed.

A command runs as a child of `runner`, as `python -m keras_matrix.models.inputs.stored.convert REQUEST` with a JSON
object, because the host side imports neither these modules nor their packages. Exit codes: 0 done, 2 the request or
the data is invalid, 3 the disk or a worker failed, 130 interrupted; each failure is one message on standard error.

Verification reads the file again with its checksums, and compares the CRC32C of every record with that of the bytes
that the source delivered. So a file with its final name is complete and correct.
"""

from __future__ import annotations

import ctypes
import errno
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from keras_matrix.models.inputs.stored import record_file, shards, source
from keras_matrix.models.inputs.stored.record_file import before_image
from keras_matrix.models.inputs.stored.sample import InputDataError, Sample
from keras_matrix.models.inputs.stored.shards import Manifest, RecordFile
from keras_matrix.models.process import PR_SET_PDEATHSIG, end_with
from keras_matrix.records.text import bytes_text

PROGRESS_INTERVAL_S = 0.2
SIGNALS = (signal.SIGINT, signal.SIGTERM)
WRITE_BYTES = 1 << 20
MOST_PIECES = 900  # of one writev; the system's limit is 1,024
VERIFY_RUN = 16


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
    return len(os.sched_getaffinity(0))


class WriteProgress:
    """One line on standard error, rewritten while the command runs; silent unless that is a terminal."""

    def __init__(self, verb: str, total: int) -> None:
        self._verb, self._total, self._done, self._bytes = verb, total, 0, 0
        self._shown = sys.stderr.isatty()
        self._begun_s = time.monotonic()
        self._last_s = 0.0

    def add(self, samples: int, size: int) -> None:
        """Count finished samples and their bytes."""
        self._done, self._bytes = self._done + samples, self._bytes + size
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
    found = shards.read(folder) if folder.is_dir() else None
    if found is not None:
        if (found.kind, found.settings) != (begun.kind, begun.settings):
            raise InputDataError(
                f"{folder}: contains another data set, or one with other settings ({_differences(found, begun)}); "
                f"give another --output-path, or repeat the command with the same settings"
            )
        return found
    if folder.is_dir() and any(folder.iterdir()):
        raise InputDataError(f"{folder}: is not empty; give a new or an empty folder as --output-path")
    folder.mkdir(parents=True, exist_ok=True)
    shards.write(folder, begun)
    return None


def require_space(folder: Path, needed_bytes: int) -> None:
    """Raise OSError if the disk has less room than this."""
    status = os.statvfs(folder)
    if (free := status.f_bavail * status.f_frsize) < needed_bytes:
        text = f"needs {bytes_text(needed_bytes)}, but the disk has {bytes_text(free)} left; free some space"
        raise OSError(errno.ENOSPC, text, str(folder))


def in_parallel(function: Callable[[Any], Any], tasks: Sequence[Any], workers: int) -> Generator[Any, None, None]:
    """Yield the results of `function` for each task, in the order in which they end, from forked worker processes.

    Workers inherit the module's state and have one task at a time. When this generator is closed or fails, they stop at
    their next `check_stopped`; if this process is killed, they are, too. Raises the error of a task, or `WorkerLost`.
    """
    context = multiprocessing.get_context("fork")
    links: dict[Connection, ForkProcess] = {}
    waiting = iter(tasks)
    try:
        for task in islice(waiting, workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(function, theirs, [*links, ours]))
            with _signals_blocked():  # a new process must not be interrupted before it ignores signals
                process.start()
                links[ours] = process
            theirs.close()
            ours.send(task)
        while links:
            for link in cast("list[Connection]", wait(list(links))):
                yield _result(link)
                try:
                    link.send(next(waiting))
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
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(function: Callable[[Any], Any], link: Connection, parents: list[Connection]) -> None:
    """Carry out tasks until the connection closes. A copy of a parent's end, inherited here, would keep it open."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal interrupts the whole group; the parent says when to stop
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
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
        for one in SIGNALS:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt


def _differences(found: Manifest, begun: Manifest) -> str:
    if found.kind != begun.kind:
        return f"it is {found.kind}, not {begun.kind}"
    keys = [key for key in begun.settings if found.settings.get(key) != begun.settings[key]]
    return ", ".join(f"{key} was {found.settings.get(key)!r}, not {begun.settings[key]!r}" for key in keys)


def _disk_problem(error: OSError) -> str:
    return f"{error.filename or 'disk'}: {error.strerror or error}; the same command continues"


def _complain(message: str, code: int) -> int:
    text = message.encode("utf-8", "backslashreplace").decode()
    print(f"runner: {text}", file=sys.stderr)
    return code


@dataclass(frozen=True, slots=True)
class NamedSample:
    """A sample, the name of its class and the name of its file."""

    sample: Sample
    text: str
    file: str


class Writer(Protocol):
    """A record file that is being written."""

    def write(self, start: bytes, end: bytes, crc: int) -> None:
        """Append a record, whose payload is `start` and `end` with this CRC32C."""

    def close(self) -> None:
        """Write everything to the device."""


class TFRecordWriter:
    """Writes records with `writev`, without copying them together. `starts` are the offsets so far."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._pieces: list[bytes] = []
        self._waiting = 0
        self.starts = array("q", [0])

    def write(self, start: bytes, end: bytes, crc: int) -> None:
        """Append a record, whose payload is `start` and `end` with this CRC32C."""
        self._pieces += record_file.framed(start, end, crc)
        size = len(start) + len(end) + record_file.FRAME_BYTES
        self._waiting += size
        self.starts.append(self.starts[-1] + size)
        if self._waiting >= WRITE_BYTES or len(self._pieces) >= MOST_PIECES:
            self._flush()

    def close(self) -> None:
        """Write everything to the device."""
        try:
            self._flush()
            os.fsync(self._handle)
        finally:
            os.close(self._handle)

    def _flush(self) -> None:
        written = os.writev(self._handle, self._pieces) if self._pieces else 0
        if written < self._waiting:
            rest = memoryview(b"".join(self._pieces))[written:]
            while rest:
                rest = rest[os.write(self._handle, rest) :]
        self._pieces, self._waiting = [], 0


class ArrayRecordWriter:
    """Writes an ArrayRecord file with one record per chunk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer = source.module().ArrayRecordWriter(str(path), source.WRITER_OPTIONS)

    def write(self, start: bytes, end: bytes, crc: int) -> None:
        """Append a record, whose payload is `start` and `end` with this CRC32C."""
        self._checked(self._writer.write, start + end)

    def close(self) -> None:
        """Write everything to the device."""
        self._checked(self._writer.close)
        with self._path.open("rb") as file:
            os.fsync(file.fileno())

    def _checked(self, call: Callable[..., Any], *arguments: bytes) -> None:
        try:
            call(*arguments)
        except RuntimeError as error:
            raise OSError(errno.EIO, f"cannot be written: {str(error).splitlines()[0]}", str(self._path)) from None


def write_file(path: Path, kind: str, samples: Iterable[NamedSample]) -> RecordFile:
    """Write, verify and publish a record file. Raises OSError, or `InputDataError` if the source cannot be read."""
    partial = path.with_name(f".{path.name}.part")
    try:
        writer = TFRecordWriter(partial) if kind == shards.TFRECORD else ArrayRecordWriter(partial)
        wanted = array("q")
        try:
            for named in samples:
                start = before_image(named.sample, named.text, named.file)
                wanted.append(record_file.checksum(start, named.sample.data))
                writer.write(start, named.sample.data, wanted[-1])
        finally:
            writer.close()
        _verify(partial, kind, wanted)
        if isinstance(writer, TFRecordWriter):
            write_index(path, writer.starts)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return RecordFile(path.name, len(wanted), path.stat().st_size)


def existing(path: Path, kind: str, records: int) -> RecordFile | None:
    """Return what is known of a file that an earlier start of the command finished; None if it must be written."""
    if not path.exists():
        return None
    if kind == shards.TFRECORD:
        starts = record_file.stored_offsets(path)
        found = None if starts is None else len(starts) - 1
    else:
        try:
            found = source.record_count(path)
        except InputDataError:
            found = None
    return RecordFile(path.name, records, path.stat().st_size) if found == records else None


def write_index(path: Path, starts: array[int]) -> None:
    """Write the offsets of the records and the file's size beside a TFRecord file, as little-endian 64-bit numbers."""
    index = path.with_name(path.name + record_file.INDEX_SUFFIX)
    partial = index.with_name(f".{index.name}.part")
    partial.write_bytes(np.array(starts, "<i8").tobytes())
    partial.replace(index)


def _verify(path: Path, kind: str, wanted: array[int]) -> None:
    """Compare the records of a file with the checksums of what was to be written."""
    number = -1
    try:
        for number, crc in enumerate(_checksums(path, kind, len(wanted))):
            if number % VERIFY_RUN == 0:
                check_stopped()
            if number >= len(wanted) or crc != wanted[number]:
                raise _not_written(path, f"record {number} differs from its source")
    except InputDataError as error:
        raise _not_written(path, str(error)) from None
    if number + 1 != len(wanted):
        raise _not_written(path, f"has {number + 1} of {len(wanted)} records")


def _checksums(path: Path, kind: str, count: int) -> Iterator[int]:
    """Yield the CRC32C of each record of a file, computed from what the file contains now."""
    if kind == shards.TFRECORD:
        yield from (crc for _, crc in record_file.checked_records(path))
        return
    identity = source.identity(path)
    for first in range(0, count, VERIFY_RUN):
        payloads = source.payloads(path, identity, first, min(VERIFY_RUN, count - first))
        yield from map(record_file.checksum, payloads)
    source.close_files()


def _not_written(path: Path, reason: str) -> OSError:
    text = f"the file is not what was written ({reason}); check the disk and the memory of this machine"
    return OSError(errno.EIO, text, str(path))
