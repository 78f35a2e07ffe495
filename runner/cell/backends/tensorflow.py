"""TensorFlow: traces each step into a graph, and silently falls back to the CPU if a GPU is missing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import tensorflow as tf

from keras_matrix.models.workload import arrays_in, map_arrays
from keras_matrix.records.schema import DeviceProof
from keras_matrix.records.settings import MATMUL_PRECISIONS, Settings
from keras_matrix.runner.cell.backends import COMPILED_NOWHERE, BackendAdapter, Unsupported
from keras_matrix.runner.cell.backends.tensorflow_resident import HOST, resident_dataset
from keras_matrix.runner.cell.batches import LOOKAHEAD, Batch, Feed, Feeder

if TYPE_CHECKING:
    from keras_matrix.runner.cell.backends.tensorflow_stream import DatasetStream
    from keras_matrix.runner.cell.piped.timers import StreamRequest

# Where tf.function makes a graph. Not in the public interface: if it is missing, traces are not counted. The public
# count of one function's traces (`experimental_get_tracing_count`) would miss that the function was recreated.
TRACING = "tensorflow.python.eager.polymorphic_function.tracing_compilation"
TRACE = "_create_concrete_function"
# More than Keras looks ahead, so that a data set never ends within `fit`.
SPARE_BATCHES = 2 * LOOKAHEAD


class Adapter(BackendAdapter):
    """TensorFlow's adapter. It reports neither tracing nor XLA's compilation to Python."""

    lookahead: int | None = None  # its thread prefetches

    def __init__(self) -> None:
        self._traces: int | None = None

    def configure(self, settings: Settings, compile_cache_dir: str | None) -> None:
        if compile_cache_dir is not None:
            raise Unsupported("compile_cache: warm: TensorFlow keeps no compiled programs between processes")
        if settings.autotune == "pinned" and not _uses_xla(settings):
            raise Unsupported(
                "autotune: pinned: of TensorFlow only what XLA tunes can be kept; "
                "set jit to auto or true, and eager to false"
            )
        if settings.threads != "all":
            tf.config.threading.set_intra_op_parallelism_threads(int(settings.threads))
            tf.config.threading.set_inter_op_parallelism_threads(int(settings.threads))
        if settings.league == "matched":
            tf.config.experimental.enable_tensor_float_32_execution(False)
        elif settings.matmul_precision == "medium":
            raise Unsupported("matmul_precision: TensorFlow has highest and high (TF32), got medium")
        elif settings.matmul_precision in MATMUL_PRECISIONS[1:]:
            tf.config.experimental.enable_tensor_float_32_execution(settings.matmul_precision == "high")
        self._count_traces()

    def check(self, settings: Settings) -> None:
        if tf.config.functions_run_eagerly() and not settings.eager:
            raise ValueError(COMPILED_NOWHERE.format("tf.config.run_functions_eagerly"))

    def seed(self, seed: int) -> None:
        tf.random.set_seed(seed)

    def proof(self) -> DeviceProof:
        name = (tf.ones((2, 2)) + 1).device
        platform = name.split(":")[-2].lower()
        devices = tf.config.list_physical_devices(platform.upper())
        model = tf.config.experimental.get_device_details(devices[0]).get("device_name") if devices else None
        return DeviceProof(platform, name, len(devices), model)

    def barrier(self, model: Any) -> None:
        tf.test.experimental.sync_devices()

    def wait(self, outputs: Any) -> None:
        # On a CPU an operation returns when it is done, and the barrier is an operation of its own.
        is_on_cpu = all(device.device_type == "CPU" for device in tf.config.list_logical_devices())
        if not (is_on_cpu and tf.config.experimental.get_synchronous_execution()):
            self.barrier(None)

    def resident(self, batch: Batch) -> Batch:
        return map_arrays(_tensor, _with_tuples(batch))

    def source(self, batches: Iterator[Batch]) -> Any:
        first_batch = _with_tuples(next(batches))
        all_batches = chain([first_batch], map(_with_tuples, batches))
        if isinstance(first_batch, tuple):
            return (batch for batch in all_batches)  # which Keras reads as it is
        signature = map_arrays(lambda array: tf.TensorSpec((None, *array.shape[1:]), array.dtype), first_batch)
        dataset = tf.data.Dataset.from_generator(lambda: all_batches, output_signature=signature)
        return dataset.prefetch(tf.data.AUTOTUNE)

    def endless(self, batches: Sequence[Batch]) -> Any:
        # A Python generator would be wrapped in from_generator, which copies every batch through NumPy; a data set of
        # tensors hands out the tensors themselves.
        repeated, place = self._placed(batches)
        return place(repeated)

    def feeder(self, batches: Sequence[Batch]) -> Feeder:
        endless, place = self._placed(batches)

        def feed(needed_batches: int) -> Feed:
            # A counter in the data set would cost 80 us a batch. The rest of a finite one gives the number for free.
            length = needed_batches + SPARE_BATCHES
            dataset = place(endless.take(length))
            begun = _iterators_of(dataset)
            return Feed(dataset, lambda: _taken(begun, length), LOOKAHEAD)

        return feed

    def _placed(self, batches: Sequence[Batch]) -> tuple[Any, Callable[[Any], Any]]:
        """Return an endless data set of the batches, and a function that makes it yield them from the device."""
        device = accelerator()
        if device is None or not all(map(_is_numeric, arrays_in(list(batches)))):
            return repeated([self.resident(batch) for batch in batches]), lambda dataset: dataset
        tuples = [_with_tuples(batch) for batch in batches]
        with tf.device(HOST):
            endless = repeated(tuples)
        return endless, resident_dataset(tuples, device)

    def own_stream(self, request: StreamRequest) -> DatasetStream:
        from keras_matrix.runner.cell.backends.tensorflow_stream import (
            DatasetStream,
        )  # it cannot be imported on Keras 2

        return DatasetStream(request)

    def platforms(self, tensors: Any) -> set[str]:
        values = [tensor if isinstance(tensor, tf.Variable) else getattr(tensor, "value", tensor) for tensor in tensors]
        return {value.device.split(":")[-2].lower() for value in values if getattr(value, "device", "")}

    def output(self, model: Any, inputs: Any) -> Any:
        return model(inputs, training=False)

    def compilations(self) -> int | None:
        return self._traces

    def peak_device_memory_bytes(self) -> int | None:
        return _allocated_bytes("peak")

    def reset_peak_device_memory(self) -> bool | None:
        if not tf.config.list_physical_devices("GPU"):
            return None
        # Workers of FC are devices of one process, of which the largest peak is recorded.
        for index, _ in enumerate(tf.config.list_logical_devices("GPU")):
            tf.config.experimental.reset_memory_stats(f"GPU:{index}")
        return True

    def device_memory_bytes(self) -> int | None:
        return _allocated_bytes("current")

    def tf32(self) -> bool | None:
        if not tf.config.list_physical_devices("GPU"):
            return None
        return bool(tf.config.experimental.tensor_float_32_execution_enabled())

    def compute_capability(self) -> tuple[int, int] | None:
        gpus = tf.config.list_physical_devices("GPU")
        capability = tf.config.experimental.get_device_details(gpus[0]).get("compute_capability") if gpus else None
        return None if capability is None else (int(capability[0]), int(capability[1]))

    def process_options(self) -> dict[str, object]:
        return {
            "tf.config.threading intra_op": tf.config.threading.get_intra_op_parallelism_threads(),
            "tf.config.threading inter_op": tf.config.threading.get_inter_op_parallelism_threads(),
            "tensor_float_32_execution": tf.config.experimental.tensor_float_32_execution_enabled(),
            "soft_device_placement": tf.config.get_soft_device_placement(),
            "tf.config.optimizer.jit": tf.config.optimizer.get_jit(),
            "run_functions_eagerly": tf.config.functions_run_eagerly(),
        }

    @contextmanager
    def not_compiled(self) -> Iterator[None]:
        was_eager = tf.config.functions_run_eagerly()
        tf.config.run_functions_eagerly(True)
        try:
            yield
        finally:
            tf.config.run_functions_eagerly(was_eager)

    def shape_of(self, array: Any) -> tuple[int, ...] | None:
        """Return the shape; None of a symbolic tensor, such as those in `tf.vectorized_map`."""
        return None if tf.is_symbolic_tensor(array) else tuple(array.shape)

    def run(self, function: Callable[..., Any], arrays: Sequence[Any], jit: bool) -> Any:
        return tf.function(function, jit_compile=jit)(*arrays)

    def compiled(self, model: Any, function: Callable[..., Any], donated: tuple[int, ...]) -> Callable[..., Any]:
        if model.run_eagerly:
            return function
        return cast(Callable[..., Any], tf.function(function, jit_compile=model.jit_compile))

    def to_host(self, array: Any) -> Any:
        return np.array(array) if isinstance(array, tf.Tensor) else BackendAdapter.to_host(self, array)

    def forward(self, model: Any, arguments: Mapping[str, bool]) -> Callable[[Any], Any]:
        return cast(Callable[[Any], Any], tf.function(lambda inputs: model(inputs, **arguments), jit_compile=True))

    def gradients(self, model: Any, arguments: Mapping[str, bool], compiled: bool) -> Callable[..., Any]:
        weights = [weight.value for weight in model.trainable_weights]
        training = arguments.get("training", True)

        def step(x: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
            with tf.GradientTape() as tape:
                outputs = model(x, **arguments)
                loss = model._compute_loss(x, y, outputs, sample_weight, training=training)
                scaled = model.optimizer.scale_loss(loss) if training and model.optimizer is not None else loss
            return loss, tape.gradient(scaled, weights), outputs

        return cast(Callable[..., Any], tf.function(step, jit_compile=True)) if compiled else step

    def generates_compiled(self, model: Any) -> bool:
        return bool(model.jit_compile) and not model.run_eagerly

    def intra_op_threads(self) -> int | None:
        return tf.config.threading.get_intra_op_parallelism_threads() or None

    def versions(self) -> dict[str, str]:
        return {"tensorflow": tf.__version__}

    def _count_traces(self) -> None:
        """Count the graphs that functions are traced to from now on; those within another are part of it."""
        module = importlib.import_module(TRACING)
        plain_trace = getattr(module, TRACE, None)
        if plain_trace is None:
            return
        self._traces = 0

        def counting(*arguments: Any, **named: Any) -> Any:
            self._traces = (self._traces or 0) + (not tf.inside_function())
            return plain_trace(*arguments, **named)

        setattr(module, TRACE, counting)


def _is_numeric(array: Any) -> bool:
    """Return whether an accelerator can store the array: a dense one of numbers."""
    return isinstance(array, tf.Tensor | np.ndarray) and np.dtype(_dtype(array)).kind not in "OSU"


def _dtype(array: Any) -> Any:
    return array.dtype.as_numpy_dtype if isinstance(array, tf.Tensor) else array.dtype


def _uses_xla(settings: Settings) -> bool:
    """Return whether XLA compiles the step, as far as the settings say.

    With `jit_compile="auto"` Keras does so on every device but a CPU, unless a layer does not support
    it (`keras.Model._resolve_auto_jit_compile` of Keras 3.15.1).
    """
    if settings.eager:
        return False
    if settings.jit == "auto" and settings.league != "matched":
        return settings.device != "cpu"
    return settings.jit is not False


def repeated(batches: Sequence[Batch]) -> Any:
    """Return an endless data set of these tensors."""
    dataset = _chain([tf.data.Dataset.from_tensors(batch) for batch in batches]).repeat()
    # Handing out tensors leaves nothing to tune; releasing a tuned iterator can take up to 2.5 s.
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def _with_tuples(structure: Any) -> Any:
    """Return the structure with tuples in the place of lists, as Keras does: `tf.data` makes one tensor of a list."""
    if isinstance(structure, dict):
        return {key: _with_tuples(item) for key, item in structure.items()}
    if isinstance(structure, list):
        return tuple(map(_with_tuples, structure))
    if type(structure) is tuple:
        return tuple(map(_with_tuples, structure))
    return structure


def _tensor(array: Any) -> Any:
    """Return an array as a tensor; ragged and sparse ones are tensors already."""
    return array if isinstance(array, tf.RaggedTensor | tf.SparseTensor) else tf.convert_to_tensor(array)


def accelerator() -> str | None:
    """Return the device with its own memory that batches are placed on; None if the CPU computes."""
    return "/device:GPU:0" if tf.config.list_physical_devices("GPU") else None


def _iterators_of(dataset: Any) -> list[Any]:
    """Return a list to which each iterator of this data set is added when it is created."""
    iterators: list[Any] = []

    class Watched(type(dataset)):  # type: ignore[misc]
        def __iter__(self) -> Any:
            iterator = super().__iter__()
            iterators.append(iterator)
            return iterator

    dataset.__class__ = Watched
    return iterators


def _taken(iterators: Sequence[Any], length: int) -> int | None:
    """Return how many elements were taken from iterators over `length` ones, by taking what is left.

    None without an iterator: a workload's own fit may draw through a data set that it derives, with its own iterator.
    """
    if not iterators:
        return None
    return sum(length - sum(1 for _ in iterator) for iterator in iterators)


def _chain(datasets: list[Any]) -> Any:
    """Concatenate data sets as a balanced tree: a list of n would nest n iterators in each other."""
    if len(datasets) == 1:
        return datasets[0]
    middle = len(datasets) // 2
    return _chain(datasets[:middle]).concatenate(_chain(datasets[middle:]))


def _allocated_bytes(statistic: str) -> int | None:
    """Return the `peak` or `current` memory of TensorFlow's allocator on the first GPU; None without one."""
    if not tf.config.list_physical_devices("GPU"):
        return None
    return int(tf.config.experimental.get_memory_info("GPU:0")[statistic])
