"""Learns a cost model from samples of graphs. The regressor is the caller's, so that this is pure.

A kind's overhead and efficiency are learned first; the regression then learns the logarithm of the measured time over
the roofline's time. So predictions grow with the work also outside the range of the samples, where trees are constant.
Errors come from `FOLDS` splits of the distinct works of a kind: each work is held out once, in all graphs, and both the
roofline and the regression are learned from the others alone.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.whatif.cost.model import (
    FORMAT,
    VERSION,
    CostModel,
    DecisionTree,
    HeldOutError,
    KindErrors,
    LearnedRoofline,
    OperationPrediction,
    Regression,
    TrainingData,
    choose,
    factor,
    held_out_error,
)
from keras_matrix.analysis.whatif.cost.operations import FEATURES, OperationSample, ideal_of, row_of
from keras_matrix.analysis.whatif.cost.roofline import MEASURED, DevicePeaks, Fitted, fit

FOLDS = 5
LEAST_WORKS = 4  # distinct works of a kind, below which nothing is learned of it
LEAST_FOR_REGRESSION = 30
LEARNING_RATE = 0.1


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
    for (backend, kind), own in sorted(kinds.items()):
        works = len({one.work for one in own})
        suited = regressor if works >= LEAST_FOR_REGRESSION else None
        errors.append(_errors(own, devices, suited))
        if works < LEAST_WORKS:
            continue
        learned = _learn(own, devices, suited)
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
    return {work: at % FOLDS for at, work in enumerate(ordered)}


def _learn(samples: Sequence[OperationSample], devices: Sequence[DevicePeaks], regressor: Regressor | None) -> _Learned:
    """Learn the rooflines of a kind, and with a regressor the trees."""
    by_device: dict[int | None, list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        point = (_ideal_s(sample, devices) or 0.0, sample.time_s)
        by_device[sample.device].append(point)
        if devices[sample.device].source == MEASURED:
            by_device[None].append(point)
    rooflines = {device: fit(points) for device, points in by_device.items()}
    plain = _Learned(rooflines, None)
    if regressor is None:
        return plain
    rows, targets = [], []
    for sample in samples:
        row, usual_s = row_of(sample, devices[sample.device], sample.device), plain.roofline_s(sample, devices)
        if row and usual_s:
            rows.append(row)
            targets.append(math.log(sample.time_s / usual_s))
    return _Learned(rooflines, regressor.learn(rows, targets))


def _errors(
    samples: Sequence[OperationSample], devices: Sequence[DevicePeaks], regressor: Regressor | None
) -> KindErrors:
    """Hold out each work once, and return the errors of the predictions from the others."""
    folds = fold_of(samples)
    regression: list[OperationPrediction] = []
    roofline: list[OperationPrediction] = []
    if len(folds) >= LEAST_WORKS:
        for fold in range(FOLDS):
            learned = _learn([one for one in samples if folds[one.work] != fold], devices, regressor)
            for sample in samples:
                if folds[sample.work] == fold:
                    _add(sample, learned, devices, (regression, roofline))
    own, usual = held_out_error(regression), held_out_error(roofline)
    used, reason = choose(own, usual)
    if len(folds) < LEAST_WORKS:
        reason = f"distinct operations: {len(folds)}, and at least {LEAST_WORKS} are needed"
    plain = [OperationPrediction(_ideal_s(one, devices) or 0.0, one.time_s, one.count) for one in samples]
    return KindErrors(
        backend=samples[0].backend,
        kind=str(samples[0].kind),
        operations=len(folds),
        samples=len(samples),
        time_s=sum(one.time_s * one.count for one in samples),
        regression=own,
        roofline=usual,
        plain_roofline=held_out_error(plain),
        new_device=_new_device_error(samples, devices),
        used=used,
        reason=reason,
    )


def _add(
    sample: OperationSample,
    learned: _Learned,
    devices: Sequence[DevicePeaks],
    found: tuple[list[OperationPrediction], list[OperationPrediction]],
) -> None:
    """Add the predictions of a sample that was held out to those of the regression and of the roofline."""
    usual_s = learned.roofline_s(sample, devices)
    if usual_s is None:
        return  # all operations of its device were held out: nothing is known of it
    regression, roofline = found
    roofline.append(OperationPrediction(usual_s, sample.time_s, sample.count))
    row = row_of(sample, devices[sample.device], sample.device)
    if learned.trees is not None and row:
        time_s = usual_s * factor(learned.trees, LEARNING_RATE, row)
        regression.append(OperationPrediction(time_s, sample.time_s, sample.count))


def _new_device_error(samples: Sequence[OperationSample], devices: Sequence[DevicePeaks]) -> HeldOutError | None:
    """Return the error of the roofline on each device, learned from the others whose peaks were measured too.

    None if there is only one such device. Operations of the same work are not in both parts.
    """
    measured = [one for one in samples if devices[one.device].source == MEASURED]
    folds, found = fold_of(measured), []
    for device in sorted({one.device for one in measured}):
        for fold in range(FOLDS):
            others = [one for one in measured if one.device != device and folds[one.work] != fold]
            if not others:
                continue
            fitted = fit([(_ideal_s(one, devices) or 0.0, one.time_s) for one in others])
            for one in measured:
                if one.device == device and folds[one.work] == fold:
                    found.append(
                        OperationPrediction(fitted.time_s(_ideal_s(one, devices) or 0.0), one.time_s, one.count)
                    )
    return held_out_error(found)


def _ideal_s(sample: OperationSample, devices: Sequence[DevicePeaks]) -> float | None:
    return ideal_of(sample, devices[sample.device])
