"""A stream of batches for TensorFlow: one iterator of `tf.data` over all calls of `fit`.

TensorFlow's `fit` reads its iterator inside the compiled step, where no Python runs, and creates one at each call. Here
the data set that it receives returns the same iterator each time. With timers the function of the step is replaced by
one that draws the batch in Python and passes it on, as Keras's own function accepts it (`_make_function` of Keras's
`TensorFlowTrainer`).

A module of its own: no other backend needs it, and the adapter is read without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from keras.src.trainers.data_adapters import get_data_adapter
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from keras_matrix.runner.cell.batches import Feed
from keras_matrix.runner.cell.piped.stream import StreamAdapter
from keras_matrix.runner.cell.piped.timers import StreamRequest, Timers

# The batches that are prefetched where tf.data would tune their number: in place of a last `prefetch(AUTOTUNE)`, with
# which Keras ends its data sets of generators, and after what ends without prefetching, if its options let tf.data add
# it. tf.data doubles that number whenever a full queue was emptied. Without pauses the queue of a slow source is never
# full; the pauses between epochs would let it grow until an epoch takes most of its batches from it.
TUNED = 16
CALIBRATION_DRAWS = 100


class DatasetStream:
    """A stream whose batches only a compiled step draws, so that `taken` has those that calls of `fit` need."""

    def __init__(self, request: StreamRequest) -> None:
        if request.timers is not None:
            request.timers.watch(request.source)
        adapter = get_data_adapter(request.source)
        pass_dataset, self.prefetched = _without_tuned_prefetch(adapter.get_tf_dataset())
        self.taken = 0
        self._dataset = _endless(adapter, pass_dataset)
        if request.drops_partial:
            self._dataset = _full(self._dataset, request.batch_size)
        if self.prefetched:
            self._dataset = self._dataset.prefetch(self.prefetched)
        self._dataset = self._dataset.with_options(_no_prefetch_added())
        self._iterator_of = _share_iterator(self._dataset)
        self._source = StreamAdapter((), request.batch_size, self._dataset)
        if request.timers is not None:
            request.timers.watch_pass(adapter, None)
            request.timers.hook_cpu_time_s = lambda: _draw_cpu_time_s(next(self._iterator_of()))
            _time_batches(request.model, request.timers)

    def feed(self, needed_batches: int) -> Feed:
        self.taken += needed_batches
        return Feed(self._source, lambda: None, None)

    def drop(self, batches: int) -> None:
        iterator = self._iterator_of()
        for _ in range(batches):
            next(iterator)
        self.taken += batches


def _without_tuned_prefetch(dataset: Any) -> tuple[Any, int]:
    """Return the data set without a last `prefetch(AUTOTUNE)`, and how many batches to prefetch in its place.

    These are 0 behind a prefetch of a fixed size, and where the options keep tf.data from adding one.
    """
    options, last_stage = dataset.options(), dataset
    while type(last_stage).__name__ == "_OptionsDataset":
        last_stage = last_stage._input_dataset
    if type(last_stage).__name__ != "_PrefetchDataset":
        return dataset, TUNED if _adds_prefetch(options) else 0
    if int(last_stage._buffer_size) != tf.data.AUTOTUNE:
        return dataset, 0
    return last_stage._input_dataset.with_options(options), TUNED


def _adds_prefetch(options: Any) -> bool:
    """Return whether these options, by default, let tf.data add `prefetch(AUTOTUNE)` at the end of a data set."""
    optimization = options.experimental_optimization
    choices = (options.autotune.enabled, optimization.inject_prefetch, optimization.apply_default_optimizations)
    return not any(choice is False for choice in choices)


def _no_prefetch_added() -> Any:
    """Return the option with which tf.data adds no prefetching; others of a data set stay as they are."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return options


def _endless(adapter: Any, dataset: Any) -> Any:
    """Return the data set of Keras's data adapter, repeated, with the adapter's hooks between two passes."""
    if type(adapter).on_epoch_end is DataAdapter.on_epoch_end:
        return dataset.repeat()
    adapter.on_epoch_begin()

    def between_passes() -> Iterator[Any]:
        adapter.on_epoch_end()
        adapter.on_epoch_begin()
        return iter(())

    nothing = tf.data.Dataset.from_generator(between_passes, output_signature=dataset.element_spec)
    return dataset.concatenate(nothing).repeat()


def _full(dataset: Any, batch_size: int) -> Any:
    """Return the data set without batches of fewer samples; unchanged if all its batches have the same number."""
    specs = tf.nest.flatten(dataset.element_spec)
    place = next(number for number, spec in enumerate(specs) if _has_rows(spec))
    if specs[place].shape[0] is not None:
        return dataset

    def is_full(*parts: Any) -> Any:
        array = tf.nest.flatten(parts)[place]
        rows = array.nrows() if isinstance(array, tf.RaggedTensor) else tf.shape(array, out_type=tf.int64)[0]
        return rows == batch_size

    return dataset.filter(is_full)


def _has_rows(spec: Any) -> bool:
    shape = getattr(spec, "shape", None)
    return shape is not None and shape.rank != 0


def _share_iterator(dataset: Any) -> Callable[[], Any]:
    """Let each `iter` of this data set return the same iterator; return a function that returns it."""
    shared: list[Any] = []

    class Shared(type(dataset)):  # type: ignore[misc]
        def __iter__(self) -> Any:
            if not shared:
                shared.append(super().__iter__())
            return shared[0]

    dataset.__class__ = Shared
    return lambda: iter(dataset)


def _time_batches(model: Any, timers: Timers) -> None:
    """Let the model's step function draw its batches through the timers."""
    model.make_train_function()
    plain_function = model.train_function

    def timed(iterator: Any) -> Any:
        return plain_function(iter((timers.draw(iterator.__next__),)))

    model.train_function = timed


def _draw_cpu_time_s(batch: Any) -> float:
    """Return the CPU seconds of drawing such a batch in Python, from memory."""
    iterator = iter(tf.data.Dataset.from_tensors(batch).repeat())
    next(iterator)
    begun_s = time.thread_time()
    for _ in range(CALIBRATION_DRAWS):
        next(iterator)
    return (time.thread_time() - begun_s) / CALIBRATION_DRAWS
