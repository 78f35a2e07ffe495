"""PyTorch: a process for each device, whose gradients DistributedDataParallel sums.

Keras 3.15.1 has no distribution on PyTorch: the step is this project's, the loop around it Keras's `fit`, once in
every process. If the installed Keras offers `keras.distribution` on PyTorch, its `DataParallel` is used instead, and
the step is that of `fit`.

This process is the first replica. The others (`torch_replica`) make the same model from the same seed, receive their
rows of each batch, and begin each epoch when this one does.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import Any

from keras_matrix.models.fc.native.torch import reserve
from keras_matrix.models.process.children import end_of, start_method, started
from keras_matrix.records.fc.communication import Communication, Method
from keras_matrix.records.replicas.facts import Replicas
from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell.batches import Batch, Feeder
from keras_matrix.runner.cell.job import Job, result_of, write_result
from keras_matrix.runner.cell.replicated import torch_replica
from keras_matrix.runner.cell.replicated.division import check_divisible, gradient_bytes, rows_of, semantics_of
from keras_matrix.runner.cell.replicated.interface import DeviceGroup, EpochEnd, Logs, Undivided
from keras_matrix.runner.cell.replicated.torch_replica import BEGIN, FAILED, Part, ReplicaStart

# How long a replica that has failed may take to say why, after another one lost its connection.
LAST_WORDS_S = 5.0
# How long the first replica may take to notice that another one has ended, before its process is ended, too.
LOST_S = 30.0


class ReplicaFailed(Exception):
    """A replica's process raised an exception or ended; the message names it."""


class Group(DeviceGroup):
    """The first replica, and the processes of the others."""

    divides_own_steps = False

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._allowed = os.sched_getaffinity(0)
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._folder = ""
        self._part: Part | None = None
        self._fed, self._feeds = 0, 0
        self._closed = Event()
        self._ended: list[torch_replica.Ended] = []

    def cpus(self) -> set[int]:
        return self._allowed

    def reserve(self, job: Job) -> None:
        settings = self.settings
        reserve(settings.devices, settings.device, "devices")
        self._folder = tempfile.mkdtemp(prefix="replicas-")
        start = ReplicaStart(job, 0, str(Path(self._folder) / "meeting"))
        for rank in range(1, settings.devices):
            ours, theirs = multiprocessing.Pipe()
            self._pipes.append(ours)
            own, method = ReplicaStart(job, rank, start.meeting), start_method(settings.device)
            self._processes.append(started(torch_replica.live, own, theirs, list(self._pipes), method))
        self._part = Part(start)
        Thread(target=self._end_if_lost, args=(job,), daemon=True).start()

    def _end_if_lost(self, job: Job) -> None:
        """End the cell if a replica has ended and this process waits for it: NCCL does not notice a lost process."""
        multiprocessing.connection.wait([process.sentinel for process in self._processes])
        if self._closed.wait(LOST_S):
            return
        if not job.result_path.exists():  # else its figures were complete
            cause = self._failure() or ReplicaFailed("a replica ended")
            name = f"{ReplicaFailed.__module__}.{ReplicaFailed.__qualname__}"
            write_result(job, replace(result_of(job), exception=name, message=str(cause)))
        os._exit(1)

    @contextmanager
    def building(self) -> Iterator[None]:
        with self._explained():
            self.part.join()
        yield

    def prepare(self, model: Any) -> None:
        with self._explained():
            self.part.wrap(model)

    def feeder(self, batches: Sequence[Batch], undivided: Undivided) -> Feeder:
        check_divisible(self.settings, batches)
        size, self._feeds = self.settings.devices, self._feeds + 1
        number = self._feeds
        for rank, pipe in enumerate(self._pipes, 1):
            self._send(pipe, ("feed", number, [rows_of(batch, rank, size) for batch in batches]))
        inner = undivided([rows_of(batch, 0, size) for batch in batches])

        def feed(needed: int) -> Any:
            self._fed = number
            return inner(needed)

        return feed

    @contextmanager
    def training(self, steps: int, epochs: int) -> Iterator[None]:
        for pipe in self._pipes:
            self._send(pipe, ("fit", self._fed, steps, epochs))
        with self._explained():
            yield

    def epoch_begins(self) -> None:
        for pipe in self._pipes:
            self._send(pipe, BEGIN)

    def epoch_ended(self, logs: Logs) -> EpochEnd:
        self._ended = [self._received(rank) for rank in range(1, self.settings.devices)]
        all_logs = [logs, *(one.logs for one in self._ended)]
        return EpochEnd(self.part.combined(all_logs), sum(one.samples for one in self._ended))

    def replicas(self, model: Any, batch: Batch) -> Replicas:
        each = [self.part.described(rows_of(batch, 0, self.settings.devices)), *self._asked("described")]
        return Replicas(
            method="keras.distribution.DataParallel"
            if self.part.uses_keras
            else "torch.nn.parallel.DistributedDataParallel",
            is_fit=self.part.uses_keras,
            replicas=each,
            divided_weights=0,
            copied_weights=len(model.variables),
            gradient_bytes=gradient_bytes(model),
            semantics=semantics_of(model, per_replica=True),
        )

    def communication(self, run: Callable[[int], None], steps: int, epochs: int) -> Communication | None:
        """Time each sum of a bucket of gradients separately; a step, and its part without sums, are means of all."""
        if self.part.uses_keras:
            return None
        sums = self.part.watched()
        self._asked("watched")
        step_times_s, compute_times_s = [], []
        for _ in range(epochs + 1):
            sums.inside_s, begun_s = 0.0, perf_counter()
            run(steps)
            step_s = (perf_counter() - begun_s) / steps
            inside_s = statistics.fmean([sums.inside_s, *(one.inside_s for one in self._ended)]) / steps
            step_times_s.append(step_s)
            compute_times_s.append(step_s - inside_s)
        return Communication(Method.TIMED, step_times_s[1:], compute_times_s[1:])

    def close(self) -> None:
        self._closed.set()
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def part(self) -> Part:
        """This process's own part."""
        assert self._part is not None, "reserve comes first"
        return self._part

    def _asked(self, method: str) -> list[Any]:
        for pipe in self._pipes:
            self._send(pipe, (method,))
        return [self._received(rank) for rank in range(1, self.settings.devices)]

    def _send(self, pipe: Connection, message: Any) -> None:
        try:
            pipe.send(message)
        except OSError:
            raise self._failure() or ReplicaFailed("a replica's process does not answer") from None

    def _received(self, rank: int) -> Any:
        """Return what a replica sends. Raises `ReplicaFailed`."""
        try:
            message = self._pipes[rank - 1].recv()
        except (EOFError, OSError) as error:
            raise self._failure() or ReplicaFailed(f"replica {rank} does not answer") from error
        if isinstance(message, tuple) and message[0] == FAILED:
            raise self._failed(rank, message[1])
        return message

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Replace a lost connection within by its cause, if a replica reports one or has ended."""
        try:
            yield
        except (RuntimeError, ConnectionError) as error:
            if (cause := self._failure()) is not None:
                raise cause from error
            raise

    def _failure(self) -> ReplicaFailed | None:
        """Return why a replica has failed, None if none did."""
        until_s = perf_counter() + LAST_WORDS_S
        waiting: list[Any] = [*self._pipes, *(process.sentinel for process in self._processes)]
        while (left_s := until_s - perf_counter()) > 0 and multiprocessing.connection.wait(waiting, left_s):
            for rank, (pipe, process) in enumerate(zip(self._pipes, self._processes, strict=True), 1):
                try:
                    message = pipe.recv() if pipe.poll() else None
                except (EOFError, OSError):
                    message = None
                if isinstance(message, tuple) and message[0] == FAILED:
                    return self._failed(rank, message[1])
                process.join(0)
                if process.exitcode is not None:
                    return self._failed(rank, f"its process {end_of(process.exitcode)}")
        return None

    def _failed(self, rank: int, text: str) -> ReplicaFailed:
        return ReplicaFailed(f"replica {rank} of {self.settings.devices}: {text}; the other replicas were ended")
