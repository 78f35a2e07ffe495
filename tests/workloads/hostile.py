"""Workloads that do less work than requested, or other work; each is `tests.workloads.hostile:NAME` in a matrix.

Some cheat, some are honest in an unusual way. What must be reported of each:
`tests/runner/cell/test_hostile_workloads.py`.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

FEATURES, BATCH = 4, 8


def _layers() -> list[Any]:
    import keras

    return [keras.Input((FEATURES,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)]


def _compiled(model: Any, **options: Any) -> Any:
    import keras

    model.compile(**({"optimizer": keras.optimizers.Adam(0.01), "loss": "mse"} | options))
    return model


def _model(**options: Any) -> Any:
    import keras

    return _compiled(keras.Sequential(_layers()), **options)


def _data(samples: int = 4 * BATCH) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.random((samples, FEATURES), "float32"), rng.random((samples, 1), "float32")


def _backend() -> str:
    import keras

    return str(keras.backend.backend())


def _with_fit(change: Callable[..., Any]) -> Any:
    """Return a workload whose model's fit is `change(model, fit, source, named)`; `fit` is Keras's."""
    import keras

    class Cheating(keras.Sequential):  # type: ignore[misc]
        def fit(self, x: Any = None, **named: Any) -> Any:
            return change(self, super().fit, x, named)

    return _compiled(Cheating(_layers())), *_data()


def _changed_source(source: Any, per_batch: Callable[..., Any] | None, count: int | None) -> Any:
    """Return a source of which each batch is changed, and which ends after so many."""
    if hasattr(source, "with_batches"):
        return source.with_batches(lambda batches: _changed_source(iter(batches), per_batch, count))
    if isinstance(source, Iterator):
        changed = (per_batch(*batch) if per_batch else batch for batch in source)
        return (batch for batch in itertools.islice(changed, count))
    changed = source.map(per_batch) if per_batch else source
    return changed if count is None else changed.take(count)


# --- Honest ones ------------------------------------------------------------------------------------------------------


def honest(**_: Any) -> Any:
    return _model(), *_data()


def accumulating(**_: Any) -> Any:
    """Update the weights at every fourth step, as Keras's optimizers can."""
    import keras

    return _model(optimizer=keras.optimizers.SGD(0.1, gradient_accumulation_steps=4)), *_data()


def few_samples(**_: Any) -> Any:
    return _model(), *_data(300)


def eager(**_: Any) -> Any:
    return _model(run_eagerly=True), *_data()


def other_jit(**_: Any) -> Any:
    """Choose what Keras would not choose on a CPU: compiled on TensorFlow, not compiled on JAX."""
    return _model(jit_compile=_backend() == "tensorflow"), *_data()


def several_steps(steps: int = 4, **_: Any) -> Any:
    return _model(steps_per_execution=steps), *_data()


def slow_clock(**_: Any) -> Any:
    """Replace Python's clocks by ones that hardly move."""
    plain = time.perf_counter
    for name in ("perf_counter", "monotonic", "time"):
        setattr(time, name, lambda: plain() / 1e6)
    return _model(), *_data()


def replaced_reductions(**_: Any) -> Any:
    """Replace the functions of `statistics` and NumPy's reductions by ones that return almost nothing."""
    import statistics

    for name in ("median", "fmean", "mean"):
        setattr(statistics, name, lambda *_, **__: 1e-9)
    for name in ("percentile", "quantile", "median", "mean", "sum"):
        setattr(np, name, lambda *_, **__: np.float64(1e-9))
    return _model(), *_data()


def keeping(mib: int = 8, **_: Any) -> Any:
    """Keep so much memory with each step."""
    import keras

    kept = []

    class Keep(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            kept.append(np.ones(mib << 17))

    return _with_fit(
        lambda model, fit, source, named: fit(source, **named | {"callbacks": [*named["callbacks"], Keep()]})
    )


def forking(**_: Any) -> Any:
    """Let two processes return from here."""
    os.fork()
    return _model(), *_data()


def own_step(**_: Any) -> Any:
    """Train in a step of its own, which neither Keras's optimizer nor its loss metric sees."""
    import keras

    kinds = {"tensorflow": _tensorflow_step, "jax": _jax_step, "torch": _torch_step}
    model = type("Own", (keras.Sequential,), {"train_step": kinds[_backend()]})(_layers())
    return _compiled(model), *_data()


def _tensorflow_step(self: Any, data: Any) -> Any:
    import tensorflow as tf

    x, y = data
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
    weights = [variable.value for variable in self.trainable_variables]
    for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
        weight.assign_sub(0.01 * gradient)
    return {"own_loss": loss}


def _jax_step(self: Any, state: Any, data: Any) -> Any:
    import jax

    trainable, other, *rest = state
    x, y = data

    def loss_of(weights: Any) -> Any:
        return ((self.stateless_call(weights, other, x, training=True)[0] - y) ** 2).mean()

    loss, gradients = jax.value_and_grad(loss_of)(trainable)
    trainable = [weight - 0.01 * gradient for weight, gradient in zip(trainable, gradients, strict=True)]
    return {"own_loss": loss}, (trainable, other, *rest)


def _torch_step(self: Any, data: Any) -> Any:
    import torch

    x, y = data
    self.zero_grad()
    loss = ((self(x, training=True) - y) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        for variable in self.trainable_variables:
            variable.value.sub_(0.01 * variable.value.grad)
    return {"own_loss": loss}


def overflowing(**_: Any) -> Any:
    """Have gradients in float16 that are too large at first, so that loss scaling skips steps."""
    import keras

    inner = keras.optimizers.SGD(1e-4)
    return _model(optimizer=keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**30)), *_data()


def preset_functions(**_: Any) -> Any:
    """Put functions of its own where Keras keeps those that it makes of a model's steps."""

    def pretend(*_: Any) -> Any:
        raise AssertionError("the runner has Keras make these functions itself")

    model = _model()
    model.train_function = model.predict_function = pretend
    return model, *_data()


def own_metrics(**_: Any) -> Any:
    """Leave Keras's loss metric out of the metrics, as its guides do, and train a little before the epochs."""
    import keras

    class Own(keras.Sequential):  # type: ignore[misc]
        def __init__(self, layers: list[Any]) -> None:
            super().__init__(layers)
            self.tracker = keras.metrics.Mean(name="own")

        @property
        def metrics(self) -> list[Any]:
            return super().metrics if _backend() == "jax" else [self.tracker]

        def train_step(self, *arguments: Any) -> Any:
            found = super().train_step(*arguments)
            if _backend() == "jax":
                return found
            self.tracker.update_state(1.0)
            return {"own": self.tracker.result()}

        def fit(self, x: Any = None, **named: Any) -> Any:
            inputs, targets = _data()
            self.train_on_batch(inputs[:BATCH], targets[:BATCH])
            return super().fit(x, **named)

    return _compiled(Own(_layers())), *_data()


def several_rows(**_: Any) -> Any:
    """Predict a row for each time step of a sample, and one number for the batch."""
    import keras

    class Flat(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, inputs: Any) -> Any:
            rows = keras.ops.reshape(self.dense(inputs), (-1, 3))
            return {"rows": rows, "mean": keras.ops.reshape(keras.ops.mean(rows), (1,))}

    inputs = np.random.default_rng(0).random((4 * BATCH, 5, FEATURES), "float32")
    return _compiled(Flat(), loss=None), inputs, inputs


def eager_everywhere(**_: Any) -> Any:
    """Make every function of TensorFlow or JAX run eagerly, as is done to debug."""
    if _backend() == "tensorflow":
        import tensorflow as tf

        tf.config.run_functions_eagerly(True)
    else:
        import jax

        jax.config.update("jax_disable_jit", True)
    return _model(), *_data()


# --- Options of the entire process ------------------------------------------------------------------------------------


def floatx_of_64_bits(**_: Any) -> Any:
    import keras

    keras.config.set_floatx("float64")
    return _model(), *_data()


def global_policy(name: str = "mixed_bfloat16", **_: Any) -> Any:
    import keras

    keras.mixed_precision.set_global_policy(name)
    return _model(), *_data()


def policy_after_the_layers(**_: Any) -> Any:
    """Set a policy that no layer has, since all are made."""
    import keras

    model = _model()
    keras.config.set_dtype_policy("bfloat16")
    return model, *_data()


def layers_of_64_bits(**_: Any) -> Any:
    """Have layers that JAX computes in float32, unless its x64 mode is on."""
    import keras

    layers = [keras.layers.Dense(6, activation="tanh", dtype="float64"), keras.layers.Dense(1, dtype="float64")]
    return _compiled(keras.Sequential([keras.Input((FEATURES,)), *layers])), *_data()


def other_seed(seed: int = 42, **_: Any) -> Any:
    import keras

    keras.utils.set_random_seed(seed)
    return _model(), *_data()


def backend_options(**_: Any) -> Any:
    """Change options of the backend that decide how it computes."""
    if _backend() == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
        jax.config.update("jax_default_matmul_precision", "highest")
    elif _backend() == "torch":
        import torch

        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(3)
    else:
        import tensorflow as tf

        tf.config.experimental.enable_tensor_float_32_execution(False)
        tf.config.optimizer.set_jit(True)
    return _model(), *_data()


def layout_and_tracebacks(**_: Any) -> Any:
    import keras

    keras.config.set_image_data_format("channels_first")
    keras.config.enable_traceback_filtering()
    return _model(), *_data()


def other_backend(**_: Any) -> Any:
    """Replace Keras by one of another backend, and build with that."""
    import keras

    name = "torch" if _backend() == "jax" else "jax"
    keras.config.set_backend(name)
    import keras as other

    model = other.Sequential([other.Input((FEATURES,)), other.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model, *_data()


# --- Steps and samples ------------------------------------------------------------------------------------------------


def one_step(**_: Any) -> Any:
    return _with_fit(lambda model, fit, source, named: fit(source, **named | {"steps_per_epoch": 1}))


def half_the_steps(**_: Any) -> Any:
    return _with_fit(
        lambda model, fit, source, named: fit(source, **named | {"steps_per_epoch": -(-named["steps_per_epoch"] // 2)})
    )


def half_of_x(**_: Any) -> Any:
    """Have a `fit` of its own that names y, and trains on half of what it is given."""
    import keras

    class Half(keras.Sequential):  # type: ignore[misc]
        def fit(self, x: Any = None, y: Any = None, **named: Any) -> Any:
            return super().fit(x[: len(x) // 2], y[: len(y) // 2], **named)

    return _compiled(Half(_layers())), *_data()


def no_steps(**_: Any) -> Any:
    """Call the callbacks, and train nothing."""

    def pretend(model: Any, fit: Any, source: Any, named: dict[str, Any]) -> Any:
        for epoch in range(named["epochs"]):
            for callback in named["callbacks"]:
                callback.set_model(model)
                callback.on_epoch_begin(epoch, {})
                callback.on_epoch_end(epoch, {"loss": 0.5})

    return _with_fit(pretend)


def no_steps_but_counted(**_: Any) -> Any:
    """Train nothing, and count the steps in the optimizer."""

    def pretend(model: Any, fit: Any, source: Any, named: dict[str, Any]) -> Any:
        model.optimizer.build(model.trainable_variables)
        for epoch in range(named["epochs"]):
            for callback in named["callbacks"]:
                callback.set_model(model)
                callback.on_epoch_begin(epoch, {})
            model.optimizer.iterations.assign_add(named["steps_per_epoch"])
            for callback in named["callbacks"]:
                callback.on_epoch_end(epoch, {"loss": 0.5})

    return _with_fit(pretend)


def no_callbacks(**_: Any) -> Any:
    return _with_fit(lambda model, fit, source, named: fit(source, **named | {"callbacks": []}))


def all_in_the_first_epoch(**_: Any) -> Any:
    """Train every step of the call in the epoch that is discarded."""

    def early(model: Any, fit: Any, source: Any, named: dict[str, Any]) -> Any:
        epochs, steps = named["epochs"], named["steps_per_epoch"]
        (clock,) = named["callbacks"]
        clock.set_model(model)
        for epoch in range(epochs):
            clock.on_epoch_begin(epoch, {})
            if epoch == 0:
                fit(source, steps_per_epoch=epochs * steps, epochs=1, verbose=0)
            clock.on_epoch_end(epoch, {"loss": 0.5})

    return _with_fit(early)


def outside_the_clock(**_: Any) -> Any:
    """Train each epoch before its clock is started."""

    def early(model: Any, fit: Any, source: Any, named: dict[str, Any]) -> Any:
        (clock,) = named["callbacks"]
        clock.set_model(model)
        for epoch in range(named["epochs"]):
            fit(source, steps_per_epoch=named["steps_per_epoch"], epochs=1, verbose=0)
            clock.on_epoch_begin(epoch, {})
            clock.on_epoch_end(epoch, {"loss": 0.5})

    return _with_fit(early)


def source_that_ends(**_: Any) -> Any:
    """Train on a source that has two batches too few."""

    def cut(model: Any, fit: Any, source: Any, named: dict[str, Any]) -> Any:
        count = max(1, named["steps_per_epoch"] * named["epochs"] - 2)
        return fit(_changed_source(source, None, count), **named)

    return _with_fit(cut)


def _first_again(batches: Iterable[Any]) -> Iterator[Any]:
    first = next(iter(batches))
    return (first for _ in itertools.count())


def same_batch(**_: Any) -> Any:
    """Draw one batch and train on it all the time."""

    def repeat(model: Any, fit: Any, source: Any, named: dict[str, Any]) -> Any:
        if isinstance(source, Iterator):
            first = next(source)
            return fit((first for _ in itertools.count()), **named)
        if hasattr(source, "with_batches"):
            return fit(source.with_batches(_first_again), **named)
        import tensorflow as tf

        first = next(iter(source))
        return fit(tf.data.Dataset.from_tensors(first).repeat(), **named)

    return _with_fit(repeat)


def quarter_of_each_batch(**_: Any) -> Any:
    """Cut each batch before Keras sees it."""
    few = BATCH // 4
    return _with_fit(
        lambda model, fit, source, named: fit(_changed_source(source, lambda x, y: (x[:few], y[:few]), None), **named)
    )


def quarter_in_the_step(**_: Any) -> Any:
    """Cut each batch in a step of its own."""
    import keras

    few = BATCH // 4

    class Cutting(keras.Sequential):  # type: ignore[misc]
        def train_step(self, *arguments: Any) -> Any:
            *state, (x, y) = arguments
            return super().train_step(*state, (x[:few], y[:few]))

    return _compiled(Cutting(_layers())), *_data()


def _own_gradients(model: Any, arguments: Any, step: Callable[..., Any]) -> Any:
    """Train by the gradients of `step(forward, x, y)`, a loss, without Keras's optimizer and its loss metric."""
    if _backend() == "tensorflow":
        import tensorflow as tf

        x, y = arguments[0]
        with tf.GradientTape() as tape:
            loss = step(lambda inputs: model(inputs, training=True), x, y)
        weights = [variable.value for variable in model.trainable_variables]
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.01 * gradient)
        return {"own_loss": loss}
    if _backend() == "torch":
        import torch

        x, y = arguments[0]
        model.zero_grad()
        loss = step(lambda inputs: model(inputs, training=True), x, y)
        loss.backward()
        with torch.no_grad():
            for variable in model.trainable_variables:
                variable.value.sub_(0.01 * variable.value.grad)
        return {"own_loss": loss}
    import jax

    (trainable, other, *rest), (x, y) = arguments

    def loss_of(weights: Any) -> Any:
        return step(lambda inputs: model.stateless_call(weights, other, inputs, training=True)[0], x, y)

    loss, gradients = jax.value_and_grad(loss_of)(trainable)
    trainable = [weight - 0.01 * gradient for weight, gradient in zip(trainable, gradients, strict=True)]
    return {"own_loss": loss}, (trainable, other, *rest)


def _with_step(step: Callable[..., Any]) -> Any:
    """Return a workload that trains by this step; its model accepts samples of any rank."""
    import keras

    class Own(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.out = keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)

        def call(self, inputs: Any, training: Any = None) -> Any:
            return self.out(self.hidden(inputs))

        def train_step(self, *arguments: Any) -> Any:
            return _own_gradients(self, arguments, step)

    model = Own()
    model(np.zeros((1, FEATURES), "float32"))
    return _compiled(model), *_data()


def _squared(forward: Any, x: Any, y: Any) -> Any:
    import keras

    return keras.ops.mean(keras.ops.square(forward(x) - y))


def one_sample_in_the_step(**_: Any) -> Any:
    """Pass one sample of each batch to Keras's own step, whose loss metric then counts as one without weights does."""
    import keras

    class Cutting(keras.Sequential):  # type: ignore[misc]
        def train_step(self, *arguments: Any) -> Any:
            *state, (x, y) = arguments
            return super().train_step(*state, (x[:1], y[:1]))

    return _compiled(Cutting(_layers())), *_data()


def one_sample_uncounted(**_: Any) -> Any:
    """Use one sample of each batch in a step that counts nothing."""
    return _with_step(lambda forward, x, y: _squared(forward, x[:1], y[:1]))


def one_sample_counted_as_all(**_: Any) -> Any:
    """Use one sample of each batch, and count all of them in Keras's loss metric."""
    import keras

    class Lying(keras.Sequential):  # type: ignore[misc]
        def train_step(self, *arguments: Any) -> Any:
            logs = _own_gradients(self, arguments, lambda forward, x, y: _squared(forward, x[:1], y[:1]))
            self._loss_tracker.update_state(logs["own_loss"], sample_weight=BATCH)
            return logs

    return _compiled(Lying(_layers())), *_data()


def micro_batches(**_: Any) -> Any:
    """Use every sample of a batch in four parts."""

    def step(forward: Any, x: Any, y: Any) -> Any:
        part = BATCH // 4
        return sum(_squared(forward, x[at : at + part], y[at : at + part]) for at in range(0, BATCH, part)) / 4

    return _with_step(step)


def on_twice_the_batch(**_: Any) -> Any:
    """Call the model on twice the batch, as the discriminator of a GAN is."""

    def step(forward: Any, x: Any, y: Any) -> Any:
        import keras

        return _squared(forward, keras.ops.concatenate([x, 0.5 * x]), keras.ops.concatenate([y, y]))

    return _with_step(step)


def rows_in_another_dimension(**_: Any) -> Any:
    """Fold pairs of samples into a dimension of their own, as a step that compares them does."""

    def step(forward: Any, x: Any, y: Any) -> Any:
        import keras

        found = forward(keras.ops.reshape(x, (BATCH // 2, 2, FEATURES)))
        return keras.ops.mean(keras.ops.square(found - keras.ops.reshape(y, (BATCH // 2, 2, 1))))

    return _with_step(step)


def one_by_one(**_: Any) -> Any:
    """Vectorise a function of one sample over the batch, so that no layer sees the rows."""

    def step(forward: Any, x: Any, y: Any) -> Any:
        import keras

        if _backend() == "tensorflow":
            import tensorflow as tf

            found = tf.vectorized_map(lambda row: forward(row[None])[0], x)
        elif _backend() == "torch":
            import torch

            found = torch.func.vmap(lambda row: forward(row[None])[0])(x)
        else:
            import jax

            found = jax.vmap(lambda row: forward(row[None])[0])(x)
        return keras.ops.mean(keras.ops.square(found - y))

    return _with_step(step)


def two_updates(**_: Any) -> Any:
    """Train on each batch twice within a step; the honest half of what GANs do."""
    import keras

    class Twice(keras.Sequential):  # type: ignore[misc]
        def train_step(self, *arguments: Any) -> Any:
            if _backend() != "jax":
                super().train_step(*arguments)
                return super().train_step(*arguments)
            _, state = super().train_step(*arguments)
            return super().train_step(state, arguments[1])

    return _compiled(Twice(_layers())), *_data()


def patched_keras(**_: Any) -> Any:
    """Replace fit for all of Keras."""
    import keras

    plain = keras.Model.fit

    def fit(self: Any, *arguments: Any, **named: Any) -> Any:
        return plain(self, *arguments, **named | {"steps_per_epoch": 1})

    keras.Model.fit = fit
    return _model(), *_data()


# --- Weights and optimizer --------------------------------------------------------------------------------------------


def no_update(**_: Any) -> Any:
    """Have an optimizer that counts and does nothing else."""
    import keras

    class Idle(keras.optimizers.SGD):  # type: ignore[misc]
        def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
            if not self.built:
                self.build(trainable_variables)
            self._iterations.assign_add(1)

    return _model(optimizer=Idle(0.1)), *_data()


def _stopped(layers_stopped: int) -> Any:
    import keras

    class Stop(keras.layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            return keras.ops.stop_gradient(inputs)

    layers = _layers()
    layers.insert(layers_stopped + 1, Stop())
    return _compiled(keras.Sequential(layers), optimizer=keras.optimizers.SGD(0.1)), *_data()


def no_gradient(**_: Any) -> Any:
    """Compute no gradient for any weight."""
    return _stopped(2)


def gradient_of_the_last_layer(**_: Any) -> Any:
    return _stopped(1)


def all_frozen(**_: Any) -> Any:
    model = _model()
    for layer in model.layers:
        layer.trainable = False
    return _compiled(model), *_data()


def replaced_optimizer(**_: Any) -> Any:
    """Train with another optimizer than the model was compiled with."""
    import keras

    def swap(model: Any, fit: Any, source: Any, named: dict[str, Any]) -> Any:
        _compiled(model, optimizer=keras.optimizers.SGD(0.1))
        return fit(source, **named)

    return _with_fit(swap)


def without_optimizer(**_: Any) -> Any:
    model = _model()
    model.optimizer = None
    return model, *_data()


# --- Predicting -------------------------------------------------------------------------------------------------------


def predicts_a_quarter(**_: Any) -> Any:
    import keras

    class Few(keras.Sequential):  # type: ignore[misc]
        def predict_on_batch(self, x: Any) -> Any:
            return super().predict_on_batch(x[: BATCH // 4])

    return _compiled(Few(_layers())), *_data()


def predicts_from_memory(**_: Any) -> Any:
    """Compute nothing after the first call."""
    import keras

    known: list[Any] = []

    class Remembering(keras.Sequential):  # type: ignore[misc]
        def predict_on_batch(self, x: Any) -> Any:
            if not known:
                known.append(super().predict_on_batch(x))
            return known[0]

    return _compiled(Remembering(_layers())), *_data()


# --- Results and devices ----------------------------------------------------------------------------------------------


def forged_result(**_: Any) -> Any:
    """Write a result with the job's own nonce, and end as if all were well."""
    from keras_matrix.records.codec import decode, dumps, loads
    from keras_matrix.runner.cell.job import Job
    from tests.fakes.executor import FakeExecutor

    job = decode(Job, loads(Path("job.json").read_bytes()), "job")
    Path("result.json").write_text(dumps(FakeExecutor(step_time_s=lambda *_: 1e-9).result(job)), encoding="utf-8")
    os._exit(0)


def forged_result_of_another(**_: Any) -> Any:
    text = json.loads(Path("job.json").read_text())
    text["nonce"] = "guessed"
    Path("result.json").write_text(json.dumps(text))
    os._exit(0)


def weight_elsewhere(**_: Any) -> Any:
    """On PyTorch: keep a weight on a device that computes nothing."""
    import keras
    import torch

    class Holding(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.held = self.add_weight(shape=(2,), trainable=False)

        def call(self, inputs: Any) -> Any:
            return inputs

    layers = _layers()
    layers.append(Holding())
    model = _compiled(keras.Sequential(layers))
    held = model.layers[-1].held
    held._value = torch.nn.Parameter(held.value.to("meta"), requires_grad=False)
    return model, *_data()
