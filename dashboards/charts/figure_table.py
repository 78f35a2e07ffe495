"""The table of figures of report and dashboard: a block per piece of work, a row per figure, a value per backend.

Pure functions; a figure that was not measured is a dash. `analysis.stats.cell_statistics` defines the statistics.
A `Grid` is a table of texts, a row per name, of other parts of a page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keras_matrix.analysis.comparison.context import SameWork
from keras_matrix.analysis.comparison.table import in_order
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


def statistic_lines(
    columns: Sequence[Mapping[str, float]], hidden_by_column: Sequence[Mapping[str, Hidden]] = ()
) -> list[FigureRow]:
    """Return the rows of the statistics that some column has, or that are always shown; columns are by metric.

    `hidden_by_column` has, for each column, what was measured but is not known because of noise.
    """
    lines = {
        statistic: _line(statistic, columns, hidden_by_column or [{}] * len(columns))
        for statistic in STATISTICS
        if statistic.in_tables
    }
    return [line for statistic, line in lines.items() if statistic.always or line.measured]


def explained(shown_blocks: Sequence[WorkFigures]) -> list[Statistic]:
    """Return the statistics that these blocks show."""
    names = {line.name for block in shown_blocks for line in block.lines}
    return [statistic for statistic in STATISTICS if statistic.in_tables and statistic.label in names]


def _line(
    statistic: Statistic, columns: Sequence[Mapping[str, float]], hidden_by_column: Sequence[Mapping[str, Hidden]]
) -> FigureRow:
    unit, size = statistic.scale
    values = []
    for column, hidden_values in zip(columns, hidden_by_column, strict=True):
        if (value := column.get(statistic.metric)) is not None:
            values.append(Value(number(value, size)))
        elif (noise := hidden_values.get(statistic.metric)) is not None:
            values.append(_not_resolved(noise, unit, size))
        else:
            values.append(NOT_MEASURED)
    return FigureRow(statistic.label, unit, values)


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
    columns = [{m: float(row["estimate"]) for (b, m), row in row_by_key.items() if b == name} for name in backends]
    step = FigureRow(
        "time per step", "ms", [_step(row_by_key.get((b, STEP_TIME_NAME))) for b in backends], primary=True
    )
    details_text = "run " + ", ".join(sorted({str(run_id) for run_id in newest.values()}))
    return WorkFigures(str(rows[0]["work"]), "", details_text, "", None, [step, *statistic_lines(columns)])


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
