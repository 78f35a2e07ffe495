"""Texts of the figure that a cell is compared by: the time of a step, or a metric of an external command.

A module of its own: most tables have no metrics or tasks.
"""

from __future__ import annotations

from keras_matrix.analysis.comparison.primary_metric import completed, metrics_over
from keras_matrix.analysis.comparison.table import CellSummary
from keras_matrix.records.text import NOTHING, amount, bytes_text, count, number
from keras_matrix.runner.cli.render.format import columns

METRICS_SHOWN = 6


def metric_lines(cell: CellSummary) -> list[str]:
    """Return a command's metrics other than the primary one, a line each, for a cell of the table."""
    secondary = [summary for summary in metrics_over(completed(cell.records)) if summary.name != cell.figure.name]
    shown = [
        f"{summary.name.removesuffix('_in_seconds')} {amount(summary.value, summary.unit)}" for summary in secondary
    ]
    return [cell.figure.name, *shown[:METRICS_SHOWN], *(["..."] if len(shown) > METRICS_SHOWN else [])]


def task_lines(cell: CellSummary) -> list[str]:
    """Return the processes of an external command for `runner show`: a row each, a column per metric.

    For a workload the list is empty.
    """
    names = [summary.name for summary in metrics_over(cell.records)]
    if not names:
        return []
    rows = [["repeat", "status", *names, "peak memory", "output", "left"]]
    for record in cell.records:
        task = record.task
        if task is None:
            continue
        by_name = {metric.name: metric for metric in task.metrics}
        row = [number(by_name[name].value) if name in by_name else NOTHING for name in names]
        peak = bytes_text(task.host_memory.max_bytes if task.host_memory else record.memory.peak_host_memory_bytes)
        files = ", ".join(task.files) or NOTHING
        rows.append([str(record.repeat), record.status, *row, peak, f"{count(task.log_bytes)}B", files])
    problems = [
        f"{name}: {summary.problem}"
        for name, summary in zip(names, metrics_over(cell.records), strict=True)
        if summary.problem
    ]
    return ["", "metrics", *("  " + line for line in [*columns(rows), *problems])]
