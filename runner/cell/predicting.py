"""Epochs of calls of a model, each made in one of several ways, and whether it answers alike.

Every call begins with the same batch, on the device or the host as `feed` says, and ends with its outputs in the host's
memory: `predict` returns NumPy arrays, while `model(x)` on JAX returns before it has computed. Without equal ends the
times of two calls would be those of different work. With `outputs: device`, a ladder of its own, a call ends when the
device has computed them.

A way of calling is one entry of `WAYS`; a later one, such as an exported file, is one more, timed by the same loop.

A call of `phase: gradient` computes the loss of a batch and the gradients of the trainable weights, as a training step
does before its optimizer: with dropout, and without a change of the weights. It ends when the device has computed the
gradients and the loss is in the host's memory.

Guarantee: after everything measured each process compares the outputs of its call with those of `model(x)`. Limit: on
one batch, and only whether they are near each other, not which of them is right.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_matrix.models import twins
from keras_matrix.models.twins.interface import Compiled, Native
from keras_matrix.models.workload import Built, UnsupportedWorkload
from keras_matrix.records.epoch_figures import with_percentiles
from keras_matrix.records.host.system import says_out_of_memory
from keras_matrix.records.parts import is_part
from keras_matrix.records.schema import Learning, Times
from keras_matrix.records.settings import COMPILED, DIRECT, NATIVE, ON_BATCH, ON_DEVICE, WHOLE, Settings
from keras_matrix.runner.cell.backends import BackendAdapter, Unsupported
from keras_matrix.runner.cell.batches import Batch, inputs_of, make_batches
from keras_matrix.runner.cell.job import Job, in_a_line, reason_line
from keras_matrix.runner.cell.loop import CallLog, EpochLog, Stretch, call_epochs, deviation_of_arrays, predicted
from keras_matrix.runner.cell.measured_epochs import MeasuredEpochs, Timeline, agreed
from keras_matrix.runner.cell.phases import unchanged
from keras_matrix.runner.cell.work import Ledger

Calling = Callable[[Any], Any]
"""Makes one call: from the inputs of a batch to its outputs, where `outputs` says."""
Ended = Callable[[BackendAdapter, Any], Any]
"""Ends a call: returns its outputs, once they are where `outputs` says."""


def on_host(adapter: BackendAdapter, outputs: Any) -> Any:
    """Return the arrays of outputs in NumPy, as Keras's `predict` returns them; this waits until they are computed.

    Almost all models have one array: a walk through a structure takes more time than some calls.
    """
    if isinstance(outputs, dict | list | tuple):
        return keras.tree.map_structure(adapter.to_host, outputs)
    return adapter.to_host(outputs)


def on_device(adapter: BackendAdapter, outputs: Any) -> Any:
    """Return outputs as they are, as soon as the device has computed them."""
    adapter.wait(outputs)
    return outputs


def inference_arguments(model: Any) -> Mapping[str, bool]:
    """Return the arguments of the model's call in inference: a `call()` of a user's may not take `training`."""
    return {"training": False} if model._call_has_training_arg else {}


def _by_predict(model: Any, adapter: BackendAdapter, settings: Settings) -> Calling:
    return lambda inputs: model.predict(inputs, batch_size=settings.batch_size, verbose=0)


def _by_batch(model: Any, adapter: BackendAdapter, settings: Settings) -> Calling:
    def call(inputs: Any) -> Any:
        return model.predict_on_batch(inputs)  # looked up at each call: a trace wraps it

    return call


def _by_model(model: Any, adapter: BackendAdapter, settings: Settings, ended: Ended = on_host) -> Calling:
    arguments = inference_arguments(model)
    return lambda inputs: ended(adapter, model(inputs, **arguments))


def _compiled(model: Any, adapter: BackendAdapter, settings: Settings, ended: Ended = on_host) -> Calling:
    program: Callable[[Any], Any] | None = None

    def call(inputs: Any) -> Any:
        nonlocal program
        if program is None:
            if not all(layer.built for layer in model._flatten_layers()):
                model(inputs, **inference_arguments(model))
            program = adapter.forward(model, inference_arguments(model))
        return ended(adapter, program(inputs))

    return call


def twin_of(model: Any, settings: Settings, training: bool) -> Native:
    """Return the model's twin in plain code of the framework, compiled where Keras compiles its step by itself."""
    compiled = Compiled.of(model)
    try:
        twin: Native = twins.load(settings.backend).called(model, settings.workload, compiled, training)
    except UnsupportedWorkload as error:
        raise Unsupported(str(error)) from None
    return twin


def _by_twin(model: Any, adapter: BackendAdapter, settings: Settings, ended: Ended = on_host) -> Calling:
    forward = twin_of(model, settings, training=False).forward
    return lambda inputs: ended(adapter, forward(inputs))


WAYS: Mapping[str, Callable[..., Calling]] = {
    WHOLE: _by_predict,
    ON_BATCH: _by_batch,
    DIRECT: _by_model,
    COMPILED: _compiled,
    NATIVE: _by_twin,
}
"""How to call a model, by the values of `call`: from the model, its backend and the cell's settings.

Those of `DEVICE_CALLS` also take how a call ends.
"""


class Predicting:
    """Epochs of calls of a model that predicts."""

    _what = "the model's forward pass"
    _given: Callable[[Batch], Any] = staticmethod(inputs_of)  # what a call is given of a batch

    def __init__(self, workload: Built, adapter: BackendAdapter, job: Job, measured_epochs: MeasuredEpochs) -> None:
        self._built, self._adapter, self._job, self._measured = workload, adapter, job, measured_epochs
        self.model, self.steps_a_call = workload.model, 1
        self.ledger = Ledger()
        self._fed: list[Batch] = []
        self._calling = self._way()

    def _way(self) -> Calling:
        settings = self._job.settings
        ends = {"ended": on_device} if settings.outputs == ON_DEVICE else {}
        return WAYS[settings.call](self.model, self._adapter, settings, **ends)

    def run(self, first_batches: Sequence[Batch]) -> tuple[Times, Learning, int]:
        """Make the first call, agree on the calls per epoch, predict; return times, learning and calls."""
        settings = self._job.settings
        placed_batches = self._placed(first_batches)
        first_call_s = self._first_call(placed_batches).epoch_times_s[0]
        calls, calibration_s = agreed(
            self._job,
            self._measured.turns,
            lambda count: min(self._predict("calibration", placed_batches, Stretch(count, 2)).epoch_times_s),
        )
        self._fed = placed_batches = self._placed(make_batches(self._built, settings, max(calls, self._job.steps_held)))
        log = self._predict("epochs", placed_batches, self._measured.stretch(settings, calls))
        self._measured.end()
        times = Timeline(first_call_s, calibration_s, calls, EpochLog(log.epoch_times_s)).times(settings)
        return with_percentiles(times, log.call_times_s), Learning(), calls

    def again(self, stretch: Stretch, change: Callable[[Any], Any] = unchanged) -> None:
        """Predict further epochs on the same batches, which `change` may wrap; nothing is recorded."""
        call_epochs(self._call, change(self._fed), stretch, self._given)

    def finish(self) -> None:
        """Do nothing: predicting changes no weights."""

    def try_high_rate(self) -> None:
        """Do nothing: predicting has no learning rate."""

    def received_samples(self, batch: Batch) -> int | None:
        """Return None: the rows of each call's output are counted."""
        return None

    def deviation(self) -> float | None:
        """Return None: Keras predicts."""
        return None

    def outputs(self) -> tuple[float | None, str | None]:
        """Return how far the outputs of a call are from those of `model(x)`, or why that is not known."""
        try:
            return self._deviation(self._fed[0])
        except Exception as error:  # noqa: BLE001 - of a user's model or of its memory: this fact alone is missing
            print(f"outputs were not compared: {type(error).__name__}: {error}", file=sys.stderr)
            return None, f"were not compared: {in_a_line(error)[:200]}"

    def _deviation(self, batch: Batch) -> tuple[float | None, str | None]:
        inputs = inputs_of(batch)
        return deviation_of(on_host(self._adapter, self._call(inputs)), self._model_outputs(inputs))

    def _call(self, inputs: Any) -> Any:
        """Return the outputs of one call."""
        return self._calling(inputs)

    def _first_call(self, placed_batches: Sequence[Batch]) -> CallLog:
        """Make the first call. Raises `Unsupported` if it must be compiled and cannot be, although `model(x)` works."""
        try:
            return self._predict("first_step", placed_batches, Stretch(1, 1, 1))
        except Unsupported:
            raise
        except Exception as error:
            settings = self._job.settings
            is_compiled = settings.call == COMPILED or is_part(settings.workload)
            if not (is_compiled and not says_out_of_memory(str(error)) and self._answers(placed_batches[0])):
                raise
            traceback.print_exc()
            raise Unsupported(
                f"call: {settings.call}: {settings.backend} cannot compile {self._what}, "
                f"{reason_line(error)}; set another call"
            ) from None

    def _answers(self, batch: Batch) -> bool:
        """Return whether a call that is not compiled works for this batch."""
        try:
            self._model_outputs(inputs_of(batch))
        except Exception:  # noqa: BLE001 - any error of a user's model
            return False
        return True

    def _model_outputs(self, inputs: Any) -> Any:
        """Return the outputs of `model(x)` in NumPy."""
        return WAYS[DIRECT](self.model, self._adapter, self._job.settings)(inputs)

    def _predict(self, name: str, placed_batches: Sequence[Batch], stretch: Stretch) -> CallLog:
        log = call_epochs(self._call, placed_batches, stretch, self._given)
        self.ledger.stretches.append(predicted(name, stretch.steps, log.rows))
        return log

    def _placed(self, batches: Sequence[Batch]) -> list[Batch]:
        if self._job.settings.feed == "device_resident":
            return [self._adapter.resident(batch) for batch in batches]
        return list(batches)


class Gradients(Predicting):
    """Epochs of calls that compute the loss of a batch and its gradients."""

    _what = "the loss and its gradients"
    _given = staticmethod(keras.utils.unpack_x_y_sample_weight)

    def _way(self) -> Calling:
        """Return the call: from inputs, targets and weights of samples to the outputs, once all is computed."""
        adapter, call = self._adapter, self._job.settings.call
        twin = twin_of(self.model, self._job.settings, training=True) if call == NATIVE else None
        self._timed: Callable[..., Any] | None = None if twin is None else _of_twin(twin)

        def run(parts: tuple[Any, Any, Any]) -> Any:
            if self._timed is None:
                self.model._symbolic_build(data_batch=parts)  # as `fit` does: the losses, whose means are variables
                self._timed = self._step(call, training=True)
            loss, gradients, outputs = self._timed(*parts)
            adapter.wait((gradients, outputs))
            adapter.to_host(loss)
            return outputs

        return run

    def _step(self, call: str, training: bool) -> Callable[..., Any]:
        """Return what computes loss, gradients and outputs by Keras, compiled or not, with or without dropout."""
        arguments = {"training": training} if self.model._call_has_training_arg else {}
        return self._adapter.gradients(self.model, arguments, call == COMPILED)

    def _answers(self, batch: Batch) -> bool:
        try:
            self._step(DIRECT, training=True)(*self._given(batch))
        except Exception:  # noqa: BLE001 - any error of a user's model
            return False
        return True

    def _deviation(self, batch: Batch) -> tuple[float | None, str | None]:
        """Return how far loss and gradients are from those that are not compiled.

        Of a model that draws random numbers, such as a dropout's, both are computed without them.
        """
        parts, call = self._given(batch), self._job.settings.call
        self.model._symbolic_build(data_batch=parts)
        is_random = any(variable.name == "seed_generator_state" for variable in self.model.non_trainable_variables)
        expected = self._in_keras(self._step(DIRECT, training=not is_random)(*parts))
        if call == NATIVE:
            twin = twin_of(self.model, self._job.settings, training=not is_random)
            loss, gradients, _ = twin.gradients(*parts[:2])
            return deviation_of(_as_one(self._adapter.to_host(loss), twin.in_keras(gradients)), expected)
        timed = self._step(call, training=False) if is_random or self._timed is None else self._timed
        return deviation_of(self._in_keras(timed(*parts)), expected)

    def _in_keras(self, found: tuple[Any, Any, Any]) -> list[Any]:
        """Return the loss and the gradients in NumPy; those of rows of a table as of the table."""
        loss, *gradients = (
            self._adapter.to_host(keras.ops.convert_to_tensor(array))
            for array in (found[0], *(gradient for gradient in found[1] if gradient is not None))
        )
        return _as_one(loss, gradients)


def _of_twin(twin: Native) -> Callable[..., Any]:
    return lambda x, y, weights: twin.gradients(x, y)


def _as_one(loss: Any, gradients: Sequence[Any]) -> list[Any]:
    """Return a loss, and gradients as one vector: one that is 0 but for rounding has no scale of its own."""
    return [loss, np.concatenate([np.ravel(gradient) for gradient in gradients])]


def deviation_of(actual: Any, expected: Any) -> tuple[float | None, str | None]:
    """Return the largest deviation of a number, as a share of the largest one of its output; or why there is none.

    Both are nested structures of NumPy arrays.
    """
    return deviation_of_arrays(keras.tree.flatten(actual), keras.tree.flatten(expected))
