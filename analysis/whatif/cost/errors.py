"""Errors of operations that were held out while a model was learned, by kind, and what the kind is predicted with.

An operation is held out with all others of the same work, in every trace: it never occurs on both sides of a split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from keras_matrix.records.text import percentage

TOO_WRONG = 0.5  # an error above it, of the median or of the share of time, says nothing: no prediction


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
    errors = sorted(abs(one.predicted_s - one.measured_s) / one.measured_s for one in predictions)
    wrong_s = sum(abs(one.predicted_s - one.measured_s) * one.count for one in predictions)
    total_s = sum(one.measured_s * one.count for one in predictions)
    return HeldOutError(_quantile(errors, 0.5), _quantile(errors, 0.9), wrong_s / total_s)


def choose(regression: HeldOutError | None, roofline: HeldOutError | None) -> tuple[Predictor, str]:
    """Return what to predict a kind with, and why: the regression only if no error of it is above the roofline's."""
    if roofline is None:
        return Predictor.NOTHING, "no operation was held out"
    chosen, reason = Predictor.ROOFLINE, "too few distinct operations for a regression"
    if regression is not None:
        pairs = (
            ("median", regression.median, roofline.median),
            ("share of time", regression.of_time, roofline.of_time),
        )
        worse = [f"{name} {percentage(own)} against {percentage(other)}" for name, own, other in pairs if own > other]
        chosen = Predictor.ROOFLINE if worse else Predictor.REGRESSION
        reason = (
            f"the regression is worse than the roofline: {', '.join(worse)}" if worse else "better than the roofline"
        )
    used = regression if chosen is Predictor.REGRESSION and regression else roofline
    if is_useless(used):
        return Predictor.NOTHING, f"errors of the {chosen} are above {percentage(TOO_WRONG)}: {reason}"
    return chosen, reason


def is_useless(error: HeldOutError) -> bool:
    """Return whether predictions with this error say nothing."""
    return max(error.median, error.of_time) > TOO_WRONG


def _quantile(ordered: Sequence[float], share: float) -> float:
    at = share * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])
