"""A small parent for cells: forks one at a time and reports how it ended.

With a backend's name it imports Keras and that backend first, so that a forked child starts in milliseconds; without
one it stays light and its children become fresh interpreters. It initialises no device and runs no operation, so that
the backend of a child is in the state of a fresh interpreter.

When a cell has ended, all processes that it started are ended, in any session (this process is the subreaper); when the
runner ends, so do all processes here. Protocol, over one socket, lines of JSON:

    -> {"ready": seconds, "mapped": bytes}         or {"failed": text}
    <- {"job": path, "argv": [..] | null, "env": {..} | null, "cpus": [..] | null, "folder": path}   with one descriptor
       for its output; "folder", which may be missing, is where a program of "argv" works
    -> {"started": pid}
    -> {"exited": wait status, "cpu_s": seconds, "outlived": processes that were left and were ended, or null}
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from keras_matrix.records.host import device_lists
from keras_matrix.records.host.platform import PLATFORM
from keras_matrix.runner.cell import memory
from keras_matrix.runner.cell.entry import import_backend, run_job
from keras_matrix.runner.cell.job import leave

MESSAGE_BYTES = 1 << 16


def serve(connection: socket.socket, backend: str) -> None:
    """Serve until the runner closes the connection."""
    PLATFORM.adopt_orphans()
    PLATFORM.follow_parent()  # during the import, which takes seconds; later it must first end what its cell has left
    if select.select([connection], [], [], 0)[0]:  # nothing is received before "ready": the runner has already ended
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if cpus := device_lists.parse_cpus(os.environ.get(device_lists.CPUS_VARIABLE, "")):
        PLATFORM.bind(cpus)  # before the first import, so that all threads and pages are created there
    try:
        import_time_s = import_backend() if backend else 0.0
    except BaseException as error:  # noqa: BLE001 - an import error is reported, then cells start fresh
        traceback.print_exc()
        _send(connection, {"failed": f"{type(error).__name__}: {error}"[:2000]})
        return
    PLATFORM.follow_parent(enabled=False)
    mapped = memory.mapped_file_bytes()
    _send(connection, {"ready": import_time_s, "mapped": mapped})
    while True:
        message, descriptors = _received(connection)
        if not message:
            return
        order = json.loads(message)
        pid = os.fork()
        if pid == 0:
            connection.close()
            _become_cell(order, descriptors[0], import_time_s, mapped)
        os.close(descriptors[0])
        _send(connection, {"started": pid})
        _send(connection, _await(connection, pid))


def _become_cell(order: dict[str, Any], output: int, import_time_s: float, mapped: int) -> NoReturn:
    code = 1
    try:
        os.setsid()
        PLATFORM.follow_parent()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        if order["cpus"]:
            PLATFORM.bind(order["cpus"])
        if order["argv"]:
            os.chdir(order.get("folder", "."))
            os.execve(order["argv"][0], order["argv"], order["env"])
        if order["env"] is not None:
            os.environ.clear()
            os.environ.update(order["env"])
        memory.set_server_file_bytes(mapped)
        code = run_job(Path(order["job"]), import_time_s, "fork")
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:  # noqa: BLE001 - the process boundary
        traceback.print_exc()
    finally:
        leave(code)
    raise AssertionError("a cell's process has ended")


def _await(connection: socket.socket, pid: int) -> dict[str, Any]:
    """Wait for the child, then end the processes that it left. Ends everything when the runner has ended."""
    ended_process = PLATFORM.await_end(pid, connection)  # a busy server receives nothing but the end of the runner
    outlived = PLATFORM.end_children(pid)
    if ended_process is None:
        leave(0)
    assert ended_process is not None, "the process has left"
    status, cpu_s = ended_process
    return {"exited": status, "cpu_s": cpu_s, "outlived": outlived}


def _received(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next message, which a stream may deliver in parts, and its descriptor; empty at the end."""
    message, descriptors = b"", list[int]()
    while not message.endswith(b"\n"):
        part, received, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, 1)
        if not part:
            return b"", descriptors
        message += part
        descriptors += received
    return message, descriptors


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    try:
        connection.sendall(json.dumps(message).encode() + b"\n")
    except (BrokenPipeError, ConnectionResetError):
        leave(0)


def _connected(address: str) -> socket.socket:
    """Return the connection to the runner: an inherited descriptor, or in a container the path of a socket."""
    if address.isdecimal():
        return socket.socket(fileno=int(address))
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(address)
    return connection


if __name__ == "__main__":
    serve(_connected(sys.argv[1]), sys.argv[2])
    leave(0)
