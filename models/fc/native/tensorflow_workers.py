"""TensorFlow: each worker's part of one traced step is placed on its own logical device.

`keras.distribution` distributes nothing on TensorFlow, so that placement and copies are written out. While the step is
traced the workers' programs run as threads of which one at a time goes on; at a collective each waits for the others.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from keras_matrix.models.fc import layout
from keras_matrix.models.fc.collective_time import SCOPE, tensorflow_collectives_s
from keras_matrix.models.fc.interface import Axis, Loss, Stage, Tensor, Worker
from keras_matrix.models.fc.profiled import by_profiling, seen_by
from keras_matrix.models.fc.programs import Result, program
from keras_matrix.models.fc.scopes import scope
from keras_matrix.models.fc.stages import Boxes, LocalStage, in_turn
from keras_matrix.models.fc.worker_group import WorkerSpec, WorkerState
from keras_matrix.records.fc.communication import Communication
from keras_matrix.records.fc.spec import LEARNING_RATE, FcProblem, Kind, WorkerPlacement
from keras_matrix.records.fc.traffic import Traffic, together
from keras_matrix.records.traces.request import WORKER_SCOPE, TraceOrder

Combine = Callable[[list[Tensor]], list[Tensor]]
# Makes of a group's parts, and their devices, an answer for each.
CombineGroup = Callable[[list[Tensor], list[str]], list[Tensor]]


class Stopped(Exception):
    """Another worker's program failed."""


class Lockstep:
    """Runs the programs of several workers in turn, each from one collective to the next."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._turn = 0
        self._moved = threading.Condition()
        self._parts: list[Any] = [None] * size
        self._answers: list[Any] = []
        self._failure: BaseException | None = None

    def run(self, programs: Sequence[Callable[[], Any]]) -> list[Any]:
        """Return what each program returned. Raises what the first to fail raised."""
        results: list[Any] = [None] * self._size
        threads = [threading.Thread(target=self._follow, args=(k, one, results)) for k, one in enumerate(programs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure
        return results

    def exchange(self, rank: int, part: Tensor, combine: Combine) -> Tensor:
        """Give this worker's part; return its answer, of those that `combine` makes of all parts."""
        self._parts[rank] = part
        if rank == self._size - 1:
            self._answers = combine(list(self._parts))
        self._pass_on()
        self._await(rank)
        return self._answers[rank]

    def _follow(self, rank: int, follow: Callable[[], Any], results: list[Any]) -> None:
        try:
            self._await(rank)
            results[rank] = follow()
            self._pass_on()
        except Stopped:
            return
        except BaseException as error:  # noqa: BLE001 - raised again by `run`, in the thread that traces
            with self._moved:
                self._failure = error
                self._moved.notify_all()

    def _pass_on(self) -> None:
        with self._moved:
            self._turn = (self._turn + 1) % self._size
            self._moved.notify_all()

    def _await(self, rank: int) -> None:
        with self._moved:
            self._moved.wait_for(lambda: self._turn == rank or self._failure is not None)
        if self._failure is not None:
            raise Stopped


@dataclass(frozen=True, slots=True)
class Step:
    """What the workers of one traced step have in common."""

    problem: FcProblem
    devices: Sequence[str]
    lockstep: Lockstep

    def on_each(self, devices: Sequence[str], make: Callable[[int], Any]) -> list[Any]:
        """Return what `make` makes for each of these devices, by its number, placed there."""
        made = []
        for number, device in enumerate(devices):
            with self.collective(device, 1):
                made.append(make(number))
        return made

    @contextmanager
    def collective(self, device: str, waiting: int) -> Iterator[None]:
        """Place on a device, and name, what stands for a collective that makes so many workers wait."""
        with _of_worker(self.devices.index(device), device), tf.name_scope(f"{SCOPE}{waiting}"):
            yield


def taped_gradient(loss: Loss, weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Return a loss and its gradient, by a tape that watches these weights alone."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(weights)
        value = loss(weights)
    return value, tape.gradient(value, weights)


class TensorFlowWorker(Worker):
    """One worker of a traced step, within all or within its group."""

    def __init__(self, rank: int, step: Step, groups: list[list[int]], whole: Worker | None = None) -> None:
        super().__init__(len(groups[0]), whole)
        self._rank, self._step, self._groups = rank, step, groups

    def along(self, axis: Axis) -> Worker:
        groups = layout.groups(self._step.problem, axis is Axis.MODEL)
        return type(self)(self._rank, self._step, groups, self)

    def gradient(self, loss: Loss, weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        return taped_gradient(loss, weights)

    def _all_reduce(self, x: Tensor) -> Tensor:
        def combine(parts: list[Tensor], devices: list[str]) -> list[Tensor]:
            # All of the group wait for it.
            with self._step.collective(devices[0], len(parts)):
                total = tf.add_n(parts)
            return [total] * len(parts)

        return self._exchange(x, combine)

    def _reduce_scatter(self, x: Tensor, axis: int) -> Tensor:
        def combine(parts: list[Tensor], devices: list[str]) -> list[Tensor]:
            pieces = self._step.on_each(devices, lambda k: tf.split(parts[k], self.size, axis))
            return self._step.on_each(devices, lambda k: tf.add_n([own[k] for own in pieces]))

        return self._exchange(x, combine)

    def _all_gather(self, x: Tensor, axis: int) -> Tensor:
        def combine(parts: list[Tensor], devices: list[str]) -> list[Tensor]:
            return self._step.on_each(devices, lambda k: tf.concat(parts, axis))

        return self._exchange(x, combine)

    def _after_all(self, arrays: Sequence[Tensor]) -> list[Tensor]:
        with tf.control_dependencies(arrays):
            return [tf.identity(array) for array in arrays]

    def _exchange(self, x: Tensor, combine: CombineGroup) -> Tensor:
        """Give x; return this worker's answer of those made of its group's parts."""

        def of_all(parts: list[Tensor]) -> list[Tensor]:
            answers: list[Tensor] = [None] * len(parts)
            for group in self._groups:
                made = combine([parts[k] for k in group], [self._step.devices[k] for k in group])
                for k, answer in zip(group, made, strict=True):
                    answers[k] = answer
            return answers

        return self._step.lockstep.exchange(self._rank, x, of_all)


class TensorFlowWorkerGroup:
    """Variables on logical devices, and the traced step that changes them."""

    def __init__(self, order: WorkerSpec) -> None:
        self._order = order
        self._devices = _devices(order)
        self._workers: Sequence[Worker | Stage] = []
        self._weights = self._laid_out()
        self._batches = [self._constants(rank) for rank in range(order.problem.workers)]
        self._step = tf.function(self._traced, autograph=False)
        self._found: list[Any] = []

    def run(self, steps: int) -> None:
        """Take steps; wait for the last."""
        for _ in range(steps):
            self._found = self._step()
        tf.test.experimental.sync_devices()

    def loss(self) -> float:
        """Return the sum of the workers' losses."""
        return sum(float(loss) for loss, _ in self._found)

    def kept(self) -> list[WorkerState]:
        """Return each worker's variables."""
        return [
            WorkerState(float(loss), [g.numpy() for g in gradients], [w.numpy() for w in weights])
            for (loss, gradients), weights in zip(self._found, self._weights, strict=True)
        ]

    def places(self) -> list[WorkerPlacement]:
        """Read devices and shapes from the variables and tensors."""
        return [
            WorkerPlacement(
                rank,
                _one_device([batch, labels, *weights]),
                [list(map(int, weight.shape)) for weight in weights],
                list(map(int, batch.shape)),
                list(map(int, labels.shape)),
            )
            for rank, (weights, (batch, labels)) in enumerate(zip(self._weights, self._batches, strict=True))
        ]

    def traffic(self) -> Traffic:
        """Return what was counted while the step was traced."""
        return together([worker.traffic for worker in self._workers])

    def peaks_bytes(self) -> list[int]:
        """Return the peak of this process."""
        return [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]

    def device_peaks_bytes(self) -> list[int]:
        """Return the peak of TensorFlow's allocator on each worker's GPU."""
        if self._order.device == "cpu":
            return []
        # It takes no more of a device's name than its type and number.
        names = [device.rpartition("device:")[2] for device in self._devices]
        return [int(tf.config.experimental.get_memory_info(name)["peak"]) for name in names]

    def communication(self, steps: int, epochs: int) -> Communication | None:
        """Have TensorFlow's profiler see the operations that stand for collectives."""
        if not self.traffic().calls:
            return None
        return by_profiling(partial(_inside_s, self._order.problem.workers), self.run, steps, epochs)

    def traced(self, order: TraceOrder) -> None:
        """Have the profiler record more steps, of all workers in one file."""
        from keras_matrix.models.profiling import load, record_epochs

        record_epochs(load("tensorflow"), order, partial(self.run, 1))

    def close(self) -> None:
        """There is nothing to end."""

    def _laid_out(self) -> list[list[Any]]:
        """Return each worker's variables, on its device."""
        return [self._variables(rank) for rank in range(self._order.problem.workers)]

    def _traced(self) -> list[Result]:
        """Every worker's step: its loss, and its gradients where they are kept."""
        problem = self._order.problem
        weights = [self._read(rank) for rank in range(problem.workers)]
        found = self._in_turn(weights) if problem.kind is Kind.PIPELINE else self._in_lockstep(weights)
        for rank, (_, gradients) in enumerate(found):
            self._descend(rank, gradients)
        return [(loss, gradients if self._order.keep_gradients else []) for loss, gradients in found]

    def _in_lockstep(self, weights: Sequence[list[Tensor]]) -> list[Result]:
        problem, graph = self._order.problem, tf.compat.v1.get_default_graph()
        step = Step(problem, self._devices, Lockstep(problem.workers))
        ranks = range(problem.workers)
        self._workers = workers = [TensorFlowWorker(rank, step, [[*ranks]]) for rank in ranks]

        def local(rank: int) -> Result:
            with graph.as_default(), _of_worker(rank, self._devices[rank]):
                return program(problem.mode)(workers[rank], problem, weights[rank], self._batches[rank])

        return step.lockstep.run([partial(local, rank) for rank in ranks])

    def _in_turn(self, weights: Sequence[list[Tensor]]) -> list[Result]:
        problem, boxes = self._order.problem, Boxes()
        # Fetched is what is made on the fetching stage's own device.
        stages = [LocalStage(problem.workers, rank, boxes, tf.identity) for rank in range(problem.workers)]
        self._workers = stages
        return in_turn(stages, problem, weights, self._batches, lambda rank: _of_worker(rank, self._devices[rank]))

    def _read(self, rank: int) -> list[Tensor]:
        with _of_worker(rank, self._devices[rank]):
            return [tf.convert_to_tensor(variable) for variable in self._weights[rank]]

    def _descend(self, rank: int, gradients: list[Tensor]) -> None:
        for variable, gradient in zip(self._weights[rank] if gradients else [], gradients, strict=True):
            with _of_worker(rank, self._devices[rank]), scope("update"):
                rate = tf.constant(LEARNING_RATE, variable.dtype)
                tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)

    def _variables(self, rank: int) -> list[Any]:
        order = self._order
        with tf.device(self._devices[rank]):
            return [tf.Variable(self._typed(w)) for w in layout.weights_of(order.problem, order.seed, rank)]

    def _constants(self, rank: int) -> tuple[Any, Any]:
        order = self._order
        with tf.device(self._devices[rank]):
            batch, labels = layout.batch_of(order.problem, order.seed, rank)
            return self._typed(batch), self._typed(labels)

    def _typed(self, array: layout.Array) -> Any:
        return tf.cast(tf.convert_to_tensor(array), self._order.problem.precision)


@contextmanager
def _of_worker(rank: int, device: str) -> Iterator[None]:
    """Place what is made within on a worker's device and name it after the worker, by which a trace knows it.

    With its end the name stands for itself, whatever scope it is in and however often it comes.
    """
    with tf.device(device), tf.name_scope(f"{WORKER_SCOPE}{rank}/"):
        yield


def _devices(order: WorkerSpec) -> list[str]:
    found = tf.config.list_logical_devices(order.device.upper())
    return [device.name for device in found[: order.problem.workers]]


def _one_device(arrays: Sequence[Any]) -> str:
    """Return the device that all these arrays say they are on, or all of them where there are several."""
    return ", ".join(sorted({array.device for array in arrays}))


def _inside_s(workers: int, run: Callable[[], None]) -> float:
    """Return the seconds that collectives took while something ran, the mean over the workers."""
    return tensorflow_collectives_s(seen_by("tensorflow", run), workers)
