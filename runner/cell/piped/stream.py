"""One endless stream of batches from a source of `fit`, shared by all calls of `fit` of a process.

Each call of `fit` would start the source again: its first batches would be late, and batches prepared ahead would be
lost. Here the source is read by Keras's own data adapter, pass after pass, and each call continues where the one before
ended. Keras accepts a data adapter in place of data (`keras.src.trainers.data_adapters.get_data_adapter`) and then
reads no batch in advance, unlike from a generator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from keras.src.trainers.data_adapters import get_data_adapter
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from keras_matrix.runner.cell.batches import LOOKAHEAD, Batch, Feed
from keras_matrix.runner.cell.piped.timers import StreamRequest, leading_dimension


class PythonStream:
    """A stream that `fit` reads in Python, from one pass after the other of Keras's data adapter.

    `ahead` is the number of batches that Keras reads before it needs them; those of one call of `fit` are handed out
    again in the next one.
    """

    def __init__(self, request: StreamRequest, begin_pass: Callable[[Any], Iterable[Any]], lookahead: int = 0) -> None:
        self._request, self._one_pass = request, begin_pass
        if request.timers is not None:
            request.timers.watch(request.source)
        self._adapter = get_data_adapter(request.source)
        self._batches = self._passes()
        self._source = StreamAdapter(self, request.batch_size)
        self._drawn = self._begun = self._needed = 0
        self.taken = self.prefetched = 0
        self._last: deque[Batch] = deque(maxlen=lookahead)
        self._again: deque[Batch] = deque()

    def feed(self, needed_batches: int) -> Feed:
        drawn_early = self._drawn - self._begun - self._needed
        self._again.extend(list(self._last)[-drawn_early:] if drawn_early > 0 else ())
        self._last.clear()
        begun = self._begun = self._drawn
        self._needed = needed_batches
        return Feed(self._source, lambda: self._drawn - begun, LOOKAHEAD)

    def drop(self, batches: int) -> None:
        self._again.clear()
        for _ in range(batches):
            next(self._batches)
        self.taken += batches
        self._last.clear()
        self._begun, self._needed = self._drawn, 0

    def __iter__(self) -> PythonStream:
        return self

    def __next__(self) -> Batch:
        timers = self._request.timers
        self._drawn += 1
        if self._again:
            batch = self._again.popleft()
        else:
            batch = next(self._batches) if timers is None else timers.draw(self._batches.__next__)
            self.taken += 1
        self._last.append(batch)
        return batch

    def _passes(self) -> Iterator[Batch]:
        """Yield the batches of pass after pass, with Keras's hooks around each. Raises ValueError for an empty one."""
        request, adapter = self._request, self._adapter
        while True:
            adapter.on_epoch_begin()
            batches = iter(self._one_pass(adapter))
            if request.timers is not None:
                request.timers.watch_pass(adapter, batches)
            full = 0
            for batch in batches:
                if not request.drops_partial or leading_dimension(batch) == request.batch_size:
                    full += 1
                    yield batch
            adapter.on_epoch_end()
            if not full:
                raise ValueError(f"the source yielded no batch of {request.batch_size} samples in a full pass")


class StreamAdapter(DataAdapter):  # type: ignore[misc]
    """Hands a stream to `fit`, which reads it as if it had no end. `dataset` is what TensorFlow's `fit` reads."""

    def __init__(self, batches: Iterable[Any], batch_size: int | None, dataset: Any = None) -> None:
        self._batches, self._batch_size, self._dataset = batches, batch_size, dataset

    def with_batches(self, change: Callable[[Iterable[Any]], Iterable[Any]]) -> StreamAdapter:
        """Return an adapter with changed batches; unchanged if it has a data set, whose batches no Python draws."""
        if self._dataset is not None:
            return self
        return StreamAdapter(change(self._batches), self._batch_size)

    def get_numpy_iterator(self) -> Iterable[Any]:
        """Return the stream."""
        return self._batches

    def get_jax_iterator(self) -> Iterable[Any]:
        """Return the stream."""
        return self._batches

    def get_torch_dataloader(self) -> Iterable[Any]:
        """Return the stream."""
        return self._batches

    def get_tf_dataset(self) -> Any:
        """Return the data set."""
        return self._dataset

    @property
    def num_batches(self) -> None:
        """None: it does not end."""

    @property
    def batch_size(self) -> int | None:
        """The samples of a batch, None if not stated."""
        return self._batch_size

    @property
    def has_partial_batch(self) -> bool:
        """Every batch is full."""
        return False

    @property
    def partial_batch_size(self) -> None:
        """None: every batch is full."""
