"""A parity worker, inside its process: trains a few untimed steps with given weights, and notes or corrects the
operations that backends are known to compute inexactly.

It uses Keras's own interface alone, the same on every backend: the steps are those of `train_on_batch`, compiled as in
the timed cell, with random layers switched off. `analysis.parity` judges on the host.

A module of its own: it is imported only for a parity worker's job.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from keras_matrix.models.process import keep_float64
from keras_matrix.models.workload import Built
from keras_matrix.records import files
from keras_matrix.records.codec import dumps
from keras_matrix.records.instruments.parity import Facts, Operation, ParityOutput, Sketch, Weight, content_hash
from keras_matrix.records.settings import FIT
from keras_matrix.runner.cell import backends
from keras_matrix.runner.cell.backends import BackendAdapter
from keras_matrix.runner.cell.batches import counted_feed, inputs_of, make_batches, parts_of, steps_of_pass
from keras_matrix.runner.cell.checks.devices import prove, reserving
from keras_matrix.runner.cell.job import ARRAYS_NAME, WEIGHTS_NAME, Job, ParityWorker
from keras_matrix.runner.cell.loop import Stretch, finite
from keras_matrix.runner.cell.measure import build
from keras_matrix.runner.cell.options import configure_keras, found_versions, seed_all, switch_off
from keras_matrix.runner.cell.phases import fit_epochs
from keras_matrix.runner.cell.replicated.groups import group_of

Array = NDArray[Any]
SKETCH_DIRECTIONS = 2
Note = Callable[[Operation], None]


def run_parity_worker(job: Job, worker: ParityWorker) -> None:
    """Do the worker's part and write its output. Raises what the workload raises, or `Unsupported`."""
    adapter = backends.load(job.settings.backend)
    adapter.configure(job.settings, None)
    adapter.group = group_of(job.settings)
    try:
        with reserving(job.settings):
            adapter.group.reserve(job)
        _run(job, worker, adapter)
    finally:
        adapter.group.close()


def _run(job: Job, worker: ParityWorker, adapter: BackendAdapter) -> None:
    configure_keras(job.settings)
    if job.settings.precision == "float64":
        # A timed cell runs Keras unchanged; here float64 distinguishes errors from rounding.
        keep_float64()
    seed_all(adapter, job.settings.seed)
    prove(adapter, job.settings)
    ran = watch(job.settings.backend, worker.correct)
    with adapter.group.building():
        workload = build(job)
    switched_off, drawn_weights = switch_off(workload.model), workload.model.get_weights()
    if worker.weights is None:
        trace = _make_weights(job, workload.model)
    else:
        sha256 = load_weights(workload.model, Path(worker.weights))
        if worker.nudge is not None:
            nudge(workload.model, worker.nudge)
        if worker.role == "train":
            trace = _train(job, workload, adapter, sha256, Recorder(workload.model, ran, worker.correct))
            trace = replace(trace, facts=facts(workload.model.optimizer, ran))
        elif worker.role == "fit":
            trace = _fit(job, workload, adapter, sha256)
        elif worker.role == "predict":
            trace = _predict(job, workload, sha256)
        else:
            trace = _forward(job, workload, adapter, sha256)
    weights = [
        replace(weight, initial=_drawn(array)) for weight, array in zip(trace.weights, drawn_weights, strict=True)
    ]
    trace = replace(trace, weights=weights, switched_off=switched_off, versions=found_versions(adapter))
    files.replace(job.trace_path, dumps(trace))


def load_weights(model: Any, path: Path) -> str:
    """Put the weights of `path` into the model and return the sha256 of their content. Raises ValueError."""
    with np.load(path) as stored_arrays:
        arrays = [stored_arrays[name] for name in sorted(stored_arrays.files)]
    shapes = [array.shape for array in arrays]
    model_shapes = [tuple(weight.shape) for weight in model.weights]
    if shapes != model_shapes:
        unlike = [(i, pair) for i, pair in enumerate(zip(shapes, model_shapes, strict=False)) if pair[0] != pair[1]]
        difference_text = f"; the first that differs is number {unlike[0][0]}: {unlike[0][1]}" if unlike else ""
        raise ValueError(f"parity: the model has {len(model_shapes)} weights, the file {len(shapes)}{difference_text}")
    model.set_weights(arrays)
    return content_hash(_bytes(arrays))


def nudge(model: Any, seed: int) -> None:
    """Move each weight by one unit in its last place, up or down by `seed`; zeros stay."""
    rng = np.random.default_rng(seed)
    model.set_weights([_nudged(array, rng) for array in model.get_weights()])


def _nudged(array: Array, rng: np.random.Generator) -> Array:
    if not np.issubdtype(array.dtype, np.floating):
        return array
    infinity = array.dtype.type(np.inf)
    moved_array = np.nextafter(array, np.where(rng.random(array.shape) < 0.5, infinity, -infinity))
    return np.where(array == 0, array, moved_array)


class Recorder:
    """Records the gradients that reach a model's optimiser, in variables of that optimiser.

    It adds to `ran` that rows of a gradient repeat within a batch. With that operation in `correct`, such a gradient
    reaches the optimiser dense.

    Keras carries an optimiser's variables through compiled steps on every backend.
    """

    def __init__(self, model: Any, ran: set[Operation] | None = None, correct: Collection[Operation] = ()) -> None:
        optimizer = model.optimizer
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        self._recorded = [
            optimizer.add_variable(variable.shape, dtype=variable.dtype, name=f"parity_gradient_{i}")
            for i, variable in enumerate(model.trainable_variables)
        ]
        self._repeated = optimizer.add_variable((), dtype="int32", name="parity_repeated_rows")
        self._ran = set() if ran is None else ran
        self._dense = Operation.REPEATED_ROWS in correct
        self._apply = optimizer.apply
        optimizer.apply = self._recording

    def _recording(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        for recorded, gradient in zip(self._recorded, grads, strict=True):
            if gradient is not None:
                # Reshaping makes TensorFlow's sparse gradient of an embedding dense.
                recorded.assign(keras.ops.reshape(gradient, recorded.shape))
            if (indices := rows_of(gradient)) is not None:
                self._repeated.assign_add(repeated(indices))
        if self._dense:
            grads = [g if rows_of(g) is None else keras.ops.reshape(g, g.shape) for g in grads]
        return self._apply(grads, trainable_variables)

    def gradients(self) -> list[Array]:
        """Return the gradients of the last step, in the order of the model's trainable variables."""
        return [np.array(keras.ops.convert_to_numpy(recorded)) for recorded in self._recorded]

    def note_repeated_rows(self) -> None:
        """Note after training whether rows of a gradient repeated."""
        if int(keras.ops.convert_to_numpy(self._repeated)):
            self._ran.add(Operation.REPEATED_ROWS)


def _make_weights(job: Job, model: Any) -> ParityOutput:
    arrays = model.get_weights()
    np.savez(Path(job.folder) / WEIGHTS_NAME, **{f"{i:05d}": array for i, array in enumerate(arrays)})
    return ParityOutput(job.nonce, content_hash(_bytes(arrays)), _weights(model, None))


def _train(job: Job, workload: Built, adapter: BackendAdapter, sha256: str, recorder: Recorder) -> ParityOutput:
    """Train the job's steps; record the gradients of step 1, the updates of step 2, and every loss."""
    model = workload.model
    losses: list[float | None] = []
    arrays: dict[str, Any] = {}
    states: list[list[Array]] = []
    for step, batch in enumerate(make_batches(workload, job.settings, steps_of_pass(job.settings))):
        losses.append(finite(model.train_on_batch(*parts_of(batch), return_dict=True).get("loss", math.nan)))
        if step == 0:
            trainable = {
                id(variable): gradient
                for variable, gradient in zip(model.trainable_variables, recorder.gradients(), strict=True)
            }
            arrays |= {f"gradient.{i}": trainable[id(w)] for i, w in enumerate(model.weights) if id(w) in trainable}
        if step < 2:
            states.append([np.array(array, copy=True) for array in model.get_weights()])
    if len(states) == 2:
        arrays |= {f"update.{i}": after - before for i, (before, after) in enumerate(zip(*states, strict=True))}
    recorder.note_repeated_rows()
    np.savez(Path(job.folder) / ARRAYS_NAME, **arrays)
    adapter.barrier(model)
    return ParityOutput(job.nonce, sha256, _weights(model, states[0]), losses)


def _fit(job: Job, workload: Built, adapter: BackendAdapter, sha256: str) -> ParityOutput:
    """Train the job's steps by `fit` on all devices; record the updates of step 2, and every loss."""
    model, group = workload.model, adapter.group
    batches = make_batches(workload, job.settings, steps_of_pass(job.settings))
    group.prepare(model)
    feeder = group.feeder(
        batches, lambda own_batches: lambda needed_batches: counted_feed(own_batches, adapter.lookahead)
    )
    states: list[list[Array]] = []

    def note(epoch: int) -> None:
        if epoch in (1, 2):
            states.append([np.array(array, copy=True) for array in model.get_weights()])

    count = len(batches)
    log = fit_epochs(model, feeder(count).source, adapter, Stretch(1, count, before=note))
    note(2 if len(states) == 1 else 0)
    arrays = {f"update.{i}": after - before for i, (before, after) in enumerate(zip(*states, strict=True))}
    np.savez(Path(job.folder) / ARRAYS_NAME, **arrays)
    losses = [epoch_logs.get("loss") for epoch_logs in log.logs]
    replicas = group.replicas(model, batches[0])
    return replace(ParityOutput(job.nonce, sha256, _weights(model, states[0]), losses), replicas=replicas)


def _predict(job: Job, workload: Built, sha256: str) -> ParityOutput:
    """Predict the first batch, compiled as in the timed cell; record the outputs."""
    inputs = inputs_of(make_batches(workload, job.settings, 1)[0])
    outputs = [np.asarray(output) for output in keras.tree.flatten(workload.model.predict_on_batch(inputs))]
    arrays: dict[str, Any] = {f"output.{i}": output for i, output in enumerate(outputs)}
    np.savez(Path(job.folder) / ARRAYS_NAME, **arrays)
    return ParityOutput(job.nonce, sha256, _weights(workload.model, None), outputs=len(outputs))


def _forward(job: Job, workload: Built, adapter: BackendAdapter, sha256: str) -> ParityOutput:
    """Call the model once on the first batch, uncompiled, and sketch the output of each layer."""
    inputs = inputs_of(make_batches(workload, job.settings, 1)[0])
    sketches: list[Sketch] = []
    call = keras.layers.Layer.__call__

    def sketching(layer: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = call(layer, *args, **kwargs)
        sketches.extend(_sketches(layer, outputs))
        return outputs

    keras.layers.Layer.__call__ = sketching
    try:
        workload.model(inputs, training=job.settings.phase == FIT)
    finally:
        keras.layers.Layer.__call__ = call
    adapter.wait(None)
    return ParityOutput(job.nonce, sha256, _weights(workload.model, None), sketches=sketches)


def _sketches(layer: Any, outputs: Any) -> Iterator[Sketch]:
    for number, output in enumerate(keras.tree.flatten(outputs)):
        values = _concrete(output)
        if values is None:
            continue
        # Projections show what a norm does not: a transposed or shuffled output.
        directions = np.random.default_rng(values.size).standard_normal((SKETCH_DIRECTIONS, values.size))
        suffix = f"[{number}]" if number else ""
        projections = [float(value) for value in directions @ values]
        norm = float(np.linalg.norm(values))
        if math.isfinite(norm):
            yield Sketch((layer.path or layer.name) + suffix, values.size, norm, projections)


def _concrete(output: Any) -> Array | None:
    """Return an output as a flat float64 array; None if it has no value, as inside a loop that a backend compiles."""
    try:
        return np.asarray(keras.ops.convert_to_numpy(output), np.float64).ravel()
    except Exception:  # noqa: BLE001 - each backend has its own error for a value that does not exist yet
        return None


def _weights(model: Any, values: list[Array] | None) -> list[Weight]:
    trainable_ids = {id(variable) for variable in model.trainable_variables}
    norms: list[float | None] = [None] * len(model.weights)
    if values is not None:
        norms = [finite(np.linalg.norm(value.astype(np.float64))) for value in values]
    return [
        Weight(weight.path, [int(length) for length in weight.shape], id(weight) in trainable_ids, norm)
        for weight, norm in zip(model.weights, norms, strict=True)
    ]


def _drawn(array: Array) -> list[float]:
    values = array.astype(np.float64)
    return [float(values.mean()), float(values.std())]


def _bytes(arrays: Sequence[Array]) -> Iterator[bytes]:
    for array in arrays:
        yield f"{array.dtype.str}{array.shape}".encode()
        yield np.ascontiguousarray(array).tobytes()


def watch(backend: str, correct: Collection[Operation]) -> set[Operation]:
    """Watch a backend's inexact operations from now on, and compute those in `correct` exactly.

    Returns the set of those that ran, which fills as the process runs.

    A cause of deviations is a mechanism: an operation that a backend is known to compute inexactly
    (`records.instruments.parity.Operation`), in any workload and in custom layers, since the backend's own function is
    replaced. What still deviates once they are computed exactly has another cause.
    """
    ran: set[Operation] = set()
    if keras.config.floatx() == "float64":
        _watch_float32(ran.add, Operation.FLOAT32_LAYERS in correct)
    if backend == "tensorflow":
        _watch_gelu(ran.add, Operation.GELU in correct)
        if Operation.PYTHON_FLOATS in correct:
            _keep_python_floats()
    if backend == "jax":
        _watch_attention(ran.add, Operation.ATTENTION_SOFTMAX in correct)
    return ran


def facts(optimizer: Any, ran: Collection[Operation]) -> Facts:
    """Return the facts of a worker that trained with this optimizer."""
    schedule = keras.optimizers.schedules.LearningRateSchedule
    return Facts(
        optimizer=keras_class(optimizer),
        hyperparameters=hyperparameters(optimizer),
        scheduled=isinstance(optimizer._learning_rate, schedule),
        operations=sorted(ran),
    )


def keras_class(optimizer: Any) -> str:
    """Return the name of Keras's class of an optimizer; of a user's subclass, that of the class it derives from."""
    return next(kind.__name__ for kind in type(optimizer).__mro__ if kind.__module__.startswith("keras."))


def hyperparameters(optimizer: Any) -> dict[str, float]:
    """Return the finite numbers of an optimizer's configuration; switches and names are left out."""
    try:
        config = optimizer.get_config()
    except Exception as error:  # noqa: BLE001 - any error of a user's optimizer: the causes that need it do not apply
        print(f"hyperparameters not reported: {type(error).__name__}: {error}", file=sys.stderr)
        return {}
    numbers = {name: float(value) for name, value in config.items() if type(value) in (int, float)}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def rows_of(gradient: Any) -> Any:
    """Return the indices of the rows of TensorFlow's sparse gradient; None for a dense one."""
    return gradient.indices if type(gradient).__name__ == "IndexedSlices" else None


def repeated(indices: Any) -> Any:
    """Return how many of these indices repeat another one, as a tensor."""
    ordered = keras.ops.sort(indices)
    return keras.ops.sum(keras.ops.cast(ordered[1:] == ordered[:-1], "int32"))


# By these functions KerasHub's layers ask for float32.
_TYPED = ("arange", "cast", "convert_to_tensor")


def _watch_float32(note: Note, correct: bool) -> None:
    """Watch the layers of KerasHub that compute in float32 under a float64 policy, such as normalisations.

    Such a layer casts between the two by `keras.ops`, or contains a layer of that dtype. A user's own layer of float32
    is left alone: its author can change it.
    """
    if correct:
        for name in _TYPED:
            setattr(keras.ops, name, _in_float64(getattr(keras.ops, name)))
    cast, create = keras.ops.cast, keras.layers.Layer.__init__

    def noting_cast(x: Any, dtype: Any) -> Any:
        if {_name(getattr(x, "dtype", None)), _name(dtype)} == {"float32", "float64"} and _asked_by_keras_hub():
            note(Operation.FLOAT32_LAYERS)
        return cast(x, dtype)

    def noting_create(layer: Any, *arguments: Any, dtype: Any = None, **named: Any) -> None:
        if dtype is not None and keras.dtype_policies.get(dtype).name == "float32" and _asked_by_keras_hub():
            note(Operation.FLOAT32_LAYERS)
            dtype = "float64" if correct else dtype
        create(layer, *arguments, dtype=dtype, **named)

    keras.ops.cast, keras.layers.Layer.__init__ = noting_cast, noting_create


def _asked_by_keras_hub() -> bool:
    """Return whether the code that called Keras is KerasHub's."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and _module(frame).startswith(("keras.", __name__)):
        frame = frame.f_back
    return frame is not None and _module(frame).startswith("keras_hub.")


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _in_float64(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with float64 in place of a `dtype` of float32 that KerasHub asks for."""
    signature = inspect.signature(function)

    @wraps(function)
    def exact(*args: Any, **named: Any) -> Any:
        bound = signature.bind(*args, **named)
        if _name(bound.arguments.get("dtype")) == "float32" and _asked_by_keras_hub():
            bound.arguments["dtype"] = "float64"
        return function(*bound.args, **bound.kwargs)

    return exact


def _name(dtype: Any) -> str | None:
    return None if dtype is None else keras.backend.standardize_dtype(dtype)


def _watch_gelu(note: Note, correct: bool) -> None:
    """Watch tf.nn.gelu, which rounds its constants to float32 for every type of input."""
    import tensorflow as tf

    inexact = tf.nn.gelu

    def gelu(features: Any, approximate: bool = False, name: str | None = None) -> Any:
        note(Operation.GELU)
        if not correct:
            return inexact(features, approximate, name)
        x = tf.convert_to_tensor(features)
        if approximate:
            return 0.5 * x * (1.0 + tf.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
        return 0.5 * x * (1.0 + tf.math.erf(x * math.sqrt(0.5)))

    tf.nn.gelu = gelu


def _keep_python_floats() -> None:
    """Convert a Python float without a type to a tensor of float64, unlike TensorFlow, which uses float32."""
    import tensorflow as tf

    cast, convert = tf.cast, tf.convert_to_tensor

    def exact_cast(x: Any, dtype: Any, name: str | None = None) -> Any:
        return cast(tf.constant(x, tf.float64) if isinstance(x, float) else x, dtype, name)

    def exact_convert(value: Any, dtype: Any = None, *arguments: Any, **named: Any) -> Any:
        return convert(value, tf.float64 if dtype is None and isinstance(value, float) else dtype, *arguments, **named)

    tf.cast, tf.convert_to_tensor = exact_cast, exact_convert


def _watch_attention(note: Note, correct: bool) -> None:
    """Watch jax.nn.dot_product_attention, which computes its softmax in float32 for every type of input."""
    import jax
    from jax import numpy as jnp
    from keras.src.backend.jax.nn import _apply_masks

    inexact = jax.nn.dot_product_attention

    def attention(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, **named: Any) -> Any:
        note(Operation.ATTENTION_SOFTMAX)
        if not correct:
            return inexact(query, key, value, bias, mask, **named)
        key, value = (jnp.repeat(array, query.shape[2] // array.shape[2], axis=2) for array in (key, value))
        scale = named.get("scale") or 1 / math.sqrt(query.shape[-1])
        logits = jnp.einsum("BTNH,BSNH->BNTS", query, key) * scale
        logits = logits if bias is None else logits + bias
        weights = jax.nn.softmax(_apply_masks(logits, mask, named.get("is_causal", False)), axis=-1)
        return jnp.einsum("BNTS,BSNH->BTNH", weights, value)

    jax.nn.dot_product_attention = attention
