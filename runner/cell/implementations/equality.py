"""Whether an implementation trains as Keras does: the losses of a few steps from the same weights on the same batches.

It comes after everything measured, so that it affects neither times nor memory nor what is compiled first. Dropout is
off, since its masks differ; the rate is at most `RATE`, since at 0.001 the first steps of RMSprop from zero drive the
probabilities of some workloads to 0, where Keras's loss is clipped and one from logits is not.

Guarantee: a cell whose losses deviate further than `runner parity` allows float32 has no figures. Limit: dropout itself
is not compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from keras_matrix.models.twins.interface import FIRST_LOSS_LIMIT, LOSSES_LIMIT, Rung
from keras_matrix.runner.cell.batches import Batch
from keras_matrix.runner.cell.options import MADE_BY_KERAS
from keras_matrix.runner.cell.parity.random_layers import switch_off
from keras_matrix.runner.cell.phases import WorkMismatch

CHECKED_STEPS = 5
RATE = 1e-4


@dataclass(frozen=True, slots=True)
class Start:
    """The values of the variables of a model and its optimizer before any step."""

    variables: Sequence[Any]
    values: Sequence[Any]

    @staticmethod
    def of(model: Any) -> Start:
        """Build the model's optimizer, and copy all values to the host."""
        model.optimizer.build(model.trainable_variables)
        variables = [*model.variables, *model.optimizer.variables]
        return Start(variables, [np.array(keras.ops.convert_to_numpy(one)) for one in variables])

    def restore(self) -> None:
        """Set the variables to these values."""
        for variable, value in zip(self.variables, self.values, strict=True):
            variable.assign(value)


def largest_deviation(model: Any, start: Start, make: Callable[[], Rung], batches: Sequence[Batch]) -> float:
    """Return the largest relative deviation of a step's loss from Keras's. Raises `WorkMismatch` beyond the limits.

    It spoils the model: its dropout stays off and its weights are others.
    """
    switch_off(model)
    start.restore()
    lower_rate(model)
    begin = Start.of(model)
    expected = []
    for x, y in batches:
        model.reset_metrics()
        expected.append(float(model.train_on_batch(x, y, return_dict=True)["loss"]))
    begin.restore()
    forget_functions(model)
    return compared(_losses(make(), batches), expected)


def compared(found: Sequence[float], expected: Sequence[float]) -> float:
    """Return the largest relative deviation of these losses. Raises `WorkMismatch` for one beyond its limit. Pure."""
    deviations = []
    for step, (own, keras_loss) in enumerate(zip(found, expected, strict=True), start=1):
        deviation = abs(own - keras_loss) / max(abs(own), abs(keras_loss), 1e-30)
        limit = FIRST_LOSS_LIMIT if step == 1 else LOSSES_LIMIT
        if not (math.isfinite(deviation) and deviation <= limit):
            raise WorkMismatch(
                f"implementation: it trains differently from Keras: from the same weights, with dropout off, the loss "
                f"of step {step} is {own:.7g} and Keras's {keras_loss:.7g}, further apart than {limit:g} of it"
            )
        deviations.append(deviation)
    return max(deviations)


def _losses(rung: Rung, batches: Sequence[Batch]) -> list[float]:
    found = []
    for batch in batches:
        rung.begin_epoch()
        rung.step(batch)
        found.append(rung.end_epoch()["loss"])
    return found


def lower_rate(model: Any) -> None:
    """Set the rate to at most `RATE`; a schedule that begins there stays."""
    if float(keras.ops.convert_to_numpy(model.optimizer.learning_rate)) > RATE * 1.001:
        model.optimizer.learning_rate = RATE
    forget_functions(model)


def forget_functions(model: Any) -> None:
    """Let Keras make the functions of its steps anew: they have the dropout rates that they were traced with."""
    for name in MADE_BY_KERAS:
        setattr(model, name, None)
