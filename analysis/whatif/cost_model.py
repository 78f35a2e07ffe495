"""How long an operation takes that no trace has: a model by backend and kind, its learning, file and errors.

The file is strict JSON with a version, and holds numbers only: reading one runs no code. On a device of the training
data a kind is predicted with its regression or its roofline, whichever `errors.choose` has chosen; on another device
with the roofline that all measured devices share, from that device's measured peaks.

Errors of operations that were held out while a model was learned, by kind, and what the kind is predicted with.

An operation is held out with all others of the same work, in every trace: it never occurs on both sides of a split.

Boosted regression trees as plain numbers, so that a model file holds no code and its reader needs no library.

A pickled model of a library runs whatever code its author put into it; these trees are JSON, and are checked when they
are read: children follow their parents, so that every path ends.

The regressor that learns is the caller's.
A kind's overhead and efficiency are learned first; the regression then learns the logarithm of the measured time over
the roofline's time. So predictions grow with the work also outside the range of the samples, where trees are constant.
Errors come from `FOLDS` splits of the distinct works of a kind: each work is held out once, in all graphs, and both the
roofline and the regression are learned from the others alone.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from keras_matrix.analysis.whatif.cost_operations import (
    FEATURES,
    MEASURED,
    DevicePeaks,
    Fitted,
    OperationSample,
    cores_of,
    fit,
    ideal_of,
    is_operation,
    kind_of,
    product_of,
    row_of,
)
from keras_matrix.analysis.whatif.graph import Header, Node
from keras_matrix.records.codec import CodecError, decode, loads
from keras_matrix.records.text import percentage

FORMAT = "keras-matrix cost model"
VERSION = 1
RETRAIN = "train it again with: runner costmodel train"
TOO_WRONG = 0.5  # an error above it, of the median or of the share of time, says nothing: no prediction
MOST_FACTOR = 1000.0
FOLDS = 5
LEAST_WORKS = 4  # distinct works of a kind, below which nothing is learned of it
LEAST_FOR_REGRESSION = 30
LEARNING_RATE = 0.1


class CostModelError(ValueError):
    """A model file that cannot be used; the text names the file, what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class LearnedRoofline:
    """Overhead and efficiency of a kind; `device` is a number in `CostModel.devices`, None for other devices."""

    backend: str
    kind: str
    device: int | None
    overhead_s: float
    efficiency: float


@dataclass(frozen=True, slots=True)
class Regression:
    """Trees that predict the logarithm of the time over the roofline's time of the device, for a kind."""

    backend: str
    kind: str
    learning_rate: float
    trees: list[DecisionTree]


@dataclass(frozen=True, slots=True)
class TrainingData:
    """What a model was learned from. `sources` names its graphs; operations without FLOPs and bytes are not used."""

    sources: list[str]
    operations: int
    without_work: int
    time_s: float
    time_without_work_s: float

    @property
    def share_without_work(self) -> float:
        """The share of the time in operations that are not used."""
        return self.time_without_work_s / self.time_s


@dataclass(frozen=True, slots=True)
class CostModel:
    """Everything that was learned. `errors` has one row for each backend and kind."""

    format: str
    version: int
    features: list[str]
    folds: int
    data: TrainingData
    devices: list[DevicePeaks]
    rooflines: list[LearnedRoofline]
    regressions: list[Regression]
    errors: list[KindErrors]
    libraries: dict[str, str] = field(default_factory=dict)

    @property
    def predicted(self) -> list[KindErrors]:
        """The kinds of operation that the model predicts."""
        return [kind for kind in self.errors if kind.used is not Predictor.NOTHING]

    def share(self, kinds: Sequence[KindErrors]) -> float:
        """Return the share of these kinds in the time of all learned operations."""
        return sum(kind.time_s for kind in kinds) / sum(kind.time_s for kind in self.errors)


def predict(model: CostModel, node: Node, peaks: DevicePeaks | None) -> float | None:
    """Return the time of an operation in seconds on the device with these peaks; None if the model cannot say.

    It cannot for a kind or backend that it has not seen, for work that is unknown, for what is not an operation, such
    as a wait or a collective, and where its held-out error is too large. `peaks` come from `known_device`, or for a new
    device from `roofline.device_peaks`.
    """
    if peaks is None or not is_operation(node):
        return None
    kind = str(kind_of(node.name))
    errors = errors_of(model, node, peaks)
    device = next(
        (index for index, device_peaks in enumerate(model.devices) if device_peaks.identity == peaks.identity), None
    )
    if errors is None or (device is not None and errors.used is Predictor.NOTHING):
        return None
    if device is None and errors.new_device is not None and is_useless(errors.new_device):
        return None
    own_peaks = peaks if device is None else model.devices[device]
    ideal = ideal_of(node, own_peaks)
    learned = next(
        (
            fitted
            for fitted in model.rooflines
            if (fitted.backend, fitted.kind, fitted.device) == (own_peaks.backend, kind, device)
        ),
        None,
    )
    if ideal is None or learned is None:
        return None
    time_s = Fitted(learned.overhead_s, learned.efficiency).time_s(ideal)
    if device is None or errors.used is not Predictor.REGRESSION:
        return time_s
    row = row_of(node, own_peaks, device)
    trees = next(
        (
            regression
            for regression in model.regressions
            if (regression.backend, regression.kind) == (own_peaks.backend, kind)
        ),
        None,
    )
    return time_s * factor(trees.trees, trees.learning_rate, row) if trees and row else None


def predictor(model: CostModel, peaks: DevicePeaks | None) -> Callable[[Node], float | None]:
    """Return `predict` for one device, as what-ifs take it."""
    return partial(predict, model, peaks=peaks)


def errors_of(model: CostModel, node: Node, peaks: DevicePeaks) -> KindErrors | None:
    """Return the held-out errors of an operation's kind, None if the model does not have it."""
    kind = str(kind_of(node.name))
    return next(
        (
            kind_errors
            for kind_errors in model.errors
            if (kind_errors.backend, kind_errors.kind) == (peaks.backend, kind)
        ),
        None,
    )


def known_device(model: CostModel, header: Header) -> DevicePeaks | None:
    """Return the device of the training data on which a graph was traced; None if it is another one."""
    identity = (header.backend, product_of(header), cores_of(header))
    return next((device_peaks for device_peaks in model.devices if device_peaks.identity == identity), None)


def parse(text: bytes, path: str) -> CostModel:
    """Return the model of a file's text; `path` is only named in errors. Raises `CostModelError`."""
    try:
        data = loads(text)
    except CodecError as error:
        raise CostModelError(f"{path}: is damaged: {error}; {RETRAIN}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise CostModelError(f"{path}: is not a cost model; make one with: runner costmodel train")
    if data.get("version") != VERSION or data.get("features") != list(FEATURES):
        version = data.get("version")
        raise CostModelError(f"{path}: has version {version!r}, this program reads {VERSION}; {RETRAIN}")
    try:
        model = decode(CostModel, data, "model")
    except CodecError as error:
        raise CostModelError(f"{path}: is damaged: {error}; {RETRAIN}") from error
    if problem := next(_problems(model), None):
        raise CostModelError(f"{path}: is damaged: {problem}; {RETRAIN}")
    return model


def _problems(model: CostModel) -> Iterator[str]:
    for index, device in enumerate(model.devices):
        if any(rate <= 0 for rate in (*device.flop_per_s.values(), device.byte_per_s or 1.0)):
            yield f"model.devices[{index}]: its peaks must be positive"
    for index, regression in enumerate(model.regressions):
        for number, tree in enumerate(regression.trees):
            if problem := tree.problem(len(FEATURES)):
                yield f"model.regressions[{index}].trees[{number}]: {problem}"
    for index, roofline in enumerate(model.rooflines):
        if roofline.efficiency <= 0 or roofline.overhead_s < 0:
            yield f"model.rooflines[{index}]: efficiency must be positive, and overhead_s not negative"
        if roofline.device is not None and not 0 <= roofline.device < len(model.devices):
            yield f"model.rooflines[{index}].device: must be from 0 to {len(model.devices) - 1}, got {roofline.device}"


class Predictor(StrEnum):
    """What a kind of operation is predicted with."""

    REGRESSION = "regression"
    ROOFLINE = "roofline"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class OperationPrediction:
    """A predicted and a measured time of an operation, which occurs `count` times in a step."""

    predicted_s: float
    measured_s: float
    count: int


@dataclass(frozen=True, slots=True)
class HeldOutError:
    """Relative errors |predicted - measured| / measured: the median, the 90th percentile and the share of time.

    `of_time` is the sum of the absolute errors over the sum of the times, over all operations of a step: large
    operations count more.
    """

    median: float
    p90: float
    of_time: float


@dataclass(frozen=True, slots=True)
class KindErrors:
    """One kind of operation of a backend. None: not measured, for `reason` if it is missing for all.

    `operations` is how many differ in their work, `samples` how many were measured, `time_s` their time in the traced
    steps. `roofline` has the learned overhead and efficiency, `plain_roofline` neither; `new_device` is the roofline's
    error on each device, learned from the others.
    """

    backend: str
    kind: str
    operations: int
    samples: int
    time_s: float
    regression: HeldOutError | None
    roofline: HeldOutError | None
    plain_roofline: HeldOutError | None
    new_device: HeldOutError | None
    used: Predictor
    reason: str


def held_out_error(predictions: Sequence[OperationPrediction]) -> HeldOutError | None:
    """Return the error of these predictions, None if there are none."""
    if not predictions:
        return None
    errors = sorted(
        abs(prediction.predicted_s - prediction.measured_s) / prediction.measured_s for prediction in predictions
    )
    wrong_s = sum(abs(prediction.predicted_s - prediction.measured_s) * prediction.count for prediction in predictions)
    total_s = sum(prediction.measured_s * prediction.count for prediction in predictions)
    return HeldOutError(_quantile(errors, 0.5), _quantile(errors, 0.9), wrong_s / total_s)


def choose(regression: HeldOutError | None, roofline: HeldOutError | None) -> tuple[Predictor, str]:
    """Return what to predict a kind with, and why: the regression only if no error of it is above the roofline's."""
    if roofline is None:
        return Predictor.NOTHING, "no operation was held out"
    chosen_predictor, reason = Predictor.ROOFLINE, "too few distinct operations for a regression"
    if regression is not None:
        pairs = (
            ("median", regression.median, roofline.median),
            ("share of time", regression.of_time, roofline.of_time),
        )
        worse_texts = [
            f"{name} {percentage(own_error)} against {percentage(other_error)}"
            for name, own_error, other_error in pairs
            if own_error > other_error
        ]
        chosen_predictor = Predictor.ROOFLINE if worse_texts else Predictor.REGRESSION
        reason = (
            f"the regression is worse than the roofline: {', '.join(worse_texts)}"
            if worse_texts
            else "better than the roofline"
        )
    used_error = regression if chosen_predictor is Predictor.REGRESSION and regression else roofline
    if is_useless(used_error):
        return Predictor.NOTHING, f"errors of the {chosen_predictor} are above {percentage(TOO_WRONG)}: {reason}"
    return chosen_predictor, reason


def is_useless(error: HeldOutError) -> bool:
    """Return whether predictions with this error say nothing."""
    return max(error.median, error.of_time) > TOO_WRONG


def _quantile(ordered: Sequence[float], share: float) -> float:
    position = share * (len(ordered) - 1)
    lower_index = int(position)
    upper_index = min(lower_index + 1, len(ordered) - 1)
    return ordered[lower_index] + (position - lower_index) * (ordered[upper_index] - ordered[lower_index])


@dataclass(frozen=True, slots=True)
class DecisionTree:
    """A tree by its nodes, the root first. A leaf has `left` and `right` -1 and its `value`.

    A row goes to the left if its value of `feature` is at most the `threshold`.
    """

    feature: list[int]
    threshold: list[float]
    left: list[int]
    right: list[int]
    value: list[float]

    def problem(self, features: int) -> str | None:
        """Return what is wrong with the tree, None if nothing is."""
        count = len(self.value)
        if not count or {len(self.feature), len(self.threshold), len(self.left), len(self.right)} != {count}:
            return "its lists differ in length or are empty"
        for index, (left, right) in enumerate(zip(self.left, self.right, strict=True)):
            is_leaf = left == right == -1
            if not is_leaf and not (index < left < count and index < right < count):
                return f"node {index} has the children {left} and {right}"
            if not is_leaf and not 0 <= self.feature[index] < features:
                return f"node {index} compares feature {self.feature[index]} of {features}"
        return None

    def of(self, row: Sequence[float]) -> float:
        """Return the value of a row."""
        node = 0
        while self.left[node] >= 0:
            node = self.left[node] if row[self.feature[node]] <= self.threshold[node] else self.right[node]
        return self.value[node]


def predicted(trees: Sequence[DecisionTree], learning_rate: float, row: Sequence[float]) -> float:
    """Return the prediction for a row, whose values are compared in single precision, as while it was learned."""
    rounded_row = struct.unpack(f"{len(row)}f", struct.pack(f"{len(row)}f", *row))
    return learning_rate * sum(tree.of(rounded_row) for tree in trees)


def factor(trees: Sequence[DecisionTree], learning_rate: float, row: Sequence[float]) -> float:
    """Return the factor whose logarithm the trees predict, within `MOST_FACTOR` in both directions."""
    most = math.log(MOST_FACTOR)
    return math.exp(min(max(predicted(trees, learning_rate, row), -most), most))


@dataclass(frozen=True, slots=True)
class Regressor:
    """What learns trees from rows of `FEATURES` and targets, so that the trees' sum x `LEARNING_RATE` predicts these.

    `libraries` has the versions of the packages that it uses.
    """

    learn: Callable[[Sequence[Sequence[float]], Sequence[float]], list[DecisionTree]]
    libraries: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Learned:
    """What was learned of a kind: a roofline for each device, one for all others, and trees, if enough is known."""

    rooflines: dict[int | None, Fitted]
    trees: list[DecisionTree] | None

    def roofline_s(
        self, sample: OperationSample, devices: Sequence[DevicePeaks], *, as_new: bool = False
    ) -> float | None:
        """Return the time by the roofline of the sample's device, or `as_new` by that for other devices."""
        learned = self.rooflines.get(None if as_new else sample.device)
        ideal = _ideal_s(sample, devices)
        return learned.time_s(ideal) if learned and ideal else None


def train(
    samples: Iterable[OperationSample], devices: Sequence[DevicePeaks], data: TrainingData, regressor: Regressor
) -> CostModel:
    """Return the model of these samples, whose `device` is the number of one of the devices."""
    kinds: dict[tuple[str, str], list[OperationSample]] = defaultdict(list)
    for sample in samples:
        if _ideal_s(sample, devices):
            kinds[sample.backend, str(sample.kind)].append(sample)
    rooflines: list[LearnedRoofline] = []
    regressions: list[Regression] = []
    errors: list[KindErrors] = []
    for (backend, kind), kind_samples in sorted(kinds.items()):
        work_count = len({sample.work for sample in kind_samples})
        suited = regressor if work_count >= LEAST_FOR_REGRESSION else None
        errors.append(_errors(kind_samples, devices, suited))
        if work_count < LEAST_WORKS:
            continue
        learned = _learn(kind_samples, devices, suited)
        for device, fitted in learned.rooflines.items():
            rooflines.append(LearnedRoofline(backend, kind, device, fitted.overhead_s, fitted.efficiency))
        if learned.trees is not None:
            regressions.append(Regression(backend, kind, LEARNING_RATE, learned.trees))
    return CostModel(
        format=FORMAT,
        version=VERSION,
        features=list(FEATURES),
        folds=FOLDS,
        data=data,
        devices=list(devices),
        rooflines=rooflines,
        regressions=regressions,
        errors=errors,
        libraries=regressor.libraries,
    )


def fold_of(samples: Iterable[OperationSample]) -> dict[tuple[object, ...], int]:
    """Return the fold in which each work is held out: evenly filled, and the same in every training."""
    works = {sample.work for sample in samples}
    ordered = sorted(works, key=lambda work: hashlib.sha256(repr(work).encode()).digest())
    return {work: position % FOLDS for position, work in enumerate(ordered)}


def _learn(samples: Sequence[OperationSample], devices: Sequence[DevicePeaks], regressor: Regressor | None) -> _Learned:
    """Learn the rooflines of a kind, and with a regressor the trees."""
    points_by_device: dict[int | None, list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        point = (_ideal_s(sample, devices) or 0.0, sample.time_s)
        points_by_device[sample.device].append(point)
        if devices[sample.device].source == MEASURED:
            points_by_device[None].append(point)
    rooflines = {device: fit(points) for device, points in points_by_device.items()}
    plain_learned = _Learned(rooflines, None)
    if regressor is None:
        return plain_learned
    rows, targets = [], []
    for sample in samples:
        row, roofline_s = (
            row_of(sample, devices[sample.device], sample.device),
            plain_learned.roofline_s(sample, devices),
        )
        if row and roofline_s:
            rows.append(row)
            targets.append(math.log(sample.time_s / roofline_s))
    return _Learned(rooflines, regressor.learn(rows, targets))


def _errors(
    samples: Sequence[OperationSample], devices: Sequence[DevicePeaks], regressor: Regressor | None
) -> KindErrors:
    """Hold out each work once, and return the errors of the predictions from the others."""
    folds = fold_of(samples)
    regression_predictions: list[OperationPrediction] = []
    roofline_predictions: list[OperationPrediction] = []
    if len(folds) >= LEAST_WORKS:
        for fold in range(FOLDS):
            learned = _learn([sample for sample in samples if folds[sample.work] != fold], devices, regressor)
            for sample in samples:
                if folds[sample.work] == fold:
                    _add(sample, learned, devices, (regression_predictions, roofline_predictions))
    regression_error, roofline_error = held_out_error(regression_predictions), held_out_error(roofline_predictions)
    used_predictor, reason = choose(regression_error, roofline_error)
    if len(folds) < LEAST_WORKS:
        reason = f"distinct operations: {len(folds)}, and at least {LEAST_WORKS} are needed"
    plain_predictions = [
        OperationPrediction(_ideal_s(sample, devices) or 0.0, sample.time_s, sample.count) for sample in samples
    ]
    return KindErrors(
        backend=samples[0].backend,
        kind=str(samples[0].kind),
        operations=len(folds),
        samples=len(samples),
        time_s=sum(sample.time_s * sample.count for sample in samples),
        regression=regression_error,
        roofline=roofline_error,
        plain_roofline=held_out_error(plain_predictions),
        new_device=_new_device_error(samples, devices),
        used=used_predictor,
        reason=reason,
    )


def _add(
    sample: OperationSample,
    learned: _Learned,
    devices: Sequence[DevicePeaks],
    predictions: tuple[list[OperationPrediction], list[OperationPrediction]],
) -> None:
    """Add the predictions of a sample that was held out to those of the regression and of the roofline."""
    roofline_s = learned.roofline_s(sample, devices)
    if roofline_s is None:
        return  # all operations of its device were held out: nothing is known of it
    regression_predictions, roofline_predictions = predictions
    roofline_predictions.append(OperationPrediction(roofline_s, sample.time_s, sample.count))
    row = row_of(sample, devices[sample.device], sample.device)
    if learned.trees is not None and row:
        time_s = roofline_s * factor(learned.trees, LEARNING_RATE, row)
        regression_predictions.append(OperationPrediction(time_s, sample.time_s, sample.count))


def _new_device_error(samples: Sequence[OperationSample], devices: Sequence[DevicePeaks]) -> HeldOutError | None:
    """Return the error of the roofline on each device, learned from the others whose peaks were measured too.

    None if there is only one such device. Operations of the same work are not in both parts.
    """
    measured_samples = [sample for sample in samples if devices[sample.device].source == MEASURED]
    folds, predictions = fold_of(measured_samples), []
    for device in sorted({sample.device for sample in measured_samples}):
        for fold in range(FOLDS):
            training = [sample for sample in measured_samples if sample.device != device and folds[sample.work] != fold]
            if not training:
                continue
            fitted = fit([(_ideal_s(sample, devices) or 0.0, sample.time_s) for sample in training])
            for sample in measured_samples:
                if sample.device == device and folds[sample.work] == fold:
                    predictions.append(
                        OperationPrediction(
                            fitted.time_s(_ideal_s(sample, devices) or 0.0), sample.time_s, sample.count
                        )
                    )
    return held_out_error(predictions)


def _ideal_s(sample: OperationSample, devices: Sequence[DevicePeaks]) -> float | None:
    return ideal_of(sample, devices[sample.device])
