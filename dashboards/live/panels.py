"""Panels from the rows of a question: a heat map, dot plots, time series, a roofline or a table; values without markup.

A panel shows the figures of its rows and computes none. Texts are not trusted: the templates escape them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from keras_matrix.analysis.comparison.context import named_caveats
from keras_matrix.analysis.comparison.table import in_order
from keras_matrix.analysis.stats.cell_statistics import Statistic
from keras_matrix.dashboards.charts import stored_charts, time_series
from keras_matrix.dashboards.charts.dot_plots import StripPicture
from keras_matrix.dashboards.charts.figure_table import WorkFigures, blocks, by_work, explained
from keras_matrix.dashboards.charts.picture import ScaledPicture, slot_of
from keras_matrix.dashboards.live.questions import Question
from keras_matrix.records.text import MILLISECOND, NOTHING, interval, number, percent_change, quantity, ratio_text

Row = Mapping[str, Any]
# Ratio to the lowest figure up to which a cell of the heat map has its shade.
SHADES = (1.0, 1.1, 1.5, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
class HeatCell:
    """One cell of the heat map: its figure, its interval, and the shade of its ratio to the lowest figure."""

    text: str
    aside: str = ""
    shade: int | None = None
    fastest: bool = False
    cell_id: str = ""
    hint: str = ""


NOTHING_TO_COMPARE = "nothing to compare"
# The verdict of a row with cells of several runs, which are shown without ratios.
SEPARATE = "separate sessions, not alternating: see runner report --merge"


@dataclass(frozen=True, slots=True)
class HeatRow:
    """One piece of work over the backends."""

    title: str
    workload: str
    verdict: str
    slot: int | None
    cells: list[HeatCell]
    caveats: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row of a table; `cell_id` links to the page of the cell."""

    values: list[str]
    bad: bool = False
    cell_id: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """A question with its answer in the form of `kind`; the fields of other forms are empty."""

    question: Question
    count: int
    kind: str
    backends: list[str] = field(default_factory=list)
    heat: list[HeatRow] = field(default_factory=list)
    pictures: list[StripPicture] = field(default_factory=list)
    series: list[time_series.SeriesPicture] = field(default_factory=list)
    scatter: list[ScaledPicture] = field(default_factory=list)
    rates: list[tuple[str, str, str, int]] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    table: list[TableRow] = field(default_factory=list)
    blocks: list[WorkFigures] = field(default_factory=list)
    statistics: list[Statistic] = field(default_factory=list)
    problem: str = ""


def panel(question: Question, rows: Sequence[Row]) -> Panel:
    """Return a question's panel."""
    return MAKERS[question.name](question, rows)


def _matrix(question: Question, rows: Sequence[Row]) -> Panel:
    backends = in_order(str(row["backend"]) for row in rows)
    heat_rows = [_heat_row(group, backends) for group in by_work(rows)]
    return Panel(question, len(rows), "heat", backends=backends, heat=heat_rows)


def _heat_row(rows: Sequence[Row], backends: Sequence[str]) -> HeatRow:
    # If two runs measured the same work on different backends, each cell shows its newest run.
    row_by_backend = {row["backend"]: row for row in sorted(rows, key=lambda row: str(row["run_id"]))}
    newest = max(rows, key=lambda row: str(row["run_id"]))
    is_separate = len({row["run_id"] for row in row_by_backend.values()}) > 1
    fastest = None if is_separate else newest["fastest"]
    lowest = next((row["against"] for row in row_by_backend.values() if row.get("against")), None)
    return HeatRow(
        title=str(newest["work"]),
        workload=str(newest["workload"]),
        verdict=SEPARATE if is_separate else str(newest["verdict"] or NOTHING_TO_COMPARE),
        slot=slot_of(fastest) if fastest else None,
        cells=[_heat(row_by_backend.get(backend), fastest, None if is_separate else lowest) for backend in backends],
        caveats={} if is_separate else named_caveats([str(newest.get("caveats") or "")]),
    )


def _heat(row: Row | None, fastest: str | None, lowest: str | None) -> HeatCell:
    """Return a cell of the heat map; `lowest` is the backend that ratios are relative to, None without ratios."""
    if row is None:
        return HeatCell(NOTHING, hint="not measured")
    if row["step_time_s"] is None:
        return HeatCell(str(row["status"]), cell_id=str(row["cell_id"]), hint=str(row["failures"] or "not measured"))
    ratio = None if lowest is None else 1.0 if row["backend"] == lowest else row["ratio"]
    hint_text = f"{number(ratio)} times the lowest; run {row['run_id']}" if ratio else f"run {row['run_id']}"
    return HeatCell(
        text=quantity(row["step_time_s"], MILLISECOND),
        aside=interval(row["low"], row["high"], row["step_time_s"], MILLISECOND.size) or "no interval",
        shade=None if ratio is None else sum(ratio > bound for bound in SHADES),
        fastest=fastest is not None and row["backend"] == fastest,
        cell_id=str(row["cell_id"]),
        hint="; ".join([hint_text, *_caveats(row)]),
    )


def _caveats(row: Row) -> list[str]:
    """Return the recompiles and graph breaks in the measured epochs of a cell's worst process."""
    counts = {"recompiles": row.get("recompiles"), "graph breaks": row.get("graph_breaks")}
    return [f"{name} in the measured epochs: {count}" for name, count in counts.items() if count]


def _figures(question: Question, rows: Sequence[Row]) -> Panel:
    backends, figure_blocks = blocks(rows)
    return Panel(
        question, len(rows), "figures", backends=backends, blocks=figure_blocks, statistics=explained(figure_blocks)
    )


def _panel(kind: str, **fields: Callable[[Sequence[Row]], Any]) -> Callable[[Question, Sequence[Row]], Panel]:
    """Return a function that makes a panel of a kind; `fields` compute its content from the rows."""
    return lambda question, rows: Panel(
        question, len(rows), kind, **{name: value_of(rows) for name, value_of in fields.items()}
    )


FORMATS: Mapping[str, Callable[[Any], str]] = {
    "ratio": percent_change,
    "step_time_now_s": partial(quantity, unit=MILLISECOND),
}
Column = str | Callable[[Row], str]


def _table(
    columns: Mapping[str, Column], is_bad: Callable[[Row], bool] = lambda row: False
) -> Callable[[Question, Sequence[Row]], Panel]:
    """Return a function that makes a table; `columns` are values of the rows, or functions of a row, by heading."""

    def make(question: Question, rows: Sequence[Row]) -> Panel:
        table = [
            TableRow([_text(row, column) for column in columns.values()], is_bad(row), str(row.get("cell_id") or ""))
            for row in rows
        ]
        return Panel(question, len(rows), "table", columns=list(columns), table=table)

    return make


def _text(row: Row, column: Column) -> str:
    if callable(column):
        return column(row)
    return NOTHING if row[column] is None else FORMATS.get(column, str)(row[column])


def _value(row: Row) -> str:
    unit = "" if row["unit"] == "1" else row["unit"]
    return NOTHING if row["value"] is None else f"{number(row['value'])} {unit}".rstrip()


def _interval(row: Row) -> str:
    return NOTHING if row["value"] is None else interval(row["low"], row["high"], row["value"]) or "no interval"


def _ratio_to_best(row: Row) -> str:
    return NOTHING if row["ratio"] is None else ratio_text(row["ratio"])


def _status(row: Row) -> str:
    return str(row["failures"] or row["status"])


def _look(row: Row) -> str:
    return f"nobody: acknowledged: {row['acknowledged']}" if row["acknowledged"] else row["look"] or NOTHING


COMMANDS: Mapping[str, Column] = {
    **{"command": "work", "backend": "backend", "metric": "metric", "value": _value, "interval": _interval},
    **{"relative to the best": _ratio_to_best, "status": _status},
}
MAKERS: Mapping[str, Callable[[Question, Sequence[Row]], Panel]] = {
    "matrix": _matrix,
    "comparison": _panel("strips", pictures=stored_charts.comparisons),
    "first_epoch": _panel("strips", pictures=stored_charts.starts),
    "memory": _panel("strips", pictures=stored_charts.memories),
    "calls": _panel("strips", pictures=stored_charts.calls),
    "input_stalls": _panel("series", series=stored_charts.input_stalls),
    "device_scaling": _panel("strips", pictures=stored_charts.device_scalings),
    "fc_scaling": _panel("strips", pictures=stored_charts.worker_scalings),
    "figures": _figures,
    "commands": _table(COMMANDS, is_bad=lambda row: bool(row["status"] != "ok")),
    "trend": _panel("series", series=stored_charts.trends),
    "roofline": _panel("scatter", scatter=stored_charts.scatter, rates=stored_charts.rates),
    "regressions": _table(
        {"workload": "workload", "backend": "backend", "slower by": "ratio", "step now": "step_time_now_s"}
        | {"since run": "at_run_id", "who should look": _look},
        is_bad=lambda row: bool(row["verdict"] == "slower"),
    ),
    "failures": _table(
        {"status": "status", "workload": "workload", "backend": "backend", "attempts": "attempts"}
        | {"runs": "runs", "last run": "last_run_id", "example": "example"},
        is_bad=lambda row: True,
    ),
    "machines": _table(
        {"host": "host_id", "CPU": "cpu_model", "CPUs": "logical_cpus", "machine type": "machine_type"}
        | {"device": "hardware", "backend": "backend", "version": "backend_version", "Keras": "keras_version"}
        | {"runs": "runs", "attempts": "attempts", "last run": "last_run_id"}
    ),
    "runs": _table(
        {"run": "run_id", "matrix": "matrix_path", "injected fault": "fault", "cells": "cells", "attempts": "attempts"}
        | {"ok": "ok", "failed": "failed", "CPU": "cpu_model"}
    ),
}
