"""Times a call of `fit` with its own arguments, as a program or a workload makes it.

Timing starts and ends with the device idle. An epoch's time includes its validation and callbacks. No hook runs between
two batches: in Keras 3 such a hook synchronises every step on JAX and PyTorch.

An epoch may be cut after a number of steps. Then its source is read anew in the next one, as after a whole epoch, and
the times of its parts are noted, from which that of a whole one follows (`records.epoch_figures`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import keras

from keras_matrix.models.workload import arrays_in
from keras_matrix.records.text import plural
from keras_matrix.runner.cell.backends import BackendAdapter
from keras_matrix.runner.cell.clock import monotonic
from keras_matrix.runner.cell.loop import EpochLog, Stretch, finite
from keras_matrix.runner.cell.options import IS_KERAS_2
from keras_matrix.runner.cell.work import Counting

# Keras's generators of the steps of a pass: until 3.6 the second, of which TensorFlow has its own; in 2 the third.
PASSES = ("_enumerate_iterator", "enumerate_epoch", "steps")
LEAD_SHARE = 10  # of the steps of an epoch that is cut: so many times its lead-in


@dataclass(frozen=True, slots=True)
class FitCall:
    """A call of `fit` as a program makes it. `arguments` are those of `keras.Model.fit` by name, without the model.

    `function` takes them; it is the model's own `fit` unless that has been entered already.
    """

    model: Any
    arguments: Mapping[str, Any]
    function: Callable[..., Any]

    @staticmethod
    def of(model: Any, *arguments: Any, **named_arguments: Any) -> FitCall:
        """Return the call `model.fit(...)` with these arguments. Raises TypeError if `keras.Model.fit` has no such."""
        bound = inspect.signature(keras.Model.fit).bind(model, *arguments, **named_arguments)
        by_name = dict(bound.arguments)
        by_name.pop("self")
        return FitCall(model, by_name, model.fit)


@dataclass(slots=True)
class FitLog:
    """What the epochs of a call showed; the seconds of an epoch include its validation and callbacks.

    `steps` are the steps of each epoch. `stops_deferred` counts the epochs after which a callback asked to stop, and
    `functions_replaced` those in which one made another function of the step. Of an epoch that is cut or has
    validation, `training_times_s` has the seconds until its training ended; else it is empty. Of an epoch that is cut,
    `lead_times_s` has the seconds until its first `lead_steps` were done. `whole_steps` are those of an epoch that is
    not cut, None for a source without a length.
    """

    epochs: EpochLog = field(default_factory=EpochLog)
    steps: list[int] = field(default_factory=list)
    stops_deferred: int = 0
    functions_replaced: int = 0
    training_times_s: list[float] = field(default_factory=list)
    lead_steps: int = 0
    lead_times_s: list[float] = field(default_factory=list)
    epochs_cut: int = 0
    whole_steps: int | None = None

    @property
    def is_cut(self) -> bool:
        """Whether every epoch was cut."""
        return bool(self.steps) and self.epochs_cut == len(self.steps)

    @property
    def notes(self) -> list[str]:
        """What is said of the measurement."""
        notes = []
        if self.is_cut and self.whole_steps is not None:
            notes.append(
                f"epoch_cut: each epoch ended after {self.steps[-1]:,} of its {plural(self.whole_steps, 'step')}: its "
                "time is extrapolated from the time of a step and of an epoch's end; set most_steps: all for whole ones"
            )
        elif self.is_cut:
            notes.append(
                f"epoch_cut: each epoch ended after {plural(self.steps[-1], 'step')}; Keras does not know the length "
                "of its source, so that the time per step is that of training alone, without the end of an epoch"
            )
        if self.stops_deferred:
            notes.append(
                f"stop_deferred: a callback asked to stop after {plural(self.stops_deferred, 'epoch')} before the last "
                "one; training went on, so that all epochs were measured"
            )
        if self.functions_replaced:
            notes.append(
                "step_replaced: a callback compiled the model or made its train function anew in "
                f"{plural(self.functions_replaced, 'epoch')}; the new one was used, so that epochs may differ in their "
                "work"
            )
        return notes


def training_rows(arguments: Mapping[str, Any]) -> int | None:
    """Return the samples that an epoch of a call of `fit` trains on; None for a source, whose samples are not known."""
    array = next((part for part in arrays_in(arguments.get("x")) if getattr(part, "shape", ())), None)
    if array is None:
        return None
    share = 0.0 if arguments.get("validation_data") is not None else arguments.get("validation_split") or 0.0
    return math.floor(int(array.shape[0]) * (1.0 - share))  # as Keras does


def prefetches(arguments: Mapping[str, Any]) -> bool:
    """Return whether the source of a call of `fit` may prepare batches between two epochs, while the process rests.

    Keras keeps the iterator of a source over the epochs if `steps_per_epoch` is given; else each epoch begins with a
    new one, which Keras 2 opens before. Arrays are read as they are needed.
    """
    source = arguments.get("x")
    is_array = hasattr(source, "shape") or isinstance(source, list | tuple | dict)
    return (IS_KERAS_2 or bool(arguments.get("steps_per_epoch"))) and source is not None and not is_array


def has_cache(arguments: Mapping[str, Any]) -> bool:
    """Return whether the source of a call of `fit` is a data set of tf.data with a cache, which a whole pass fills."""
    waiting = [arguments.get("x")]
    while waiting:
        source = waiting.pop()
        if type(source).__name__.strip("_") == "CacheDataset":
            return True
        inputs = getattr(source, "_inputs", None)
        waiting += inputs() if callable(inputs) else []
    return False


def prefetched_note(call_text: str) -> str:
    """Return what is said of a call or loop whose source may prepare batches between two epochs."""
    return (
        f"prefetched_in_rest: {call_text}: its source is open between two epochs, so that batches which it prepares "
        "ahead then are in no epoch's time; give it epochs of many more steps than it prepares batches"
    )


@dataclass(slots=True)
class Pass:
    """One pass of Keras over a source, of training or of validation: its steps so far, and whether it is cut.

    `whole_steps` are the steps that Keras would run; None if it does not know the length of the source. The clock is
    read when the first steps have been dispatched (`first`), and after the latest.
    """

    whole_steps: int | None
    steps: int = 0
    is_cut: bool = False
    first: tuple[int, float] | None = None
    latest_s: float = 0.0

    @property
    def step_time_s(self) -> float | None:
        """The mean seconds of a step after the first ones; None if there was no other."""
        first_steps, first_s = self.first or (0, 0.0)
        return (self.latest_s - first_s) / (self.steps - first_steps) if 0 < first_steps < self.steps else None


Enough = Callable[[int], bool]
"""Returns whether a pass has so many steps that it is to be cut after them."""


@contextmanager
def cutting(begun: Callable[[Pass], Enough | None]) -> Iterator[None]:
    """Call `begun` with each pass of Keras over a source, and cut the pass once what that returns says so.

    A pass ends as a whole one does, so that the next one begins as after that: Keras's own limit,
    `keras.config.set_max_steps_per_epoch`, keeps the iterator of a source open instead. None leaves a pass whole.
    """
    iterator_kind = keras.src.trainers.epoch_iterator.EpochIterator  # not public: only who cuts depends on it
    name = next(name for name in PASSES if hasattr(iterator_kind, name))
    kinds = [kind for kind in (iterator_kind, *iterator_kind.__subclasses__()) if name in vars(kind)]
    whole_passes = {kind: vars(kind)[name] for kind in kinds}
    for kind, whole_pass in whole_passes.items():
        setattr(kind, name, _cut(whole_pass, begun))
    try:
        yield
    finally:
        for kind, whole_pass in whole_passes.items():
            setattr(kind, name, whole_pass)


def _cut(whole_pass: Callable[[Any], Any], begun: Callable[[Pass], Enough | None]) -> Callable[[Any], Iterator[Any]]:
    """Return Keras's generator of the steps of a pass, which ends once `begun` says so."""

    def passed(iterator: Any) -> Iterator[Any]:
        whole_steps = iterator.steps_per_epoch or iterator._num_batches
        one_pass = Pass(int(whole_steps) if whole_steps and 0 < whole_steps < math.inf else None)
        is_enough, executions = begun(one_pass), whole_pass(iterator)
        for execution in executions:
            yield execution
            one_pass.steps += iterator.steps_per_execution
            is_over = is_enough is not None and is_enough(one_pass.steps)
            one_pass.latest_s = monotonic()
            one_pass.first = one_pass.first or (one_pass.steps, one_pass.latest_s)
            if is_over and (one_pass.whole_steps is None or one_pass.steps < one_pass.whole_steps):
                one_pass.is_cut = True
                executions.close()
                iterator.data_adapter.on_epoch_end()
                return

    return passed


class _CallStart(keras.callbacks.Callback):  # type: ignore[misc]
    """The first callback of a call: it waits for the device, then starts the clock of an epoch."""

    def __init__(self, measurement: _CalledEpochs) -> None:
        super().__init__()
        self._measurement = measurement

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._measurement.begin(self.model)

    def on_test_begin(self, logs: Any = None) -> None:
        self._measurement.validation_begins(self.model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._measurement.epoch_ends(self.model)


class _CallEnd(keras.callbacks.Callback):  # type: ignore[misc]
    """The last callback of a call: it waits for the device, stops the clock, and defers a request to stop."""

    def __init__(self, measurement: _CalledEpochs) -> None:
        super().__init__()
        self._measurement = measurement

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._measurement.callbacks_have_begun()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._measurement.end(self.model, dict(logs or {}), self.params.get("steps"))


class _CalledEpochs:
    """Times the epochs of a call for its two callbacks.

    Steps are counted by the calls of the model's function of a step: what a source without a length or a callback that
    stops an epoch makes of them is not known before, and a hook after each batch would synchronise every step.

    A callback may evaluate, which sets Keras's loss metric back, so the samples are read before the callbacks of the
    program at the end of an epoch. It may also make another function of the step, which is then left in place.

    An epoch of more than `most_steps` is cut. Of its times three are noted, the device idle: after the first steps,
    which open the source, after the last one, and at its end.
    """

    def __init__(
        self, adapter: BackendAdapter, stretch: Stretch, counting: Counting | None, most_steps: int | None
    ) -> None:
        self.log = FitLog()
        self._adapter, self._stretch, self._counting, self._most_steps = adapter, stretch, counting, most_steps
        self._begun_s = 0.0
        self._lead_s: float | None = None
        self._training_s: float | None = None
        self._function: Any = None
        self._counted: Any = None
        self._calls = 0
        self._are_calls_known: bool | None = None
        self._trains_next = False
        self._pass: Pass | None = None

    def begin(self, model: Any) -> None:
        self._adapter.barrier(model)
        if self._counting:
            self._counting.epoch_begun()
        self._stretch.before(len(self.log.epochs.times_s))
        self._count_calls(model)
        self._lead_s = self._training_s = self._are_calls_known = self._pass = None
        self._begun_s = monotonic()

    def callbacks_have_begun(self) -> None:
        """Note the samples of what callbacks evaluated before the first step: training begins now."""
        self._trains_next = True
        if self._counting:
            self._counting.training_begins()

    def limit_of(self, one_pass: Pass) -> Enough | None:
        """Return when a pass is to be cut: that of training after `most_steps`, others never."""
        if not self._trains_next or self._most_steps is None:
            return None
        self._trains_next, self._pass, most_steps = False, one_pass, self._most_steps
        return lambda steps: steps >= most_steps

    def _count_calls(self, model: Any) -> None:
        self._function = function = model.train_function
        self._calls, self._counted = 0, None
        if function is None:  # compiled anew by a callback: Keras itself cannot go on
            return
        lead_calls = self._lead_calls(int(model.steps_per_execution))
        self.log.lead_steps = lead_calls * int(model.steps_per_execution)

        def counted(*arguments: Any) -> Any:
            outputs = function(*arguments)
            self._calls += 1  # not of the call that finds a source at its end
            if self._calls == lead_calls:
                self._adapter.wait(outputs)
                self._lead_s = monotonic() - self._begun_s
            return outputs

        model.train_function = self._counted = counted

    def _lead_calls(self, chunk: int) -> int:
        """Return the calls after which the lead-in of an epoch ends; 0 for none, if no epoch is cut."""
        return 0 if self._most_steps is None else max(1, self._most_steps // chunk // LEAD_SHARE)

    def validation_begins(self, model: Any) -> None:
        """Note the time of the training steps, and their samples."""
        if self._training_s is None:
            self._adapter.barrier(model)
            self._training_s = monotonic() - self._begun_s
            self.training_ended(model)

    def epoch_ends(self, model: Any) -> None:
        """Note, before the program's callbacks, that training has ended, if validation has not begun before."""
        if self._pass is not None:
            self.validation_begins(model)
        self.training_ended(model)

    def training_ended(self, model: Any) -> None:
        """Note the samples of the training steps, once an epoch, and whether all of these were counted."""
        if self._are_calls_known is None:
            self._are_calls_known = model.train_function is self._counted
            if self._counting:
                self._counting.training_ended()

    def end(self, model: Any, logs: dict[str, Any], steps: int | None) -> None:
        """Stop the clock; `steps` are those of an epoch if Keras knows them, of which the last call may have fewer."""
        self._adapter.barrier(model)
        times_s = self.log.epochs.times_s
        times_s.append(monotonic() - self._begun_s)
        if model.train_function is self._counted:
            model.train_function = self._function
        else:
            self.log.functions_replaced += 1
        if self._training_s is not None:
            self.log.training_times_s.append(self._training_s)
        if self._pass is not None and self._pass.is_cut and self._lead_s is not None:
            self.log.epochs_cut += 1
            self.log.whole_steps = self._pass.whole_steps
            self.log.lead_times_s.append(self._lead_s)
        self.log.steps.append(self._steps(int(model.steps_per_execution), steps))
        self.log.epochs.logs.append({name: finite(value) for name, value in logs.items()})
        if self._counting:
            self._counting.steps = self.log.steps[-1]
            self._counting.epoch_ended()
        if model.stop_training and len(times_s) < self._stretch.epochs:
            self.log.stops_deferred += 1
            model.stop_training = False

    def _steps(self, chunk: int, steps: int | None) -> int:
        """Return the steps of this epoch; the last call of a source without a length may have fewer than `chunk`."""
        most_steps = self._calls * chunk
        if self._pass is not None and self._pass.is_cut:
            return self._pass.steps
        updates = self._counting.updates_of_epoch() if self._counting else None
        if not self._are_calls_known:
            return steps or updates or most_steps
        if steps is None and updates is not None and most_steps - chunk < updates < most_steps:
            return updates
        return most_steps if steps is None else min(most_steps, steps)


def fit_as_called(
    call: FitCall,
    adapter: BackendAdapter,
    stretch: Stretch,
    counting: Counting | None = None,
    most_steps: int | None = None,
) -> FitLog:
    """Train the epochs of a stretch by a program's own call of `fit`, and return what they showed.

    The call has its own data, callbacks, validation and weights, and begins at its own initial epoch. Only the number
    of epochs is that of the stretch, whose `steps` are not used; a callback's request to stop before is deferred. An
    epoch of more than `most_steps` is cut after them.
    """
    measurement = _CalledEpochs(adapter, stretch, counting, most_steps)
    epochs = int(call.arguments.get("initial_epoch") or 0) + stretch.epochs
    cut = nullcontext() if most_steps is None else cutting(measurement.limit_of)
    with surrounded(call, (_CallStart(measurement),), (_CallEnd(measurement),)) as arguments, cut:
        call.function(**{**arguments, "epochs": epochs})
    return measurement.log


Callbacks = tuple[keras.callbacks.Callback, ...]


@contextmanager
def surrounded(call: FitCall, first: Callbacks, last: Callbacks) -> Iterator[dict[str, Any]]:
    """Yield the arguments of a call with callbacks before and after its own.

    A list object of Keras's stays that object, and is without them afterwards: the program may use it again.
    """
    callbacks = call.arguments.get("callbacks")
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        own_callbacks = callbacks if isinstance(callbacks, list | tuple) else [callbacks] if callbacks else []
        yield {**call.arguments, "callbacks": [*first, *own_callbacks, *last]}
        return
    ends = (*first, *last)
    callbacks.callbacks[:] = [*first, *callbacks.callbacks, *last]
    for callback in ends:
        callback.set_model(call.model)
        callback.set_params(getattr(callbacks, "params", None) or {})
    try:
        yield dict(call.arguments)
    finally:
        callbacks.callbacks[:] = [callback for callback in callbacks.callbacks if callback not in ends]
