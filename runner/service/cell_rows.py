"""The rows of a run as values: its cells, and the comparisons of its backends; the cells also as columns. Pure.

Every figure is one that `analysis` computed for the report; here it only gets a name. None means not measured. The
Python API returns these values, `runner report --format csv` writes the columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from keras_matrix.analysis.cost import COST_METRIC
from keras_matrix.analysis.views.result_table import CellView, ResultTable, WorkView
from keras_matrix.records.identity import PARAMS, value_as_text
from keras_matrix.records.schema import Status
from keras_matrix.records.settings import Scalar, Settings
from keras_matrix.records.task import DEFINITION

SETTINGS = tuple(f.name for f in fields(Settings) if f.name not in ("backend", "workload", "params"))


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a run over its processes. Times are in seconds, memory in bytes; None means not measured.

    `work` is the title of its row in the report: cells of equal `work` are compared. `status` is `ok` if every process
    ended so, else the other statuses, and `reasons` say why. `low` and `high` are the ends of the 95 % interval between
    processes. An external command has no time per step: it is compared by its primary metric, named `metric`, in its
    own `metric_unit`. `statistics` has the other figures of the report, and the metrics of a command, by name.
    """

    run_id: str
    name: str
    work: str
    workload: str
    backend: str
    settings: Mapping[str, Scalar]
    params: Mapping[str, Scalar]
    status: str
    reasons: tuple[str, ...]
    processes: int
    fastest: bool
    step_time_s: float | None
    step_time_low_s: float | None
    step_time_high_s: float | None
    samples_per_s: float | None
    first_epoch_time_s: float | None
    epoch_time_s: float | None
    peak_host_memory_bytes: int | None
    peak_device_memory_bytes: int | None
    smallest_difference: float | None
    metric: str | None
    metric_unit: str | None
    metric_value: float | None
    metric_low: float | None
    metric_high: float | None
    statistics: Mapping[str, float]
    warnings: tuple[str, ...]
    caveats: tuple[str, ...]
    cell_id: str


@dataclass(frozen=True, slots=True)
class Ratio:
    """The time per step on `backend` divided by that on `against`, the lowest; the ends of its interval.

    `smallest_difference` is the relative one that the run would probably have shown; None below 5 repeats.
    """

    backend: str
    against: str
    ratio: float
    low: float | None
    high: float | None
    p_value: float | None
    smallest_difference: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One work on several backends.

    `fastest` is None unless the intervals separate a backend from every other; `lowest` has the lowest time per step,
    separated or not. `verdict` and `same_work` are the sentences of the report. `advice` is what would decide
    an open verdict, with the command for a run of the command line; empty for other verdicts.
    """

    run_id: str
    name: str
    backends: tuple[str, ...]
    fastest: str | None
    lowest: str | None
    ratios: tuple[Ratio, ...]
    verdict: str
    advice: str
    same_work: str
    caveats: tuple[str, ...]


NESTED = {"settings": "", "params": PARAMS, "statistics": ""}  # fields whose values are columns, with their prefix
TAKEN = frozenset(
    {*(field.name for field in fields(Cell)), *SETTINGS}
)  # no column of a metric that a command has named


def cells_of(table: ResultTable) -> list[Cell]:
    """Return the cells of a table, in its order."""
    return [_cell(work, view) for work in table.works for view in work.cells]


def comparisons_of(table: ResultTable) -> list[Comparison]:
    """Return the comparisons of a table: its works with more than one backend."""
    return [_comparison(work) for work in table.works if len(work.cells) > 1]


def _cell(work: WorkView, view: CellView) -> Cell:
    cell, settings = view.cell, view.cell.settings
    return Cell(
        run_id=cell.records[0].run_id,
        name=view.name,
        work=work.row.title,
        workload=settings.workload,
        backend=view.backend,
        settings={name: getattr(settings, name) for name in SETTINGS},
        params={name: value for name, value in settings.params.items() if name != DEFINITION},
        status=", ".join(status for status in Status if view.endings[status] and status is not Status.OK)
        or str(Status.OK),
        reasons=tuple(f"{status}: {reason}" for status, reason in cell.failures),
        processes=view.processes,
        fastest=view.is_fastest,
        samples_per_s=cell.samples_per_s,
        first_epoch_time_s=cell.first_epoch_time_s,
        epoch_time_s=cell.epoch_time_s,
        peak_host_memory_bytes=cell.peak_host_memory_bytes,
        peak_device_memory_bytes=cell.peak_device_memory_bytes,
        smallest_difference=view.smallest_difference,
        statistics=_statistics(view),
        warnings=cell.warnings,
        caveats=view.caveats,
        cell_id=cell.cell_id,
        **_compared_by(view),
    )


def _compared_by(view: CellView) -> dict[str, Any]:
    """Return the figure that the cell is compared by, with its interval, as fields of `Cell`."""
    step_columns: dict[str, Any] = {
        "step_time_s": view.value,
        "step_time_low_s": view.low,
        "step_time_high_s": view.high,
    }
    metric_columns: dict[str, Any] = {"metric": view.cell.figure.name, "metric_unit": view.cell.figure.unit}
    metric_columns |= {"metric_value": view.value, "metric_low": view.low, "metric_high": view.high}
    return (
        {**step_columns, **dict.fromkeys(metric_columns)}
        if view.is_step
        else {**dict.fromkeys(step_columns), **metric_columns}
    )


def _statistics(view: CellView) -> dict[str, float]:
    metrics = {metric.name: metric.value for metric in view.metrics if metric.value is not None}
    costs = {COST_METRIC: view.cost.estimate.centre} if view.cost and view.cost.estimate else {}
    return {**view.statistics, **costs, **metrics}


def _comparison(work: WorkView) -> Comparison:
    row = work.row
    return Comparison(
        run_id=work.cells[0].cell.records[0].run_id,
        name=row.title,
        backends=tuple(row.cells),
        fastest=row.fastest,
        lowest=row.lowest,
        ratios=tuple(
            Ratio(
                ratio.backend,
                row.lowest,
                ratio.estimate.centre,
                ratio.estimate.low,
                ratio.estimate.high,
                ratio.p_value,
                ratio.smallest_difference,
            )
            for ratio in row.ratios
            if row.lowest is not None
        ),
        verdict=row.verdict,
        advice=work.advice,
        same_work=work.same_work.text,
        caveats=row.caveats,
    )


def columns(cells: Sequence[Cell]) -> dict[str, list[Any]]:
    """Return a list of values for each field of the cells, for each setting, parameter and statistic of any of them."""
    rows = [_flat(cell) for cell in cells]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _of_one_type([row.get(name) for row in rows]) for name in names}


def _of_one_type(column: list[Any]) -> list[Any]:
    """Return a column whose values have one type, as polars demands: numbers become floats, other mixtures texts.

    A setting may have values of several types, as in `threads: [all, 2]`. None is a value of every type.
    """
    known_types = {type(value) for value in column if value is not None}
    if len(known_types) < 2:
        return column
    common: Callable[[Any], Any] = float if known_types == {int, float} else _text
    return [None if value is None else common(value) for value in column]


def _column(field: str, name: str) -> str:
    """Return the name of the column of a value; a statistic named like another column is `statistics.NAME`."""
    is_taken = field == "statistics" and (name in TAKEN or name.startswith((PARAMS, "statistics.")))
    return f"{field}.{name}" if is_taken else f"{NESTED[field]}{name}"


def _text(value: Any) -> str:
    """Return a value as text, spelled as in a matrix file."""
    return value_as_text(value) if isinstance(value, str) else json.dumps(value)


def _flat(cell: Cell) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for field in fields(cell):
        value = getattr(cell, field.name)
        if field.name in NESTED:
            row |= {_column(field.name, name): item for name, item in value.items()}
        else:
            row[field.name] = "; ".join(value) if isinstance(value, tuple) else value
    return row
