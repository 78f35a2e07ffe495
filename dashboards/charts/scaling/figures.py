"""The rows of the table of figures about workers of the FC modes and devices of Keras workloads.

Pure functions; for other cells the rows consist of dashes, and are then left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from keras_matrix.analysis.fc import FcFigure
from keras_matrix.analysis.scaling import DeviceScaling, StepBreakdown
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.views.result_table import CellView
from keras_matrix.dashboards.charts.figure_table import NOT_MEASURED, FigureRow, Value
from keras_matrix.records.fc.communication import TimingMethod
from keras_matrix.records.text import MIB, NOTHING, PERCENT, interval, number

COMMUNICATION_METHODS = {
    TimingMethod.TIMED: "each collective timed separately, in epochs after the measured ones",
    TimingMethod.PROFILED: "by the backend's profiler",
}
WIRE = "bytes that processes send for it, without headers"
EFFICIENCY = "throughput divided by that of one worker times the workers"
COMMUNICATION = "in communication"

Figure = TypeVar("Figure")
Rows = tuple[tuple[str, str, Callable[[Figure], Value | None]], ...]


def scaling_lines(views: Sequence[CellView | None]) -> list[FigureRow]:
    """Return the rows of a piece of work: what is known of each cell's workers and of its devices."""
    workers = _worker_lines([view.parallel if view else None for view in views])
    return [*workers, *_device_lines([view.scaling if view else None for view in views])]


def _worker_lines(columns: Sequence[FcFigure | None]) -> list[FigureRow]:
    kinds: Rows[FcFigure] = (
        ("share of own product", "%", lambda one: scaled_value(one.share_of_own, PERCENT.size)),
        ("payload a step", "MiB", lambda one: scaled_value(one.bytes_per_step or None, MIB)),
        ("on the wire a step", "MiB", lambda one: scaled_value(one.wire_bytes_per_step or None, MIB, WIRE)),
        (COMMUNICATION, "%", _communicating),
        ("efficiency of workers", "%", lambda one: _estimate(one.efficiency, PERCENT.size, EFFICIENCY)),
        ("memory of a worker", "MiB", _worker_memory),
    )
    return _rows(kinds, columns)


def _device_lines(columns: Sequence[DeviceScaling | None]) -> list[FigureRow]:
    kinds: Rows[DeviceScaling] = (
        ("speed-up over one device", "x", _speed_up),
        ("efficiency of devices", "%", lambda one: _estimate(one.efficiency, PERCENT.size, "speed-up / devices")),
        (COMMUNICATION, "%", lambda one: _spent(one.spent) if one.spent else None),
        ("divided by", "", _method),
        ("rows of a device", "", lambda one: Value(_rows_of_a_device(one), hint=f"of {one.settings.batch_size}")),
        ("gradients a step", "MiB", lambda one: scaled_value(one.replicas.gradient_bytes or None, MIB)),
    )
    return _rows(kinds, columns)


def _rows(kinds: Rows[Figure], columns: Sequence[Figure | None]) -> list[FigureRow]:
    return [
        FigureRow(name, unit, [(figure and value(figure)) or NOT_MEASURED for figure in columns])
        for name, unit, value in kinds
    ]


def _communicating(figure: FcFigure) -> Value | None:
    if figure.spent is None:
        silent = figure.communication_share == 0 and figure.task.workers > 1
        return Value("0", hint="no collective was called") if silent else None
    return _spent(figure.spent)


def _spent(spent: StepBreakdown) -> Value:
    hint = COMMUNICATION_METHODS[spent.method]
    if spent.share < 0:
        return Value("below 0", hint=f"{hint}; too small to be distinguished from zero")
    return Value(number(spent.share, PERCENT.size), hint=hint)


def _estimate(found: Estimate | None, unit: float, hint: str) -> Value | None:
    if found is None:
        return None
    return Value(number(found.centre, unit), interval(found.low, found.high, found.centre, unit) or "no interval", hint)


def _speed_up(one: DeviceScaling) -> Value:
    return _estimate(one.speed_up, 1.0, one.text) or Value(NOTHING, hint=one.missing)


def _method(one: DeviceScaling) -> Value:
    own = "" if one.replicas.is_fit else "not fit"
    return Value(one.replicas.method.rpartition(".")[2], own, one.replicas.method)


def _rows_of_a_device(one: DeviceScaling) -> str:
    return "/".join(str(rows) for rows in sorted({replica.rows for replica in one.replicas.replicas}))


def _worker_memory(figure: FcFigure) -> Value | None:
    if figure.worker_memory_bytes is None or figure.task.workers == 1:
        return None
    aside = "of the largest" if figure.processes > 1 else f"all {figure.task.workers} in one"
    return Value(number(figure.worker_memory_bytes, MIB), aside, hint="peak resident memory of a process")


def scaled_value(value: float | None, unit: float, hint: str = "") -> Value | None:
    """Return a value in this unit; None for None."""
    return None if value is None else Value(number(value, unit), hint=hint)
