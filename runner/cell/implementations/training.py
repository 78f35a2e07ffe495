"""Trains a workload by an implementation other than Keras's `fit`, timed and counted as `fit` is.

The clock, the synchronisation, the batches in device memory and their order are those of `fit`. Between two steps
nothing runs but the loop. The optimizer's updates are those that the implementation itself counts; samples are the
rows of the batches that the loop drew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from keras_matrix.models import twins
from keras_matrix.models.twins.interface import Compiled, Rung
from keras_matrix.records.schema import Learning, Times
from keras_matrix.records.settings import Settings
from keras_matrix.records.traces.request import untraceable
from keras_matrix.runner.cell.backends import BackendAdapter
from keras_matrix.runner.cell.batches import Batch, Feed, Feeder, counted_feed, make_batches
from keras_matrix.runner.cell.implementations.equality import CHECKED_STEPS, Start, largest_deviation
from keras_matrix.runner.cell.loop import EpochClock, EpochLog, Stretch
from keras_matrix.runner.cell.phases import Training, unchanged
from keras_matrix.runner.cell.work.counter import Counting


@dataclass(slots=True)
class StepCounting(Counting):
    """Counts of a loop over steps: `report` writes what was done so far to the counters of the Keras model."""

    report: Callable[[], None] = lambda: None

    def _read(self) -> None:
        self.report()
        Counting._read(self)


class StepTraining(Training):
    """Epochs of the training steps of an implementation."""

    _rung: Rung
    _start: Start

    def run(self, first: Sequence[Batch]) -> tuple[Times, Learning, int]:
        self._start = Start.of(self.model)
        self._rung = self._make()
        return super().run(first)

    def again(self, stretch: Stretch, change: Callable[[Any], Any] = unchanged) -> None:
        raise untraced(self._job.settings)

    def try_high_rate(self) -> None:
        """Do nothing: in float32, the only precision of these steps, every update changes a weight."""

    def received_samples(self, batch: Batch) -> int | None:
        """Return None: the loop itself draws the batches, whose rows are counted."""
        return None

    def deviation(self) -> float | None:
        batches = make_batches(self._built, self._job.settings, CHECKED_STEPS)
        return largest_deviation(self.model, self._start, self._make, [self._adapter.resident(one) for one in batches])

    def _make(self) -> Rung:
        settings, model = self._job.settings, self.model
        compiled = Compiled(bool(model.jit_compile) and not model.run_eagerly, bool(model.run_eagerly))
        makers = twins.load(settings.backend).rungs(model, settings.workload, compiled, settings.seed)
        made: Rung = makers[settings.implementation]()
        return made

    def _undivided(self, batches: Sequence[Batch]) -> Feeder:
        placed = [self._adapter.resident(batch) for batch in batches]
        return lambda needed: counted_feed(placed, lookahead=0)

    def _counted(self, name: str, feeder: Feeder, stretch: Stretch) -> tuple[EpochLog, Feed, Counting]:
        feed = feeder(stretch.steps * stretch.epochs)
        counting = StepCounting(name, self.model, stretch.steps, stretch.epochs, report=self._reporter(feed))
        counting.begin()
        log = step_epochs(self._rung, (self.model, feed), self._adapter, stretch, counting)
        self._rung.write_back()
        return log, feed, counting

    def _reporter(self, feed: Feed) -> Callable[[], None]:
        """Return a function that writes the counts to the model, unless its own training function did."""
        rows, drawn = self._job.settings.batch_size, 0

        def report() -> None:
            nonlocal drawn
            before, drawn = drawn, feed.drawn() or 0
            if not self._rung.counts:
                self.model.optimizer.iterations.assign(self._rung.updates())
                self.model._loss_tracker.count.assign((drawn - before) * rows)

        return report


def untraced(settings: Settings) -> ValueError:
    """Return the error of tracing another implementation than Keras's."""
    return ValueError(untraceable(settings.implementation))


def step_epochs(
    rung: Rung, trained: tuple[Any, Feed], adapter: BackendAdapter, stretch: Stretch, counting: Counting
) -> EpochLog:
    """Train the epochs of a stretch step by step from a feed; return their times and logs, as `fit_epochs` does."""
    model, feed = trained
    epoch_clock = EpochClock(adapter, stretch, counting=counting)
    epoch_clock.set_model(model)
    batches: Iterator[Batch] = feed.source
    for epoch in range(stretch.epochs):
        rung.begin_epoch()
        epoch_clock.on_epoch_begin(epoch)
        for batch in islice(batches, stretch.steps):
            rung.step(batch)
        epoch_clock.on_epoch_end(epoch, rung.end_epoch())
    return epoch_clock.log
