"""The fork servers of a block: launched concurrently, awaited later, replaced if one has ended.

A server is keyed by everything that affects its import, since settings read at import have no effect after a fork. It
is replaced at every block of repeats: children of one server share its address layout and hash seed.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar

from keras_matrix.records.schema import Container
from keras_matrix.runner.executors.supervise.watch import MESSAGE_BYTES, ServerGone
from keras_matrix.runner.machine import tree_memory

K = TypeVar("K", bound=Hashable)
ANSWER_LIMIT_S = 120.0
CLOSE_LIMIT_S = 2.0


class Server:
    """A running `runner.cell.server` and the runner's end of its socket; it runs one process at a time."""

    container: Container | None = None
    alone = False  # its processes share its control group, also in a container
    root: int | None = None  # the server's own process; it runs one cell at a time, so all its children are that cell's

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.busy = False
        self.gone = False

    def begin(self, order: dict[str, Any], output: int) -> int:
        """Start a process through the server. Raises `ServerGone`."""
        with contextlib.suppress(OSError):
            text = json.dumps(order).encode() + b"\n"
            sent_bytes = socket.send_fds(self.connection, [text], [output])
            self.connection.sendall(text[sent_bytes:])
        pid = int(self.receive(ANSWER_LIMIT_S)["started"])
        self.busy = True
        return pid

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Return its next message. Raises `ServerGone`."""
        self.connection.settimeout(timeout_s)
        try:
            message = self._line()
        except OSError as error:
            self.gone = True
            raise ServerGone(f"server: the cell's server did not answer: {error}") from error
        if not message:
            self.gone = True
            raise ServerGone(f"server: the cell's server ended{self.how_it_ended()}")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _line(self) -> bytes:
        """Return the next line and receive no more: another one must keep the connection readable. Empty at the end."""
        line = b""
        while not line.endswith(b"\n"):
            waiting_data = self.connection.recv(MESSAGE_BYTES, socket.MSG_PEEK)
            end = waiting_data.find(b"\n") + 1 or len(waiting_data)
            if not end:
                return b""
            line += self.connection.recv(end)
        return line

    def kill(self, pid: int) -> None:
        """End a process that it started, and all below it."""
        tree_memory.kill_tree(pid)

    def release(self) -> None:
        """Its process has ended."""
        self.busy = False

    def how_it_ended(self) -> str:
        """Return how the server itself ended, for messages: empty if unknown."""
        return ""

    def close(self) -> None:
        """Close the connection, on which the server ends itself and all its processes."""
        self.connection.close()


class ProcessServer(Server):
    """A server that is a process of this machine."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        super().__init__(connection)
        self.process = process
        self.root = process.pid

    def how_it_ended(self) -> str:
        """Return its exit status, if it already has one."""
        return f" (exit status {self.process.poll()})"

    def close(self) -> None:
        """End it and its processes: it ends itself when the connection closes, unless it is still importing."""
        super().close()
        try:
            self.process.wait(CLOSE_LIMIT_S)
        except subprocess.TimeoutExpired:
            tree_memory.kill_tree(self.process.pid)
            self.process.wait()


class Servers(Generic[K]):
    """The running servers by key."""

    def __init__(self, launch: Callable[[K], Server]) -> None:
        """Take the function that launches the server of a key without waiting for it."""
        self._launch = launch
        self._servers: dict[K, Server | None] = {}
        self._launched: dict[K, Server] = {}

    def launch(self, keys: Iterable[K]) -> None:
        """Launch a server for each of these keys, concurrently: an import keeps only one core busy."""
        for key in dict.fromkeys(keys):
            self._servers[key] = self._launched[key] = self._launch(key)

    def await_launched(self) -> None:
        """Wait for the servers that were launched."""
        while self._launched:
            key, server = self._launched.popitem()
            self._servers[key] = _when_ready(server)

    def of(self, key: K) -> Server | None:
        """Return the server of a key, a new one if it is missing or has ended; None if it cannot start."""
        server = self._servers.get(key)
        if server is not None and server.gone:
            server.close()
            del self._servers[key]
        if key not in self._servers:
            self._servers[key] = _when_ready(self._launch(key))
        return self._servers[key]

    def close(self) -> None:
        """End every server."""
        self._launched.clear()
        while self._servers:
            _, server = self._servers.popitem()
            if server is not None:
                server.close()


def _when_ready(server: Server) -> Server | None:
    """Wait for a server; None if its backend cannot be imported, so that its cells start fresh and report why."""
    try:
        is_ready = "ready" in server.receive(ANSWER_LIMIT_S)
    except ServerGone:
        is_ready = False
    except BaseException:
        server.close()
        raise
    if not is_ready:
        server.close()
        return None
    return server
