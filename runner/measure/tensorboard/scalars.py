"""Converts a record and its usage over time to the curves that TensorBoard draws. Pure.

Promise: values that were not measured become no points. Epochs count from 0, the discarded ones first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime

from keras_matrix.records.instruments.usage import UsageSeries
from keras_matrix.records.schema import Record


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A value of a curve; `at_s`, in seconds since 1970, is a label for people."""

    tag: str
    step: int
    value: float
    at_s: float


def began_s(record: Record) -> float:
    """Return when an attempt began, as seconds since 1970: a label."""
    return datetime.fromisoformat(record.started_at).timestamp()


def points(record: Record, series: UsageSeries | None) -> Iterator[CurvePoint]:
    """Yield every point: epochs, usage over time, and the figures."""
    begun_s = began_s(record)
    yield from _epochs(record, begun_s)
    if series is not None:
        yield from _usage(series, begun_s)
    for metric in record.task.metrics if record.task else ():
        if metric.value is not None:
            yield CurvePoint(f"metric/{metric.name}", 0, metric.value, begun_s)
    if record.times.step_time_s is not None:
        yield CurvePoint("figure/step_time_s", 0, record.times.step_time_s, begun_s)


def _epochs(record: Record, begun_s: float) -> Iterator[CurvePoint]:
    times_s = [*record.times.discarded_epoch_times_s, *record.times.epoch_times_s]
    series: dict[str, Sequence[float | None]] = {"time_s": times_s, "loss": record.learning.loss}
    for name, values in {**series, **record.learning.metrics}.items():
        for epoch, value in enumerate(values):
            if value is not None:
                yield CurvePoint(f"epoch/{name}", epoch, value, begun_s + sum(times_s[: epoch + 1]))


def _usage(series: UsageSeries, begun_s: float) -> Iterator[CurvePoint]:
    for one in fields(UsageSeries):
        values = getattr(series, one.name)
        if one.name in ("times_s", "epochs_s"):
            continue
        for number, value in enumerate(values):
            if value is not None:
                yield CurvePoint(f"use/{one.name}", number, float(value), begun_s + series.times_s[number])
