"""Compares predictions with interleaved measurements of the same settings, and says whether the predictions hold.

A measurement is the step time of several processes, one a block, in which all settings ran close together. Its figure
is their geometric mean with Student's interval (`stats.blocks`); fewer than `MIN_BLOCKS` processes give no interval and
no verdict. The error of a prediction is predicted / measured - 1, with the interval of the measurement.

Verdicts: a setting is `verified` if the interval of its error is within the limit, `refuted` if it is outside on one
side, `inconclusive` otherwise. All of them together are refuted if one is, if the setting that was predicted to be best
is clearly slower than the one that was, if their order is wrong, or if a change of numerics reached another loss.

A recalibration, at most one, gives a second round; both are kept. Settings that it was fitted to are not judged again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import combinations
from statistics import fmean, median

from keras_matrix.analysis.stats.blocks import MIN_BLOCKS, Estimate, geometric, of_logs, paired_logs
from keras_matrix.records.text import percentage

BASELINE = "baseline"
# Two settings are not known to differ by less than this, however narrow their intervals are.
LEAST_DIFFERENCE = 0.005
LEAST_RANKED = 3


class PredictionVerdict(StrEnum):
    """Whether a prediction holds."""

    VERIFIED = "verified"
    REFUTED = "refuted"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class ErrorLimits:
    """How wrong a prediction may be: the relative error of a step time, the regret, and a loss after a change.

    `correlation` is the least rank correlation of settings that differ; below `refuting_correlation` their order is
    predicted no better than by chance.
    """

    error: float = 0.10
    regret: float = 0.05
    loss: float = 0.05
    correlation: float = 0.8
    refuting_correlation: float = 0.5


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted step time with the spread of replayed steps, and whether the setting changes numerics."""

    step_time_s: float
    low_s: float
    high_s: float
    changes_numerics: bool = False


@dataclass(frozen=True, slots=True)
class Measurement:
    """The step time of each block's process, and the final losses of the processes, if they are known."""

    step_times_s: Mapping[int, float]
    losses: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class SettingCheck:
    """A setting: predicted, measured, the relative error with its interval, and the verdict with its reason.

    `error_low` and `error_high` are None without an interval of the measurement. `fitted`: a recalibration has used
    the measurement, so that its error says nothing.
    """

    name: str
    predicted: Prediction
    measured: Estimate
    error: float
    error_low: float | None
    error_high: float | None
    verdict: PredictionVerdict
    reason: str = ""
    fitted: bool = False


@dataclass(frozen=True, slots=True)
class Round:
    """The rows in the order of their predictions, and what follows for all of them.

    `correlation` is Spearman's, over `ranked`: settings whose measurements differ by more than their noise; None for
    fewer than three. `pairs_in_order` is the share of pairs with such a difference that were predicted in their order.
    `regret` is how much slower the setting predicted to be best is than the best one measured, 0 if it is that one.
    """

    rows: tuple[SettingCheck, ...]
    mean_error: float | None
    largest_error: float | None
    correlation: float | None
    ranked: tuple[str, ...]
    pairs_in_order: float | None
    chosen: str
    best: str
    regret: float
    verdict: PredictionVerdict
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verification:
    """One round, or two with the recalibration between them. The verdict is that of the last."""

    rounds: tuple[Round, ...]
    recalibration: str | None = None
    limits: ErrorLimits = field(default_factory=ErrorLimits)

    @property
    def verdict(self) -> PredictionVerdict:
        """The verdict of the last round."""
        return self.rounds[-1].verdict


def judge(
    predictions: Mapping[str, Prediction], measurements: Mapping[str, Measurement], limits: ErrorLimits | None = None
) -> Verification:
    """Compare the predictions with measurements of the settings of the same name; one is called `BASELINE`.

    Raises `ValueError` if no prediction has been measured.
    """
    limits = limits or ErrorLimits()
    return Verification((_round(predictions, measurements, limits, ()),), limits=limits)


def judge_again(
    first_verification: Verification,
    predictions: Mapping[str, Prediction],
    measurements: Mapping[str, Measurement],
    recalibration: str,
    fitted: Collection[str] = (),
) -> Verification:
    """Add the round of predictions after a recalibration, which `recalibration` describes.

    `fitted` are the settings whose measurements it was fitted to; they are shown and not judged, unless `measurements`
    are new ones. Raises `ValueError` for a third round, or if no setting is left to judge.
    """
    if len(first_verification.rounds) > 1:
        raise ValueError("verification: has been recalibrated already; a second recalibration would fit the noise")
    rows = {row.name: row for row in first_verification.rounds[0].rows}
    same_measured = all(
        name in rows and geometric_of(measurement) == rows[name].measured for name, measurement in measurements.items()
    )
    if same_measured and not set(measurements) & set(predictions) - set(fitted):
        raise ValueError("verification: every setting was used for the recalibration; measure again or leave some out")
    second_round = _round(predictions, measurements, first_verification.limits, fitted if same_measured else ())
    return Verification((*first_verification.rounds, second_round), recalibration, first_verification.limits)


def geometric_of(measurement: Measurement) -> Estimate | None:
    """Return the geometric mean of the processes with its interval; None without a process."""
    return geometric(list(measurement.step_times_s.values()))


def _round(
    predictions: Mapping[str, Prediction],
    measurements: Mapping[str, Measurement],
    limits: ErrorLimits,
    fitted: Collection[str],
) -> Round:
    base = measurements.get(BASELINE, Measurement({}))
    rows, wrong = [], []
    for name, prediction in predictions.items():
        measurement = measurements.get(name, Measurement({}))
        if (estimate := geometric_of(measurement)) is not None:
            agrees = loss_agrees(base.losses, measurement.losses, limits) if prediction.changes_numerics else True
            row = _row(name, prediction, estimate, limits, agrees=agrees)
            rows.append(_as_fitted(row) if name in fitted else row)
        elif prediction.changes_numerics and not all(map(math.isfinite, measurement.losses)):
            wrong.append(f"{name}: its loss is not finite")
    if not rows:
        raise ValueError("verification: no predicted setting was measured; measure at least one")
    errors = [abs(row.error) for row in rows if not row.fitted]
    judged = [row for row in rows if not row.fitted] or rows
    chosen_row = min(judged, key=lambda row: row.predicted.step_time_s)
    best = min(judged, key=lambda row: row.measured.centre)
    regret = _regret(measurements[chosen_row.name], measurements[best.name])
    ranked = _distinguishable(judged)
    correlation = _spearman(ranked)
    slower_text = (
        f"{chosen_row.name} was predicted to be best and {{}} {percentage(regret.centre - 1)} slower than {best.name}"
    )
    refuting, unsure = _together(judged, regret, slower_text, limits)
    wrong += refuting
    if correlation is not None and correlation < limits.correlation:
        text = f"the rank correlation of {len(ranked)} settings that differ is {correlation:.2f}"
        (wrong if correlation < limits.refuting_correlation else unsure).append(text)
    verdict = (
        PredictionVerdict.REFUTED if wrong else PredictionVerdict.INCONCLUSIVE if unsure else PredictionVerdict.VERIFIED
    )
    return Round(
        rows=tuple(rows),
        mean_error=fmean(errors) if errors else None,
        largest_error=max(errors, default=None),
        correlation=correlation,
        ranked=tuple(row.name for row in ranked),
        pairs_in_order=_pairs_in_order(judged),
        chosen=chosen_row.name,
        best=best.name,
        regret=regret.centre - 1,
        verdict=verdict,
        reasons=tuple(wrong or unsure),
    )


def _row(
    name: str, prediction: Prediction, measured: Estimate, limits: ErrorLimits, *, agrees: bool | None
) -> SettingCheck:
    predicted_s = prediction.step_time_s
    low, high = (predicted_s / bound - 1 for bound in reversed(measured.bounds)) if measured.bounds else (None, None)
    verdict, reason = _of_error(low, high, limits.error)
    if agrees is False:
        verdict, reason = PredictionVerdict.REFUTED, "it reaches another loss than the baseline"
    elif low is None:
        reason = f"{measured.count} processes give no interval; measure {MIN_BLOCKS} or more"
    elif agrees is None and verdict is PredictionVerdict.VERIFIED:
        verdict, reason = PredictionVerdict.INCONCLUSIVE, "its loss has not been compared with the baseline's"
    return SettingCheck(
        name, prediction, measured, predicted_s / measured.centre - 1, low, high, verdict, reason, fitted=False
    )


def _as_fitted(row: SettingCheck) -> SettingCheck:
    reason = "the recalibration was fitted to it"
    return replace(row, verdict=PredictionVerdict.INCONCLUSIVE, reason=reason, fitted=True)


def _of_error(low: float | None, high: float | None, limit: float) -> tuple[PredictionVerdict, str]:
    if low is None or high is None:
        return PredictionVerdict.INCONCLUSIVE, ""
    text = f"the error is between {percentage(low, signed=True)} and {percentage(high, signed=True)}"
    if low > limit or high < -limit:
        return PredictionVerdict.REFUTED, f"{text}, outside {percentage(limit)}"
    if -limit <= low and high <= limit:
        return PredictionVerdict.VERIFIED, f"{text}, within {percentage(limit)}"
    return PredictionVerdict.INCONCLUSIVE, f"{text}: more processes would decide about {percentage(limit)}"


def _together(
    rows: Sequence[SettingCheck], regret: Estimate, slower: str, limits: ErrorLimits
) -> tuple[list[str], list[str]]:
    """Return what refutes the predictions, and what leaves them undecided."""
    refuting_texts, unsure_texts = (
        _reasons(rows, verdict) for verdict in (PredictionVerdict.REFUTED, PredictionVerdict.INCONCLUSIVE)
    )
    if regret.low is not None and regret.low - 1 > limits.regret:
        refuting_texts.append(slower.format("is"))
    elif regret.centre - 1 > limits.regret:
        unsure_texts.append(slower.format("may be"))
    return refuting_texts, unsure_texts


def _reasons(rows: Sequence[SettingCheck], verdict: PredictionVerdict) -> list[str]:
    """Return each reason of the rows with a verdict once, with their names."""
    names: dict[str, list[str]] = {}
    for row in rows:
        if row.verdict is verdict:
            names.setdefault(row.reason, []).append(row.name)
    scope_text = "every setting"
    return [
        f"{scope_text if 1 < len(setting_names) == len(rows) else ' and '.join(setting_names)}: {reason}"
        for reason, setting_names in names.items()
    ]


def _regret(chosen_measurement: Measurement, best: Measurement) -> Estimate:
    """Return the time of the chosen setting by that of the best one, over common blocks."""
    paired_ratio = of_logs(list(paired_logs(chosen_measurement.step_times_s, best.step_times_s).values()))
    if paired_ratio is not None:
        return paired_ratio
    times = [geometric_of(measurement) for measurement in (chosen_measurement, best)]
    ratio = times[0].centre / times[1].centre if times[0] and times[1] else 1.0
    return Estimate(ratio, None, None, 0)


def loss_agrees(
    base: Sequence[float], changed_losses: Sequence[float], limits: ErrorLimits | None = None
) -> bool | None:
    """Return whether the final losses of a setting are those of the baseline, within the limit; None if unknown.

    The limit is relative to the baseline's median, and at least the spread of the baseline's own processes.
    """
    if not base or not changed_losses:
        return None
    if not all(math.isfinite(loss) for loss in (*base, *changed_losses)):
        return False
    middle = median(base)
    allowed_difference = max((limits or ErrorLimits()).loss * abs(middle), max(base) - min(base))
    return abs(median(changed_losses) - middle) <= allowed_difference


def _noise(first_row: SettingCheck, second_row: SettingCheck) -> float:
    """Return the relative difference of two measurements that their noise may cause."""
    halves = [row.measured.half_width or 0.0 for row in (first_row, second_row)]
    return max(LEAST_DIFFERENCE, math.hypot(*halves))


def _differ(first_row: SettingCheck, second_row: SettingCheck) -> bool:
    return abs(math.log(first_row.measured.centre / second_row.measured.centre)) > _noise(first_row, second_row)


def _distinguishable(rows: Sequence[SettingCheck]) -> list[SettingCheck]:
    """Return settings of which each is slower than the one before by more than their noise, from the fastest on."""
    distinct: list[SettingCheck] = []
    for row in sorted(rows, key=lambda row: (row.measured.centre, row.name)):
        if not distinct or _differ(distinct[-1], row):
            distinct.append(row)
    return distinct


def _pairs_in_order(rows: Sequence[SettingCheck]) -> float | None:
    pairs = [(row, other) for row, other in combinations(rows, 2) if _differ(row, other)]
    right = [
        (row.measured.centre < other.measured.centre) == (row.predicted.step_time_s < other.predicted.step_time_s)
        for row, other in pairs
    ]
    return sum(right) / len(right) if right else None


def _spearman(rows: Sequence[SettingCheck]) -> float | None:
    """Return Spearman's rank correlation of predicted and measured times, ties with their mean rank."""
    if len(rows) < LEAST_RANKED:
        return None
    predicted_ranks = _ranks([row.predicted.step_time_s for row in rows])
    measured_ranks = _ranks([row.measured.centre for row in rows])
    middle = (len(rows) + 1) / 2
    product = sum((a - middle) * (b - middle) for a, b in zip(predicted_ranks, measured_ranks, strict=True))
    squares = math.prod(sum((rank - middle) ** 2 for rank in ranks) for ranks in (predicted_ranks, measured_ranks))
    return product / math.sqrt(squares) if squares else None


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) + 1) / 2 for value in values]
