"""Runs a cell's workload that trains: epochs of `fit`.

Timing starts and ends with the device idle. No hook runs between two batches: in Keras 3 such a hook synchronises every
step on JAX and PyTorch. An epoch's time includes its steps and the resetting and reading of metrics, as `fit` does
them, without validation and building. Of a call with its own arguments it includes validation and callbacks as well.

Each call is counted (`runner.cell.work`), so that the runner can determine whether the work was done.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Thread
from typing import Any

import keras
import numpy as np

from keras_matrix.models.inputs.user_source import on_host
from keras_matrix.models.workload import Built, Fit, map_arrays
from keras_matrix.records.schema import Learning, Times
from keras_matrix.records.settings import Settings
from keras_matrix.records.text import plural
from keras_matrix.runner.cell.backends import BackendAdapter, Unsupported
from keras_matrix.runner.cell.batches import Batch, Feed, Feeder, counted_feed, make_batches, steps_of_pass
from keras_matrix.runner.cell.called_fit import (
    FitCall,
    FitLog,
    fit_as_called,
    has_cache,
    prefetched_note,
    prefetches,
    training_rows,
)
from keras_matrix.runner.cell.clock import Clock, monotonic
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cell.loop import EpochLog, Stretch, finite
from keras_matrix.runner.cell.measured_epochs import MeasuredEpochs, Timeline, agreed, epoch_work, summarise
from keras_matrix.runner.cell.work import Counting, Ledger, WeightChecksums, received_samples

# The second epoch length costs up to a third of a process's time and gives secondary figures: one process pays for it.
SECOND_LENGTH_REPEAT = 0
# At this learning rate any gradient that is not zero moves a weight of any precision.
HIGH_RATE = 1e6


SHOWN = 8  # step counts in a message
UNFILLED_CACHE = (
    "cache_unfilled: the data set has a cache, which only a whole epoch fills: the steps of a cut one read their data "
    "anew, and may take longer than those of later epochs do; set most_steps: all to measure whole epochs"
)


class WorkMismatch(Exception):
    """The workload did not run the requested epochs, so that there is nothing to time. The message says which."""


@dataclass(frozen=True, slots=True)
class CalledFit:
    """A call of `fit` that is measured; `text` names it in messages. Its work and notes go to the ledger.

    An epoch of more than `most_steps` is cut after them.
    """

    call: FitCall
    text: str
    adapter: BackendAdapter
    measured: MeasuredEpochs
    ledger: Ledger
    most_steps: int | None = None

    def run(self, stretch: Stretch) -> tuple[FitLog, int]:
        """Train the epochs of a stretch; return what they showed and the steps of each. Raises `WorkMismatch`."""
        model, ledger = self.call.model, self.ledger
        counting = Counting("epochs", model, 1, stretch.epochs)

        def before(epoch: int) -> None:
            if epoch == stretch.discard and model.built:
                ledger.before = WeightChecksums.of(model)
            stretch.before(epoch)

        counting.begin()
        log = fit_as_called(self.call, self.adapter, replace(stretch, before=before), counting, self.most_steps)
        self.measured.end()
        counting.steps = steps = steps_of_epochs(self.text, log.steps, stretch)
        ledger.stretches.append(counting.stretch())
        ledger.optimizer_replaced |= counting.optimizer_replaced
        ledger.notes += log.notes
        if prefetches(self.call.arguments):
            ledger.notes.append(prefetched_note(self.text))
        if log.is_cut and has_cache(self.call.arguments):
            ledger.notes.append(UNFILLED_CACHE)
        return log, steps


def steps_of_epochs(text: str, steps: Sequence[int], stretch: Stretch) -> int:
    """Return the steps of each measured epoch of the call that `text` names.

    Raises `WorkMismatch` if they differ, or if not all epochs ran.
    """
    measured_steps = set(steps[stretch.discard :])
    if len(steps) != stretch.epochs or measured_steps == {0}:
        raise WorkMismatch(f"epochs: {text} must run {stretch.epochs}, got {len(steps)}")
    if len(measured_steps) > 1:
        some_text = ", ".join(map(str, steps[:SHOWN]))
        raise WorkMismatch(f"steps: the epochs of {text} must have equally many, got {some_text}; give it whole passes")
    return measured_steps.pop()


def unchanged(source: Any) -> Any:
    """Return the source of batches unchanged."""
    return source


class Training:
    """Epochs of `fit`."""

    def __init__(self, workload: Built, adapter: BackendAdapter, job: Job, measured_epochs: MeasuredEpochs) -> None:
        self._built, self._adapter, self._job, self._measured = workload, adapter, job, measured_epochs
        self.model, self.steps_a_call = workload.model, job.settings.steps_per_execution
        self.ledger = Ledger()
        self._fed: Feeder | None = None

    def run(self, first_batches: Sequence[Batch]) -> tuple[Times, Learning, int]:
        """Take the first step, agree on the steps per epoch, train; return times, learning and steps."""
        settings, chunk = self._job.settings, self._job.settings.steps_per_execution
        feeder = self._feeder(first_batches)
        first_step_s = self._fit("first_step", feeder, Stretch(chunk, 1)).times_s[0]
        steps, calibration_s = agreed(
            self._job,
            self._measured.turns,
            lambda count: min(self._fit("calibration", feeder, Stretch(count * chunk, 2)).times_s) / chunk,
        )
        self._fed = feeder = self._feeder(make_batches(self._built, settings, max(steps, self._job.steps_held)))
        self.ledger.before = WeightChecksums.of(self.model)
        log = self._fit("epochs", feeder, self._measured.stretch(settings, steps))
        self._measured.end()
        timeline = Timeline(first_step_s, calibration_s, steps, log)
        short_steps = epoch_work(settings, steps).short_steps
        if short_steps is not None and self._job.repeat == SECOND_LENGTH_REPEAT:
            stretch = Stretch(short_steps, 1 + settings.epochs - settings.discard)
            timeline.short = self._fit("short_epochs", feeder, stretch)
        return timeline.times(settings), learning_of(timeline.epochs), steps

    def again(self, stretch: Stretch, change: Callable[[Any], Any] = unchanged) -> None:
        """Train further epochs from the same batches, whose source `change` may wrap; nothing is recorded."""
        assert self._fed is not None
        feed = self._fed(stretch.steps * stretch.epochs)
        fit_epochs(self.model, change(feed.source), self._adapter, stretch)

    def finish(self) -> None:
        """Take the final weights."""
        self.ledger.after = WeightChecksums.of(self.model)

    def try_high_rate(self) -> None:
        """Try, if the epochs changed nothing, whether a step at a high learning rate changes a weight.

        In bfloat16 a step may be smaller than a weight's last place, which does not mean that work was left out. The
        step spoils the model: it comes after everything measured, and after the model is saved.
        """
        if self.ledger.after is None or not self.ledger.nothing_changed or self._fed is None:
            return
        try:
            self.model.optimizer.learning_rate = HIGH_RATE
            self.again(Stretch(self.steps_a_call, 1))
        except Exception as error:  # noqa: BLE001 - such as a schedule: then it is unknown
            print(f"no step at a high learning rate: {type(error).__name__}: {error}", file=sys.stderr)
            return
        self.ledger.changed_at_high_rate = WeightChecksums.of(self.model).changed_since(self.ledger.after) > 0

    def received_samples(self, batch: Batch) -> int | None:
        """Return how many samples of a batch the model's layers receive in a step; None if unknown. It trains a step.

        It comes after everything measured, since that step is not compiled.
        """
        if self._job.settings.devices > 1:
            return None  # the workers of several devices train in processes of their own
        return received_samples(self._adapter, self.model, batch, lambda: self.again(Stretch(1, 1)))

    def deviation(self) -> float | None:
        """Return how far its losses are from Keras's; None for Keras's own steps. It spoils the model."""
        return None

    def _fit(self, name: str, feeder: Feeder, stretch: Stretch) -> EpochLog:
        """Train the epochs of a stretch, counted. Raises `WorkMismatch` if not all epochs were run."""
        log, feed, counting = self._counted(name, feeder, stretch)
        if len(log.times_s) != stretch.epochs:
            raise WorkMismatch(f"epochs: fit must run {stretch.epochs}, got {len(log.times_s)}")
        self.ledger.stretches.append(counting.stretch(feed))
        self.ledger.optimizer_replaced |= counting.optimizer_replaced
        return log

    def _counted(self, name: str, feeder: Feeder, stretch: Stretch) -> tuple[EpochLog, Feed, Counting]:
        """Train the epochs of a stretch; return their log, their feed and the counts."""
        counting = Counting(name, self.model, stretch.steps_with_lead_in, stretch.epochs)
        log, feed = fit_counted(counting, feeder, self._adapter, stretch)
        return log, feed, counting

    def _feeder(self, batches: Sequence[Batch]) -> Feeder:
        """Return the feeder of `fit`, for the cell's devices."""
        return self._adapter.group.feeder(batches, self._undivided)

    def _undivided(self, batches: Sequence[Batch]) -> Feeder:
        """Return the feeder of one device: resident on it, or from host memory at each step."""
        if self._job.settings.feed == "device_resident":
            return self._adapter.feeder(batches)
        return lambda needed_batches: counted_feed(batches, self._adapter.lookahead)


class CalledTraining(Training):
    """Epochs of a workload's own call of `fit`, with its data, callbacks and validation: whole passes, in one call."""

    def __init__(self, workload: Built, adapter: BackendAdapter, job: Job, measured: MeasuredEpochs) -> None:
        super().__init__(workload, adapter, job, measured)
        assert workload.call is not None
        self._call = workload.call
        self._arguments = self._cut_to_batches()
        self._steps = 1

    def run(self, first_batches: Sequence[Batch]) -> tuple[Times, Learning, int]:
        """Train all epochs; return times, learning and steps. The first epoch has the first step, and is discarded."""
        settings = self._job.settings
        call = FitCall(self.model, self._arguments, self.model.fit)
        log, steps = CalledFit(call, "fit", self._adapter, self._measured, self.ledger).run(self._in_turn())
        self._steps = steps
        self._check_steps()
        times = summarise(log.epochs.times_s, [], settings, steps)
        return replace(times, training_time_s=sum(log.epochs.times_s)), learning_of(log.epochs), steps

    def _check_steps(self) -> None:
        """Raise `WorkMismatch` if an epoch had not the batches of all samples that `fit` was given, where known.

        A `fit` of the model's own may train on a part of them. It may also train on each of them several times.
        """
        expected = _expected_steps(self._arguments)
        if expected is not None and (self._steps < expected or self._steps % expected):
            raise WorkMismatch(
                f"epochs: each must have the {plural(expected, 'step')} of what fit was given, got {self._steps}"
            )

    def again(self, stretch: Stretch, change: Callable[[Any], Any] = unchanged) -> None:
        """Train further epochs of at most a pass, without validation; nothing is recorded."""
        arguments = {name: value for name, value in self._arguments.items() if not name.startswith("validation_")}
        arguments["steps_per_epoch"] = min(stretch.steps, self._steps)
        if stretch.callbacks:
            callbacks = arguments.get("callbacks")
            own_callbacks = callbacks if isinstance(callbacks, list | tuple) else [callbacks] if callbacks else []
            arguments["callbacks"] = [*own_callbacks, *stretch.callbacks]
        fit_as_called(FitCall(self.model, arguments, self.model.fit), self._adapter, stretch)

    def _in_turn(self) -> Stretch:
        """Return the epochs, with a message about the time of a step before the second one, if the runner needs it.

        It chooses the steps of an epoch for cells that can have any number; here they are those of a pass.
        """
        stretch, begun_s = self._measured.stretch(self._job.settings, 1), monotonic()

        def before(epoch: int) -> None:
            if epoch == 1 and self._job.steps is None:
                self._measured.turns.agree_on_steps((monotonic() - begun_s) / self._pass_steps())
            stretch.before(epoch)

        return replace(stretch, before=before)

    def _pass_steps(self) -> int:
        pipeline = self._built.pipeline
        return max(1, (pipeline and pipeline.batches_per_pass) or steps_of_pass(self._job.settings))

    def _cut_to_batches(self) -> dict[str, Any]:
        """Return the arguments, with as many rows of arrays as fill the batches of training."""
        arguments = {"verbose": 0, **self._call.arguments}
        if self._built.pipeline is not None:
            arguments.pop("batch_size", None)
            steps = self._job.settings.steps_per_epoch
            return arguments if isinstance(steps, str) else {**arguments, "steps_per_epoch": steps}
        settings, available = self._job.settings, self._built.available_samples
        arguments = {"shuffle": False, **arguments, "batch_size": settings.batch_size}
        is_split = arguments.get("validation_data") is None
        rows = _rows(settings, 1.0 - (arguments.get("validation_split") or 0.0 if is_split else 0.0))
        if rows == available or available is None:
            return arguments
        indices = np.arange(rows) % available
        for name in ("x", "y", "sample_weight"):
            if name in arguments:
                arguments[name] = map_arrays(lambda array: on_host(array)[indices], arguments[name])
        return arguments


def _expected_steps(arguments: Mapping[str, Any]) -> int | None:
    """Return the steps of an epoch of a call of `fit`; None for a source whose batches are not known."""
    if (steps := arguments.get("steps_per_epoch")) is not None:
        return int(steps)
    rows, batch_size = training_rows(arguments), arguments.get("batch_size")
    return None if rows is None or batch_size is None else math.ceil(rows / int(batch_size))


def _rows(settings: Settings, share: float) -> int:
    """Return how many samples to give to `fit`, which trains on a share of them: as many as fill its batches.

    They are those of a pass, or of the matrix's number of steps. Raises ValueError if no batch is filled.
    """
    batch_size, steps = settings.batch_size, settings.steps_per_epoch
    if not 0 < share <= 1:
        raise ValueError(f"validation_split: must be at least 0 and less than 1, got {1.0 - share:g}")
    most = settings.samples if isinstance(steps, str) else math.ceil((steps * batch_size + 1) / share)
    wanted = math.floor(most * share) // batch_size if isinstance(steps, str) else steps
    rows = next((rows for rows in range(most, 0, -1) if math.floor(rows * share) == wanted * batch_size), 0)
    if not wanted or not rows:
        raise ValueError(
            f"batch_size: the samples that fit trains on, of {settings.samples}, do not fill a batch of {batch_size}; "
            "set a smaller batch_size"
        )
    return rows


def check_call(settings: Settings) -> None:
    """Raise `Unsupported` for settings that a workload's own call of `fit` cannot have."""
    reasons = {
        "devices": settings.devices > 1,
        "discard": settings.discard < 1,
        "page_cache": settings.page_cache != "warm",
        "input_timers": settings.input_timers,
    }
    if key := next((key for key, is_set in reasons.items() if is_set), None):
        raise Unsupported(f"{key}: the workload is measured by its own call of fit; leave out {key}")


def call_notes(call: Fit | None, overridden: Sequence[str]) -> list[str]:
    """Return what a row says of a workload that is measured by its own call of `fit`."""
    if call is None:
        return []
    if "fit" in overridden:
        return ["the model's own fit gets x and y as they are, not batches that stay on the device"]
    parts = [
        name for name in ("callbacks", "validation_data", "validation_split") if call.arguments.get(name) is not None
    ]
    return [f"an epoch's time includes {' and '.join(parts)} of fit"] if parts else []


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


def fit_counted(counting: Counting, feeder: Feeder, adapter: BackendAdapter, stretch: Stretch) -> tuple[EpochLog, Feed]:
    """Train the epochs of a stretch and count the work; return their log and their feed."""
    feed = feeder(stretch.steps_with_lead_in * stretch.epochs)
    counting.begin()
    return fit_epochs(counting.model, feed.source, adapter, stretch, counting), feed


def learning_of(log: EpochLog) -> Learning:
    """Return the losses and metrics of the epochs."""
    names = [name for name in (log.logs[0] if log.logs else {}) if name != "loss"]
    return Learning(
        loss=[entry["loss"] for entry in log.logs if "loss" in entry],
        metrics={name: [entry.get(name) for entry in log.logs] for name in names},
    )
