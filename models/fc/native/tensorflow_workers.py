"""TensorFlow: each worker's part of one traced step is placed on its own logical device.

`keras.distribution` does not support TensorFlow, so that placement and copies are explicit. While the step is traced
the workers' programs run as threads, one at a time; at a collective each waits for the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from keras_matrix.models.fc import worker_group
from keras_matrix.models.fc.interface import Loss, Stage, Tensor, Worker, WorkerAxis, scope
from keras_matrix.models.fc.profiled import SCOPE, by_profiling, seen_by, tensorflow_collectives_s
from keras_matrix.models.fc.programs import Boxes, LocalStage, Result, in_turn, program
from keras_matrix.models.fc.worker_group import WorkerGroup, WorkerSpec, WorkerState, placement
from keras_matrix.records.fc.communication import Communication, Traffic, together
from keras_matrix.records.fc.spec import LEARNING_RATE, FcProblem, Parallelism, WorkerPlacement
from keras_matrix.records.traces.request import WORKER_SCOPE

Combine = Callable[[list[Tensor]], list[Tensor]]
# Computes a result for each worker of a group from their parts and devices.
CombineGroup = Callable[[list[Tensor], list[str]], list[Tensor]]


class OtherWorkerFailed(Exception):
    """Another worker's program failed."""


class Lockstep:
    """Runs the programs of several workers interleaved, each from one collective to the next."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._turn = 0
        self._moved = threading.Condition()
        self._parts: list[Any] = [None] * size
        self._answers: list[Any] = []
        self._failure: BaseException | None = None

    def run(self, programs: Sequence[Callable[[], Any]]) -> list[Any]:
        """Return the result of each program. Raises the error of the first that fails."""
        results: list[Any] = [None] * self._size
        threads = [
            threading.Thread(target=self._follow, args=(k, worker_program, results))
            for k, worker_program in enumerate(programs)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure
        return results

    def exchange(self, rank: int, part: Tensor, combine: Combine) -> Tensor:
        """Submit this worker's part; return its result of `combine`, which takes all parts."""
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
        except OtherWorkerFailed:
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
            raise OtherWorkerFailed


@dataclass(frozen=True, slots=True)
class TracedStep:
    """The common state of the workers of one traced step."""

    problem: FcProblem
    devices: Sequence[str]
    lockstep: Lockstep

    def on_each(self, devices: Sequence[str], make: Callable[[int], Any]) -> list[Any]:
        """Return the result of `make` for the index of each of these devices, placed there."""
        outputs = []
        for number, device in enumerate(devices):
            with self.collective(device, 1):
                outputs.append(make(number))
        return outputs

    @contextmanager
    def collective(self, device: str, waiting_count: int) -> Iterator[None]:
        """Place operations of a collective on a device and name them, with the number of workers that wait for it."""
        with _of_worker(self.devices.index(device), device), tf.name_scope(f"{SCOPE}{waiting_count}"):
            yield


def taped_gradient(loss: Loss, weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Return a loss and its gradient, by a tape that watches these weights alone."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(weights)
        value = loss(weights)
    return value, tape.gradient(value, weights)


class TracedWorker(Worker):
    """A worker of a traced step, whose losses are computed one after the other."""

    def accumulated_gradient(self, losses: Sequence[Loss], weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Let each loss begin after the gradients of the previous one: a graph computes them at the same time."""
        total, sums = self.gradient(losses[0], weights)
        for loss in losses[1:]:
            first_weight, *_ = self._after_all([weights[0], *sums])
            part_loss, gradients = self.gradient(loss, [first_weight, *weights[1:]])
            total, sums = total + part_loss, [a + b for a, b in zip(sums, gradients, strict=True)]
        return total, sums

    def slept(self, x: Tensor, forward_s: float, backward_s: float) -> Tensor:
        return _slept(x, forward_s, backward_s)

    def recomputed(self, run: Callable[..., Tensor]) -> Callable[..., Tensor]:
        recomputed: Callable[..., Tensor] = tf.recompute_grad(run)
        return recomputed

    def _after_all(self, arrays: Sequence[Tensor]) -> list[Tensor]:
        with tf.control_dependencies(arrays):
            return [tf.identity(array) for array in arrays]


def _slept(x: Any, forward_s: float, backward_s: float) -> Any:
    """Return x after a sleep; its gradient passes after another one, named like the tape's own operations."""
    outer_scope = tf.get_current_name_scope()

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def sleeping(x: Any) -> tuple[Any, Callable[[Any], Any]]:
        def backward(upstream: Any) -> Any:
            with tf.name_scope(f"gradient_tape/{outer_scope}/"):
                return _after_sleep(upstream, backward_s)

        return _after_sleep(x, forward_s), backward

    return sleeping(x)


def _after_sleep(x: Any, seconds: float) -> Any:
    """Return x once `seconds` have passed since it was computed.

    A Python function with state is neither removed nor folded.
    """
    if not seconds:
        return x

    def sleep(_: Any) -> Any:
        time.sleep(seconds)
        return np.float32(0)

    scalar = tf.cast(tf.reshape(x, [-1])[0], tf.float32)  # bfloat16 is not passed to Python
    zero = tf.numpy_function(sleep, [scalar], tf.float32, stateful=True)
    return x + tf.cast(tf.ensure_shape(zero, ()), x.dtype)


class TensorFlowWorker(TracedWorker):
    """One worker of a traced step, within all or within its group."""

    def __init__(self, rank: int, step: TracedStep, groups: list[list[int]], whole: Worker | None = None) -> None:
        super().__init__(len(groups[0]), whole)
        self._rank, self._step, self._groups = rank, step, groups

    def along(self, axis: WorkerAxis) -> Worker:
        groups = worker_group.groups(self._step.problem, axis is WorkerAxis.MODEL)
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
            return self._step.on_each(devices, lambda k: tf.add_n([part_pieces[k] for part_pieces in pieces]))

        return self._exchange(x, combine)

    def _all_gather(self, x: Tensor, axis: int) -> Tensor:
        def combine(parts: list[Tensor], devices: list[str]) -> list[Tensor]:
            return self._step.on_each(devices, lambda k: tf.concat(parts, axis))

        return self._exchange(x, combine)

    def _exchange(self, x: Tensor, combine: CombineGroup) -> Tensor:
        """Submit x; return this worker's result from its group's parts."""

        def of_all(parts: list[Tensor]) -> list[Tensor]:
            answers: list[Tensor] = [None] * len(parts)
            for group in self._groups:
                combined = combine([parts[k] for k in group], [self._step.devices[k] for k in group])
                for k, answer in zip(group, combined, strict=True):
                    answers[k] = answer
            return answers

        return self._step.lockstep.exchange(self._rank, x, of_all)


class TensorFlowWorkerGroup(WorkerGroup):
    """Variables on logical devices, and the traced step that changes them."""

    backend = "tensorflow"

    def __init__(self, order: WorkerSpec) -> None:
        self._order = order
        self._devices = _devices(order)
        self._workers: Sequence[Worker | Stage] = []
        self._weights = self._laid_out()
        self._batches = [self._constants(rank) for rank in range(order.problem.workers)]
        self._step = tf.function(self._all_workers, autograph=False)
        self._found: list[Any] = []

    def run(self, steps: int) -> None:
        """Run steps; wait for the last."""
        for _ in range(steps):
            self._found = self._step()
        tf.test.experimental.sync_devices()

    def loss(self) -> float:
        return sum(float(loss) for loss, _ in self._found)

    def states(self) -> list[WorkerState]:
        return [
            WorkerState(float(loss), [g.numpy() for g in gradients], [w.numpy() for w in weights])
            for (loss, gradients), weights in zip(self._found, self._weights, strict=True)
        ]

    def places(self) -> list[WorkerPlacement]:
        return [
            placement(rank, (array.device for array in (*batch, *weights)), weights, batch)
            for rank, (weights, batch) in enumerate(zip(self._weights, self._batches, strict=True))
        ]

    def traffic(self) -> Traffic:
        """Return the counts while the step was traced."""
        return together([worker.traffic for worker in self._workers])

    def device_peaks_bytes(self) -> list[int]:
        if self._order.device == "cpu":
            return []
        # TensorFlow accepts only the type and number of a device's name.
        names = [device.rpartition("device:")[2] for device in self._devices]
        return [int(tf.config.experimental.get_memory_info(name)["peak"]) for name in names]

    def communication(self, steps: int, epochs: int) -> Communication | None:
        """Measure the operations of collectives with TensorFlow's profiler."""
        if not self.traffic().calls:
            return None
        workers = self._order.problem.workers
        return by_profiling(
            lambda run: tensorflow_collectives_s(seen_by("tensorflow", run), workers), self.run, steps, epochs
        )

    def _laid_out(self) -> list[list[Any]]:
        """Return each worker's variables, on its device."""
        return [self._variables(rank) for rank in range(self._order.problem.workers)]

    def _all_workers(self) -> list[Result]:
        """The step of every worker: its loss, and its gradients if they are requested."""
        problem = self._order.problem
        weights = [self._read(rank) for rank in range(problem.workers)]
        results = self._in_stages(weights) if problem.kind is Parallelism.PIPELINE else self._in_lockstep(weights)
        for rank, (_, gradients) in enumerate(results):
            self._descend(rank, gradients)
        return [(loss, gradients if self._order.keep_gradients else []) for loss, gradients in results]

    def _in_lockstep(self, weights: Sequence[list[Tensor]]) -> list[Result]:
        problem, graph = self._order.problem, tf.compat.v1.get_default_graph()
        step = TracedStep(problem, self._devices, Lockstep(problem.workers))
        ranks = range(problem.workers)
        self._workers = workers = [TensorFlowWorker(rank, step, [[*ranks]]) for rank in ranks]

        def local(rank: int) -> Result:
            with graph.as_default(), _of_worker(rank, self._devices[rank]):
                return program(problem.mode)(workers[rank], problem, weights[rank], self._batches[rank])

        return step.lockstep.run([partial(local, rank) for rank in ranks])

    def _in_stages(self, weights: Sequence[list[Tensor]]) -> list[Result]:
        problem, boxes = self._order.problem, Boxes()
        # An array is fetched by creating a copy on the fetching stage's own device.
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
            return [tf.Variable(self._typed(w)) for w in worker_group.weights_of(order.problem, order.seed, rank)]

    def _constants(self, rank: int) -> tuple[Any, Any]:
        order = self._order
        with tf.device(self._devices[rank]):
            batch, labels = worker_group.batch_of(order.problem, order.seed, rank)
            return self._typed(batch), self._typed(labels)

    def _typed(self, array: worker_group.Array) -> Any:
        return tf.cast(tf.convert_to_tensor(array), self._order.problem.precision)


@contextmanager
def _of_worker(rank: int, device: str) -> Iterator[None]:
    """Place operations on a worker's device and name them after the worker, which identifies it in a trace.

    With its final slash the name is absolute, whatever scope it is in and however often it is used.
    """
    with tf.device(device), tf.name_scope(f"{WORKER_SCOPE}{rank}/"):
        yield


def _devices(order: WorkerSpec) -> list[str]:
    logical_devices = tf.config.list_logical_devices(order.device.upper())
    return [device.name for device in logical_devices[: order.problem.workers]]
