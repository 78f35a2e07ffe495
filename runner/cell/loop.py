"""The timed loops: epochs of `fit`, of a call of `fit` with its own arguments, of predict or generate calls.

Timing starts and ends with the device idle. No hook runs between two batches: in Keras 3 such a hook synchronises every
step on JAX and PyTorch. An epoch's time includes its steps and the resetting and reading of metrics, as `fit` does
them, without validation and building. Of a call with its own arguments it includes validation and callbacks as well.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import keras

from keras_matrix.models.workload import arrays_in
from keras_matrix.records.text import plural
from keras_matrix.runner.cell.backends import BackendAdapter
from keras_matrix.runner.cell.batches import Batch, inputs_of
from keras_matrix.runner.cell.clock import Clock, monotonic
from keras_matrix.runner.cell.work import Counting, rows_of

BeforeEpoch = Callable[[int], None]
"""Called with an epoch's number before its clock starts, the device idle, to wait for the process's turn."""


def at_once(epoch: int) -> None:
    """Return at once."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive epochs: their number, their steps (or predict calls), and the function called before each.

    The times of single calls are not recorded in the first `discard` epochs. `callbacks` are further ones for `fit`.
    Each epoch of `fit` begins with `lead_in` further steps, before its clock starts; `started` is called then.
    """

    steps: int
    epochs: int
    discard: int = 0
    before: BeforeEpoch = at_once
    callbacks: tuple[keras.callbacks.Callback, ...] = ()
    lead_in: int = 0
    started: Callable[[], None] = lambda: None

    @property
    def steps_with_lead_in(self) -> int:
        """Return the steps that `fit` runs in an epoch."""
        return self.lead_in + self.steps


@dataclass(slots=True)
class EpochLog:
    """The times in seconds and logs of one call's epochs; values that are not finite are None."""

    times_s: list[float] = field(default_factory=list)
    logs: list[dict[str, float | None]] = field(default_factory=list)


class EpochClock(keras.callbacks.Callback):  # type: ignore[misc]
    """Times each epoch, without its lead-in, with the device synchronised at both ends."""

    def __init__(
        self, adapter: BackendAdapter, stretch: Stretch, clock: Clock = monotonic, counting: Counting | None = None
    ) -> None:
        super().__init__()
        self.log = EpochLog()
        self._adapter = adapter
        self._stretch = stretch
        self._counting = counting
        self._clock = clock
        self._begun_s: float | None = None
        self._starting: Thread | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._adapter.barrier(self.model)
        if self._counting:
            self._counting.epoch_begun()
        self._stretch.before(epoch)
        self._begun_s = None
        self._adapter.group.epoch_begins()
        if self._stretch.lead_in:
            self._start_after_lead_in()
        else:
            self._start()

    def _start(self) -> None:
        self._stretch.started()
        self._begun_s = self._clock()

    def _start_after_lead_in(self) -> None:
        """Start the clock when the first steps are computed, while training goes on where the backend can.

        Keras's hook after each batch would synchronise every step. Here the function of the step is replaced by one
        that counts its calls, until the clock starts. If the training thread prepares batches, the one after these
        steps is then prepared while they are computed, as later ones are.
        """
        model = self.model
        step, steps_left = model.train_function, self._stretch.lead_in // model.steps_per_execution

        def counted(*arguments: Any) -> Any:
            nonlocal steps_left
            outputs = step(*arguments)
            steps_left -= 1
            if not steps_left:
                model.train_function = step
                self._start_with(outputs)
            return outputs

        model.train_function = counted

    def _start_with(self, outputs: Any) -> None:
        """Start the clock when a step's outputs are computed, in another thread if nothing synchronises each step."""
        step_end = None if self._stretch.callbacks else self._adapter.step_end(outputs)
        if step_end is None:
            self._adapter.wait(outputs)
            self._start()
        else:
            self._starting = Thread(target=self._start_after, args=(step_end,))
            self._starting.start()

    def _start_after(self, step_end: Callable[[], None]) -> None:
        step_end()
        self._begun_s = self._clock()
        self._stretch.started()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._adapter.barrier(self.model)
        end = self._adapter.group.epoch_ended(dict(logs or {}))
        ended_s = self._clock()
        if self._starting:
            self._starting.join()
            self._starting = None
        if self._begun_s is None:
            raise ValueError(f"epoch {epoch + 1} ended within its first {self._stretch.lead_in} steps")
        self.log.times_s.append(ended_s - self._begun_s)
        self.log.logs.append({name: finite(value) for name, value in end.logs.items()})
        if self._counting:
            self._counting.epoch_ended(end.further_samples)


def fit_epochs(
    model: Any, source: Any, adapter: BackendAdapter, stretch: Stretch, counting: Counting | None = None
) -> EpochLog:
    """Train the epochs of a stretch from an endless source and return their times and logs.

    `counting` reads its counters before and after each epoch, the device idle and the clock stopped.
    """
    epoch_clock = EpochClock(adapter, stretch, counting=counting)
    callbacks = [*adapter.group.callbacks(), epoch_clock, *stretch.callbacks]
    steps, epochs = stretch.steps_with_lead_in, stretch.epochs
    if isinstance(source, Iterator):
        source = adapter.source(source)
    with adapter.group.training(steps, epochs):
        model.fit(source, steps_per_epoch=steps, epochs=epochs, verbose=0, shuffle=False, callbacks=callbacks)
    return epoch_clock.log


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
    `functions_replaced` those in which one made another function of the step. Of an epoch with validation,
    `training_times_s` has the seconds until that began; else it is empty.
    """

    epochs: EpochLog = field(default_factory=EpochLog)
    steps: list[int] = field(default_factory=list)
    stops_deferred: int = 0
    functions_replaced: int = 0
    training_times_s: list[float] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """What is said of the measurement."""
        notes = []
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
    new one. Arrays are read as they are needed.
    """
    source = arguments.get("x")
    is_array = hasattr(source, "shape") or isinstance(source, list | tuple | dict)
    return bool(arguments.get("steps_per_epoch")) and source is not None and not is_array


def prefetched_note(call_text: str) -> str:
    """Return what is said of a call or loop whose source may prepare batches between two epochs."""
    return (
        f"prefetched_in_rest: {call_text}: its source stays open between two epochs, so that batches which it prepares "
        "ahead then are in no epoch's time; give it epochs of many more steps than it prepares batches"
    )


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
        self._measurement.training_ended(self.model)


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
    """

    def __init__(self, adapter: BackendAdapter, stretch: Stretch, counting: Counting | None, clock: Clock) -> None:
        self.log = FitLog()
        self._adapter, self._stretch, self._counting, self._clock = adapter, stretch, counting, clock
        self._begun_s = 0.0
        self._training_s: float | None = None
        self._function: Any = None
        self._counted: Any = None
        self._calls = 0
        self._are_calls_known: bool | None = None

    def begin(self, model: Any) -> None:
        self._adapter.barrier(model)
        if self._counting:
            self._counting.epoch_begun()
        self._stretch.before(len(self.log.epochs.times_s))
        self._count_calls(model)
        self._training_s = self._are_calls_known = None
        self._begun_s = self._clock()

    def callbacks_have_begun(self) -> None:
        """Note the samples of what callbacks evaluated before the first step."""
        if self._counting:
            self._counting.training_begins()

    def _count_calls(self, model: Any) -> None:
        self._function = function = model.train_function
        self._calls, self._counted = 0, None
        if function is None:  # compiled anew by a callback: Keras itself cannot go on
            return

        def counted(*arguments: Any) -> Any:
            outputs = function(*arguments)
            self._calls += 1  # not of the call that finds a source at its end
            return outputs

        model.train_function = self._counted = counted

    def validation_begins(self, model: Any) -> None:
        """Note the time of the training steps, and their samples."""
        if self._training_s is None:
            self._adapter.barrier(model)
            self._training_s = self._clock() - self._begun_s
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
        times_s.append(self._clock() - self._begun_s)
        if model.train_function is self._counted:
            model.train_function = self._function
        else:
            self.log.functions_replaced += 1
        if self._training_s is not None:
            self.log.training_times_s.append(self._training_s)
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
        updates = self._counting.updates_of_epoch() if self._counting else None
        if not self._are_calls_known:
            return steps or updates or most_steps
        if steps is None and updates is not None and most_steps - chunk < updates < most_steps:
            return updates
        return most_steps if steps is None else min(most_steps, steps)


def fit_as_called(call: FitCall, adapter: BackendAdapter, stretch: Stretch, counting: Counting | None = None) -> FitLog:
    """Train the epochs of a stretch by a program's own call of `fit`, and return what they showed.

    The call has its own data, callbacks, validation and weights, and begins at its own initial epoch. Only the number
    of epochs is that of the stretch, whose `steps` are not used; a callback's request to stop before is deferred.
    """
    measurement = _CalledEpochs(adapter, stretch, counting, monotonic)
    arguments = dict(call.arguments)
    first, last = _CallStart(measurement), _CallEnd(measurement)
    arguments["epochs"] = int(arguments.get("initial_epoch") or 0) + stretch.epochs
    arguments["callbacks"] = _surrounded(arguments.get("callbacks"), call.model, (first, last))
    try:
        call.function(**arguments)
    finally:
        _without(arguments["callbacks"], (first, last))
    return measurement.log


def _surrounded(callbacks: Any, model: Any, ends: tuple[_CallStart, _CallEnd]) -> Any:
    """Return a call's callbacks with one before and one after them; a list object of Keras's stays that object."""
    first, last = ends
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        return [first, *(callbacks if isinstance(callbacks, list | tuple) else [callbacks] if callbacks else []), last]
    callbacks.callbacks[:] = [first, *callbacks.callbacks, last]
    for callback in ends:
        callback.set_model(model)
        callback.set_params(getattr(callbacks, "params", None) or {})
    return callbacks


def _without(callbacks: Any, ends: tuple[_CallStart, _CallEnd]) -> None:
    """Remove the two callbacks from a list object of Keras's, which the program may use in further calls."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.callbacks[:] = [callback for callback in callbacks.callbacks if callback not in ends]


@dataclass(slots=True)
class CallLog:
    """The seconds of each epoch of calls, and of each call of the measured epochs.

    `rows` has, for each epoch, the sum over its calls of the leading dimension of the outputs.
    """

    epoch_times_s: list[float] = field(default_factory=list)
    call_times_s: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)


def call_epochs(call: Callable[[Any], Any], batches: Sequence[Batch], stretch: Stretch) -> CallLog:
    """Call `predict_on_batch` or `generate` once per step; a call ends with its result on the host, as for its user."""
    log = CallLog()
    position = 0
    for epoch in range(stretch.epochs):
        stretch.before(epoch)
        times_s, rows = [], 0
        for _ in range(stretch.steps):
            batch = batches[position % len(batches)]
            position += 1
            begun_s = monotonic()
            outputs = call(inputs_of(batch))
            times_s.append(monotonic() - begun_s)
            rows += rows_of(outputs)
        log.epoch_times_s.append(sum(times_s))
        log.rows.append(rows)
        if epoch >= stretch.discard:
            log.call_times_s.extend(times_s)
    return log


def step_time_by_doubling(epoch_s: Callable[[int], float], *, enough_s: float) -> float:
    """Return the seconds of one step, from epochs of growing length until one lasts `enough_s`.

    `epoch_s(steps)` runs two epochs and returns the shorter: a disturbance only makes a short epoch longer. What an
    epoch costs besides its steps is known from the first, of one step: of short steps it is most of a short epoch. At
    most half of an epoch counts as such, since a first step may still be warming up.
    """
    steps = 1
    first_s = taken_s = epoch_s(steps)
    while taken_s < enough_s:
        growth = enough_s / max(taken_s, 1e-6)
        steps = max(steps + 1, min(steps * 64, math.ceil(steps * growth)))
        taken_s = epoch_s(steps)
    if steps == 1:
        return taken_s
    return max((taken_s - first_s) / (steps - 1), taken_s / steps / 2)


def timed(call: Callable[[], object], clock: Clock = monotonic) -> float:
    """Return the seconds a call takes."""
    begun_s = clock()
    call()
    return clock() - begun_s


def finite(value: Any) -> float | None:
    """Return a number, None for one that is not finite."""
    number = float(value)
    return number if math.isfinite(number) else None
