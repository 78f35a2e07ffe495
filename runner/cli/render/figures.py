"""Texts of the figure that a cell is compared by: the time of a step, or a metric of an external command."""

from __future__ import annotations

from keras_matrix.analysis.comparison import primary_metric
from keras_matrix.analysis.comparison.primary_metric import STEP_TIME, Figure, completed, figure_of, metrics_over
from keras_matrix.analysis.comparison.table import CellSummary
from keras_matrix.records.schema import Record
from keras_matrix.runner.cli.render.format import NOTHING, columns, count, seconds, significant, size

METRICS_SHOWN = 6


def quantity(found: float | None, figure: Figure) -> str:
    """Return a figure with its unit, such as `4.21 ms` or `825 samples/s`."""
    if found is None:
        return NOTHING
    return seconds(found) if figure.unit == "s" else f"{significant(found)} {figure.unit}".rstrip()


def between(low: float, high: float, figure: Figure) -> str:
    """Return an interval; a unit defined by the user appears once."""
    first = seconds(low) if figure.unit == "s" else significant(low)
    return f"{first} - {quantity(high, figure)}"


def attempt_figure(record: Record) -> str:
    """Return one attempt's figure for the progress line."""
    figure = figure_of([record])
    found = record.times.step_time_s if record.task is None else primary_metric.primary_value([record])
    return f"{quantity(found, figure)} " + ("a step" if figure == STEP_TIME else figure.name)


def metric_lines(cell: CellSummary) -> list[str]:
    """Return a command's metrics other than the primary one, a line each, for a cell of the table."""
    others = [one for one in metrics_over(completed(cell.records)) if one.name != cell.figure.name]
    shown = [
        f"{one.name.removesuffix('_in_seconds')} {quantity(one.value, Figure(one.name, one.unit, cell.figure.goal))}"
        for one in others
    ]
    return [cell.figure.name, *shown[:METRICS_SHOWN], *(["..."] if len(shown) > METRICS_SHOWN else [])]


def task_lines(cell: CellSummary) -> list[str]:
    """Return the processes of an external command for `runner show`: a row each, a column per metric.

    For a workload the list is empty.
    """
    names = [one.name for one in metrics_over(cell.records)]
    if not names:
        return []
    rows = [["repeat", "status", *names, "peak memory", "output", "left"]]
    for record in cell.records:
        task = record.task
        if task is None:
            continue
        by_name = {metric.name: metric for metric in task.metrics}
        row = [significant(by_name[name].value) if name in by_name else NOTHING for name in names]
        peak = size(task.host_memory.max_bytes if task.host_memory else record.memory.peak_host_memory_bytes)
        files = ", ".join(task.files) or NOTHING
        rows.append([str(record.repeat), record.status, *row, peak, f"{count(task.log_bytes)}B", files])
    problems = [
        f"{name}: {one.problem}" for name, one in zip(names, metrics_over(cell.records), strict=True) if one.problem
    ]
    return ["", "metrics", *("  " + line for line in [*columns(rows), *problems])]
