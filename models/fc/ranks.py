"""Worker processes: started and ended together, each controlled over a pipe.

On a CPU workers are forked. On a GPU each is a new interpreter: "The CUDA runtime does not support the fork start
method; either the spawn or forkserver start method are required to use CUDA in subprocesses" (PyTorch, "Multiprocessing
best practices"), and importing Keras is enough to initialise CUDA: it calls `torch.cuda.is_available()`. `forkserver`
is not used, since its workers would be children of another process than the one with which they must end.

If one process dies or fails, the others are ended at once and the exception names its rank; if the process that started
them dies, they are killed. They connect by means of files, which need no fixed port.

A module `models.fc.native.<backend>` has a function `join`, which connects a worker process to the others and returns
its worker: one rank of a `WorkerGroup`, with the method `watched`, of which `communication` here takes the means.
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import os
import shutil
import signal
import statistics
import sys
import tempfile
import traceback
from dataclasses import dataclass
from itertools import chain
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, NoReturn

from keras_matrix.models.fc.network import enter
from keras_matrix.models.fc.worker_group import WorkerGroup, WorkerSpec, WorkerState
from keras_matrix.models.process.float64 import keep_float64
from keras_matrix.models.process.garbage_collection import settle
from keras_matrix.records.backends import TABLE
from keras_matrix.records.fc.communication import Communication, Method
from keras_matrix.records.fc.spec import WorkerPlacement
from keras_matrix.records.fc.traffic import Traffic, together
from keras_matrix.records.traces.request import TraceOrder

PR_SET_PDEATHSIG = 1
MEETING_LIMIT_S = 60.0
StartMethod = Literal["fork", "spawn"]
# After the death of a worker, another one may report the broken connection before the death itself is detected.
NEWS_OF_DEATH_S = 0.5


class WorkerDied(Exception):
    """A worker's process ended before its work was done; the message names its rank."""


class WorkerFailed(Exception):
    """A worker raised an exception; the message contains its rank and the exception."""


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """The arguments of a worker process. They can be pickled, since a new interpreter shares no memory with this one.

    `copied` says whether the process is a copy of the one that started it, or a new interpreter.
    """

    order: WorkerSpec
    rank: int
    meeting: str
    timeout_s: float
    copied: bool
    backend: str = "torch"


def start_method(device: str) -> StartMethod:
    """Return how the workers' processes are started: CUDA cannot be used in a forked one."""
    return "fork" if device == "cpu" else "spawn"


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
        self.backend = backend
        copied = (method or start_method(order.device)) == "fork"
        context = multiprocessing.get_context("fork") if copied else multiprocessing.get_context("spawn")
        self._partition = order.problem.partition
        self._folder = tempfile.mkdtemp(prefix="ranks-")
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for rank in range(order.problem.workers):
            ours, theirs = context.Pipe()
            self._pipes.append(ours)
            start = WorkerStart(order, rank, str(Path(self._folder) / "meeting"), timeout_s, copied, backend)
            # A copy also has these ends of the pipes; a new interpreter only has its arguments.
            arguments = (start, theirs, list(self._pipes) if copied else [])
            process = context.Process(target=_live, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
        self._ask("places")

    def run(self, steps: int) -> None:
        self._ask("run", steps)

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
        """
        if not self.traffic().calls or self._partition != "program":
            return None
        by_epoch = list(zip(*self._ask("watched", steps, epochs), strict=True))
        if not by_epoch:
            return None
        return Communication(
            Method.TIMED if TABLE[self.backend].fc_in_processes else Method.PROFILED,
            [statistics.fmean(step_s for step_s, _ in workers) for workers in by_epoch],
            [statistics.fmean(step_s - inside_s for step_s, inside_s in workers) for workers in by_epoch],
        )

    def traced(self, order: TraceOrder) -> None:
        """Record a file in every worker."""
        self._ask("traced", order)

    def close(self) -> None:
        """End the workers."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method in every worker; return the answers in the order of the ranks."""
        for pipe in self._pipes:
            try:
                pipe.send((method, arguments))
            except (BrokenPipeError, ConnectionResetError):
                break  # it has died, which is reported below
        answers: dict[int, Any] = {}
        while len(answers) < len(self._pipes):
            self._refuse_dead(0)
            for rank in self._answering(answers):
                answers[rank] = self._answer(rank)
        return [answers[rank] for rank in range(len(self._pipes))]

    def _answering(self, answers: dict[int, Any]) -> list[int]:
        """Wait until a worker answers or dies; return the ranks with an answer."""
        silent = {self._pipes[rank]: rank for rank in range(len(self._pipes)) if rank not in answers}
        ready = wait([*silent, *(process.sentinel for process in self._processes)])
        return [rank for pipe, rank in silent.items() if pipe in ready]

    def _answer(self, rank: int) -> Any:
        try:
            kind, answer = self._pipes[rank].recv()
        except (EOFError, ConnectionResetError):
            self._refuse_dead(None)
            raise
        if kind == "answer":
            return answer
        self._refuse_dead(NEWS_OF_DEATH_S)
        self.close()
        raise WorkerFailed(f"rank {rank} of {len(self._processes)}: {answer}; the other workers were ended")

    def _refuse_dead(self, within_s: float | None) -> None:
        """End all workers and raise if one has died or dies within some seconds (None: wait until it dies)."""
        ending = wait([process.sentinel for process in self._processes], within_s)
        if not ending:
            return
        dead = []
        for rank, process in enumerate(self._processes):
            if process.sentinel in ending:
                process.join()  # the sentinel is ready when files are closed, slightly before the exit code is known
                dead.append(f"rank {rank} of {len(self._processes)} {_end_of(process.exitcode or 0)}")
        self.close()
        raise WorkerDied(f"{', '.join(dead)} before its work was done; the other workers were ended")


def _end_of(exit_code: int) -> str:
    if exit_code < 0:
        return f"was ended by signal {-exit_code} ({signal.Signals(-exit_code).name})"
    return f"ended with exit code {exit_code}"


def _live(start: WorkerStart, orders: Connection, not_mine: list[Connection]) -> NoReturn:
    """Run a worker: connect to the others, then execute requests until the pipe is closed."""
    _end_with_parent()
    for pipe in not_mine:
        pipe.close()
    try:
        own = None
        while True:
            method, arguments = orders.recv()
            own = own or _arrive(start)
            orders.send(("answer", getattr(own, method)(*arguments)))
    except (EOFError, ConnectionResetError, BrokenPipeError):
        pass
    except Exception as error:  # noqa: BLE001 - the process boundary: it is raised again by the requesting process
        traceback.print_exc()
        orders.send(("failed", f"{type(error).__name__}: {error}"))
        orders.poll(None)  # stays alive until it is ended, so that its end is not mistaken for the cause
    finally:
        sys.stderr.flush()
        os._exit(0)


def _end_with_parent() -> None:
    """Let the kernel kill this process with the thread that started it: during steps no pipe is read."""
    parent = multiprocessing.parent_process()
    refused = ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if refused:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) was refused")
    if parent is None or os.getppid() != parent.pid:  # it ended before the call
        os._exit(0)


def _arrive(start: WorkerStart) -> Any:
    """Enter this worker's network namespace, if any, and connect to the other workers."""
    order = start.order
    if order.namespaces:
        enter(order.namespaces[start.rank])

    native = importlib.import_module(f"keras_matrix.models.fc.native.{start.backend}")
    if not start.copied:
        _configure(order)
    worker = native.join(order, start.rank, start.meeting, start.timeout_s)
    settle()
    return worker


def _configure(order: WorkerSpec) -> None:
    """Apply in a new interpreter the settings that a copy inherits from the process that started it."""
    if order.configure is not None:
        order.configure()
    if order.problem.precision == "float64":
        keep_float64()
