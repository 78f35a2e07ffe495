"""PyTorch: a process for each device, whose gradients DistributedDataParallel sums.

Keras 3.15.1 has no distribution on PyTorch: the step is this project's, the loop around it Keras's `fit`, once in
every process. If the installed Keras offers `keras.distribution` on PyTorch, its `DataParallel` is used instead, and
the step is that of `fit`.

This process is the first replica. The others make the same model from the same seed, receive their
rows of each batch, and begin each epoch when this one does.

Each model is wrapped by DistributedDataParallel.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import Any, NoReturn

import keras
import torch
import torch.distributed as dist

from keras_matrix.models.fc.native.torch import reserve
from keras_matrix.models.process import end_of, end_with_parent, keep_float64, start_method, started
from keras_matrix.models.process_group import Member, connect, prepare, settle
from keras_matrix.records.fc.communication import Communication, TimingMethod
from keras_matrix.records.host.platform import PLATFORM
from keras_matrix.records.replicas import Replica, Replicas
from keras_matrix.records.settings import RESIDENT, Settings
from keras_matrix.runner.cell.backends import Unsupported
from keras_matrix.runner.cell.batches import Batch, Feeder, counted_feed
from keras_matrix.runner.cell.job import Job, result_of, write_result
from keras_matrix.runner.cell.options import switch_off
from keras_matrix.runner.cell.replicated.groups import check_divisible, gradient_bytes, rows_of, semantics_of
from keras_matrix.runner.cell.replicated.interface import DeviceGroup, EpochEnd, Logs, Undivided
from keras_matrix.runner.cell.work import update_counter

# How long a replica that has failed may take to say why, after another one lost its connection.
LAST_WORDS_S = 5.0
# How long the first replica may take to notice that another one has ended, before its process is ended, too.
LOST_S = 30.0
MEETING_LIMIT_S = 60.0
# What the first replica sends to begin an epoch, and what a replica sends when it fails.
BEGIN, FAILED = "begin", "failed"
MEANS = ("sum_over_batch_size", "mean")


class ReplicaFailed(Exception):
    """A replica's process raised an exception or ended; the message names it."""


class Group(DeviceGroup):
    """The first replica, and the processes of the others."""

    divides_own_steps = False

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._allowed = PLATFORM.usable_cpus()
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._folder = ""
        self._part: TorchReplica | None = None
        self._fed, self._feeds = 0, 0
        self._closed = Event()
        self._ended: list[ReplicaEpoch] = []

    def cpus(self) -> set[int]:
        return self._allowed

    def reserve(self, job: Job) -> None:
        settings = self.settings
        reserve(settings.devices, settings.device, "devices")
        self._folder = tempfile.mkdtemp(prefix="replicas-")
        start = ReplicaStart(job, 0, str(Path(self._folder) / "meeting"))
        for rank in range(1, settings.devices):
            parent_end, child_end = multiprocessing.Pipe()
            self._pipes.append(parent_end)
            replica_start, method = ReplicaStart(job, rank, start.meeting), start_method(settings.device)
            self._processes.append(started(live, replica_start, child_end, list(self._pipes), method))
        self._part = TorchReplica(start)
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
        device_count, self._feeds = self.settings.devices, self._feeds + 1
        number = self._feeds
        for rank, pipe in enumerate(self._pipes, 1):
            self._send(pipe, ("feed", number, [rows_of(batch, rank, device_count) for batch in batches]))
        inner = undivided([rows_of(batch, 0, device_count) for batch in batches])

        def feed(needed_batches: int) -> Any:
            self._fed = number
            return inner(needed_batches)

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
        all_logs = [logs, *(ended_epoch.logs for ended_epoch in self._ended)]
        return EpochEnd(self.part.combined(all_logs), sum(ended_epoch.samples for ended_epoch in self._ended))

    def replicas(self, model: Any, batch: Batch) -> Replicas:
        described = [self.part.described(rows_of(batch, 0, self.settings.devices)), *self._asked("described")]
        return Replicas(
            method="keras.distribution.DataParallel"
            if self.part.uses_keras
            else "torch.nn.parallel.DistributedDataParallel",
            is_fit=self.part.uses_keras,
            replicas=described,
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
            inside_s = statistics.fmean([sums.inside_s, *(ended_epoch.inside_s for ended_epoch in self._ended)]) / steps
            step_times_s.append(step_s)
            compute_times_s.append(step_s - inside_s)
        return Communication(TimingMethod.TIMED, step_times_s[1:], compute_times_s[1:])

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
    def part(self) -> TorchReplica:
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
        sources: list[Any] = [*self._pipes, *(process.sentinel for process in self._processes)]
        while (left_s := until_s - perf_counter()) > 0 and multiprocessing.connection.wait(sources, left_s):
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


@dataclass(frozen=True, slots=True)
class ReplicaStart:
    """The arguments of a replica: it can be pickled. `meeting` is a file for all of them."""

    job: Job
    rank: int
    meeting: str


@dataclass(frozen=True, slots=True)
class ReplicaEpoch:
    """What a replica reports at the end of an epoch."""

    logs: dict[str, float]
    samples: int
    inside_s: float


class TorchReplica:
    """This process's replica."""

    def __init__(self, start: ReplicaStart) -> None:
        settings = start.job.settings
        self.settings = settings
        self.uses_keras = keras_distributes()
        self._start = start
        self._device = torch.device("cpu" if settings.device == "cpu" else f"cuda:{start.rank}")
        self._member = Member(start.rank, settings.devices, start.rank, settings.devices, settings.device, "lo")
        self._library = prepare(self._member)
        self._model: Any = None
        self._replica: Any = None
        self._sums_losses = self._is_checked = False
        self.sums: WatchedSums | None = None

    def join(self) -> None:
        """Connect to the other replicas."""
        store = dist.FileStore(self._start.meeting, self.settings.devices)
        connect(self._member, self._library, store, timedelta(seconds=MEETING_LIMIT_S))
        if self.uses_keras:
            keras.distribution.set_distribution(keras.distribution.DataParallel())

    def wrap(self, model: Any) -> None:
        """Let the gradients of the built model be summed over the replicas. Raises `Unsupported`."""
        self._model = model
        if self.uses_keras:
            return
        self._sums_losses = sums_losses(model)
        ids = [self._device.index] if self._device.type == "cuda" else None
        self._replica = torch.nn.parallel.DistributedDataParallel(model, device_ids=ids)
        model.train_function = self.step

    def step(self, data: Any) -> Any:
        """Train on this replica's rows of a batch: the order of calls is that of Keras's own step (`TorchTrainer`)."""
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data[0])
        model = self._model
        predicted = self._replica(x, training=True) if model._call_has_training_arg else self._replica(x)
        model.zero_grad()
        loss = model._compute_loss(x=x, y=y, y_pred=predicted, sample_weight=weight, training=True)
        first_input = next(tensor for tensor in keras.tree.flatten(x) if tensor is not None)
        model._loss_tracker.update_state(loss, sample_weight=first_input.shape[0])
        # DistributedDataParallel averages gradients: right for a mean over rows, too small for a sum.
        scaled = loss * self.settings.devices if self._sums_losses else loss
        model.optimizer.scale_loss(scaled).backward()
        weights = model.trainable_weights[:]
        if not self._is_checked:
            self._check_first_step(weights)
        with torch.no_grad():
            model.optimizer.apply([weight.value.grad for weight in weights], weights)
        return model.compute_metrics(x, y, predicted, sample_weight=weight)

    def _check_first_step(self, weights: Sequence[Any]) -> None:
        """Raise `Unsupported` for a model whose gradients cannot be combined, as its first step shows."""
        self._is_checked = True
        if unused := [weight.path for weight in weights if weight.value.grad is None]:
            raise Unsupported(
                f"devices: {unused[0]} gets no gradient, which DistributedDataParallel waits for ({len(unused)} of "
                f"{len(weights)} weights); freeze such weights, or set devices: 1"
            )
        if self._sums_losses and self._model.losses:
            raise Unsupported(
                "devices: the model sums its losses over rows and adds losses of its own: PyTorch's replicas average "
                "or sum all gradients; use a mean, or set devices: 1"
            )

    def combined(self, logs: Sequence[dict[str, float]]) -> dict[str, float]:
        """Return the logs of the global batch from those of each replica: means, and the sum of a summed loss.

        Metrics that are not a mean over rows, such as AUC, are left out: no mean of replicas is that of the batch.
        """
        names = [name for name in logs[0] if name not in self._not_means()]
        means = {name: sum(float(replica_logs[name]) for replica_logs in logs) / len(logs) for name in names}
        if self._sums_losses and "loss" in means:
            means["loss"] *= len(logs)
        return means

    def _not_means(self) -> set[str]:
        metrics = [inner for metric in self._model.metrics for inner in getattr(metric, "metrics", None) or [metric]]
        return {metric.name for metric in metrics if type(metric).result is not keras.metrics.Mean.result}

    def described(self, batch: Any) -> Replica:
        """Return the replica's part, with its rows of a batch."""
        model, is_cpu = self._model, self._device.type == "cpu"
        (device,) = {variable.value.device for variable in model.trainable_variables}
        return Replica(
            str(device),
            int(keras.tree.flatten(list(batch))[0].shape[0]),
            int(update_counter(model.optimizer).value),
            int(model._loss_tracker.count.value),
            os.getpid(),
            PLATFORM.peak_resident_bytes(),
            None if is_cpu else torch.cuda.max_memory_allocated(self._device),
        )

    def watched(self) -> WatchedSums:
        """Time each sum of a bucket of gradients from now on."""
        self.sums = WatchedSums(self._device, self.settings.devices)
        # A lambda, since PyTorch checks the annotations of a hook, which are strings in this file.
        self._replica.register_comm_hook(self.sums, lambda sums, bucket: sums.summed(bucket))
        return self.sums

    def settle(self) -> None:
        """Return when the device is idle."""
        settle(self._device)


class WatchedSums:
    """Averages each bucket of gradients by itself, with an idle device before and after it, and adds up the seconds."""

    def __init__(self, device: torch.device, size: int) -> None:
        self.inside_s = 0.0
        self._device, self._size = device, size

    def summed(self, bucket: Any) -> Any:
        """Return the future of a bucket, which is done."""
        settle(self._device)
        begun_s = perf_counter()
        buffer = bucket.buffer().div_(self._size)
        dist.all_reduce(buffer)
        settle(self._device)
        self.inside_s += perf_counter() - begun_s
        future: Any = torch.futures.Future()
        future.set_result(buffer)
        return future


def keras_distributes() -> bool:
    """Return whether the installed Keras offers `keras.distribution` on PyTorch."""
    try:
        keras.distribution.list_devices("cpu")
    except AttributeError:  # the backend has no module for it
        return False
    return True


def sums_losses(model: Any) -> bool:
    """Return whether the model's loss is a sum over rows; False for a mean. Raises `Unsupported` for others."""
    kinds = {getattr(loss, "reduction", MEANS[0]) for loss in keras.tree.flatten(model.loss) if loss is not None}
    if kinds <= set(MEANS):
        return False
    if kinds == {"sum"}:
        return True
    raise Unsupported(
        f"devices: the model's losses are reduced by {', '.join(sorted(map(str, kinds)))}: PyTorch's replicas average "
        "or sum all gradients; use means or sums over rows, or set devices: 1"
    )


# A further replica's process.


def live(start: ReplicaStart, requests: Connection, not_mine: list[Connection]) -> NoReturn:
    """Make the replica, then train as requested until the pipe is closed."""
    end_with_parent()
    for pipe in not_mine:
        pipe.close()
    code = 0
    try:
        further_replica = FurtherReplica(start, requests)
        while (request := _next(requests)) is not None:
            method, *arguments = request
            getattr(further_replica, method)(*arguments)
    except BaseException as error:  # noqa: BLE001 - the process boundary: the first replica raises it again
        traceback.print_exc()
        with contextlib.suppress(OSError):
            requests.send((FAILED, f"{type(error).__name__}: {error}"))
        code = 1  # its end breaks the connections of the others, which would wait for it
    finally:
        sys.stderr.flush()
        os._exit(code)


def _next(requests: Connection) -> Any:
    """Return the next request; None if the first replica has closed the pipe."""
    try:
        return requests.recv()
    except (EOFError, OSError):
        return None


class FurtherReplica:
    """A replica that follows the first one; its methods are the requests."""

    def __init__(self, start: ReplicaStart, requests: Connection) -> None:
        from keras_matrix.runner.cell import backends, measure, options
        from keras_matrix.runner.cell.options import applied

        job = start.job
        self._requests, self._feeds = requests, dict[int, list[Any]]()
        self._part = TorchReplica(start)
        self._adapter = backends.load(job.settings.backend)
        if job.settings.device != "cpu":  # a new interpreter, which has inherited no configuration
            self._adapter.configure(job.settings, job.compile_cache_dir)
        options.configure_keras(job.settings)
        if job.parity is not None and job.settings.precision == "float64":
            keep_float64()
        options.seed_all(self._adapter, job.settings.seed)
        self._part.join()
        workload = measure.planted(measure.load_workload(job), job)
        applied(workload, job.settings)
        self._model = workload.model
        if job.parity is not None:
            switch_off(self._model)  # the weights are those of the first replica, which sends them
        self._part.wrap(self._model)

    def feed(self, number: int, batches: list[Any]) -> None:
        """Receive this replica's rows of the batches of a feed; those of earlier feeds are dropped."""
        is_resident = self._part.settings.feed == RESIDENT
        self._feeds = {number: [self._adapter.resident(batch) if is_resident else batch for batch in batches]}

    def fit(self, number: int, steps: int, epochs: int) -> None:
        """Train, each epoch when the first replica begins it."""
        source = self._adapter.source(counted_feed(self._feeds[number]).source)
        hooks = _Follow(self._part, self._requests)
        self._model.fit(source, steps_per_epoch=steps, epochs=epochs, verbose=0, shuffle=False, callbacks=[hooks])

    def described(self) -> None:
        """Send the replica's part."""
        (batches,) = self._feeds.values()
        self._requests.send(self._part.described(batches[0]))

    def watched(self) -> None:
        """Time each sum of a bucket of gradients from now on."""
        self._part.watched()
        self._requests.send(None)


class _Follow(keras.callbacks.Callback):  # type: ignore[misc]
    """Waits for the first replica before each epoch, and reports at its end."""

    def __init__(self, part: TorchReplica, requests: Connection) -> None:
        super().__init__()
        self._part, self._requests = part, requests

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._part.settle()
        if self._part.sums is not None:
            self._part.sums.inside_s = 0.0
        received = self._requests.recv()
        assert received == BEGIN, f"an epoch must begin next, got {received}"

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._part.settle()
        inside_s = self._part.sums.inside_s if self._part.sums is not None else 0.0
        epoch_logs = {name: float(value) for name, value in (logs or {}).items()}
        self._requests.send(ReplicaEpoch(epoch_logs, int(self.model._loss_tracker.count.value), inside_s))
