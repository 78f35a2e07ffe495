"""The results of a run: how its attempts ended, the verdict on each piece of work, and the table of figures.

A backend is marked as fastest only if its row names it, and a figure that was not measured is a dash.
A share of peak is that of the best product that was measured on the device; MFU is that of the peak that its maker
states.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from keras_matrix.analysis.comparison.context import WorkStatus, named_caveats
from keras_matrix.analysis.comparison.machines import noun
from keras_matrix.analysis.comparison.primary_metric import MetricSummary
from keras_matrix.analysis.comparison.table import CellSummary, Row, in_order
from keras_matrix.analysis.cost import COST_LABEL
from keras_matrix.analysis.roofline import PeakShare
from keras_matrix.analysis.stats.cell_statistics import STATISTICS
from keras_matrix.analysis.views.result_table import CellView, ResultTable, WorkView
from keras_matrix.dashboards.charts import axes
from keras_matrix.dashboards.charts.axes import Axis
from keras_matrix.dashboards.charts.dot_plots import RatioPlot, interval_marks
from keras_matrix.dashboards.charts.figure_table import (
    NOT_MEASURED,
    FigureRow,
    StatisticColumn,
    Value,
    WorkFigures,
    cost_line,
    statistic_lines,
)
from keras_matrix.dashboards.charts.picture import TO_MIDDLE, Dot, Picture, Segment, Word, slot_of
from keras_matrix.dashboards.charts.pictures import work_details
from keras_matrix.dashboards.charts.roofline import bandwidth, rate
from keras_matrix.dashboards.charts.scaling import scaled_value, scaling_lines
from keras_matrix.dashboards.charts.usage import device_memory_values, device_unit
from keras_matrix.records.schema import HARMLESS, Record, Status
from keras_matrix.records.settings import FIT, GENERATE
from keras_matrix.records.store import latest_attempts
from keras_matrix.records.text import MIB, MILLISECOND, NOTHING, PERCENT, Unit, interval, number, plural, ratio_text

RATIO = Unit("x", 1.0)
FOREST_LINE = 18
NO_RATIO = "not above zero in a process: it has no ratio"


@dataclass(frozen=True, slots=True)
class Tally:
    """The number of attempts with one kind of ending."""

    name: str
    count: int
    bad: bool = False


def tallies(records: Sequence[Record], pending: int) -> list[Tally]:
    """Return how the latest attempts ended, and how many are pending."""
    count_by_status = Counter(record.status for record in latest_attempts(records))
    failed_count = sum(count for status, count in count_by_status.items() if status not in HARMLESS)
    return [
        Tally("ok", count_by_status[Status.OK]),
        Tally("unstable", count_by_status[Status.UNSTABLE]),
        Tally("unsupported", count_by_status[Status.UNSUPPORTED]),
        Tally("failed", failed_count, bad=failed_count > 0),
        Tally("pending", pending),
    ]


def backends(rows: Sequence[Row]) -> list[str]:
    """Return the backends of the table, in their usual order."""
    return in_order(backend for row in rows for backend in row.cells)


def findings(works: Sequence[WorkView]) -> tuple[list[RatioPlot], Axis | None]:
    """Return a verdict per work, and the common axis of their ratios, None if no work has ratios."""
    ratios = [ratio.estimate for work in works for ratio in work.row.ratios]
    ends = [end for ratio in ratios for end in (ratio.low, ratio.centre, ratio.high) if end]
    is_timed = all(view.is_step for work in works for view in work.cells)
    quantity_text = (
        "time per step relative to the lowest" if is_timed else "cost relative to the best: a time, or similar"
    )
    axis = axes.logarithmic([1.0, *ends], f"{quantity_text}, x (logarithmic)", RATIO) if ends else None
    return [_finding(index, work, axis) for index, work in enumerate(works)], axis


def blocks(table: ResultTable) -> list[WorkFigures]:
    """Return the table of figures: a block per piece of work, a line per figure, a value per backend."""
    columns, unit = backends(table.rows), device_unit(table.rows)
    return [
        WorkFigures(
            work.row.title,
            _anchor(index),
            work_details(work.row),
            work.row.verdict,
            slot_of(work.row.fastest) if work.row.fastest else None,
            _lines(work, columns, unit),
            work.same_work,
            work.row.caveats,
        )
        for index, work in enumerate(table.works)
    ]


def _anchor(index: int) -> str:
    return f"work-{index + 1}"


def _finding(index: int, work: WorkView, axis: Axis | None) -> RatioPlot:
    row = work.row
    return RatioPlot(
        row.title,
        row.verdict,
        slot_of(row.fastest) if row.fastest else None,
        row.fastest is not None,
        _ratios(row, axis) if axis and row.ratios else None,
        anchor=_anchor(index),
        caveats=named_caveats(row.caveats),
        advice=work.advice,
    )


def _ratios(row: Row, axis: Axis) -> Picture:
    estimate_by_backend = {ratio.backend: ratio.estimate for ratio in row.ratios}
    lines, dots, words = list[Segment](), list[Dot](), list[Word]()
    names = sorted([*([row.lowest] if row.lowest else []), *estimate_by_backend], key=slot_of)
    for place, backend in enumerate(names):
        y, estimate = FOREST_LINE * (place + 0.5), estimate_by_backend.get(backend)
        centre, low, high = (estimate.centre, estimate.low, estimate.high) if estimate else (1.0, None, None)
        ends = interval(low, high, centre) or ("no interval" if estimate else "the lowest")
        tip = f"{backend}: {ratio_text(centre)} {ends}"
        line, dot = interval_marks((centre, low, high), axis, y, slot_of(backend), tip)
        lines, dots = [*lines, *line], [*dots, dot]
        words.append(_label(backend, y + TO_MIDDLE, (axis.share(low or centre), axis.share(high or centre))))
    height, summary = FOREST_LINE * (len(row.ratios) + 1), f"{row.title}: {row.verdict}"
    return Picture(height, [*lines, *dots, *words], summary=summary)


def _label(backend: str, y: float, ends: tuple[float, float]) -> Word:
    """Return the backend's name next to its interval, on the side with free space."""
    left, right = ends
    if right > 70:
        return Word(f"{left:.2f}%", y, backend, anchor="end", dx=-9)
    return Word(f"{right:.2f}%", y, backend, dx=9)


def _lines(work: WorkView, columns: Sequence[str], memory: Unit) -> list[FigureRow]:
    views = [work.on(backend) for backend in columns]
    if any(not view.is_step for view in work.cells):
        return _task_lines(views)
    row, cells = work.row, [view.cell if view else None for view in views]
    has_calls = any(cell.settings.phase != FIT for cell in row.cells.values())
    generates = any(view.cell.settings.phase == GENERATE for view in work.cells)
    shares = [view.share if view else None for view in views]
    step_heading = "time per call" if has_calls else "time per step"
    lines = [
        FigureRow(step_heading, "ms", [_step_value(view) for view in views], primary=True),
        FigureRow("relative to the lowest", "x", [_ratio_value(view) for view in views]),
        *statistic_lines([_column(view) for view in views]),
        *_cost_lines(views),
        FigureRow("share of peak", "%", of_measured_peak(shares)),
        FigureRow("share of stated peak (MFU)", "%", [of_stated_peak(share) for share in shares]),
        *(
            [FigureRow("own loop: memory bandwidth", "%", [of_bandwidth(share) for share in shares])]
            if generates
            else []
        ),
        FigureRow("peak device memory", memory.name, device_memory_values(cells, memory)),
        *scaling_lines(views),
        FigureRow("smallest difference", "%", [_difference_value(view) for view in views]),
        FigureRow("same work", "", [_same_work_value(work, view) for view in views]),
        FigureRow("processes", "", [_endings_value(view) for view in views]),
    ]
    compared_names = {"smallest difference"} if len(row.cells) > 1 else set()
    always_shown = {
        step_heading,
        *compared_names,
        "processes",
        COST_LABEL,
        *(statistic.label for statistic in STATISTICS if statistic.always),
    }
    return [line for line in lines if line.name in always_shown or line.measured]


def _column(view: CellView | None) -> StatisticColumn:
    return StatisticColumn(view.statistics, view.intervals, view.hidden) if view else StatisticColumn()


def _cost_lines(views: Sequence[CellView | None]) -> list[FigureRow]:
    """Return the line of the cost of samples; none without prices."""
    costs = [view.cost if view else None for view in views]
    currency = next((cost.currency for cost in costs if cost), None)
    if currency is None:
        return []
    hints = [(cost.basis or cost.reason) if cost else "" for cost in costs]
    return [cost_line([cost.estimate if cost else None for cost in costs], currency, hints)]


def _task_lines(views: Sequence[CellView | None]) -> list[FigureRow]:
    """Return the lines of an external command: its primary metric, its other metrics, its memory."""
    primary = next(view.cell.figure for view in views if view)
    metrics_by_view = [{metric.name: metric for metric in view.metrics} if view else {} for view in views]
    names = dict.fromkeys(name for metrics in metrics_by_view for name in metrics if name != primary.name)
    units = {metric.name: metric.unit for metrics in metrics_by_view for metric in metrics.values()}
    peaks = [view.cell.peak_host_memory_bytes if view else None for view in views]
    return [
        FigureRow(
            primary.name,
            primary.unit or NOTHING,
            [_step_value(view) for view in views],
            primary=True,
            explained=False,
        ),
        FigureRow("relative to the best", "x", [_ratio_value(view) for view in views]),
        *(
            FigureRow(
                name,
                units[name] or NOTHING,
                [_metric_value(metrics.get(name)) for metrics in metrics_by_view],
                explained=False,
            )
            for name in names
        ),
        FigureRow("peak memory", "MiB", [scaled_value(peak, MIB) or NOT_MEASURED for peak in peaks]),
        FigureRow("smallest difference", "%", [_difference_value(view) for view in views]),
        FigureRow("processes", "", [_endings_value(view) for view in views]),
    ]


def _metric_value(metric: MetricSummary | None) -> Value:
    if metric is None or metric.value is None:
        return Value(NOTHING, hint=metric.problem or "") if metric else NOT_MEASURED
    return Value(number(metric.value), f"{plural(metric.count, 'process', 'processes')}", hint=metric.problem or "")


def _missing(view: CellView | None) -> Value:
    """Return a dash with the reason; the other lines of a cell that was not measured have plain dashes."""
    if view is None:
        return Value(NOTHING, hint="no record: not planned, or still pending")
    reasons_text = "; ".join(f"{status}: {reason}" for status, reason in view.cell.failures)
    return Value(
        NOTHING, hint="not measured" + (f" ({reasons_text})" if reasons_text and not view.cell.measured else "")
    )


def _step_value(view: CellView | None) -> Value:
    if view is None or view.value is None:
        return _missing(view)
    if not view.compared:
        return Value(number(view.value), "not compared", hint=NO_RATIO)
    size = MILLISECOND.size if view.is_step else 1.0
    return Value(
        number(view.value, size),
        interval(view.low, view.high, view.value, size) or "no interval",
        fastest=view.is_fastest,
        flag="fastest" if view.is_step else "best",
        mark=plural(len(view.caveats), "caveat") if view.caveats else "",
        link=caveat_anchor(view.cell),
        hint="; ".join(view.caveats),
    )


def caveat_anchor(cell: CellSummary) -> str:
    """Return the anchor of a cell's caveats."""
    return f"caveats-{cell.cell_id}"


def _ratio_value(view: CellView | None) -> Value:
    if view and view.ratio:
        ratio = view.ratio
        return Value(number(ratio.centre), interval(ratio.low, ratio.high, ratio.centre) or "no interval")
    if view and view.is_lowest:
        return Value("1", hint="the lowest: the others are divided by it")
    return NOT_MEASURED


def _same_work_value(work: WorkView, view: CellView | None) -> Value:
    """Return the deviation of a backend's parity process from the others', a dash if it was not checked."""
    if view is None or not view.compared:
        return NOT_MEASURED
    same_work = work.same_work_on(view.backend)
    if same_work.status is WorkStatus.NOT_CHECKED:
        return Value(NOTHING, hint="not checked")
    status_text = "" if same_work.status is WorkStatus.AGREES else f", {same_work.status}"
    return Value(
        f"{same_work.value or NOTHING}{status_text}", hint=f"{same_work.figure}: {'; '.join(same_work.remarks)}"
    )


def _difference_value(view: CellView | None) -> Value:
    if view is None or view.smallest_difference is None:
        return NOT_MEASURED
    return Value(number(view.smallest_difference, PERCENT.size))


def _endings_value(view: CellView | None) -> Value:
    if view is None:
        return NOT_MEASURED
    counts_text = ", ".join(f"{view.endings[status]} {status}" for status in Status if view.endings[status])
    machines_text = f"over {len(view.cell.machines)} {noun(view.cell.machines)}" if view.cell.machines else ""
    return Value(counts_text, machines_text, bad=any(status not in HARMLESS for status in view.endings))


def of_measured_peak(shares: Sequence[PeakShare | None]) -> list[Value]:
    """Return each backend's share of the machine's best measured peak, with its rate next to it.

    If the backends of a row compute in several precisions, the precision of its peak is next to each share, and the
    rate is in the hint.
    """
    precisions_differ = len({share.place.precision for share in shares if share and share.place}) > 1
    return [_of_measured_peak(share, precisions_differ) for share in shares]


def of_stated_peak(share: PeakShare | None) -> Value:
    """Return a share of the peak that the maker states for the precision of the computation (MFU)."""
    if share is None or share.mfu is None or share.place is None:
        return NOT_MEASURED
    hint = f"of {rate(share.datasheet_flop_per_s)}, as the maker states it"
    return Value(number(share.mfu, PERCENT.size), share.place.precision, hint)


def of_bandwidth(share: PeakShare | None) -> Value:
    """Return the share of the memory's bandwidth at which our decoding step of a language model reads its weights."""
    if share is None or share.share_of_bandwidth is None:
        return NOT_MEASURED
    return Value(number(share.share_of_bandwidth, PERCENT.size), bandwidth(share.read_byte_per_s))


def _of_measured_peak(share: PeakShare | None, differ: bool) -> Value:
    if share is None or share.share_of_peak is None or share.achieved_flop_per_s is None:
        return Value(NOTHING, hint=(share.note if share else None) or "")
    precision_text = f" in {share.place.precision}" if share.place else ""
    hint = f"of {rate(share.peak_flop_per_s)}, the machine's best measured product{precision_text}"
    hint += f" ({share.peak_of})" if share.peak_of else ""
    rate_text = rate(share.achieved_flop_per_s)
    if differ and share.place:
        return Value(number(share.share_of_peak, PERCENT.size), share.place.precision, f"{rate_text}, {hint}")
    return Value(number(share.share_of_peak, PERCENT.size), rate_text, hint)
