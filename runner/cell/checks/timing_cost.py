"""What timing and counting cost: our epochs against those of a bare `fit`, alternating inside one process.

`python -P -m keras_matrix.runner.cell.checks.timing_cost FOLDER` is a probe. It runs on one CPU with one thread: with
two threads on two CPUs a pair of epochs always scatters by 8 to 10 %, on one by 3 %. Both sides have the
same batches, steps and barriers; the bare side is a plain callback, on an endless source that counts nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from keras_matrix.models.registry import load
from keras_matrix.models.workload import Request
from keras_matrix.records.host.platform import PLATFORM
from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell import backends
from keras_matrix.runner.cell.backends import BackendAdapter
from keras_matrix.runner.cell.batches import make_batches, steps_of_pass
from keras_matrix.runner.cell.checks.answering import answer_order
from keras_matrix.runner.cell.clock import monotonic
from keras_matrix.runner.cell.loop import Stretch, step_time_by_doubling
from keras_matrix.runner.cell.phases import fit_counted, fit_epochs
from keras_matrix.runner.cell.work import Counting

EPOCH_S = 0.1
EPOCHS = 4
LEAST_PAIRS = 20


@dataclass(frozen=True, slots=True)
class TimingRequest:
    """A backend's settings, the half-width of the interval at which to stop, and the time limit."""

    settings: Settings
    target: float
    limit_s: float


class Bare(keras.callbacks.Callback):  # type: ignore[misc]
    """Two barriers and two readings of the clock."""

    def __init__(self, adapter: BackendAdapter) -> None:
        super().__init__()
        self.times_s: list[float] = []
        self._adapter = adapter

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._adapter.barrier(self.model)
        self._begun_s = monotonic()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._adapter.barrier(self.model)
        self.times_s.append(monotonic() - self._begun_s)


def log_ratios(settings: Settings, target: float, limit_s: float) -> list[float]:
    """Return the log ratio of ours to bare of each pair, until the half-width of their mean is `target` or time is up.

    The order alternates from pair to pair. The first epoch of every call is not counted.
    """
    adapter = backends.load(settings.backend)
    adapter.configure(settings, None)
    workload = load(settings.workload)(Request({}, "synthetic", None))
    model = workload.model
    resident = [adapter.resident(batch) for batch in make_batches(workload, settings, steps_of_pass(settings))]
    source, feeder = adapter.endless(resident), adapter.feeder(resident)
    step_s = step_time_by_doubling(lambda n: fit_epochs(model, source, adapter, Stretch(n, 2)).times_s[1], enough_s=0.2)
    steps = max(1, math.ceil(EPOCH_S / step_s))

    def ours() -> float:
        counting = Counting("epochs", model, steps, EPOCHS)
        log, feed = fit_counted(counting, feeder, adapter, Stretch(steps, EPOCHS))
        assert counting.stretch(feed).updates == [steps] * EPOCHS
        return statistics.fmean(log.times_s[1:])

    def bare() -> float:
        clock = Bare(adapter)
        batches = adapter.source(source) if isinstance(source, Iterator) else source
        model.fit(batches, steps_per_epoch=steps, epochs=EPOCHS, verbose=0, shuffle=False, callbacks=[clock])
        return statistics.fmean(clock.times_s[1:])

    return _alternating(ours, bare, target, limit_s)


def _alternating(ours: Callable[[], float], bare: Callable[[], float], target: float, limit_s: float) -> list[float]:
    ours(), bare()
    logs: list[float] = []
    begun_s = monotonic()
    while len(logs) < LEAST_PAIRS or (half_width(logs) > target and monotonic() - begun_s < limit_s):
        if len(logs) % 2:
            bare_s, timed_s = bare(), ours()
        else:
            timed_s, bare_s = ours(), bare()
        logs.append(math.log(timed_s / bare_s))
    return logs


def half_width(logs: Sequence[float]) -> float:
    """Return the half-width of Student's 95 % interval of a mean."""
    from scipy.special import stdtrit

    return float(stdtrit(len(logs) - 1, 0.975)) * statistics.stdev(logs) / math.sqrt(len(logs))


def answer(order: TimingRequest) -> dict[str, Any]:
    """Return the ratio of our timed epochs to bare ones, with its 95 % interval and the number of pairs."""
    # The last CPU: the first takes most interrupts.
    PLATFORM.bind({max(PLATFORM.usable_cpus())})
    logs = log_ratios(order.settings, order.target, order.limit_s)
    centre, half = statistics.fmean(logs), half_width(logs)
    low, high = math.exp(centre - half), math.exp(centre + half)
    return {"backend": order.settings.backend, "ratio": math.exp(centre), "low": low, "high": high, "pairs": len(logs)}


if __name__ == "__main__":
    answer_order(TimingRequest, answer)
