"""Counts the work that a cell's process does, so that omitted work cannot appear as speed.

For each call of `fit` or epoch of predict calls: the updates that the optimizer counts, the samples in Keras's loss
metric, and the batches drawn from the feed. For the measured epochs together: which weights changed, and on which
platform weights and output are.

Nothing is read between two steps; counters are read at the end of an epoch, after its clock has stopped. The functions
that read them are imported before the workload's own code is loaded. `runner.measure.evidence` judges them.

Source of the count of samples: Keras weights each update of `Model._loss_tracker` with the batch's leading dimension.

What is counted after everything timed (weights, slots of the optimiser, FLOPs) affects no figure; what cannot be
counted is None and never fails a cell.

Keras's loss metric counts the samples of a step only if the step updates it with their number, which a step of the
workload's own may leave out, or do with another number. So such a model takes one more step after everything timed,
without compiling: each call of a layer with trainable weights is noted, with the rows that it received. Calls are
summed: micro-batches that together are the batch receive all of it, and so does a model that is called on twice the
batch.

A step proves that less than the batch was used only if no such layer received as many rows as the batch has, nor as
many numbers as the batch's inputs: a step may fold rows into another dimension. Where a layer receives arrays whose
rows are not known, as under `jax.vmap` or `tf.vectorized_map`, nothing is known, and no workload is accused.
"""

from __future__ import annotations

import gc
import math
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from keras_matrix.models.workload import Built
from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.instruments.work_done import WorkDone, WorkStretch
from keras_matrix.records.settings import GRADIENT
from keras_matrix.runner.cell.backends import BackendAdapter
from keras_matrix.runner.cell.batches import Batch, Feed, inputs_of
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cell.options import MADE_BY_KERAS, inner_optimizer, stored_bytes, variables_of

_to_numpy = keras.ops.convert_to_numpy
# Keras's methods of a model that decide what is trained or predicted.
_PHASE_METHODS = {
    "fit": ("fit", "train_step", "make_train_function", "_train_step", "train_function"),
    GRADIENT: ("train_step", "make_train_function", "_train_step", "train_function"),
    "predict": ("predict_on_batch", "predict_step", "make_predict_function", "predict_function"),
}
_KERAS_METHODS = {name: getattr(keras.Model, name, None) for names in _PHASE_METHODS.values() for name in names}
# Every process of a cell does the same work: one of them counts it, which takes seconds for the largest models.
COUNTING_REPEAT = 0
_keras_test_step = keras.Model.test_step
_plain_call = keras.layers.Layer.__call__


def own_methods(model: Any, phase: str) -> list[str]:
    """Return the methods deciding what this phase does that the workload replaces, on class or object.

    Of `generate` none: only workloads of the catalog can, and Keras has no such method.
    """
    overridden = []
    for name in _PHASE_METHODS.get(phase, ()):
        is_replaced = name in vars(model) and name not in MADE_BY_KERAS
        if is_replaced or getattr(type(model), name, None) is not _KERAS_METHODS[name]:
            overridden.append(name)
    return overridden


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
    _trained_samples: int | None = None
    _samples_before: int = 0
    _has_training_ended: bool = False

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
        self._trained_samples, self._samples_before, self._has_training_ended = None, 0, False
        if _integer(getattr(self._tracker, "count", None)):
            self._tracker.reset_state()

    def training_begins(self) -> None:
        """Read the samples that callbacks evaluated since the epoch began: they do not belong to its training."""
        self._samples_before = _integer(getattr(self._tracker, "count", None)) or 0

    def training_ended(self) -> None:
        """Read the samples of an epoch before its validation and callbacks, which may count in the same metric.

        Fewer than there were before it show that a callback evaluated between two steps: then they are not known.
        """
        count = _integer(getattr(self._tracker, "count", None))
        self._has_training_ended = True
        self._trained_samples = None if count is None or count < self._samples_before else count - self._samples_before

    def updates_of_epoch(self) -> int | None:
        """Return the updates since the epoch began; None if they are not counted, as those of a new optimizer."""
        count = None if self.optimizer_replaced else _integer(update_counter(self._optimizer))
        return None if count is None else count - (self._before or 0)

    def epoch_ended(self, further_samples: int = 0) -> None:
        """Read the counters at the end of an epoch, the device idle; add the samples that other processes counted."""
        count_before, scale_before = self._before, self._scale_before
        self._read()
        updates = None if self._before is None else self._before - (count_before or 0)
        self.updates.append(updates)
        if not self._has_training_ended:
            self.training_ended()
        samples = self._trained_samples
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


@dataclass(frozen=True, slots=True)
class WeightChecksums:
    """Checksums, at one moment, of the weights that training may change and of the optimizer's own variables."""

    trainable: list[int]
    optimizer: list[int]

    @staticmethod
    def of(model: Any) -> WeightChecksums:
        """Return the current checksums; one variable at a time is copied to the host."""
        inner = inner_optimizer(model.optimizer)
        optimizer_variables = [variable for variable in variables_of(inner) if variable is not update_counter(inner)]
        return WeightChecksums(_checksums(model.trainable_variables), _checksums(optimizer_variables))

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
    notes: list[str] = field(default_factory=list)

    @property
    def nothing_changed(self) -> bool:
        """Return whether the epochs changed neither a weight nor the optimizer's own variables."""
        return self.before is not None and self.before == self.after

    def work_done(self, model: Any, overrides: list[str], platforms: tuple[Iterable[str], Iterable[str]]) -> WorkDone:
        """Return the work; `overrides` are the model's own methods, `platforms` those of its weights and its output."""
        measured = next((stretch for stretch in self.stretches if stretch.name == "epochs"), None)
        changed_count = state_changed = None
        if self.before is not None and self.after is not None:
            changed_count = self.after.changed_since(self.before)
            state_changed = self.after.optimizer != self.before.optimizer
        return WorkDone(
            stretches=self.stretches,
            updates_per_step=_per_step(measured, _with_skipped(measured) if measured else []),
            samples_per_step=_per_step(measured, measured.samples if measured else []),
            batches_drawn=measured.batches_drawn if measured else None,
            skipped_updates=sum(measured.skipped_updates) if measured else None,
            trainable_variables=len(model.trainable_variables),
            changed_variables=changed_count,
            optimizer_state_changed=state_changed,
            changed_at_high_rate=self.changed_at_high_rate,
            optimizer_replaced=self.optimizer_replaced,
            own_methods=overrides,
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


def evaluated_samples(model: Any) -> int | None:
    """Return the samples that the last `evaluate` counted in Keras's loss metric; None for a step of its own."""
    if type(model).test_step is not _keras_test_step or "test_step" in vars(model):
        return None
    return _integer(getattr(getattr(model, "_loss_tracker", None), "count", None)) or None


def update_counter(optimizer: Any) -> Any:
    """Return the variable that counts calls of `apply`, including those that accumulate gradients; None without one."""
    return getattr(inner_optimizer(optimizer), "_iterations", None)


def _loss_scale(optimizer: Any) -> float | None:
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or not optimizer.built:
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
    known_counts = [count for count in counts if count is not None]
    if stretch is None or not known_counts or len(known_counts) < len(counts):
        return None
    return sum(known_counts) / (len(known_counts) * stretch.steps)


def _with_skipped(stretch: WorkStretch) -> list[int | None]:
    pairs = zip(stretch.updates, stretch.skipped_updates, strict=True)
    return [None if updates is None else updates + skipped for updates, skipped in pairs]


def _integer(variable: Any) -> int | None:
    return None if variable is None else int(_to_numpy(variable))


def living_models() -> list[Any]:
    """Return the models of this process that have trainable weights, those excluded from garbage collection as well.

    It reads the type of each object only: `isinstance` would call a proxy's own code.
    """
    gc.unfreeze()
    gc.collect()
    models = [thing for thing in gc.get_objects() if issubclass(type(thing), keras.Model)]
    return [model for model in models if _trainable(model)]


def _trainable(model: Any) -> list[Any]:
    try:
        return list(model.trainable_variables)
    except Exception:  # noqa: BLE001 - a model whose construction failed, or a property of the user's own
        return []


@dataclass(frozen=True, slots=True)
class LoopWork:
    """Whether a loop of the program's own trains: the models of the process, and their weights at one moment.

    On JAX a loop may keep the weights as arrays of its own, by `stateless_call`, and leave the model's as they are. So
    new values in arrays of the weights' shapes and types count as well, if there are some for each weight.
    """

    models: list[Any]
    variables: list[Any]
    checksums: list[int]
    states: set[tuple[Any, ...]]

    @staticmethod
    def begun(adapter: BackendAdapter) -> LoopWork:
        """Return the state before the measured epochs, the device idle and the clock stopped."""
        models = living_models()
        variables = list({id(variable): variable for model in models for variable in _trainable(model)}.values())
        return LoopWork(models, variables, _checksums(variables), _states(adapter, variables))

    def done(self, adapter: BackendAdapter, steps: int, epochs: int) -> WorkDone:
        """Return the work after the epochs; without a model nothing is known."""
        stretch = WorkStretch("epochs", steps, epochs, [None] * epochs, [None] * epochs, [0] * epochs)
        if not self.variables:
            return WorkDone([stretch], skipped_updates=0)
        platforms = adapter.platforms([variable for model in self.models for variable in model.variables])
        return WorkDone(
            [stretch],
            skipped_updates=0,
            trainable_variables=len(self.variables),
            changed_variables=self._changed(adapter),
            weight_platforms=sorted(platforms),
        )

    def _changed(self, adapter: BackendAdapter) -> int | None:
        """Return how many weights changed; None if new arrays may be those of some of the weights."""
        if count := sum(a != b for a, b in zip(self.checksums, _checksums(self.variables), strict=True)):
            return count
        new_forms = {state[:2] for state in _states(adapter, self.variables) - self.states}
        if not new_forms:
            return 0
        return len(self.variables) if new_forms == set(map(_form, self.variables)) else None


def _form(array: Any) -> tuple[tuple[int, ...], str]:
    return tuple(array.shape), keras.backend.standardize_dtype(array.dtype)


def _states(adapter: BackendAdapter, variables: Sequence[Any]) -> set[tuple[Any, ...]]:
    """Return shape, type and checksum of each array of the process that has those of a weight."""
    forms = set(map(_form, variables))
    arrays = [array for array in adapter.live_arrays() if _form(array) in forms]
    return {(*_form(array), checksum) for array, checksum in zip(arrays, _checksums(arrays), strict=True)}


def _checksums(variables: Iterable[Any]) -> list[int]:
    arrays: Iterable[Any] = (np.ascontiguousarray(_to_numpy(variable)) for variable in variables)
    return [zlib.crc32(array.reshape(-1).view(np.uint8)) for array in arrays]


def work_done(job: Job, workload: Built, batch: Batch) -> dict[str, Any]:
    """Return the fields of a record's `resolved` about the work, with FLOPs for this batch.

    The optimiser's fields are included only if it trained.
    """
    model = workload.model
    return {
        "parameters": _elements(model.weights),  # count_params() refuses a model without call()
        "trainable_parameters": _elements(model.trainable_variables),
        "forward_flops": _flops(workload, batch) if job.repeat == COUNTING_REPEAT else None,
        **(_optimizer(model.optimizer) if job.settings.phase == "fit" and model.optimizer is not None else {}),
    }


def _optimizer(optimizer: Any) -> dict[str, Any]:
    optimizer_slots = [variable for variable in variables_of(optimizer) if len(variable.shape)]
    return {
        "optimizer": type(optimizer).__name__.removesuffix("V3"),  # of Keras 2, whose loss scaling has two
        "learning_rate": _first_rate(optimizer),
        "optimizer_slots": len(optimizer_slots),
        "optimizer_slot_bytes": stored_bytes(optimizer_slots),
    }


def _first_rate(optimizer: Any) -> float:
    """Return the learning rate of the first step: a schedule's value for step 0, or the rate itself."""
    rate = optimizer._learning_rate
    schedule = keras.optimizers.schedules.LearningRateSchedule
    return float(keras.ops.convert_to_numpy(rate(0) if isinstance(rate, schedule) else rate))


def _flops(workload: Built, batch: Batch) -> int | None:
    if keras.backend.backend() not in TRAINING_BACKENDS:
        return None  # only these have a counter
    from keras_matrix.models.flops.counting import counter

    try:
        return counter().forward(workload.model, inputs_of(batch))
    except Exception as error:  # noqa: BLE001 - any error of a user's model: this count alone is missing
        print(f"FLOPs not counted: {type(error).__name__}: {error}", file=sys.stderr)
        return None


def _elements(variables: Any) -> int:
    return sum(math.prod(variable.shape) for variable in variables)


class Received:
    """The rows and numbers that each layer with trainable weights received, summed over its calls."""

    def __init__(self, shape_of: Callable[[Any], tuple[int, ...] | None]) -> None:
        """Take the function that returns an array's shape, None if the array stands for several."""
        self._shape_of = shape_of
        self._rows: dict[int, int] = {}
        self._elements: dict[int, int] = {}
        self._unknown = False

    def note(self, layer: Any, arguments: Any) -> None:
        """Note one call of a layer."""
        if not layer.trainable_weights:
            return
        arrays = [part for part in keras.tree.flatten(arguments) if getattr(part, "shape", ())]
        shapes = [self._shape_of(array) for array in arrays]
        if None in shapes:
            self._unknown = True
        known_shapes = [shape for shape in shapes if shape]
        key = id(layer)
        self._rows[key] = self._rows.get(key, 0) + max((shape[0] for shape in known_shapes), default=0)
        self._elements[key] = self._elements.get(key, 0) + sum(map(math.prod, known_shapes))

    def samples(self, batch_size: int, elements: int) -> int | None:
        """Return how many samples of a batch, whose inputs have so many numbers, a layer received; None if unknown."""
        if self._unknown or not self._rows:
            return None
        if max(self._elements.values()) >= elements:
            return batch_size
        return min(batch_size, max(self._rows.values()))


def received_samples(adapter: BackendAdapter, model: Any, batch: Batch, step: Callable[[], None]) -> int | None:
    """Take one step of `fit` with this function, not compiled; return how many samples of its batch a layer received.

    None if it is not known, as for a model that calls no layer or fails without being compiled.
    """
    arrays = [part for part in keras.tree.flatten(inputs_of(batch)) if getattr(part, "shape", ())]
    if not arrays:
        return None
    received = Received(adapter.shape_of)
    try:
        with _not_compiled(model), adapter.not_compiled(), _noting(received):
            step()
    except Exception as error:  # noqa: BLE001 - any error of a user's model: this fact alone is missing
        print(f"the samples of a step are not known: {type(error).__name__}: {error}", file=sys.stderr)
        return None
    return received.samples(int(arrays[0].shape[0]), sum(math.prod(array.shape) for array in arrays))


@contextmanager
def _noting(received: Received) -> Iterator[None]:
    def noted(layer: Any, *arguments: Any, **named: Any) -> Any:
        received.note(layer, (arguments, named))
        return _plain_call(layer, *arguments, **named)

    keras.layers.Layer.__call__ = noted
    try:
        yield
    finally:
        keras.layers.Layer.__call__ = _plain_call


@contextmanager
def _not_compiled(model: Any) -> Iterator[None]:
    """Run the model's steps one operation at a time, one step a call; its compiled functions are kept."""
    names = ("train_function", "run_eagerly", "steps_per_execution", "_jit_compile")
    kept_values = {name: getattr(model, name) for name in names}
    model.train_function, model.run_eagerly, model.steps_per_execution = None, True, 1
    try:
        yield
    finally:
        for name, value in kept_values.items():
            setattr(model, name, value)
