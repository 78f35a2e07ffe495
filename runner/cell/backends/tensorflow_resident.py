"""Batches that stay in a device's memory while TensorFlow trains on them: a step receives views of resident arrays.

`tf.data` cannot do this. Its `TensorDataset` has a kernel for the CPU only, so that its elements are in host memory and
each step copies one to the device (tensorflow/core/kernels/data/tensor_dataset_op.cc; tensorflow#43905). Here a data
set of row numbers stays on the host, and the step takes that row of arrays that hold all batches. `StridedSlice` reads
its bounds from host memory, and a row that starts at a multiple of 64 bytes shares the array's memory, others are
copied within the device (tensorflow/core/kernels/strided_slice_op.cc).

TensorFlow keeps int32 tensors of a GPU in host memory, and its `StridedSlice` too. The bits of int32 arrays are stored
as float32; `Bitcast` leaves its output on the device.

A module of its own: no other backend needs it, and the adapter is read without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.composite_tensor import CompositeTensor

from keras_matrix.runner.cell.batches import Batch

HOST = "/device:CPU:0"
# By id: the iterators whose batches a loop of Keras passes on, while it is traced.
_traced: WeakValueDictionary[int, ResidentIterator] = WeakValueDictionary()


def resident_dataset(batches: Sequence[Batch], device: str) -> Callable[[Any], Any]:
    """Store the batches on `device`; return a function from a data set of these batches to the one for `fit`.

    The data set that is passed decides the number of batches: its iterator cycles through the resident batches, one for
    each of its elements. A data set that a workload derives from it (`map`, `take`) is not resident.
    """
    arrays = [
        _stored(component_arrays, device) for component_arrays in zip(*map(tf.nest.flatten, batches), strict=True)
    ]
    structure = tf.nest.map_structure(lambda part: tf.TensorSpec(part.shape, part.dtype), batches[0])
    count = len(batches)

    def with_resident_iterator(dataset: Any) -> Any:
        with tf.device(HOST):
            rows = tf.data.Dataset.range(count, output_type=tf.int32).repeat().take(dataset.cardinality())
            rows = rows.with_options(dataset.options())

        class Resident(type(dataset)):  # type: ignore[misc]
            def __iter__(self) -> Any:
                with tf.device(HOST):
                    numbers = iter(rows)
                return ResidentIterator(numbers, arrays, structure, device)

        dataset.__class__ = Resident
        return dataset

    return with_resident_iterator


class ResidentIterator(tf.data.Iterator):  # type: ignore[misc]
    """An iterator over resident batches that Keras passes to its compiled functions like one of `tf.data`."""

    def __init__(self, numbers: Any, arrays: Sequence[Any], structure: Any, device: str) -> None:
        self.numbers, self.arrays = numbers, tuple(arrays)
        self._structure, self._device = structure, device

    @property
    def element_spec(self) -> Any:
        """Return the shapes and types of a batch."""
        return self._structure

    def get_next(self) -> Batch:
        """Return the next batch; raises `tf.errors.OutOfRangeError` after the last."""
        return self.row(self.numbers.get_next())

    def get_next_as_optional(self) -> ResidentOptional:
        """Return the next batch as what Keras passes through its loop over `steps_per_execution` steps."""
        _traced[id(self)] = self
        return ResidentOptional(self.numbers.get_next(), id(self))

    def __next__(self) -> Batch:
        return self.row(next(self.numbers))

    def __iter__(self) -> ResidentIterator:
        return self

    @property
    def _type_spec(self) -> ResidentIteratorSpec:
        # Without the number of rows, so that feeds of one batch and of many share one compiled function.
        specs = [tf.TensorSpec([None, *array.shape[1:]], array.dtype) for array in self.arrays]
        return ResidentIteratorSpec(self.numbers._type_spec, specs, self._structure, self._device)

    def row(self, number: Any) -> Batch:
        """Return the batch in a row of the arrays, an int32 in host memory."""
        with tf.device(HOST):
            begin = tf.reshape(number, [1])
            end, strides = begin + 1, tf.ones_like(begin)
        with tf.device(self._device):
            row_tensors = [
                tf.raw_ops.StridedSlice(input=array, begin=begin, end=end, strides=strides, shrink_axis_mask=1)
                for array in self.arrays
            ]
            specs = tf.nest.flatten(self._structure)
            typed = [
                row_tensor if row_tensor.dtype == spec.dtype else tf.bitcast(row_tensor, spec.dtype)
                for row_tensor, spec in zip(row_tensors, specs, strict=True)
            ]
        batch: Batch = tf.nest.pack_sequence_as(self._structure, typed)
        return batch


class ResidentOptional(CompositeTensor):  # type: ignore[misc]
    """A batch for which a loop carries only the row number; it always has a value.

    The number is an int32, which control flow keeps in host memory. An `Optional` would carry it to the device, and the
    bounds of the row would have to come back from there. The arrays are captured by the function that needs them.
    """

    def __init__(self, number: Any, source_id: int) -> None:
        self.number, self.source_id = number, source_id

    def has_value(self) -> Any:
        """Return true: after the last row number `get_next` has raised `tf.errors.OutOfRangeError`."""
        with tf.device(HOST):
            return tf.constant(True)

    def get_value(self) -> Batch:
        """Return the batch."""
        return _traced[self.source_id].row(self.number)

    @property
    def _type_spec(self) -> ResidentOptionalSpec:
        return ResidentOptionalSpec(self.source_id)


class ResidentOptionalSpec(tf.TypeSpec):  # type: ignore[misc]
    """The type of the batches of one iterator; TensorFlow copies it from its serialized form."""

    def __init__(self, source_id: int) -> None:
        self._source_id = source_id

    @property
    def value_type(self) -> type[ResidentOptional]:
        """Return the class of the values."""
        return ResidentOptional

    @property
    def _component_specs(self) -> Any:
        return tf.TensorSpec([], tf.int32)

    def _to_components(self, value: ResidentOptional) -> Any:
        return value.number

    def _from_components(self, components: Any) -> ResidentOptional:
        return ResidentOptional(components, self._source_id)

    def _serialize(self) -> Any:
        return (self._source_id,)


class ResidentIteratorSpec(tf.TypeSpec):  # type: ignore[misc]
    """The type of a `ResidentIterator`: calls with equal types share one compiled function."""

    def __init__(self, numbers: Any, arrays: Sequence[Any], structure: Any, device: str) -> None:
        self._parts = numbers, tuple(arrays)
        self._structure, self._device = structure, device

    @property
    def value_type(self) -> type[ResidentIterator]:
        """Return the class of the values."""
        return ResidentIterator

    @property
    def _component_specs(self) -> Any:
        return self._parts

    def _to_components(self, value: ResidentIterator) -> Any:
        return value.numbers, value.arrays

    def _from_components(self, components: Any) -> ResidentIterator:
        numbers, arrays = components
        return ResidentIterator(numbers, arrays, self._structure, self._device)

    def _serialize(self) -> Any:
        return (*self._parts, self._structure, self._device)


def _stored(component_arrays: Sequence[Any], device: str) -> Any:
    """Return one array of all rows in the device's memory."""
    stacked = np.stack([np.asarray(array) for array in component_arrays])
    bits = stacked.view(np.float32) if stacked.dtype == np.int32 else stacked
    with tf.device(device):
        return tf.constant(bits)
