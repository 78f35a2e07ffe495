"""A user's own source of batches as an input pipeline: a PyDataset, DataLoader, tf.data.Dataset or grain data set.

What the object states is used: its batch size, its workers, how far it prepares ahead. What it does not state is None,
or the bound `UNKNOWN_DEPTH`. Its stages cannot be timed, since its code is unchanged.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import GeneratorType
from typing import Any

from keras_matrix.models.workload import UnsupportedWorkload, arrays_in, map_arrays
from keras_matrix.records.instruments.input_use import InputFacts

# The most batches that a source which does not say so is taken to prepare ahead: as many as grain's default buffer of
# 500 samples has in batches of 32, and as tf.data's AUTOTUNE usually takes.
UNKNOWN_DEPTH = 16
OPTIONS = ("files", "depth")
ADVICE = "return a keras.utils.PyDataset, torch DataLoader, tf.data.Dataset or grain data set"


def is_source(value: object) -> bool:
    """Return whether `fit` accepts this object as a source of batches that can be read more than once."""
    from keras.src.trainers import data_adapters
    from keras.utils import PyDataset

    kinds = (data_adapters.is_tf_dataset, data_adapters.is_torch_dataloader, data_adapters.is_grain_dataset)
    return isinstance(value, PyDataset) or any(is_kind(value) for is_kind in kinds)


class UserSource:
    """The pipeline of a user's source: the same object each time, read from its beginning."""

    notes: tuple[str, ...] = ()

    def __init__(self, name: str, source: Any, options: Mapping[str, Any] | None = None) -> None:
        """Read one batch of the source. Raises TypeError or ValueError if it is not a source of full batches."""
        if isinstance(source, GeneratorType | Iterator):
            raise TypeError(f"{name}: a generator can be read only once; {ADVICE}. Received: {_kind(source)}")
        if not is_source(source):
            raise TypeError(f"{name}: fit cannot read batches from this; {ADVICE}. Received: {_kind(source)}")
        self._name, self._source = name, source
        self._files, depth = _checked_options(name, options or {})
        self.first = self._first_batch()
        self.batch_size = samples_of(self.first)
        self.depth = _depth(source) if depth is None else depth
        self.batches_per_pass, self.has_partial_batches = self._batches()
        self.facts = InputFacts(
            _pipeline(source),
            workers=_number(source, "num_workers", "workers"),
            prefetch=_number(source, "prefetch_factor", "max_queue_size"),
            worker_kind=_worker_kind(source),
            samples=self.batches_per_pass * self.batch_size if self.batches_per_pass else None,
            stored_bytes=sum(path.stat().st_size for path in self._files) if self._files else None,
            files=len(self._files) or None,
        )

    def source(self, *, timed: bool) -> Any:
        """Return the user's object. Raises `UnsupportedWorkload` if its stages are to be timed."""
        if timed:
            raise UnsupportedWorkload(f"{self._name}: the stages of a source of your own cannot be timed")
        return self._source

    def files(self) -> list[Path]:
        """Return the files that the workload named."""
        return list(self._files)

    def in_memory(self, batches: int) -> list[Any]:
        """Return the first full batches as numpy arrays; fewer if a pass has fewer."""
        if batches == 1:
            return [self.first]
        full = (batch for batch in map(_on_host, self._one_pass()) if samples_of(batch) == self.batch_size)
        return list(itertools.islice(full, batches))

    def _one_pass(self) -> Iterator[Any]:
        if _is_py_dataset(self._source):
            count = self._source.num_batches
            return (self._source[index] for index in (itertools.count() if count is None else range(count)))
        return iter(self._source)

    def _first_batch(self) -> Any:
        first_batch = next(iter(self._one_pass()), None)
        if first_batch is None:
            raise ValueError(f"{self._name}: the source has no batch. Received: {_kind(self._source)}")
        batch = _on_host(first_batch)
        if isinstance(batch, tuple) and len(batch) not in (1, 2, 3):
            raise TypeError(
                f"{self._name}: a batch must be x, (x, y) or (x, y, sample_weight). Received: {_kind(first_batch)} of "
                f"{len(batch)}"
            )
        lengths = {int(array.shape[0]) for array in arrays_in(batch) if len(array.shape)}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(
                f"{self._name}: the arrays of a batch must have one leading dimension, its samples. "
                f"Received lengths: {sorted(lengths)}"
            )
        check_on_backend(self._name, "a batch", batch)
        return batch

    def _batches(self) -> tuple[int | None, bool]:
        """Return the full batches of a pass, None if unknown, and whether others may be among its batches."""
        count = _count(self._source)
        spec = getattr(self._source, "element_spec", None)
        if spec is not None and _static(spec):
            return count, False
        if _is_py_dataset(self._source) and count:
            is_partial = samples_of(_on_host(self._source[count - 1])) != self.batch_size
            return (count - is_partial) or None, is_partial
        samples = _length(getattr(self._source, "sampler", None))
        if count and samples is not None and getattr(self._source, "batch_size", None) == self.batch_size:
            is_partial = not self._source.drop_last and samples % self.batch_size != 0
            return count - is_partial, is_partial
        return count, True


def _checked_options(name: str, options: Mapping[str, Any]) -> tuple[list[Path], int | None]:
    """Return the files and the depth among the options that a workload returns with its source."""
    if unknown_keys := [str(key) for key in options if key not in OPTIONS]:
        raise ValueError(
            f"{name}: the options of a source are {', '.join(OPTIONS)}. Received: {', '.join(unknown_keys)}"
        )
    files = [Path(file).absolute() for file in options.get("files", ())]
    if missing_file := next((file for file in files if not file.is_file()), None):
        raise ValueError(f"{name}: files: must exist. Received: {missing_file}")
    depth = options.get("depth")
    if depth is not None and (type(depth) is not int or depth < 0):
        raise ValueError(f"{name}: depth: a whole number of batches, 0 or more. Received: {depth!r}")
    return files, depth


def _depth(source: Any) -> int:
    """Return the most batches that the source prepares ahead, with those in the making; 0 if training prepares them."""
    workers = _number(source, "num_workers", "workers") or 0
    if _is_py_dataset(source):
        return int(source.max_queue_size) + workers if workers > 1 or source.use_multiprocessing else 0
    if hasattr(source, "prefetch_factor"):  # a DataLoader
        return workers * (source.prefetch_factor or 0)
    return UNKNOWN_DEPTH


def _worker_kind(source: Any) -> str | None:
    if _is_py_dataset(source):
        return "process" if source.use_multiprocessing else "thread"
    return "process" if hasattr(source, "prefetch_factor") else None


def _number(source: Any, *names: str) -> int | None:
    numbers = (getattr(source, name, None) for name in names)
    return next((number for number in numbers if type(number) is int), None)


def _count(source: Any) -> int | None:
    """Return the batches of a pass, None if they are not known or without end."""
    if _is_py_dataset(source):
        return None if source.num_batches is None else int(source.num_batches)
    cardinality = getattr(source, "cardinality", None)
    if callable(cardinality):
        count = int(cardinality())
        return count if count > 0 else None
    return _length(source)


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except TypeError:
        return None


def _static(spec: Any) -> bool:
    """Return whether each batch of a data set has the same number of samples, by its specification."""
    import keras

    return all(leaf.shape[0] is not None for leaf in keras.tree.flatten(spec) if getattr(leaf, "shape", None))


def _is_py_dataset(source: Any) -> bool:
    from keras.utils import PyDataset

    return isinstance(source, PyDataset)


def _on_host(batch: Any) -> Any:
    """Return a batch with numpy arrays in the place of any backend's dense tensors; a list of parts as a tuple."""
    return map_arrays(on_host, tuple(batch) if isinstance(batch, list) else batch)


def on_host(array: Any) -> Any:
    """Return an array of any library in NumPy; one that is ragged or sparse as it is."""
    import numpy as np

    if is_composite(array):
        return array
    return np.asarray(array.detach().cpu() if hasattr(array, "detach") else array)


def is_composite(array: Any) -> bool:
    """Return whether an array is one of TensorFlow's that are ragged or sparse."""
    return hasattr(array, "ragged_rank") or hasattr(array, "dense_shape")


def samples_of(batch: Any) -> int:
    """Return the samples of a batch: the leading dimension of its first array that has one."""
    return next(int(array.shape[0]) for array in arrays_in(batch) if len(array.shape))


def check_on_backend(name: str, role: str, structure: Any) -> None:
    """Raise `UnsupportedWorkload` for arrays that only TensorFlow's training reads, on another backend."""
    if not any(is_composite(array) or array.dtype.kind in "USO" for array in arrays_in(structure)):
        return
    import keras

    if (backend := keras.backend.backend()) != "tensorflow":
        raise UnsupportedWorkload(
            f"{name}: {role} has strings or ragged tensors, which Keras trains on with TensorFlow only; convert them "
            f"in build(), as with layers.StringLookup(...)(x), or leave out {backend}"
        )


def _pipeline(source: Any) -> str:
    """Return which of the four kinds of sources this is, by the names of `InputFacts.pipeline`."""
    from keras.src.trainers import data_adapters

    if _is_py_dataset(source):
        return "py_dataset"
    if data_adapters.is_torch_dataloader(source):
        return "data_loader"
    return "tf_data" if data_adapters.is_tf_dataset(source) else "grain"


def _kind(value: object) -> str:
    return type(value).__name__
