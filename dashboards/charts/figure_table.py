"""The table of figures of report and dashboard: a block per piece of work, a row per figure, a value per backend.

Pure functions; a figure that was not measured is a dash. `analysis.stats.cell_statistics` defines the statistics.
A `Grid` is a table of texts, a row per name, of other parts of a page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from keras_matrix.analysis.comparison.context import SameWork
from keras_matrix.analysis.comparison.table import in_order
from keras_matrix.analysis.cost import COST_LABEL, COST_METRIC
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.stats.cell_statistics import STATISTICS, STEP_TIME_NAME, Hidden, Statistic
from keras_matrix.records.text import MILLISECOND, NOTHING, interval, number

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Value:
    """One figure of the table; `hint` explains a dash, `mark` and `link` lead to its caveats."""

    text: str
    aside: str = ""
    hint: str = ""
    fastest: bool = False
    bad: bool = False
    mark: str = ""
    link: str = ""
    flag: str = "fastest"


NOT_MEASURED = Value(NOTHING)
NOT_RESOLVED = "not resolved"


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One figure of all backends; `explained` unless a user has named it, as a metric of a command."""

    name: str
    unit: str
    values: list[Value]
    primary: bool = False
    explained: bool = True

    @property
    def measured(self) -> bool:
        """Return whether any backend has a value."""
        return any(value.text != NOTHING for value in self.values)


@dataclass(frozen=True, slots=True)
class WorkFigures:
    """One piece of work in the table."""

    title: str
    anchor: str
    details: str
    verdict: str
    slot: int | None
    lines: list[FigureRow]
    same_work: SameWork | None = None
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StatisticColumn:
    """The statistics of a backend by metric: their values, those intervals that are known, and what noise hides."""

    values: Mapping[str, float] = field(default_factory=dict)
    intervals: Mapping[str, Estimate] = field(default_factory=dict)
    hidden: Mapping[str, Hidden] = field(default_factory=dict)


def statistic_lines(columns: Sequence[StatisticColumn]) -> list[FigureRow]:
    """Return the rows of the statistics that some column has, or that are always shown."""
    lines = {statistic: _line(statistic, columns) for statistic in STATISTICS if statistic.in_tables}
    return [line for statistic, line in lines.items() if statistic.always or line.measured]


def explained(shown_blocks: Sequence[WorkFigures]) -> list[Statistic]:
    """Return the statistics that these blocks show."""
    names = {line.name for block in shown_blocks for line in block.lines}
    return [statistic for statistic in STATISTICS if statistic.in_tables and statistic.label in names]


def _line(statistic: Statistic, columns: Sequence[StatisticColumn]) -> FigureRow:
    unit, size = statistic.scale
    values = []
    for column in columns:
        if (value := column.values.get(statistic.metric)) is not None:
            values.append(Value(number(value, size), _bounds(column.intervals.get(statistic.metric), size)))
        elif (noise := column.hidden.get(statistic.metric)) is not None:
            values.append(_not_resolved(noise, unit, size))
        else:
            values.append(NOT_MEASURED)
    return FigureRow(statistic.label, unit, values)


def _bounds(estimate: Estimate | None, size: float) -> str:
    return (interval(estimate.low, estimate.high, estimate.centre, size) or "") if estimate else ""


def _not_resolved(noise: Hidden, unit: str, size: float) -> Value:
    hint = "its interval contains zero, or there are too few epochs for one"
    return Value(NOT_RESOLVED, "" if noise.upper is None else f"below {number(noise.upper, size)} {unit}", hint)


def blocks(rows: Sequence[Row]) -> tuple[list[str], list[WorkFigures]]:
    """Return the backends and a block per piece of work, from stored findings."""
    backends = in_order(str(row["backend"]) for row in rows)
    return backends, [_block(group, backends) for group in by_work(rows)]


def by_work(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows of each work, in the order of their first ones, found by its id and not by its title.

    A work has another title in each run, by what varies there.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(str(row["work_id"] or row["work"]), []).append(row)
    return list(groups.values())


def _block(rows: Sequence[Row], backends: Sequence[str]) -> WorkFigures:
    newest = {row["backend"]: row["run_id"] for row in sorted(rows, key=lambda row: str(row["run_id"]))}
    row_by_key = {(row["backend"], row["metric"]): row for row in rows if row["run_id"] == newest[row["backend"]]}
    rows_of = {name: {m: row for (b, m), row in row_by_key.items() if b == name} for name in backends}
    columns = [_column(rows_of[name]) for name in backends]
    step = FigureRow(
        "time per step", "ms", [_step(row_by_key.get((b, STEP_TIME_NAME))) for b in backends], primary=True
    )
    details_text = "run " + ", ".join(sorted({str(run_id) for run_id in newest.values()}))
    costs = [rows_of[name].get(COST_METRIC) for name in backends]
    lines = [step, *statistic_lines(columns), *_cost_lines(costs)]
    return WorkFigures(str(rows[0]["work"]), "", details_text, "", None, lines)


def _column(row_by_metric: Mapping[str, Row]) -> StatisticColumn:
    estimates = {metric: _estimate(row) for metric, row in row_by_metric.items()}
    known = {metric: estimate for metric, estimate in estimates.items() if estimate.bounds}
    return StatisticColumn({metric: estimate.centre for metric, estimate in estimates.items()}, known)


def _estimate(row: Row) -> Estimate:
    low, high = (None if row[end] is None else float(row[end]) for end in ("low", "high"))
    return Estimate(float(row["estimate"]), low, high, int(row.get("processes") or 0))


def _cost_lines(rows: Sequence[Row | None]) -> list[FigureRow]:
    """Return the line of the cost of samples; none if no run was given prices."""
    units = {str(row["unit"]) for row in rows if row}
    return [
        cost_line([_estimate(row) if row and row["unit"] == unit else None for row in rows], unit)
        for unit in sorted(units)
    ]


def cost_line(estimates: Sequence[Estimate | None], currency: str, hints: Sequence[str] = ()) -> FigureRow:
    """Return the line of the cost of samples; a hint says what a cost is made of, or why it is not known."""
    values = [
        Value(number(estimate.centre), _bounds(estimate, 1.0) or "no interval", hint)
        if estimate
        else Value(NOTHING, hint=hint)
        for estimate, hint in zip(estimates, hints or [""] * len(estimates), strict=True)
    ]
    return FigureRow(COST_LABEL, currency, values)


def _step(row: Row | None) -> Value:
    if row is None:
        return NOT_MEASURED
    size = MILLISECOND.size
    interval_text = interval(row["low"], row["high"], row["estimate"], size) or "no interval"
    return Value(number(row["estimate"], size), interval_text)


@dataclass(frozen=True, slots=True)
class GridRow:
    """A name and its values, one per column."""

    name: str
    values: list[str]


@dataclass(frozen=True, slots=True)
class Grid:
    """A table with its title; `lead` explains it."""

    title: str
    columns: list[str]
    rows: list[GridRow]
    lead: str = ""
