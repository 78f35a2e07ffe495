"""Timers inside a process that trains from an input pipeline, for cells with `input_timers` only; and the request for a
stream of batches, which may have them.

For each batch: the time that training waits for it, the number of batches that are ready, and the times of its stages,
which it carries as its last part. The step before must have ended when a batch is drawn, otherwise an asynchronous
backend would wait for its own computation: `EachStep` lets Keras read the loss after each step.

How many prepared batches wait in the queue of a source is read from objects of the libraries, where that is possible:
none of them has a public interface for it. What is missing or has changed is not an error: the number is unknown.
Read: the enqueuer of a Keras PyDataset, the workers' results of a torch DataLoader, the buffer of a grain prefetch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from keras_matrix.runner.cell.clock import Clock, monotonic

STAGES = 6
CALIBRATION_BATCHES = 500
HUNDREDTHS = 100
Queue = Callable[[], int | None]
PARENTS = 32


class EachStep(keras.callbacks.Callback):  # type: ignore[misc]
    """Has a hook at the end of each step, so that Keras waits for the step and its logs."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Do nothing: Keras converts the logs to numbers before this call."""


@dataclass(slots=True)
class Timers:
    """What was timed in the recorded epochs.

    With `has_stages` the last part of each batch is its stages, to be removed. `hook_cpu_time_s` returns the CPU time
    of drawing a batch in Python, where `fit` itself does not.
    """

    has_stages: bool = False
    clock: Clock = monotonic
    wait_times_s: list[float] = field(default_factory=list)
    stages: Any = field(default_factory=lambda: np.zeros(STAGES))
    batches: int = 0
    queue_sizes: list[list[int]] = field(default_factory=list)
    hook_cpu_time_s: Callable[[], float] | None = None
    _queue: Queue | None = None
    _adapter: Any = None
    _newest: Callable[[], Any] | None = None
    _seen: Any = None
    _on: bool = False

    def begin(self) -> None:
        """Begin to record an epoch."""
        self.wait_times_s.append(0.0)
        self.queue_sizes.append([])
        self._on = True

    def end(self) -> None:
        """End the epoch."""
        self._on = False

    def watch(self, source: Any) -> None:
        """Note the iterators over a source, before Keras's data adapter makes one."""
        if not isinstance(source, keras.utils.PyDataset):
            self._newest = watch(source)

    def watch_pass(self, adapter: Any, iterator: Any) -> None:
        """Find the queue of a pass over Keras's data adapter that has begun."""
        self._adapter, self._queue = adapter, queue_of(adapter, iterator)

    def _ready(self) -> int | None:
        """Return the number of ready batches, None if unknown."""
        newest = self._newest() if self._newest is not None else None
        if newest is not self._seen:
            self._seen = newest
            self._queue = queue_of(self._adapter, newest) or self._queue
        return self._queue() if self._queue is not None else None

    def draw(self, draw: Callable[[], Any]) -> Any:
        """Return the next batch without its stages, and record its times."""
        ready = self._ready() if self._on else None
        begun_s = self.clock()
        batch = draw()
        waited_s = self.clock() - begun_s
        stages = None
        if self.has_stages:
            *parts, stages = batch
            batch = tuple(parts)
        if self._on:
            self._record(waited_s, stages, ready)
        return batch

    def _record(self, waited_s: float, stages: Any, ready: int | None) -> None:
        self.wait_times_s[-1] += waited_s
        if ready is not None:
            self.queue_sizes[-1].append(ready)
        if stages is not None:
            self.stages += _on_host(stages)
            self.batches += 1

    def queue_course(self) -> list[float]:
        """Return the mean number of ready batches in each hundredth of the epochs; empty if it could not be read."""
        return hundredths(self.queue_sizes)

    def own_cpu_time_s(self, batches: int) -> float:
        """Return the CPU time of the timers for so many batches, by what they cost for a batch that is there."""
        hook_s = self.hook_cpu_time_s() if self.hook_cpu_time_s is not None else 0.0
        return batches * (cost_of_a_batch_s(self.has_stages, self._queue) + hook_s)


def cost_of_a_batch_s(has_stages: bool, queue: Queue | None) -> float:
    """Return the CPU seconds of timing one batch: of its draw, and of its stages in the worker.

    Of this thread alone: those of the pipeline may still prepare batches.
    """
    timers = Timers(has_stages, _queue=queue)
    timers.begin()
    batch = (0, 0, np.zeros(STAGES)) if has_stages else (0, 0)
    begun_s = time.thread_time()
    for _ in range(CALIBRATION_BATCHES):
        timers.draw(lambda: batch)
        if has_stages:
            _stage_clocks()
    return (time.thread_time() - begun_s) / CALIBRATION_BATCHES


def _stage_clocks() -> Any:
    """Read the clocks that a worker reads for the stages of a batch."""
    walls_s, cpus_s = zip(*[(time.perf_counter(), time.thread_time()) for _ in range(3)], strict=True)
    return np.array([*walls_s, *cpus_s])


def hundredths(epochs: Sequence[Sequence[int]]) -> list[float]:
    """Return the mean in each hundredth of the epochs of values taken at each step; empty without values.

    Epochs of fewer steps repeat the value of a step.
    """
    measured_epochs = [values for values in epochs if values]
    if not measured_epochs:
        return []
    return [
        float(np.mean([value for values in measured_epochs for value in _part(values, index)]))
        for index in range(HUNDREDTHS)
    ]


def _part(values: Sequence[int], index: int) -> Sequence[int]:
    begin, end = index * len(values) // HUNDREDTHS, (index + 1) * len(values) // HUNDREDTHS
    return values[begin : max(end, begin + 1)]


def leading_dimension(batch: Any) -> int:
    """Return the number of samples of a batch."""
    return int(_arrays(batch).__next__().shape[0])


def _arrays(batch: Any) -> Iterator[Any]:
    return (part for part in keras.tree.flatten(batch) if part is not None and len(part.shape))


def _on_host(stages: Any) -> Any:
    return np.asarray(stages.cpu() if hasattr(stages, "cpu") else stages, dtype=np.float64).reshape(STAGES)


def queue_of(adapter: Any, iterator: Any) -> Queue | None:
    """Return a function that counts the ready batches of a pass, None if they cannot be counted."""
    candidates = (_enqueuer(adapter), *map(_prefetch_of, _chain(iterator)))
    queue = next((queue for queue in candidates if queue is not None), None)
    return _careful(queue) if queue is not None else None


def watch(source: Any) -> Callable[[], Any]:
    """Return a function that returns the newest iterator over this source, None before the first.

    Keras's data adapters hide the iterators that they make. The object gets a class derived from its own; a source that
    does not allow it is not watched.
    """
    last_iterator: list[Any] = [None]
    try:

        class Watched(type(source)):  # type: ignore[misc]
            def __iter__(self) -> Any:
                last_iterator[0] = super().__iter__()
                return last_iterator[0]

        source.__class__ = Watched
    except (TypeError, AttributeError):
        pass
    return lambda: last_iterator[0]


def _careful(queue: Queue) -> Queue:
    """Return the function without errors of objects that change meanwhile, or are not as expected."""

    def careful() -> int | None:
        try:
            return queue()
        except Exception:  # noqa: BLE001 - private parts of other libraries, read while their threads change them
            return None

    return careful


def _enqueuer(adapter: Any) -> Queue | None:
    """Count the finished tasks of Keras's `OrderedEnqueuer`."""
    enqueuer = getattr(adapter, "enqueuer", None)
    if enqueuer is None:
        return None
    return lambda: enqueuer.ready_queue.qsize() + sum(future.ready() for future in list(enqueuer.future_queue.queue))


def _chain(iterator: Any) -> Iterator[Any]:
    """Yield an iterator, and those that it reads from."""
    for _ in range(PARENTS):
        if iterator is None:
            return
        yield iterator
        inner = getattr(getattr(iterator, "_dataset_fetcher", None), "dataset_iter", None)
        iterator = inner if inner is not None else _attribute(iterator, "_iterator", "_parent", "_inner_iter")


def _attribute(owner: Any, *names: str) -> Any:
    for name in names:
        try:
            attribute = getattr(owner, name, None)
        except Exception:  # noqa: BLE001, S112 - a property of another library
            continue
        if attribute is not None:
            return attribute
    return None


def _prefetch_of(iterator: Any) -> Queue | None:
    if hasattr(iterator, "_task_info") and hasattr(iterator, "_worker_result_queue"):
        return lambda: iterator._data_queue.qsize() + sum(len(task) == 2 for task in list(iterator._task_info.values()))
    buffer = getattr(iterator, "_buffer", None)
    if buffer is None:
        return None
    if hasattr(buffer, "qsize"):
        return lambda: int(buffer.qsize())
    return lambda: sum(future.done() if hasattr(future, "done") else 1 for future in list(iterator._buffer or ()))


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """A request for a stream of a source's batches.

    `source` is anything that `fit` reads more than once. With `drops_partial`, batches with fewer than `batch_size`
    samples are left out. With `timers`, the time of each draw is recorded.
    """

    model: Any
    source: Any
    batch_size: int
    drops_partial: bool = False
    timers: Timers | None = None
