"""Containers as parents of a cell's process: a container per cell, or one with the fork server.

Both implement the `Parent` of `runner.executors.supervise.watch`, so that a cell in a container is sampled, judged,
ended and reported as any other process of this machine: they share the kernel, so that the host has ids of all its
processes.

A module of its own: it is the seam `Parent`, as processes of this machine have another.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_matrix.records.schema import Container
from keras_matrix.records.trees import remove_tree
from keras_matrix.runner.executors.docker.engine import Engine, EngineGone, Started
from keras_matrix.runner.executors.process.fork_servers import ANSWER_LIMIT_S, Server
from keras_matrix.runner.executors.supervise.watch import MESSAGE_BYTES, CappedOutput, ServerGone
from keras_matrix.runner.machine import tree_memory

SOCKET = "socket"
OOM_PAUSES_S = (0.05, 0.15, 0.3)
LAST_SIGNAL = 64
WORDS_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class Keeper:
    """Manages a container: its engine, its description for the record, and the function that removes it."""

    engine: Engine
    container: Container
    remove: Callable[[str], None]


class CellContainer:
    """A container of a single cell, whose first process is the cell's.

    A thread of the runner waits for its end, blocked in one read; it also forwards the cell's output.
    """

    def __init__(self, keeper: Keeper, start: Callable[[], Started]) -> None:
        """Take the function that starts the container."""
        self.container: Container | None = keeper.container
        self.alone = True
        self._keeper, self._start = keeper, start
        self._started: Started | None = None
        self.root: int | None = None
        self.connection, self._writer = os.pipe()

    def begin(self, order: dict[str, Any], output: int) -> int:
        """Start the container, whose command has replaced the order."""
        try:
            self._started = self._start()
        except BaseException:
            os.close(self.connection)
            os.close(self._writer)
            raise
        follow = threading.Thread(target=self._follow, args=(self._started, os.dup(output)), daemon=True)
        follow.start()
        self.root = self._started.pid or None  # 0: it had ended before its pid was read
        return self._started.pid

    def receive(self) -> dict[str, Any]:
        """Return how the container ended. Raises `ServerGone` if the engine stopped answering before."""
        ending: dict[str, Any] = json.loads(os.read(self.connection, MESSAGE_BYTES))
        if "gone" in ending:
            raise ServerGone(ending["gone"])
        return ending

    def kill(self, pid: int) -> None:
        """End the container; its processes are killed directly in case the engine does not answer."""
        if self._started is not None:
            with contextlib.suppress(EngineGone):
                self._keeper.engine.kill(self._started.container_id)
        if pid > 0:  # it had not ended before its pid was read
            tree_memory.kill_tree(pid)

    def release(self) -> None:
        """Remove the container."""
        if self._started is not None:
            self._keeper.remove(self._started.container_id)
            self._started = None
        os.close(self.connection)

    def _follow(self, started_container: Started, output: int) -> None:
        engine = self._keeper.engine
        try:
            for printed in started_container.output:
                _forward(printed, output)
            code = engine.wait(started_container.container_id)
            ending: dict[str, Any] = {
                "exited": wait_status(code),
                "oom_kills": int(_oom_killed(engine, started_container.container_id, wait_status(code))),
            }
        except EngineGone as error:
            ending = {"gone": str(error)}
        except OSError as error:  # the engine's stream of the cell's output was interrupted
            ending = {"gone": f"engine: the stream of its output was interrupted: {error}"}
        os.close(output)
        with contextlib.suppress(OSError):  # there is no reader any more
            os.write(self._writer, json.dumps(ending).encode())
        os.close(self._writer)


def _oom_killed(engine: Engine, container_id: str, status: int) -> bool:
    """Return whether the kernel killed a process of an ended container for memory.

    The engine learns of the kill and of the end by two events: on a busy machine it may report the end first.
    """
    was_killed = engine.oom_killed(container_id)
    for pause_s in OOM_PAUSES_S if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL else ():
        if was_killed:
            break
        time.sleep(pause_s)
        was_killed = engine.oom_killed(container_id)
    return was_killed


class ContainerServer(Server):
    """A warm container with the fork server, for the cells of one backend in one block."""

    def __init__(self, keeper: Keeper, started_container: Started, home: Path, listener: socket.socket) -> None:
        """Wait until the server has connected. Raises `ServerGone` if its container ends before."""
        self._keeper, self._started, self._home = keeper, started_container, home
        self._printed = CappedOutput()
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            super().__init__(self._accepted(listener))
        except BaseException:
            self._drop()
            raise
        self.container = keeper.container
        self.root = started_container.pid

    def begin(self, order: dict[str, Any], output: int) -> int:
        """Start a process through the server; return its pid on this machine."""
        inner = super().begin(order, output)
        inner_pids = (pid for pid in tree_memory.tree(self._started.pid) if pid_inside(pid) == inner)
        return next(inner_pids, self._started.pid)

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Return its next message; for an end by SIGKILL, with whether the kernel killed the process for memory."""
        message = super().receive(timeout_s)
        if "exited" in message:
            was_killed = os.WIFSIGNALED(message["exited"]) and os.WTERMSIG(message["exited"]) == signal.SIGKILL
            message["oom_kills"] = self._oom_kills() if was_killed else 0
        return message

    def _oom_kills(self) -> int:
        """End the container and read its state, which the engine reports after its end, for all its processes."""
        self.gone = True
        engine, container_id = self._keeper.engine, self._started.container_id
        try:
            engine.kill(container_id)
            engine.wait(container_id)
            return int(_oom_killed(engine, container_id, signal.SIGKILL))
        except EngineGone as error:
            raise ServerGone(str(error)) from error

    def how_it_ended(self) -> str:
        """Return the last line that it printed."""
        words = self._printed.text().strip()[-WORDS_CHARACTERS:]
        return f": {words.splitlines()[-1]}" if words else ""

    def close(self) -> None:
        """End it, its container and its home."""
        super().close()
        self._drop()

    def _drop(self) -> None:
        self._keeper.remove(self._started.container_id)
        remove_tree(self._home)

    def _accepted(self, listener: socket.socket) -> socket.socket:
        listener.settimeout(1.0)
        for _ in range(round(ANSWER_LIMIT_S)):
            with contextlib.suppress(TimeoutError):
                return listener.accept()[0]
            if not Path(f"/proc/{self._started.pid}").exists():
                break
        raise ServerGone(f"server: the container with the fork server did not connect{self.how_it_ended()}")

    def _listen(self) -> None:
        with contextlib.suppress(EngineGone, OSError):
            for printed in self._started.output:
                self._printed.add(printed)


def listening(home: Path) -> socket.socket:
    """Return a socket in this folder to which a server in a container can connect."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(home / SOCKET))
    listener.listen(1)
    return listener


def wait_status(exit_code: int) -> int:
    """Return the wait status for a container's exit code: 128 plus a signal's number, or a plain code.

    A cell that exits with such a code cannot be distinguished from one that the signal ended.
    """
    number = exit_code - 128
    return number if 0 < number <= LAST_SIGNAL else exit_code << 8


def pid_inside(pid: int) -> int | None:
    """Return the pid that a process of this machine has in its own container; None if it cannot be read."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
        return int(status.partition("NSpid:")[2].splitlines()[0].split()[-1])
    return None


def _forward(printed: bytes, output: int) -> None:
    """Write all of it, or nothing more once there is no reader: the cell must not wait for the runner."""
    with contextlib.suppress(BrokenPipeError):
        while printed:
            printed = printed[os.write(output, printed) :]
