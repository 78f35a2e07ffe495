"""Worker processes: started and ended together, each controlled over a pipe.

On a CPU workers are forked. On a GPU each is a new interpreter: "The CUDA runtime does not support the fork start
method; either the spawn or forkserver start method are required to use CUDA in subprocesses" (PyTorch, "Multiprocessing
best practices"), and importing Keras is enough to initialise CUDA: it calls `torch.cuda.is_available()`. `forkserver`
is not used, since its workers would be children of another process than the one with which they must end.

If one process dies or fails, the others are ended at once and the exception names its rank; if the process that started
them dies, they are killed. Those on other machines are started there (`serve`), and end with their
connection.

Workers on other machines: the process that measures connects to one process there for each of its workers.

A connection is a pipe's end over TCP. Both sides prove that they have the key, as in `multiprocessing.connection`; what
they send is not encrypted, and whoever has the key may run any code: as for the cluster itself, the network must be
private. The connections that a backend then makes between its workers are protected by nothing but that.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import shutil
import socket
import statistics
import struct
import tempfile
import time
from dataclasses import replace
from itertools import chain
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

from keras_matrix.models.fc.meeting import NotMet
from keras_matrix.models.fc.worker import ANSWER, MEET, MEETING_LIMIT_S, WorkerStart, started_worker
from keras_matrix.models.fc.worker_group import WorkerGroup, WorkerSpec, WorkerState
from keras_matrix.models.process import end_of, start_method
from keras_matrix.records.backends import TABLE
from keras_matrix.records.fc.communication import Communication, TimingMethod, Traffic, together
from keras_matrix.records.fc.network import Site
from keras_matrix.records.fc.spec import WorkerPlacement
from keras_matrix.records.host.platform import StartMethod
from keras_matrix.records.traces.request import TraceOrder

# After the death of a worker, another one may report the broken connection before the death itself is detected.
NEWS_OF_DEATH_S = 0.5
# Steps whose collectives are timed may take so many times as long, and reading a profile so many seconds.
WATCHED_SLOWER, WATCHED_LEAST_S = 10.0, 30.0
RETRY_S = 0.1
# Within this time who connects proves that it has the key.
HANDSHAKE_S = 5
# A machine that acknowledges nothing for so long cannot be reached any more: a step may wait longer for a slow one.
UNREACHABLE_S = 60
# What a handshake with another program raises: a wrong key or length, its end, or no answer in time.
NO_WORKER = (AuthenticationError, AssertionError, EOFError, OSError)


class WorkerDied(Exception):
    """A worker's process ended before its work was done; the message names its rank."""


class WorkerFailed(Exception):
    """A worker raised an exception; the message contains its rank and the exception."""


class NotConnected(WorkerFailed):
    """The machines of a cell do not reach each other, so that nothing can be said about the cell."""


class Ranks(WorkerGroup):
    """A worker group of processes."""

    def __init__(
        self,
        order: WorkerSpec,
        timeout_s: float = MEETING_LIMIT_S,
        method: StartMethod | None = None,
        backend: str = "torch",
    ) -> None:
        """Start the workers and wait until all are connected. Raises `WorkerDied` or `WorkerFailed`."""
        self.backend, self._size = backend, order.problem.workers
        is_copied = (method or start_method(order.device)) == "fork"
        self._partition = order.problem.partition
        self._folder = tempfile.mkdtemp(prefix="ranks-")
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._messages: dict[int, str] = {}
        self._step_s = 0.0
        meeting = str(Path(self._folder) / "meeting") if order.rendezvous is None else None
        for rank in range(order.workers_here):
            parent_end, child_end = multiprocessing.Pipe()
            self._pipes.append(parent_end)
            start = WorkerStart(order, rank, meeting, timeout_s, is_copied, backend)
            self._processes.append(started_worker(start, child_end, list(self._pipes)))
        try:  # after the processes here, which would have these connections, too
            self._pipes += connections(order, timeout_s)
        except NotMet as error:
            self._fail(str(error), NotConnected)
        self._ask("places")

    def run(self, steps: int) -> None:
        begun_s = time.perf_counter()
        self._ask("run", steps)
        self._step_s = (time.perf_counter() - begun_s) / steps

    def loss(self) -> float:
        return float(sum(self._ask("loss")))

    def states(self) -> list[WorkerState]:
        return list(chain(*self._ask("states")))

    def places(self) -> list[WorkerPlacement]:
        return list(chain(*self._ask("places")))

    def traffic(self) -> Traffic:
        return together(self._ask("traffic"))

    def peaks_bytes(self) -> list[int]:
        return list(chain(*self._ask("peaks_bytes")))

    def device_peaks_bytes(self) -> list[int]:
        return list(chain(*self._ask("device_peaks_bytes")))

    def communication(self, steps: int, epochs: int) -> Communication | None:
        """Time the collectives in every worker; a step, and its part without collectives, are means over workers.

        None without collectives, and for those of DTensor, which cannot be timed from outside. A backend whose workers
        are processes only over a network has compiled steps, whose collectives its profiler measures.

        Raises `WorkerDied`, also if they do not end: TensorFlow's profiler may leave a worker waiting for ever.
        """
        if not self.traffic().calls or self._partition != "program":
            return None
        limit_s = WATCHED_LEAST_S + WATCHED_SLOWER * (epochs + 1) * steps * self._step_s
        ranks_by_epoch = list(zip(*self._ask("watched", steps, epochs, limit_s=limit_s), strict=True))
        if not ranks_by_epoch:
            return None
        return Communication(
            TimingMethod.TIMED if TABLE[self.backend].fc_in_processes else TimingMethod.PROFILED,
            [statistics.fmean(step_s for step_s, _ in workers) for workers in ranks_by_epoch],
            [statistics.fmean(step_s - inside_s for step_s, inside_s in workers) for workers in ranks_by_epoch],
        )

    def traced(self, order: TraceOrder) -> None:
        """Record a file in every worker; those of other machines are sent here."""
        for files in self._ask("traced", order):
            for name, content in (files or {}).items():
                (Path(order.folder) / name).write_bytes(content)

    def close(self) -> None:
        """End the workers."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, method: str, *arguments: Any, limit_s: float | None = None) -> list[Any]:
        """Call a method in every worker; return the answers in the order of the ranks, by default without a limit."""
        until_s = None if limit_s is None else time.perf_counter() + limit_s
        for pipe in self._pipes:
            try:
                pipe.send((method, arguments))
            except OSError:
                break  # it has died, which is reported below
        answers: dict[int, Any] = {}
        while len(answers) < len(self._pipes):
            self._refuse_dead(0)
            answering = self._answering(answers, until_s)
            if not answering and until_s is not None and time.perf_counter() > until_s:
                silent = [str(rank) for rank in range(self._size) if rank not in answers]
                self._died(f"rank {', '.join(silent)} of {self._size} did not answer within {limit_s:.0f} s")
            for rank in answering:
                self._answer(rank, answers)
        return [answers[rank] for rank in range(len(self._pipes))]

    def _answering(self, answers: dict[int, Any], until_s: float | None) -> list[int]:
        """Wait until a worker answers or dies, or until a time; return the ranks with an answer."""
        silent = {self._pipes[rank]: rank for rank in range(len(self._pipes)) if rank not in answers}
        left_s = None if until_s is None else max(0.0, until_s - time.perf_counter())
        ready = wait([*silent, *(process.sentinel for process in self._processes)], left_s)
        return [rank for pipe, rank in silent.items() if pipe in ready]

    def _answer(self, rank: int, answers: dict[int, Any]) -> None:
        """Receive a worker's answer, or its message for all, which they get when each has sent one."""
        try:
            kind, answer = self._pipes[rank].recv()
        except (EOFError, OSError) as error:
            if rank < len(self._processes):
                self._refuse_dead(None)
                raise
            rank_text = f"rank {rank} of {self._size}, on another machine,"
            if isinstance(error, (EOFError, ConnectionError)):
                self._died(f"{rank_text} ended")
            self._fail(f"{rank_text} cannot be reached any more: {error}", NotConnected)
        if kind == ANSWER:
            answers[rank] = answer
        elif kind == MEET:
            self._messages[rank] = answer
            if len(self._messages) == self._size:
                for pipe in self._pipes:
                    pipe.send([self._messages[each_rank] for each_rank in range(self._size)])
        else:
            self._refuse_dead(NEWS_OF_DEATH_S)
            is_not_met = len(self._processes) < self._size and answer.startswith(NotMet.__name__)
            self._fail(f"rank {rank} of {self._size}: {answer}", NotConnected if is_not_met else WorkerFailed)

    def _refuse_dead(self, within_s: float | None) -> None:
        """End all workers and raise if one here has died or dies within some seconds (None: wait until it dies)."""
        ending = wait([process.sentinel for process in self._processes], within_s)
        if not ending:
            return
        dead = []
        for rank, process in enumerate(self._processes):
            if process.sentinel in ending:
                process.join()  # the sentinel is ready when files are closed, slightly before the exit code is known
                dead.append(f"rank {rank} of {self._size} {end_of(process.exitcode or 0)}")
        self._died(", ".join(dead))

    def _died(self, text: str) -> NoReturn:
        self.close()
        raise WorkerDied(f"{text} before its work was done; the other workers were ended")

    def _fail(self, text: str, kind: type[WorkerFailed] = WorkerFailed) -> NoReturn:
        self.close()
        raise kind(f"{text}; the other workers were ended")


def connections(worker_spec: WorkerSpec, timeout_s: float) -> list[Connection]:
    """Return a connection to each worker on another machine, by rank. Raises `NotMet`."""
    rendezvous, until_s = worker_spec.rendezvous, time.monotonic() + timeout_s
    if rendezvous is None:
        return []
    return [
        _connected(site, bytes.fromhex(rendezvous.key), until_s)
        for site in rendezvous.sites[1:]
        for _ in range(worker_spec.workers_here)
    ]


def _connected(site: Site, key: bytes, until_s: float) -> Connection:
    while True:
        try:
            connection = _tuned(socket.create_connection((site.address, site.port), HANDSHAKE_S))
            answer_challenge(connection, key)
            deliver_challenge(connection, key)
            return _without_limit(connection)
        except NO_WORKER as error:  # it does not listen yet
            if time.monotonic() > until_s:
                site_text = f"{site.name} ({site.address}:{site.port})"
                raise NotMet(
                    f"the workers of {site_text} cannot be reached: {error or type(error).__name__}"
                ) from error
            time.sleep(RETRY_S)


def serve(start: WorkerStart) -> None:
    """Provide this machine's workers until each has ended; `start` is that of the first one of this machine.

    How they end is not judged here: the process that measures ends or loses them. Raises OSError if the port is taken.
    """
    meeting = start.order.rendezvous
    assert meeting is not None
    processes, key = [], bytes.fromhex(meeting.key)
    with socket.create_server((meeting.here.address, meeting.here.port)) as server:
        for rank in range(start.rank, start.rank + start.order.workers_here):
            processes.append(started_worker(replace(start, rank=rank), accepted(server, key), []))
    for process in processes:
        process.join()


def accepted(server: socket.socket, key: bytes) -> Connection:
    """Return the next connection of a process that has the key; others are closed."""
    while True:
        connection = _tuned(server.accept()[0])
        with contextlib.suppress(*NO_WORKER):
            deliver_challenge(connection, key)
            answer_challenge(connection, key)
            return _without_limit(connection)
        connection.close()


def _tuned(peer_socket: socket.socket) -> Connection:
    """Return a socket as a connection with limits: of each answer, and of the time without any acknowledgement."""
    peer_socket.settimeout(None)
    peer_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", HANDSHAKE_S, 0))
    peer_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    peer_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, UNREACHABLE_S // 3)
    peer_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, UNREACHABLE_S // 6)
    peer_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREACHABLE_S * 1000)
    return Connection(peer_socket.detach())


def _without_limit(connection: Connection) -> Connection:
    """Return the connection, on which an answer may take as long as a step does."""
    with socket.socket(fileno=connection.fileno()) as peer_socket:
        peer_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
        peer_socket.detach()
    return connection
