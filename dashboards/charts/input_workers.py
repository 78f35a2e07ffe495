"""Throughput by the number of input workers: measured cells, the predicted line and the ceiling.

Measured are the cells of a run that differ only in `input_workers`, with their intervals; they need no stall analysis.
Predictions and ceilings are those of the run's stall analyses. The panels of one work have a common vertical scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isclose

from keras_matrix.analysis.comparison.table import CellSummary, Row
from keras_matrix.analysis.comparison.titles import titles
from keras_matrix.analysis.stalls.report import StallReport, WorkerPrediction
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.dashboards.charts.axes import EDGE, Axis
from keras_matrix.dashboards.charts.picture import TO_MIDDLE, Dot, PanelPicture, Picture, Segment, Word, slot_of
from keras_matrix.dashboards.charts.stalls import workers_text
from keras_matrix.records.codec import canonical
from keras_matrix.records.instruments.stall_arms import COLD, WARM, ArmName
from keras_matrix.records.settings import PIPELINE, Settings
from keras_matrix.records.text import Unit, amount, number, plural

WORKERS = "input_workers"
HEIGHT = 210
TOP, BOTTOM = 26.0, 46.0
LEFT, RIGHT = 15.0, 97.0  # of a panel's width, in per cent
MOST_COUNTS = 9
PREDICTED = "predicted"
MOST_PANELS = 24
RATE, LARGE_RATE = Unit("samples/s", 1.0), Unit("thousand samples/s", 1e3)
LARGE = 10_000  # samples/s, from which on a label is too wide for the margin

Ends = tuple[float, float | None, float | None]


@dataclass(frozen=True, slots=True)
class WorkerPanels:
    """The panels of a run, and whether one has a predicted line; `left_out` counts those that are not drawn."""

    panels: list[PanelPicture]
    predicted: bool
    left_out: str | None = None


@dataclass(frozen=True, slots=True)
class _Series:
    """One backend's data: throughputs by workers, the analyses that predict them, and the ceiling."""

    settings: Settings
    measured: Mapping[int, Ends]
    analyses: Sequence[StallReport]

    @property
    def shown(self) -> bool:
        return len(self.measured) > 1 or any(report.by_workers for report in self.analyses)

    @property
    def ceiling(self) -> float | None:
        known_ceilings = [value for report in self.analyses if (value := _ceiling(report)) is not None]
        return max(known_ceilings, default=None)

    @property
    def values(self) -> list[float]:
        """Return every value that the vertical scale must include."""
        known_ends = [end for ends in self.measured.values() for end in ends if end is not None]
        predicted = [point.samples_per_s for report in self.analyses for point in report.by_workers]
        verified_ends = [
            end for report in self.analyses for _, ends in _verified(report) for end in ends if end is not None
        ]
        return [*known_ends, *predicted, *verified_ends, *([self.ceiling] if self.ceiling else [])]

    @property
    def counts(self) -> list[int]:
        verified = [count for report in self.analyses for count, _ in _verified(report)]
        return [*self.measured, *verified, *(point.workers for report in self.analyses for point in report.by_workers)]


def pictures(rows: Sequence[Row], reports: Sequence[StallReport] = ()) -> WorkerPanels:
    """Return a panel per work and backend that has several measured worker counts, or a prediction."""
    groups = _groups(rows, reports)
    # The page cache is named in words.
    names = titles([replace(series_group[0].settings, page_cache=WARM) for series_group in groups], {})
    panels = []
    for series_group, name in zip(groups, names, strict=True):
        top = max(value for series in series_group for value in series.values)
        most = max(count for series in series_group for count in series.counts)
        panels += [
            _panel(series, _details(series.settings, name), (_across(most), _up(top))) for series in series_group
        ]
    unshown_count = len(panels) - MOST_PANELS
    shown_panels, left_out = (
        panels[:MOST_PANELS],
        f"{plural(unshown_count, 'more panel')} left out" if unshown_count > 0 else None,
    )
    has_predictions = any(
        isinstance(mark, Segment) and mark.role == PREDICTED for series in shown_panels for mark in series.picture.marks
    )
    return WorkerPanels(shown_panels, has_predictions, left_out)


def _groups(rows: Sequence[Row], reports: Sequence[StallReport]) -> list[list[_Series]]:
    """Return the series of each work, by backend; works and backends without anything to show are left out."""
    cells = [cell for row in rows for cell in row.cells.values() if _counted(cell)]
    series_by_key: dict[tuple[str, str], tuple[Settings, dict[int, Ends], list[StallReport]]] = {}
    for cell in cells:
        series = series_by_key.setdefault(_key(cell.settings), (_without_workers(cell.settings), {}, []))
        series[1][int(cell.settings.params[WORKERS])] = _throughput(cell)
    for report in reports:
        settings = _observed(report)
        if report.by_workers:
            series_by_key.setdefault(_key(settings), (_without_workers(settings), {}, []))[2].append(report)
    series_by_work: dict[str, list[_Series]] = {}
    for (work, _), (settings, measured, analyses) in series_by_key.items():
        work_series = _Series(settings, dict(sorted(measured.items())), analyses)
        if work_series.shown:
            series_by_work.setdefault(work, []).append(work_series)
    return [sorted(group, key=lambda series: slot_of(series.settings.backend)) for group in series_by_work.values()]


def _counted(cell: CellSummary) -> bool:
    """Return whether a cell reads from a pipeline without timers, and states its number of workers."""
    settings, count = cell.settings, cell.settings.params.get(WORKERS)
    is_plain = settings.feed == PIPELINE and settings.phase == "fit" and not settings.input_timers
    return is_plain and isinstance(count, int) and cell.step_time is not None


def _observed(report: StallReport) -> Settings:
    settings = report.settings
    return replace(settings, page_cache=COLD) if report.observed is ArmName.COLD else settings


def _without_workers(settings: Settings) -> Settings:
    return replace(settings, params={key: value for key, value in settings.params.items() if key != WORKERS})


def _key(settings: Settings) -> tuple[str, str]:
    return canonical(replace(_without_workers(settings), backend="")), settings.backend


def _throughput(cell: CellSummary) -> Ends:
    step_time, batch_size = cell.step_time, cell.settings.batch_size
    assert step_time is not None
    return (
        batch_size / step_time.centre,
        step_time.high and batch_size / step_time.high,
        step_time.low and batch_size / step_time.low,
    )


def _ceiling(report: StallReport) -> float | None:
    """Return the throughput with every batch on the device."""
    step_time = next((arm.step_time for arm in report.arms if arm.arm is ArmName.SYNTHETIC), None)
    return None if step_time is None else report.settings.batch_size / step_time.centre


def _verified(report: StallReport) -> list[tuple[int, Ends]]:
    """Return the throughput with other numbers of workers that were applied and measured, by measured speed-up."""
    counts = {advice.change: advice.params.get(WORKERS) for advice in report.advice}
    base_rate = report.rates.samples_per_s
    verified = []
    for verified_advice in report.verified:
        count, gain = counts.get(verified_advice.change), verified_advice.measured
        if isinstance(count, int) and gain is not None and base_rate is not None:
            verified.append((count, _times(gain, base_rate)))
    return verified


def _times(gain: Estimate, base: float) -> Ends:
    return gain.centre * base, gain.low and gain.low * base, gain.high and gain.high * base


def _details(settings: Settings, name: str) -> str:
    return f"{name}, cold page cache" if settings.page_cache == COLD else name


def _across(most: int) -> Axis:
    return Axis("workers", 0.0, float(max(1, most)), log=False, unit=Unit("", 1.0))


def _up(top: float) -> Axis:
    unit = RATE if top < LARGE else LARGE_RATE
    return Axis(unit.name, 0.0, top * 1.01, log=False, unit=unit)


def _x(x_axis: Axis, count: int) -> str:
    share = count / x_axis.high
    return f"{LEFT + 3 + share * (RIGHT - LEFT - 6):.2f}%"


def _y(y_axis: Axis, value: float) -> float:
    return round(HEIGHT - BOTTOM - value / y_axis.high * (HEIGHT - BOTTOM - TOP), 1)


def _panel(series: _Series, details: str, scales: tuple[Axis, Axis]) -> PanelPicture:
    (x_axis, y_axis), backend = scales, series.settings.backend
    summary = f"{backend}, {details}, throughput by input workers: {_summary(series)}"
    picture = Picture(HEIGHT, summary=summary)
    for tick in y_axis.ticks():
        y = _y(y_axis, (float(tick.at.rstrip("%")) - EDGE) / (100 - 2 * EDGE) * y_axis.high)
        picture.axes.append(Segment(f"{LEFT}%", y, "100%", y, "rule"))
        picture.axes.append(Word(f"{LEFT}%", y + TO_MIDDLE, tick.label, anchor="end", dx=-5))
    most = int(x_axis.high)
    for count in range(0, most + 1, -(-(most + 1) // MOST_COUNTS)):
        picture.axes.append(Word(_x(x_axis, count), HEIGHT - 32 + TO_MIDDLE, str(count), anchor="middle"))
    picture.axes.append(Word("100%", HEIGHT - 2, f"{y_axis.unit.name} by workers", anchor="end"))
    if series.ceiling is not None:
        y, text = _y(y_axis, series.ceiling), f"ceiling {number(series.ceiling, y_axis.unit.size)}"
        tip = f"{text} {y_axis.unit.name}: with every batch on the device"
        picture.axes.append(Word("100%", y - 10 + TO_MIDDLE, text, anchor="end"))
        picture.marks.append(Segment(f"{LEFT}%", y, "100%", y, "ceiling", tip=tip))
    picture.marks.extend(line for report in series.analyses for line in _line(report, scales))
    picture.marks.extend(_measured(series, scales))
    return PanelPicture(backend, details, picture, slot_of(backend))


def _line(report: StallReport, scales: tuple[Axis, Axis]) -> Iterable[Segment]:
    """Return the predicted line, straight between whole workers."""
    (x_axis, y_axis), slot = scales, slot_of(report.settings.backend)
    workers = workers_text(report.facts.workers, report.facts.worker_kind) if report.facts else ""
    origin_text = f" from the analysis with {workers}" if workers else ""
    for before, after in pairwise(_bends(report.by_workers)):
        text = f"predicted{origin_text}: {number(after.samples_per_s)} samples/s with {plural(after.workers, 'worker')}"
        start = _x(x_axis, before.workers), _y(y_axis, before.samples_per_s)
        yield Segment(*start, _x(x_axis, after.workers), _y(y_axis, after.samples_per_s), PREDICTED, slot, text)


def _bends(points: Sequence[WorkerPrediction]) -> list[WorkerPrediction]:
    """Return the points of a line without those inside a straight stretch, so that its dashes stay regular."""
    threes = zip(points, points[1:], points[2:], strict=False)
    rise = [
        (middle.samples_per_s - before.samples_per_s, after.samples_per_s - middle.samples_per_s, middle)
        for before, middle, after in threes
    ]
    inner = [middle for before, after, middle in rise if not isclose(before, after, rel_tol=1e-6, abs_tol=1e-9)]
    return [*points[:1], *inner, *points[1:][-1:]]


def _measured(series: _Series, scales: tuple[Axis, Axis]) -> list[Segment | Dot]:
    """Return the measured values with their intervals: advice that was applied (hollow), and cells, joined."""
    (x_axis, y_axis), backend = scales, series.settings.backend
    slot, verified = slot_of(backend), [pair for report in series.analyses for pair in _verified(report)]
    places = [(_x(x_axis, count), _y(y_axis, ends[0])) for count, ends in series.measured.items()]
    joined = [Segment(*before, *after, "reach", slot) for before, after in pairwise(places)]
    intervals, dots = list[Segment](), list[Dot]()
    for is_hollow, pairs in ((True, verified), (False, series.measured.items())):
        for count, ends in pairs:
            x, (centre, low, high) = _x(x_axis, count), ends
            if low is not None and high is not None:
                intervals.append(Segment(x, _y(y_axis, low), x, _y(y_axis, high), "whisker", slot))
            text = f"{plural(count, 'worker')}: {_rate(ends)}"
            applied_text = f"applied and measured, {text} (measured speed-up × observed throughput)"
            dots.append(
                Dot(x, _y(y_axis, centre), slot, f"{backend}, {applied_text if is_hollow else text}", is_hollow)
            )
    return [*joined, *intervals, *dots]


def _rate(ends: Ends) -> str:
    text = amount(ends[0], "samples/s", ends[1], ends[2])
    return text if ends[1] is not None else f"{text} (no interval)"


def _summary(series: _Series) -> str:
    texts = [f"{_rate(ends)} with {plural(count, 'worker')}" for count, ends in series.measured.items()]
    for report in series.analyses:
        last_point = report.by_workers[-1]
        texts.append(
            f"predicted {number(last_point.samples_per_s)} samples/s with {plural(last_point.workers, 'worker')}"
        )
    if series.ceiling is not None:
        texts.append(f"ceiling {number(series.ceiling)} samples/s")
    return "; ".join(texts)
