"""Puts a seam before the operations of Python's `os`, `io`, `fcntl`, `subprocess`, `socket` and of `requests`.

Only for a process that ends afterwards: nothing is restored.
"""

from __future__ import annotations

import builtins
import contextlib
import fcntl
import io
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.reliability.failpoints.durability import Syncs
from tests.reliability.failpoints.kinds import Kind
from tests.reliability.failpoints.seam import Seam

FILES = {  # of `os`: the name in the journal; paths and descriptors are the first argument, of two paths the last one
    "fdatasync": "fsync",
    "fsync": "fsync",
    "ftruncate": "truncate",
    "link": "link",
    "listdir": "listdir",
    "lstat": "lstat",
    "mkdir": "mkdir",
    "remove": "unlink",
    "rename": "rename",
    "replace": "replace",
    "rmdir": "rmdir",
    "scandir": "scandir",
    "stat": "stat",
    "symlink": "symlink",
    "truncate": "truncate",
    "unlink": "unlink",
}
LAST = ("link", "rename", "replace", "symlink")
PROCESSES = {"fork": "fork", "kill": "kill", "killpg": "kill", "waitpid": "wait", "waitid": "wait"}
SENDING = {"connect": "connect", "send": "send", "sendall": "send", "recv": "receive", "recv_into": "receive"}
OPEN, READLINK = io.open, os.readlink
PATH_OF = "/proc/self/fd/{}"


def install(seam: Seam, syncs: Syncs | None = None) -> None:
    """Put the seam before the operations of this process; `syncs` learns what became durable."""
    for name, operation in FILES.items():
        setattr(os, name, _file_call(seam, getattr(os, name), name, operation))
    if syncs is not None:
        os.fsync = syncs.noting(os.fsync)  # type: ignore[assignment]
    _patch_open(seam)
    fcntl.flock = _failing(seam, fcntl.flock, "flock", lambda args, kwargs: _path(args[0]))
    for name, operation in PROCESSES.items():
        setattr(os, name, _failing(seam, getattr(os, name), operation, lambda args, kwargs: ""))
    execute = "_execute_child"
    setattr(subprocess.Popen, execute, _failing(seam, getattr(subprocess.Popen, execute), "exec", _nothing))
    for name, operation in SENDING.items():
        setattr(socket.socket, name, _sending(_failing(seam, getattr(socket.socket, name), operation, _nothing)))
    if "requests" in sys.modules:
        _patch_requests(seam)


def _patch_requests(seam: Seam) -> None:
    """Count HTTP requests; one fails before the service gets it, or after it has answered."""
    import requests
    from requests.adapters import HTTPAdapter

    send = HTTPAdapter.send

    def sent(self: Any, request: Any, *arguments: Any, **options: Any) -> Any:
        kind = seam.reach("request", "")
        if kind is Kind.BUSY:
            answer = requests.Response()
            answer.status_code, answer.request, answer.url = 503, request, request.url
            answer.headers["Content-Type"] = "application/json"
            answer._content = b'{"error": {"code": 503, "message": "busy", "errors": [{"reason": "backendError"}]}}'
            return answer
        answer = send(self, request, *arguments, **options)
        if kind is Kind.UNANSWERED:
            raise requests.ConnectionError("the connection was reset before the answer")
        return answer

    HTTPAdapter.send = sent  # type: ignore[method-assign]


def _nothing(args: Any, kwargs: Any) -> str:
    return ""


def _sending(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call on a socket after whose reset the connection has ended for both sides, as after a real one.

    urllib3 ignores a reset while it sends, since the service may have answered before, and waits for that answer.
    """

    def sent(connection: socket.socket, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(connection, *args, **kwargs)
        except ConnectionResetError:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            raise

    return sent


def _failing(seam: Seam, call: Callable[..., Any], name: str, path_of: Callable[[Any, Any], str]) -> Callable[..., Any]:
    """Return a call that the seam is asked about first; one with a path only below the seam's folder."""

    def operation(*args: Any, **kwargs: Any) -> Any:
        path = path_of(args, kwargs)
        if not path or seam.covers(path):
            check(seam.reach(name, path), path)
        return call(*args, **kwargs)

    return operation


def _file_call(seam: Seam, call: Callable[..., Any], name: str, operation: str) -> Callable[..., Any]:
    def path_of(args: Any, kwargs: Any) -> str:
        index = 1 if name in LAST else 0
        if len(args) <= index:
            return _path(kwargs.get("path", "."), kwargs.get("dir_fd"))
        return _path(args[index], kwargs.get("dir_fd"))

    return _failing(seam, call, operation, path_of)


def check(kind: Kind | None, path: str) -> None:
    """Raise the error of a kind of failure that has one."""
    if kind is not None and kind.errno is not None:
        raise OSError(kind.errno, os.strerror(kind.errno), *([path] if path else []))


def _path(file: Any, folder: int | None = None) -> str:
    """Return the absolute path of a path or a descriptor."""
    if isinstance(file, int):
        return _of_descriptor(file)
    if hasattr(file, "fileno"):
        return _of_descriptor(file.fileno())
    text = os.fsdecode(file)
    return text if text.startswith("/") else f"{_of_descriptor(folder) if folder is not None else Path.cwd()}/{text}"


def _of_descriptor(descriptor: int) -> str:
    try:
        return READLINK(PATH_OF.format(descriptor))
    except OSError:
        return "closed"


def _patch_open(seam: Seam) -> None:
    opened, written = os.open, os.write

    def os_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        full = _path(path, dir_fd)
        if seam.covers(full):
            name = "create" if flags & os.O_CREAT else "append" if flags & (os.O_WRONLY | os.O_RDWR) else "open"
            check(seam.reach(name, full), full)
        return opened(path, flags, mode, dir_fd=dir_fd)

    def os_write(descriptor: int, data: Any) -> int:
        path = _of_descriptor(descriptor)
        if seam.covers(path):
            _torn(seam, path, data, lambda part: written(descriptor, part))
        return written(descriptor, data)

    def io_open(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any) -> Any:
        path = _path(file)
        if not seam.covers(path):
            return OPEN(file, mode, buffering, *args, **kwargs)
        check(seam.reach("open" if "r" in mode and "+" not in mode else "create", path), path)
        return _file(seam, path, (file, mode, buffering), args, kwargs)

    os.open, os.write = os_open, os_write
    io.open = builtins.open = io_open


def _torn(seam: Seam, path: str, data: Any, write: Callable[[Any], Any]) -> None:
    """Count a write; half of one that fails is done. As on a real disk, the error of a write names no file."""
    kind = seam.reach("write", path)
    if kind is not None:
        write(memoryview(data).cast("B")[: len(data) // 2])
        if kind.kills:
            seam.die()
        check(kind, "")


class Raw(io.FileIO):
    """A file below Python's buffers whose reads and writes reach a seam."""

    seam: Seam
    path: str

    def write(self, data: Any) -> int:
        """Write, or fail half way."""
        _torn(self.seam, self.path, data, super().write)
        return super().write(data)

    def readinto(self, buffer: Any) -> int:
        """Read, or fail."""
        check(self.seam.reach("read", self.path), "")
        return super().readinto(buffer)

    def readall(self) -> bytes:
        """Read everything, or fail."""
        check(self.seam.reach("read", self.path), "")
        return super().readall()


def _file(seam: Seam, path: str, opening: tuple[Any, str, int], args: Any, kwargs: Any) -> Any:
    """Open a file as `io.open` does, on a `Raw`."""
    file, mode, buffering = opening
    text = dict(zip(("encoding", "errors", "newline", "closefd", "opener"), args, strict=False)) | kwargs
    raw = Raw(file, mode.replace("b", "").replace("t", ""), text.pop("closefd", True), text.pop("opener", None))
    raw.seam, raw.path = seam, path
    if buffering == 0:
        return raw
    buffer: Any = io.BufferedRandom if "+" in mode else io.BufferedReader if "r" in mode else io.BufferedWriter
    if "b" in mode:
        return buffer(raw)
    wrapped = io.TextIOWrapper(buffer(raw), **text)
    wrapped.mode = mode  # type: ignore[misc]
    return wrapped
