"""The timed loops: epochs of `fit`, of predict or generate calls.

Timing starts and ends with the device idle. No hook runs between two batches: in Keras 3 such a hook synchronises every
step on JAX and PyTorch. An epoch's time includes its steps and the resetting and reading of metrics, as `fit` does
them, without validation and building. Of a call with its own arguments it includes validation and callbacks as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import keras

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
            inputs = inputs_of(batches[position % len(batches)])
            position += 1
            begun_s = monotonic()
            outputs = call(inputs)
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
