"""The figure that cells are compared by: the time of a step, or the primary metric of an external command.

Ratios are of costs, where less is better: the time of a step, a metric whose goal is `lower`, or the inverse of one
whose goal is `higher`. So every statistic reads the same: 1.2 is a fifth worse.

Guarantee: a value that is not above zero has no cost, because it has no ratio.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.stats.blocks import geometric
from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.records.task import Goal, Metric, primary_missing


@dataclass(frozen=True, slots=True)
class Figure:
    """The name of a figure, its unit, and which direction is better."""

    name: str
    unit: str
    goal: Goal

    @property
    def is_time(self) -> bool:
        """Whether the figure is a time, of which a ratio reads `takes 1.2x as long`."""
        return self.unit in TIME_UNITS and self.goal is Goal.LOWER


TIME_UNITS = frozenset({"s", "ms", "us", "µs", "ns", "min", "h"})
STEP_TIME = Figure("time per step", "s", Goal.LOWER)


def figure_of(records: Iterable[Record]) -> Figure:
    """Return the figure that these records, all of one work, are compared by."""
    for record in records:
        if record.task is not None:
            metric = record.task.primary_metric
            if metric is not None:
                return Figure(metric.name, metric.unit or "", metric.goal)
    return STEP_TIME


def figure_value(record: Record) -> float | None:
    """Return the figure as reported: seconds, or a metric in its own unit; None unless it is above zero."""
    if record.task is None:
        return record.times.step_time_s or None
    metric = record.task.primary_metric
    return metric.value if metric and metric.value is not None and metric.value > 0 else None


def mean_figure(records: Iterable[Record]) -> float | None:
    """Return the geometric mean of the figures of these records that have one; None without any."""
    mean = geometric([value for record in records if (value := figure_value(record))])
    return mean.centre if mean else None


def epoch_quantiles(record: Record) -> tuple[float | None, float | None]:
    """Return median and 95th percentile, over the measured epochs, of a step's time in seconds.

    None if not timed, and of a single epoch: it is the mean already.
    """
    if len(record.times.epoch_times_s) == 1:
        return None, None
    steps = record.times.whole_epoch_steps or (record.resolved.steps_per_epoch if record.resolved else 0)
    epochs_s = (record.times.epoch_time_median_s, record.times.epoch_time_p95_s)
    median_s, p95_s = (epoch_s / steps if epoch_s is not None and steps else None for epoch_s in epochs_s)
    return median_s, p95_s


def cost(record: Record) -> float | None:
    """Return the figure converted so that less is better."""
    value = figure_value(record)
    if value is None or record.task is None or figure_of([record]).goal is Goal.LOWER:
        return value
    return 1 / value


def without_ratio(records: Iterable[Record]) -> bool:
    """Return whether a command's figure is not above zero in one of these records, so that they have no ratio."""
    return any(record.task is not None and figure_value(record) is None for record in records)


def primary_value(records: Sequence[Record]) -> float | None:
    """Return the median of a command's primary metric, above zero or not; None for a workload."""
    name = figure_of(records).name
    return next((summary.value for summary in metrics_over(records) if summary.name == name), None)


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """One metric over the processes of a cell: its median, how many processes have it, and why others do not."""

    name: str
    unit: str
    value: float | None
    count: int
    problem: str | None


def completed(records: Iterable[Record]) -> list[Record]:
    """Return the processes whose metrics count: measured ones, and commands that lack only the primary metric."""
    return [
        record
        for record in records
        if record.status in MEASURED
        or (record.task and (record.reason or "").startswith(primary_missing(record.task.primary)))
    ]


def metrics_over(records: Sequence[Record]) -> list[MetricSummary]:
    """Return the metrics of a command's processes, in their order; none for a workload."""
    metrics_by_name: dict[str, list[Metric]] = {}
    for record in records:
        for metric in record.task.metrics if record.task else ():
            metrics_by_name.setdefault(metric.name, []).append(metric)
    return [_summary(name, all_metrics) for name, all_metrics in metrics_by_name.items()]


def _summary(name: str, all_metrics: Sequence[Metric]) -> MetricSummary:
    values = [metric.value for metric in all_metrics if metric.value is not None]
    problem = next((metric.problem for metric in all_metrics if metric.problem), None)
    unit = next((metric.unit for metric in all_metrics if metric.unit), "")
    return MetricSummary(name, unit, statistics.median(values) if values else None, len(values), problem)
