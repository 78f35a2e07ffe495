"""Cells as processes of this machine: forked from a server that has imported the backend, or fresh interpreters.

A server is keyed by the environment its backend was imported under, since variables read at import do nothing after a
fork. It is replaced at every block of repeats: children of one server share its address layout and hash seed. On an
accelerator, and where a server cannot start, cells are fresh interpreters.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from records.schema import Surroundings
from records.settings import Settings
from runner.cell.job import Job, make_home, write_job
from runner.executors import Outcome, process_tree
from runner.executors.environment import ALLOWED, MARK, allowed_cpus, cell_environment
from runner.executors.output import CappedOutput

SAMPLE_S = 0.5
SERVER_START_LIMIT_S = 120.0
BACKEND_MODULES = {"tensorflow": "tensorflow", "jax": "jax", "torch": "torch"}
EXTRAS = {"tensorflow": "tf-cpu", "jax": "jax-cpu", "torch": "torch-cpu"}
MESSAGE_BYTES = 1 << 16


class ServerGone(Exception):
    """The server of a cell ended or refused; the message says how."""


@dataclass(slots=True)
class Server:
    """A running `runner.cell.server` and the runner's end of its socket."""

    process: subprocess.Popen[bytes]
    connection: socket.socket

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Return its next message. Raises `ServerGone`."""
        self.connection.settimeout(timeout_s)
        try:
            message = self.connection.recv(MESSAGE_BYTES)
        except (OSError, TimeoutError) as error:
            raise ServerGone(f"the cell's server did not answer: {error}") from error
        if not message:
            raise ServerGone(f"the cell's server ended (exit status {self.process.poll()})")
        found: dict[str, Any] = json.loads(message)
        return found

    def close(self) -> None:
        """End it and all that it started."""
        self.connection.close()
        process_tree.kill_tree(self.process.pid)
        self.process.wait()


class ProcessExecutor:
    """Runs each cell in a process of its own."""

    name = "process"

    def __init__(self, *, start: str = "fork", mark: str = "") -> None:
        self._start = start
        self._mark = mark
        self._servers: dict[tuple[tuple[str, str], ...], Server | None] = {}
        self._missing: dict[str, str | None] = {}

    def missing(self, backend: str) -> str | None:
        """Return why this backend cannot run here, None when it can. Looks for the package, imports nothing."""
        if backend not in self._missing:
            absent = [name for name in ("keras", BACKEND_MODULES[backend]) if importlib.util.find_spec(name) is None]
            self._missing[backend] = (
                f"backend_not_installed: {' and '.join(absent)} cannot be found by {sys.executable}; "
                f"install it with: pip install 'keras-benchmark-matrix[{EXTRAS[backend]}]'"
                if absent
                else None
            )
        return self._missing[backend]

    def begin_block(self, settings: Sequence[Settings]) -> None:
        """End every server, since the next block's children must not share one with this block's; start the new ones.

        They start side by side: importing keeps one core busy, and nothing is measured meanwhile.
        """
        self.close()
        forked = [s for s in settings if self._forks(s) and not self.missing(s.backend)]
        wanted = {_key(environment): environment for environment in (self._environment(s) for s in forked)}
        started = {key: _launch_server(environment) for key, environment in wanted.items()}
        self._servers = dict(started)
        for key, server in started.items():
            self._servers[key] = _when_ready(server)

    def close(self) -> None:
        """End every server."""
        while self._servers:
            _, server = self._servers.popitem()
            if server is not None:
                server.close()

    def run(self, job: Job, timeout_s: float) -> Outcome:
        """Run the job in a new process and watch it to its end."""
        environment = self._environment(job.settings)
        write_job(job)
        begun_s = time.perf_counter()
        try:
            server = self._server(environment) if self._forks(job.settings) else None
            order: dict[str, Any] = {
                "job": str(job.path),
                "argv": None,
                "env": environment,
                "cpus": allowed_cpus(job.settings),
            }
            if server is None:
                server = self._light_server()
                order |= {
                    "argv": [sys.executable, "-P", "-m", "runner.cell.entry", str(job.path)],
                    "env": environment | make_home(job),
                }
            return _Watch(server, begun_s).run(order, timeout_s)
        except ServerGone as error:
            self.close()
            return Outcome(infrastructure=f"server: {error}", wall_time_s=time.perf_counter() - begun_s)
        except BaseException:
            self.close()
            raise

    def _environment(self, settings: Settings) -> dict[str, str]:
        return cell_environment(settings, self._mark)

    def _forks(self, settings: Settings) -> bool:
        return self._start == "fork" and settings.device == "cpu"

    def _server(self, environment: dict[str, str]) -> Server | None:
        key = _key(environment)
        if key not in self._servers:
            self._servers[key] = _when_ready(_launch_server(environment))
        return self._servers[key]

    def _light_server(self) -> Server:
        server = self._server(light_environment(self._mark))
        if server is None:
            raise ServerGone("the light server for fresh interpreters did not start")
        return server


def _key(environment: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(environment.items()))


def _launch_server(environment: dict[str, str]) -> Server:
    """Start a server's process; with no backend in its environment it is the light one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    backend = environment.get("KERAS_BACKEND", "")
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "runner.cell.server", str(theirs.fileno()), backend],
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return Server(process, ours)


def _when_ready(server: Server) -> Server | None:
    """Wait for a server; None when its backend cannot be imported, so that its cells start fresh and say why."""
    try:
        ready = "ready" in server.receive(SERVER_START_LIMIT_S)
    except ServerGone:
        ready = False
    except BaseException:
        server.close()
        raise
    if not ready:
        server.close()
        return None
    return server


def light_environment(mark: str) -> dict[str, str]:
    """Return the environment of the light server, whose children get their own."""
    return {name: os.environ[name] for name in ALLOWED if name in os.environ} | {MARK: mark}


@dataclass(slots=True)
class _Watch:
    """Watches one process: its output, its memory, its time, its end."""

    server: Server
    begun_s: float
    output: CappedOutput = field(default_factory=CappedOutput)
    peak_bytes: int = 0
    deadline_exceeded: bool = False

    def run(self, order: dict[str, Any], timeout_s: float) -> Outcome:
        before, kills, load = process_tree.cpu_times(), process_tree.oom_kills(), os.getloadavg()[0]
        ours_s = time.process_time()
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        try:
            with contextlib.suppress(OSError):
                socket.send_fds(self.server.connection, [json.dumps(order).encode()], [writer])
            os.close(writer)
            pid = int(self.server.receive(SERVER_START_LIMIT_S)["started"])
            start_time_s = time.perf_counter() - self.begun_s
            ended = self._until_end(pid, reader, time.perf_counter() + timeout_s)
        finally:
            self.output.drain(reader)
            os.close(reader)
        wall_time_s = time.perf_counter() - self.begun_s
        parent_s = time.process_time() - ours_s
        code = os.waitstatus_to_exitcode(ended["exited"])
        surroundings = _surroundings(before, load, ended["cpu_s"] + parent_s)
        return Outcome(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            deadline_exceeded=self.deadline_exceeded,
            oom_kills=process_tree.oom_kills() - kills,
            output_tail=self.output.text(),
            wall_time_s=wall_time_s,
            start_time_s=start_time_s,
            parent_cpu_time_s=parent_s,
            peak_tree_memory_bytes=self.peak_bytes or None,
            surroundings=surroundings,
        )

    def _until_end(self, pid: int, reader: int, deadline_s: float) -> dict[str, Any]:
        """Read output and sample memory until the server tells of the end; kill the tree at the deadline."""
        waiting: list[Any] = [self.server.connection, reader]
        try:
            while True:
                readable, _, _ = select.select(waiting, [], [], SAMPLE_S)
                if self.server.connection in readable:
                    return self.server.receive()
                if reader in readable and not self.output.drain(reader):
                    waiting.remove(reader)
                self.peak_bytes = max(self.peak_bytes, process_tree.resident_bytes(pid))
                if time.perf_counter() > deadline_s and not self.deadline_exceeded:
                    self.deadline_exceeded = True
                    process_tree.kill_tree(pid)
        except BaseException:
            process_tree.kill_tree(pid)
            raise


def _surroundings(before: process_tree.CpuTimes | None, load: float, own_s: float) -> Surroundings:
    after = process_tree.cpu_times()
    around = Surroundings(load_before=load, load_after=os.getloadavg()[0])
    if before is None or after is None or after.total_s <= before.total_s:
        return around
    total_s = after.total_s - before.total_s
    return replace(
        around,
        steal_share=(after.steal_s - before.steal_s) / total_s,
        other_cpu_share=max(0.0, after.busy_s - before.busy_s - own_s) / total_s,
    )
