"""Counts the work that a cell's process does, so that omitted work cannot appear as speed.

For each call of `fit` or epoch of predict calls: the updates that the optimizer counts, the samples in Keras's loss
metric, and the batches drawn from the feed. For the measured epochs together: which weights changed, and on which
platform weights and output are.

Nothing is read between two steps; counters are read at the end of an epoch, after its clock has stopped. The functions
that read them are imported before the workload's own code is loaded. `runner.measure.work_judge` judges them.

Source of the count of samples: Keras weights each update of `Model._loss_tracker` with the batch's leading dimension.
"""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from keras.optimizers import LossScaleOptimizer

from keras_matrix.records.instruments.work_done import WorkDone, WorkStretch
from keras_matrix.runner.cell.backends import BackendAdapter
from keras_matrix.runner.cell.batches import Feed
from keras_matrix.runner.cell.options import MADE_BY_KERAS, inner_optimizer

_to_numpy = keras.ops.convert_to_numpy
# Keras's methods of a model that decide what is trained or predicted.
_PHASE_METHODS = {
    "fit": ("fit", "train_step", "make_train_function", "_train_step", "train_function"),
    "predict": ("predict_on_batch", "predict_step", "make_predict_function", "predict_function"),
}
_KERAS_METHODS = {name: getattr(keras.Model, name, None) for names in _PHASE_METHODS.values() for name in names}


def own_methods(model: Any, phase: str) -> list[str]:
    """Return the methods deciding what this phase does that the workload replaces, on class or object.

    Of `generate` none: only workloads of the catalog can, and Keras has no such method.
    """
    found = []
    for name in _PHASE_METHODS.get(phase, ()):
        replaced = name in vars(model) and name not in MADE_BY_KERAS
        if replaced or getattr(type(model), name, None) is not _KERAS_METHODS[name]:
            found.append(name)
    return found


@dataclass(slots=True)
class Counting:
    """The counted work of one call of `fit`, read at the end of each epoch. Begin it right before the call."""

    name: str
    model: Any
    steps: int
    epochs: int
    updates: list[int | None] = field(default_factory=list)
    samples: list[int | None] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    _optimizer: Any = None
    _counter: Any = None
    _tracker: Any = None
    _at_first: int | None = None
    _before: int | None = None
    _scale_before: float | None = None

    def begin(self) -> None:
        """Store references to the counters, and read them."""
        self._optimizer = self.model.optimizer
        self._tracker = getattr(self.model, "_loss_tracker", None)
        self._counter = update_counter(self._optimizer)
        self._read()
        self._at_first = self._before

    def epoch_begun(self) -> None:
        """Read the counters right before the clock of an epoch starts: earlier updates do not belong to the epoch.

        Keras starts the loss metric at 0, unless the model leaves it out of its own `metrics`.
        """
        self._read()
        if _integer(getattr(self._tracker, "count", None)):
            self._tracker.reset_state()

    def epoch_ended(self, further_samples: int = 0) -> None:
        """Read the counters at the end of an epoch, the device idle; add the samples that other processes counted."""
        before, scale_before = self._before, self._scale_before
        self._read()
        updates = None if self._before is None else self._before - (before or 0)
        self.updates.append(updates)
        samples = _integer(getattr(self._tracker, "count", None))
        self.samples.append(None if samples is None else samples + further_samples)
        self.skipped.append(_skipped(self._optimizer, (self.steps, updates or 0), (scale_before, self._scale_before)))

    def _read(self) -> None:
        if self._counter is None:  # made by the first step
            self._counter = update_counter(self._optimizer)
        self._before, self._scale_before = _integer(self._counter), _loss_scale(self._optimizer)

    @property
    def optimizer_replaced(self) -> bool:
        """Return whether the model has another optimizer than it began with."""
        return self.model.optimizer is not self._optimizer

    def stretch(self, feed: Feed | None = None) -> WorkStretch:
        """Return the counts after the call; `feed` is the source of its batches."""
        now = _integer(self._counter)
        return WorkStretch(
            name=self.name,
            steps=self.steps,
            epochs=self.epochs,
            updates=self.updates,
            samples=self.samples,
            skipped_updates=self.skipped,
            batches_drawn=feed.drawn() if feed else None,
            lookahead=feed.lookahead if feed else None,
            updates_outside=None if now is None else now - (self._at_first or 0) - sum(n or 0 for n in self.updates),
        )


def predicted(name: str, steps: int, rows: Sequence[int]) -> WorkStretch:
    """Return the work of epochs of predict calls: `rows` has each epoch's summed leading dimensions of outputs."""
    unknown: list[int | None] = [None] * len(rows)
    return WorkStretch(name, steps, len(rows), unknown, list(rows), [0] * len(rows))


@dataclass(frozen=True, slots=True)
class WeightChecksums:
    """Checksums, at one moment, of the weights that training may change and of the optimizer's own variables."""

    trainable: list[int]
    optimizer: list[int]

    @staticmethod
    def of(model: Any) -> WeightChecksums:
        """Return the current checksums; one variable at a time is copied to the host."""
        inner = inner_optimizer(model.optimizer)
        own = [one for one in getattr(inner, "variables", ()) if one is not update_counter(inner)]
        return WeightChecksums(_checksums(model.trainable_variables), _checksums(own))

    def changed_since(self, before: WeightChecksums) -> int:
        """Return how many trainable weights differ."""
        return sum(a != b for a, b in zip(before.trainable, self.trainable, strict=False))


@dataclass(slots=True)
class Ledger:
    """All work of one process by stretch; the figures are those of the stretch `epochs`."""

    stretches: list[WorkStretch] = field(default_factory=list)
    optimizer_replaced: bool = False
    before: WeightChecksums | None = None
    after: WeightChecksums | None = None
    changed_at_high_rate: bool | None = None

    @property
    def nothing_changed(self) -> bool:
        """Return whether the epochs changed neither a weight nor the optimizer's own variables."""
        return self.before is not None and self.before == self.after

    def work_done(self, model: Any, own: list[str], platforms: tuple[Iterable[str], Iterable[str]]) -> WorkDone:
        """Return the work; `own` are the model's own methods, `platforms` those of its weights and its output."""
        measured = next((one for one in self.stretches if one.name == "epochs"), None)
        changed = state = None
        if self.before is not None and self.after is not None:
            changed = self.after.changed_since(self.before)
            state = self.after.optimizer != self.before.optimizer
        return WorkDone(
            stretches=self.stretches,
            updates_per_step=_per_step(measured, _with_skipped(measured) if measured else []),
            samples_per_step=_per_step(measured, measured.samples if measured else []),
            batches_drawn=measured.batches_drawn if measured else None,
            skipped_updates=sum(measured.skipped_updates) if measured else None,
            trainable_variables=len(model.trainable_variables),
            changed_variables=changed,
            optimizer_state_changed=state,
            changed_at_high_rate=self.changed_at_high_rate,
            optimizer_replaced=self.optimizer_replaced,
            own_methods=own,
            weight_platforms=sorted(platforms[0]),
            output_platforms=sorted(platforms[1]),
        )


def platforms_of(adapter: BackendAdapter, model: Any, inputs: Any) -> tuple[set[str], set[str]]:
    """Return the platforms of the model's weights, and of its output for a batch if it can be read."""
    weights = adapter.platforms(model.variables)
    try:
        outputs = adapter.output(model, inputs)
    except Exception as error:  # noqa: BLE001 - any error of a user's model: this fact alone is missing
        print(f"the output's device is unknown: {type(error).__name__}: {error}", file=sys.stderr)
        return weights, set()
    return weights, set() if outputs is None else adapter.platforms(keras.tree.flatten(outputs))


def rows_of(outputs: Any) -> int:
    """Return the smallest leading dimension among the arrays of an output; 0 for an output without arrays.

    An array of one number, such as an auxiliary loss, does not count as rows if another array has rows.
    """
    shapes = [shape for shape in (np.shape(part) for part in keras.tree.flatten(outputs)) if shape]
    return min((shape[0] for shape in shapes if shape != (1,)), default=len(shapes) and 1)


def update_counter(optimizer: Any) -> Any:
    """Return the variable that counts calls of `apply`, including those that accumulate gradients; None without one."""
    return getattr(inner_optimizer(optimizer), "_iterations", None)


def _loss_scale(optimizer: Any) -> float | None:
    if not isinstance(optimizer, LossScaleOptimizer) or not optimizer.built:
        return None
    return float(_to_numpy(optimizer.dynamic_scale))


def _skipped(optimizer: Any, counts: tuple[int, int], scales: tuple[float | None, float | None]) -> int:
    """Return how many of the steps of an epoch loss scaling skipped, given (steps, updates) and the scale around them.

    Each skipped step halves the scale, each `dynamic_growth_steps` finite ones double it. 0 if the scale does not
    explain the updates that are missing.
    """
    (steps, updates), (before, after) = counts, scales
    missing = steps - updates
    if missing <= 0 or after is None:
        return 0
    if after == 0:
        return missing
    halvings = math.log2((optimizer.initial_scale if before is None else before) / after)
    growths = missing - halvings
    return missing if 0 <= growths <= 1 + updates // optimizer.dynamic_growth_steps else 0


def _per_step(stretch: WorkStretch | None, counts: Sequence[int | None]) -> float | None:
    known = [count for count in counts if count is not None]
    if stretch is None or not known or len(known) < len(counts):
        return None
    return sum(known) / (len(known) * stretch.steps)


def _with_skipped(stretch: WorkStretch) -> list[int | None]:
    pairs = zip(stretch.updates, stretch.skipped_updates, strict=True)
    return [None if made is None else made + skipped for made, skipped in pairs]


def _integer(variable: Any) -> int | None:
    return None if variable is None else int(_to_numpy(variable))


def _checksums(variables: Iterable[Any]) -> list[int]:
    arrays: Iterable[Any] = (np.ascontiguousarray(_to_numpy(one)) for one in variables)
    return [zlib.crc32(array.reshape(-1).view(np.uint8)) for array in arrays]
