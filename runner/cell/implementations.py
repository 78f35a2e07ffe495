"""Trains or generates by an implementation other than Keras's `fit` and `generate()`, timed and counted alike.

The clock, the synchronisation, the batches in device memory and their order are those of `fit`. Between two steps
nothing runs but the loop. The optimizer's updates are those that the implementation itself counts; samples are the
rows of the batches that the loop drew.

Whether an implementation trains as Keras does is judged by the losses of a few steps from the same weights on the same
batches. It comes after everything measured, so that it affects neither times nor memory nor what is compiled first.
Dropout is off, since its masks differ; the rate is at most `RATE`, since at 0.001 the first steps of RMSprop from zero
drive the probabilities of some workloads to 0, where Keras's loss is clipped and one from logits is not.

Guarantee: a cell whose losses deviate further than `runner parity` allows float32 has no figures. Limit: dropout itself
is not compared.

A module of its own: it is a seam, with the interface of training and generation by Keras.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from keras_matrix.models import twins
from keras_matrix.models.twins.generation import Continue
from keras_matrix.models.twins.interface import FIRST_LOSS_LIMIT, LOSSES_LIMIT, Compiled, Rung
from keras_matrix.records.schema import Learning, Times
from keras_matrix.records.settings import Settings
from keras_matrix.records.traces.request import untraceable
from keras_matrix.runner.cell.backends import BackendAdapter
from keras_matrix.runner.cell.batches import Batch, Feed, Feeder, counted_feed, make_batches
from keras_matrix.runner.cell.generation import Generating, generated, lengths
from keras_matrix.runner.cell.loop import EpochLog, Stretch
from keras_matrix.runner.cell.options import MADE_BY_KERAS, switch_off
from keras_matrix.runner.cell.phases import EpochClock, Training, WorkMismatch, unchanged
from keras_matrix.runner.cell.work import Counting

CHECKED_STEPS = 5
RATE = 1e-4
Tokens = NDArray[np.int32]
# How far below the largest logit that of a token may be, as a share of it: rounding of float32 and of TF32, which may
# choose another one of two tokens that are equally likely.
TIE, TIE_OF_TF32 = 1e-5, 1e-2


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
    _start: StartValues

    def run(self, first_batches: Sequence[Batch]) -> tuple[Times, Learning, int]:
        self._start = StartValues.of(self.model)
        self._rung = self._make()
        return super().run(first_batches)

    def again(self, stretch: Stretch, change: Callable[[Any], Any] = unchanged) -> None:
        raise untraced(self._job.settings)

    def try_high_rate(self) -> None:
        """Do nothing: in float32, the only precision of these steps, every update changes a weight."""

    def received_samples(self, batch: Batch) -> int | None:
        """Return None: the loop itself draws the batches, whose rows are counted."""
        return None

    def deviation(self) -> float | None:
        batches = make_batches(self._built, self._job.settings, CHECKED_STEPS)
        return largest_deviation(
            self.model, self._start, self._make, [self._adapter.resident(batch) for batch in batches]
        )

    def _make(self) -> Rung:
        settings, model = self._job.settings, self.model
        compiled = Compiled.of(model)
        makers = twins.load(settings.backend).rungs(model, settings.workload, compiled, settings.seed)
        rung: Rung = makers[settings.implementation]()
        return rung

    def _undivided(self, batches: Sequence[Batch]) -> Feeder:
        placed_batches = [self._adapter.resident(batch) for batch in batches]
        return lambda needed_batches: counted_feed(placed_batches, lookahead=0)

    def _counted(self, name: str, feeder: Feeder, stretch: Stretch) -> tuple[EpochLog, Feed, Counting]:
        feed = feeder(stretch.steps * stretch.epochs)
        counting = StepCounting(name, self.model, stretch.steps, stretch.epochs, report=self._reporter(feed))
        counting.begin()
        log = step_epochs(self._rung, (self.model, feed), self._adapter, stretch, counting)
        self._rung.write_back()
        return log, feed, counting

    def _reporter(self, feed: Feed) -> Callable[[], None]:
        """Return a function that writes the counts to the model, unless its own training function did."""
        batch_size, drawn_count = self._job.settings.batch_size, 0

        def report() -> None:
            nonlocal drawn_count
            drawn_before, drawn_count = drawn_count, feed.drawn() or 0
            if not self._rung.counts:
                self.model.optimizer.iterations.assign(self._rung.updates())
                self.model._loss_tracker.count.assign((drawn_count - drawn_before) * batch_size)

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


@dataclass(frozen=True, slots=True)
class StartValues:
    """The values of the variables of a model and its optimizer before any step."""

    variables: Sequence[Any]
    values: Sequence[Any]

    @staticmethod
    def of(model: Any) -> StartValues:
        """Build the model's optimizer, and copy all values to the host."""
        model.optimizer.build(model.trainable_variables)
        variables = [*model.variables, *model.optimizer.variables]
        return StartValues(variables, [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables])

    def restore(self) -> None:
        """Set the variables to these values."""
        for variable, value in zip(self.variables, self.values, strict=True):
            variable.assign(value)


def largest_deviation(model: Any, start: StartValues, make: Callable[[], Rung], batches: Sequence[Batch]) -> float:
    """Return the largest relative deviation of a step's loss from Keras's. Raises `WorkMismatch` beyond the limits.

    It spoils the model: its dropout stays off and its weights are others.
    """
    switch_off(model)
    start.restore()
    lower_rate(model)
    begin = StartValues.of(model)
    expected = []
    for x, y in batches:
        model.reset_metrics()
        expected.append(float(model.train_on_batch(x, y, return_dict=True)["loss"]))
    begin.restore()
    forget_functions(model)
    return compared_losses(_losses(make(), batches), expected)


def compared_losses(actual: Sequence[float], expected: Sequence[float]) -> float:
    """Return the largest relative deviation of these losses. Raises `WorkMismatch` for one beyond its limit. Pure."""
    deviations = []
    for step, (own_loss, keras_loss) in enumerate(zip(actual, expected, strict=True), start=1):
        deviation = abs(own_loss - keras_loss) / max(abs(own_loss), abs(keras_loss), 1e-30)
        limit = FIRST_LOSS_LIMIT if step == 1 else LOSSES_LIMIT
        if not (math.isfinite(deviation) and deviation <= limit):
            raise WorkMismatch(
                f"implementation: it trains differently from Keras: from the same weights, with dropout off, the loss "
                f"of step {step} is {own_loss:.7g} and Keras's {keras_loss:.7g}, further apart than {limit:g} of it"
            )
        deviations.append(deviation)
    return max(deviations)


def _losses(rung: Rung, batches: Sequence[Batch]) -> list[float]:
    losses = []
    for batch in batches:
        rung.begin_epoch()
        rung.step(batch)
        losses.append(rung.end_epoch()["loss"])
    return losses


def lower_rate(model: Any) -> None:
    """Set the rate to at most `RATE`; a schedule that begins there stays."""
    if float(keras.ops.convert_to_numpy(model.optimizer.learning_rate)) > RATE * 1.001:
        model.optimizer.learning_rate = RATE
    forget_functions(model)


def forget_functions(model: Any) -> None:
    """Let Keras make the functions of its steps anew: they have the dropout rates that they were traced with."""
    for name in MADE_BY_KERAS:
        setattr(model, name, None)


class NativeGenerating(Generating):
    """Epochs of calls of native generation, with the weights and prompts of KerasHub's."""

    _continue: Continue

    def run(self, first_batches: list[Batch]) -> tuple[Times, Learning, int]:  # type: ignore[override]
        settings, model = self._job.settings, self.model
        compiled = Compiled(self._adapter.generates_compiled(model), bool(model.run_eagerly))
        native = twins.load(settings.backend)
        self._continue = native.continuing(model, lengths(settings)[0], compiled)
        return super().run(first_batches)

    def again(self, stretch: Stretch, change: Callable[[Any], Any] = unchanged) -> None:
        raise untraced(self._job.settings)

    def deviation(self) -> float | None:
        """Return how far its tokens' logits are from Keras's largest. Raises `WorkMismatch` for other tokens."""
        settings = self._job.settings
        [batch] = self._placed(make_batches(self._built, settings, 1))
        actual, expected = self._call(batch[0]), generated(self.model, batch[0])["token_ids"]
        limit = TIE_OF_TF32 if self._adapter.tf32() else TIE
        return compared_tokens(actual, expected, lengths(settings)[0], self._logits, limit)

    def _call(self, inputs: Any) -> Any:
        return self._continue(inputs["token_ids"])

    def _logits(self, sequence: Tokens) -> NDArray[np.float32]:
        """Return Keras's logits after each token of (length,) ones."""
        tokens = sequence[None]
        outputs = self.model({"token_ids": tokens, "padding_mask": np.ones_like(tokens)}, training=False)
        return np.asarray(ops.convert_to_numpy(outputs)[0], np.float32)


def compared_tokens(
    actual: Tokens,
    expected: Tokens,
    prompt_length: int,
    logits_of: Callable[[Tokens], NDArray[np.float32]],
    limit: float,
) -> float:
    """Return the largest distance of a token's logit from the largest one, as a share of it; 0 for equal tokens.

    Rows that differ are judged by the logits that Keras has after each of their tokens, those of `logits_of`. Raises
    `WorkMismatch` for a token whose logit is further from the largest than the limit, and for another prompt.
    """
    if actual.shape != expected.shape or not np.array_equal(actual[:, :prompt_length], expected[:, :prompt_length]):
        raise WorkMismatch("implementation: it changes the prompts that it continues, or their number or length")
    largest_share = 0.0
    for row in np.flatnonzero((actual != expected).any(axis=1)):
        logits, own_tokens = logits_of(actual[row])[prompt_length - 1 : -1], actual[row, prompt_length:]
        best, indices = logits.argmax(axis=1), np.arange(len(own_tokens))
        shares = (logits[indices, best] - logits[indices, own_tokens]) / np.abs(logits).max(axis=1)
        if (wrong_indices := np.flatnonzero(~(shares <= limit))).size:
            first_wrong = int(wrong_indices[0])
            raise WorkMismatch(
                f"implementation: it generates other tokens than Keras: from the same weights and prompts, token "
                f"{prompt_length + first_wrong + 1} of sequence {row + 1} is {own_tokens[first_wrong]}, "
                f"but Keras's {best[first_wrong]}, "
                f"whose logit is larger by {shares[first_wrong]:.3g} of the largest, more than {limit:g}"
            )
        largest_share = max(largest_share, float(shares.max()))
    return largest_share
