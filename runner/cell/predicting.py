"""Epochs of calls of a model that predicts, each call made in one of several ways, and whether it answers alike.

Every call begins with the same batch, on the device or the host as `feed` says, and ends with its outputs in the host's
memory: `predict` returns NumPy arrays, while `model(x)` on JAX returns before it has computed. Without equal ends the
times of two calls would be those of different work. With `outputs: device`, a ladder of its own, a call ends when the
device has computed them.

A way of calling is one entry of `WAYS`; a later one, such as an exported file, is one more, timed by the same loop.

Guarantee: after everything measured each process compares the outputs of its call with those of `model(x)`. Limit: on
one batch, and only whether they are near each other, not which of them is right.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from keras_matrix.models.workload import Built
from keras_matrix.records.epoch_figures import with_percentiles
from keras_matrix.records.host.system import says_out_of_memory
from keras_matrix.records.schema import Learning, Times
from keras_matrix.records.settings import COMPILED, DIRECT, ON_BATCH, ON_DEVICE, WHOLE
from keras_matrix.runner.cell.backends import BackendAdapter, Unsupported
from keras_matrix.runner.cell.batches import Batch, inputs_of, make_batches
from keras_matrix.runner.cell.job import Job, in_a_line
from keras_matrix.runner.cell.loop import CallLog, EpochLog, Stretch, call_epochs, deviation_of_arrays, predicted
from keras_matrix.runner.cell.measured_epochs import MeasuredEpochs, Timeline, agreed
from keras_matrix.runner.cell.phases import unchanged
from keras_matrix.runner.cell.work import Ledger

_IN_BOLD = re.compile(r"\x1b\[1m(.+?)(?:\n|\x1b\[0m)")
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


def _by_predict(model: Any, adapter: BackendAdapter, batch_size: int) -> Calling:
    return lambda inputs: model.predict(inputs, batch_size=batch_size, verbose=0)


def _by_batch(model: Any, adapter: BackendAdapter, batch_size: int) -> Calling:
    def call(inputs: Any) -> Any:
        return model.predict_on_batch(inputs)  # looked up at each call: a trace wraps it

    return call


def _by_model(model: Any, adapter: BackendAdapter, batch_size: int, ended: Ended = on_host) -> Calling:
    arguments = inference_arguments(model)
    return lambda inputs: ended(adapter, model(inputs, **arguments))


def _compiled(model: Any, adapter: BackendAdapter, batch_size: int, ended: Ended = on_host) -> Calling:
    program: Callable[[Any], Any] | None = None

    def call(inputs: Any) -> Any:
        nonlocal program
        if program is None:
            if not all(layer.built for layer in model._flatten_layers()):
                model(inputs, **inference_arguments(model))
            program = adapter.forward(model, inference_arguments(model))
        return ended(adapter, program(inputs))

    return call


WAYS: Mapping[str, Callable[..., Calling]] = {
    WHOLE: _by_predict,
    ON_BATCH: _by_batch,
    DIRECT: _by_model,
    COMPILED: _compiled,
}
"""How to call a model, by the values of `call`: from the model, its backend and the size of a batch.

Those of `DEVICE_CALLS` also take how a call ends.
"""


class Predicting:
    """Epochs of calls of a model that predicts."""

    def __init__(self, workload: Built, adapter: BackendAdapter, job: Job, measured_epochs: MeasuredEpochs) -> None:
        self._built, self._adapter, self._job, self._measured = workload, adapter, job, measured_epochs
        self.model, self.steps_a_call = workload.model, 1
        self.ledger = Ledger()
        self._fed: list[Batch] = []
        ends = {"ended": on_device} if job.settings.outputs == ON_DEVICE else {}
        self._calling = WAYS[job.settings.call](workload.model, adapter, job.settings.batch_size, **ends)

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
        call_epochs(self._call, change(self._fed), stretch)

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
        inputs = inputs_of(self._fed[0])
        try:
            return deviation_of(on_host(self._adapter, self._call(inputs)), self._model_outputs(inputs))
        except Exception as error:  # noqa: BLE001 - of a user's model or of its memory: this fact alone is missing
            print(f"outputs were not compared: {type(error).__name__}: {error}", file=sys.stderr)
            return None, f"were not compared: {in_a_line(error)[:200]}"

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
            is_compiled = self._job.settings.call == COMPILED and not says_out_of_memory(str(error))
            if not (is_compiled and self._answers(inputs_of(placed_batches[0]))):
                raise
            traceback.print_exc()
            raise Unsupported(
                f"call: {COMPILED}: {self._job.settings.backend} cannot compile the model's forward pass, "
                f"{compilers_line(error)}; set another call"
            ) from None

    def _answers(self, inputs: Any) -> bool:
        """Return whether `model(x)` works for these inputs."""
        try:
            self._model_outputs(inputs)
        except Exception:  # noqa: BLE001 - any error of a user's model
            return False
        return True

    def _model_outputs(self, inputs: Any) -> Any:
        """Return the outputs of `model(x)` in NumPy."""
        return WAYS[DIRECT](self.model, self._adapter, self._job.settings.batch_size)(inputs)

    def _predict(self, name: str, placed_batches: Sequence[Batch], stretch: Stretch) -> CallLog:
        log = call_epochs(self._call, placed_batches, stretch)
        self.ledger.stretches.append(predicted(name, stretch.steps, log.rows))
        return log

    def _placed(self, batches: Sequence[Batch]) -> list[Batch]:
        if self._job.settings.feed == "device_resident":
            return [self._adapter.resident(batch) for batch in batches]
        return list(batches)


def compilers_line(error: Exception) -> str:
    """Return an error as one line: what Keras writes in bold within a traceback as text, else its first line."""
    cause = _IN_BOLD.search(str(error))
    return (f"{type(error).__name__}: {cause[1].strip()}" if cause else in_a_line(error))[:200]


def deviation_of(actual: Any, expected: Any) -> tuple[float | None, str | None]:
    """Return the largest deviation of a number, as a share of the largest one of its output; or why there is none.

    Both are nested structures of NumPy arrays.
    """
    return deviation_of_arrays(keras.tree.flatten(actual), keras.tree.flatten(expected))
