"""The timed loop of calls that predict, generate or compute gradients; what consecutive epochs of any kind are and log.

It imports neither Keras nor a backend: a process that measures an exported model has only the runtime of its file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from keras_matrix.models.workload import arrays_in
from keras_matrix.records.instruments.work_done import WorkStretch
from keras_matrix.runner.cell.batches import Batch, inputs_of
from keras_matrix.runner.cell.clock import Clock, monotonic

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
    callbacks: tuple[Any, ...] = ()
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


@dataclass(slots=True)
class CallLog:
    """The seconds of each epoch of calls, and of each call of the measured epochs.

    `rows` has, for each epoch, the sum over its calls of the leading dimension of the outputs.
    """

    epoch_times_s: list[float] = field(default_factory=list)
    call_times_s: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)


def call_epochs(
    call: Callable[[Any], Any],
    batches: Sequence[Batch],
    stretch: Stretch,
    given: Callable[[Batch], Any] = inputs_of,
) -> CallLog:
    """Call the model once per step; a call ends with its result on the host, as for its user.

    `given` is what a call is given of a batch: by default the inputs.
    """
    log = CallLog()
    position = 0
    for epoch in range(stretch.epochs):
        stretch.before(epoch)
        times_s, rows = [], 0
        for _ in range(stretch.steps):
            inputs = given(batches[position % len(batches)])
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


def predicted(name: str, steps: int, rows: Sequence[int]) -> WorkStretch:
    """Return the work of epochs of predict calls: `rows` has each epoch's summed leading dimensions of outputs."""
    unknown: list[int | None] = [None] * len(rows)
    return WorkStretch(name, steps, len(rows), unknown, list(rows), [0] * len(rows))


def rows_of(outputs: Any) -> int:
    """Return the smallest leading dimension among the arrays of an output; 0 for an output without arrays.

    An array of one number, such as an auxiliary loss, does not count as rows if another array has rows. A walk through
    a structure between two calls, although it is not timed, would slow the next call.
    """
    if (array_shape := getattr(outputs, "shape", None)) is not None:
        return int(array_shape[0]) if len(array_shape) else 0
    shapes = [shape for shape in (tuple(np.shape(part)) for part in arrays_in(outputs)) if shape]
    return min((shape[0] for shape in shapes if shape != (1,)), default=len(shapes) and 1)


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


def deviation_of_arrays(actual: Sequence[Any], expected: Sequence[Any]) -> tuple[float | None, str | None]:
    """Return the largest deviation of a number, as a share of the largest one of its output; or why there is none.

    Pure. Texts must be equal.
    """
    actual_arrays, expected_arrays = (list(map(np.asarray, part)) for part in (actual, expected))
    if len(actual_arrays) != len(expected_arrays):
        return None, f"are {len(actual_arrays)}, and {len(expected_arrays)} of model(x)"
    largest = 0.0
    for actual_array, expected_array in zip(actual_arrays, expected_arrays, strict=True):
        if actual_array.shape != expected_array.shape:
            return None, f"have the shape {actual_array.shape}, and {expected_array.shape} of model(x)"
        if actual_array.dtype.kind in "OSU" or expected_array.dtype.kind in "OSU":
            if not np.array_equal(actual_array, expected_array):
                return None, "are other texts than those of model(x)"
            continue
        dtype = np.complex128 if "c" in (actual_array.dtype.kind, expected_array.dtype.kind) else np.float64
        values, reference = actual_array.astype(dtype), expected_array.astype(dtype)
        if not (np.isfinite(values).all() and np.isfinite(reference).all()):
            return None, "are not finite"
        if values.size:
            scale = max(float(np.abs(reference).max()), float(np.finfo(np.float32).tiny))
            largest = max(largest, float(np.abs(values - reference).max()) / scale)
    return largest, None
