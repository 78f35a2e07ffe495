"""Cells as processes of this machine: forked from a server that has imported the backend, or fresh interpreters.

A server is keyed by the environment of its backend's import (`runner.executors.process.fork_servers`). On an
accelerator, and if a server cannot start, cells are fresh interpreters.
"""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from keras_matrix.records.backends import service_name, without_wheel
from keras_matrix.records.codec import canonical
from keras_matrix.records.host.inherited_environment import MARK
from keras_matrix.records.host.platform import PLATFORM
from keras_matrix.records.instruments.stall_arms import base_of
from keras_matrix.records.settings import PIPELINE, Settings
from keras_matrix.records.trees import remove_tree
from keras_matrix.runner.cell.job import Job, make_home, write_job
from keras_matrix.runner.executors import Outcome, Running
from keras_matrix.runner.executors.process.fork_servers import ProcessServer, Server, Servers
from keras_matrix.runner.executors.process.interpreter import Interpreter
from keras_matrix.runner.executors.supervise.environment import (
    ALLOWED,
    allowed_cpus,
    autotuning,
    cell_environment,
    cuda_cache,
)
from keras_matrix.runner.executors.supervise.visible_gpus import (
    CellClocks,
    GpusUnavailable,
    gpus_of,
    order_warnings,
    without_gpus,
)
from keras_matrix.runner.executors.supervise.watch import Never, ServerGone, Watch
from keras_matrix.runner.executors.tasks.start import NotStarted, command_of
from keras_matrix.runner.executors.tasks.watch import TaskWatch, never

# Distinguishes the servers of one environment: each runs one process at a time.
SERVER = "KERAS_BENCHMARK_SERVER"

Key = tuple[tuple[str, str], ...]


class ProcessExecutor:
    """Runs each cell in its own process."""

    name = "process"

    def __init__(
        self,
        *,
        start: str = "fork",
        mark: str = "",
        interpreter: Interpreter | None = None,
        scratch: Path | None = None,
    ) -> None:
        """Take the interpreter of the cells, by default this one, and the folder for the servers' home."""
        self._start = start
        self._mark = mark
        self._scratch = scratch
        self._interpreter = interpreter or Interpreter(sys.executable)
        self._servers: Servers[Key] = Servers(
            lambda key: _launch_server(self._interpreter.python, dict(key), self._server_command)
        )
        self._home: str | None = None
        self._missing: dict[tuple[str, str], str | None] = {}
        self._clocks = CellClocks()

    def missing(self, backend: str, device: str = "cpu") -> str | None:
        """Return why this backend cannot run here, None when it can. Looks for the package, imports nothing.

        Only the cell itself can prove that the device is available.
        """
        if (backend, device) not in self._missing:
            absent = self._interpreter.absent(("keras", backend))
            self._missing[backend, device] = self._advice(absent, backend, device) if absent else None
        return self._missing[backend, device]

    def _advice(self, absent: Sequence[str], backend: str, device: str) -> str:
        python = self._interpreter.python
        install = f"pip install 'keras-matrix[{service_name(backend, device)}]'"
        if self._interpreter.foreign:
            install = f"{python} -m pip install {' '.join(absent)}"
        return (
            f"backend_not_installed: {' and '.join(absent)} cannot be found by {python}; "
            f"{without_wheel(backend, self._interpreter.version()) or f'install it with: {install}'}, "
            "or choose other backends with --backend"
        )

    def begin_block(self, settings: Sequence[Settings]) -> None:
        """End every server, since the next block must not share one with this block; launch the new ones.

        They start concurrently, including those of other arms.
        """
        self.close()
        forked = [s for s in settings if self._forks(s) and not self.missing(s.backend)]
        self._servers.launch(
            _key(_numbered(self._environment(cell_settings), number))
            for cell_settings, number in zip(forked, _alive_before(forked), strict=True)
        )

    def await_block(self) -> None:
        """Wait for the servers that were launched."""
        self._servers.await_launched()

    def close(self) -> None:
        """End every server and release the GPU's clocks."""
        self._clocks.release()
        self._servers.close()
        if self._home is not None:
            remove_tree(self._home)
            self._home = None

    def start(self, job: Job, timeout_s: float) -> Running:
        """Start the job in a new process."""
        begun_s = time.perf_counter()
        if job.task is not None:
            return self._start_task(job, timeout_s)
        try:
            gpus = gpus_of(job.settings, choice=job.gpus)
            environment = self._environment(job.settings, gpus)
        except GpusUnavailable as error:
            return Never(without_gpus(error))
        if refusal := self._clocks.suit(job.settings, gpus):
            return Never(Outcome(refused=refusal, wall_time_s=time.perf_counter() - begun_s))
        write_job(job)
        cpus = allowed_cpus(job.settings)
        order: dict[str, Any] = {"job": str(job.path), "argv": None, "env": environment, "cpus": cpus}
        try:
            server = self._free_server(environment) if self._forks(job.settings) else None
            if server is None:
                server = self._light_server()
                order |= {
                    "argv": self._command(job),
                    "env": environment | make_home(job) | autotuning(job) | cuda_cache(job),
                }
            return Watch(server, job, order, timeout_s, order_warnings(gpus))
        except ServerGone as error:
            return Never(Outcome(infrastructure=str(error), wall_time_s=time.perf_counter() - begun_s))

    def _server_command(self, command: list[str]) -> list[str]:
        """Return the command line of a server: what it sets for itself, its cells and external commands inherit."""
        return command

    def _command(self, job: Job) -> list[str]:
        """Return the command line of a fresh interpreter."""
        return [self._interpreter.python, "-P", "-m", "keras_matrix.runner.cell.entry", str(job.path)]

    def _start_task(self, job: Job, timeout_s: float) -> Running:
        """Start an external command as a child of a light server, which ends all of its processes."""
        if job.task is not None and job.task.image is not None:
            advice = "a command with an image needs a container; add --executor docker"
            return Never(Outcome(refused=f"image: {job.task.image}: {advice}"))
        try:
            command = command_of(job, self._interpreter.python, self._mark, os.environ)
            return TaskWatch(self._light_server(), job, command, timeout_s)
        except NotStarted as error:
            return Never(Outcome(task=never(job, error)))
        except ServerGone as error:
            return Never(Outcome(infrastructure=f"server: {error}"))

    def _environment(self, settings: Settings, gpus: Sequence[str] = ()) -> dict[str, str]:
        # A server reads Keras's configuration when it imports Keras: from an empty home, never from the user's.
        if self._home is None:
            if self._scratch is not None:
                self._scratch.mkdir(exist_ok=True)
            self._home = tempfile.mkdtemp(prefix="runner-server-", dir=self._scratch)
        home = {"HOME": self._home, "KERAS_HOME": self._home, "TMPDIR": self._home}
        return cell_environment(settings, self._mark, gpus=gpus) | home | self._interpreter.variables()

    def _forks(self, settings: Settings) -> bool:
        return self._start == "fork" and PLATFORM.start_method(settings.device) == "fork"

    def _light_server(self) -> Server:
        """Return a free light server."""
        allowed_variables = {
            name: os.environ[name] for name in ALLOWED if name in os.environ
        } | self._interpreter.variables()
        server = self._free_server(allowed_variables | {MARK: self._mark, SERVER: "light"})
        if server is None:
            raise ServerGone("server: the light server for fresh interpreters did not start")
        return server

    def _free_server(self, environment: dict[str, str]) -> Server | None:
        """Return a server without a process; None if it cannot start. Several processes may be waiting on others."""
        for number in itertools.count():
            server = self._servers.of(_key(_numbered(environment, number)))
            if server is None or not server.busy:
                return server
        raise AssertionError("a count has no end")


def _alive_before(settings: Sequence[Settings]) -> list[int]:
    """Return for each cell how many earlier ones are alive when it starts and need a server of the same environment.

    Those of its own stall analysis: other cells that wait for each other have different backends.
    """
    if not any(cell_settings.feed == PIPELINE for cell_settings in settings):
        return [0] * len(settings)
    analyses = [canonical(base_of(cell_settings)) for cell_settings in settings]
    pipeline_analyses = {
        analysis for cell_settings, analysis in zip(settings, analyses, strict=True) if cell_settings.feed == PIPELINE
    }
    alive_by_analysis = Counter[str]()
    alive_counts = []
    for analysis in analyses:
        alive_counts.append(alive_by_analysis[analysis] if analysis in pipeline_analyses else 0)
        alive_by_analysis[analysis] += 1
    return alive_counts


def _numbered(environment: dict[str, str], number: int) -> dict[str, str]:
    """Return the environment of a further server; that of the first one is unchanged."""
    return environment | {SERVER: f"{environment.get(SERVER, '')}{number}"} if number else environment


def _key(environment: dict[str, str]) -> Key:
    return tuple(sorted(environment.items()))


def _launch_server(
    python: str, environment: dict[str, str], server_command: Callable[[list[str]], list[str]]
) -> Server:
    """Start a server's process; without a backend in its environment it is a light one."""
    parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    backend = environment.get("KERAS_BACKEND", "")
    with child_end:
        process = subprocess.Popen(
            server_command([python, "-P", "-m", "keras_matrix.runner.cell.server", str(child_end.fileno()), backend]),
            env=environment,
            pass_fds=[child_end.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return ProcessServer(process, parent_end)
