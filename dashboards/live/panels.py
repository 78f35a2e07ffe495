"""From a question's rows to a panel: a heat map, strips, courses, a field of points, or a table; values, no markup.

Promise: a panel shows what its rows hold and computes no figure. Every text may be hostile: the template escapes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from keras_matrix.analysis.comparison.table import in_order
from keras_matrix.analysis.stats.cell_statistics import Statistic
from keras_matrix.dashboards.charts import stored_charts, time_series
from keras_matrix.dashboards.charts.dot_plots import Picture, slot_of
from keras_matrix.dashboards.charts.figure_table import Block, blocks, explained
from keras_matrix.dashboards.charts.format import DASH, MILLISECOND, interval, number
from keras_matrix.dashboards.charts.roofline import Drawing
from keras_matrix.dashboards.live.questions import Question

Row = Mapping[str, Any]
# Ratio to the quickest up to which a cell of the heat map has its shade.
SHADES = (1.0, 1.1, 1.5, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
class Heat:
    """One cell of the heat map: its figure, its interval, and how much darker than the quickest."""

    text: str
    aside: str = ""
    shade: int | None = None
    fastest: bool = False
    cell_id: str = ""
    hint: str = ""


NOTHING_TO_COMPARE = "nothing to compare"
# Of a row whose cells are of several runs: their figures stand side by side, without a ratio.
SEPARATE = "separate sessions, not alternating: see runner report --merge"


@dataclass(frozen=True, slots=True)
class HeatRow:
    """One piece of work over the backends."""

    title: str
    workload: str
    verdict: str
    slot: int | None
    cells: list[Heat]
    caveat: str = ""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row of a table; `link` leads to a cell's page."""

    values: list[str]
    bad: bool = False
    cell_id: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """A question with its answer, in the one form that suits it; the others are empty."""

    question: Question
    count: int
    kind: str
    backends: list[str] = field(default_factory=list)
    heat: list[HeatRow] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    series: list[time_series.Picture] = field(default_factory=list)
    scatter: list[tuple[Drawing, Drawing]] = field(default_factory=list)
    rates: list[tuple[str, str, str, int]] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    table: list[TableRow] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    statistics: list[Statistic] = field(default_factory=list)
    problem: str = ""


def panel(question: Question, rows: Sequence[Row]) -> Panel:
    """Return a question's panel."""
    return MAKERS[question.name](question, rows)


def failed(question: Question, problem: str) -> Panel:
    """Return the panel of a question that the warehouse did not answer."""
    return Panel(question, 0, "problem", problem=problem)


def _matrix(question: Question, rows: Sequence[Row]) -> Panel:
    backends = in_order(str(row["backend"]) for row in rows)
    found = [_heat_row(list(group), backends) for _, group in groupby(rows, lambda row: (row["work"], row["work_id"]))]
    return Panel(question, len(rows), "heat", backends=backends, heat=found)


def _heat_row(rows: Sequence[Row], backends: Sequence[str]) -> HeatRow:
    # Of two runs that measured the same work on different backends, each cell shows its own newest.
    by_backend = {row["backend"]: row for row in sorted(rows, key=lambda row: str(row["run_id"]))}
    newest = max(rows, key=lambda row: str(row["run_id"]))
    separate = len({row["run_id"] for row in by_backend.values()}) > 1
    fastest = None if separate else newest["fastest"]
    caveats = str(newest.get("caveats") or "")
    return HeatRow(
        title=str(newest["work"]),
        workload=str(newest["workload"]),
        verdict=SEPARATE if separate else str(newest["verdict"] or NOTHING_TO_COMPARE),
        slot=slot_of(fastest) if fastest else None,
        cells=[_heat(by_backend.get(backend), fastest, separate) for backend in backends],
        caveat=caveats if "TF32: " in caveats and not separate else "",
    )


def _heat(row: Row | None, fastest: str | None, separate: bool) -> Heat:
    if row is None:
        return Heat(DASH, hint="not measured")
    if row["step_time_s"] is None:
        return Heat(str(row["status"]), cell_id=str(row["cell_id"]), hint=str(row["failures"] or "not measured"))
    told = interval(row["low"], row["high"], row["step_time_s"], MILLISECOND.size)
    compared = not separate and row["verdict"] != NOTHING_TO_COMPARE
    ratio = row["ratio"] if row["ratio"] is not None else 1.0 if row["verdict"] and fastest else None
    ratio = ratio if compared else None
    hint = f"{number(ratio)} times the quickest; run {row['run_id']}" if ratio else f"run {row['run_id']}"
    return Heat(
        text=f"{number(row['step_time_s'], MILLISECOND.size)}\u00a0ms",
        aside=told or "no interval",
        shade=_shade(row["ratio"] or 1.0) if compared else None,
        fastest=fastest is not None and row["backend"] == fastest,
        cell_id=str(row["cell_id"]),
        hint="; ".join([hint, *_caveats(row)]),
    )


def _caveats(row: Row) -> list[str]:
    """Return what the measured epochs of a cell's worst process contain besides its steps."""
    counts = {"recompiles": row.get("recompiles"), "graph breaks": row.get("graph_breaks")}
    return [f"{name} in the measured epochs: {count}" for name, count in counts.items() if count]


def _shade(ratio: float) -> int:
    return sum(ratio > bound for bound in SHADES)


def _figures(question: Question, rows: Sequence[Row]) -> Panel:
    backends, found = blocks(rows)
    return Panel(question, len(rows), "figures", backends=backends, blocks=found, statistics=explained(found))


def _pictures(make: Callable[[Sequence[Row]], list[Picture]]) -> Callable[[Question, Sequence[Row]], Panel]:
    return lambda question, rows: Panel(question, len(rows), "strips", pictures=make(rows))


def _trend(question: Question, rows: Sequence[Row]) -> Panel:
    return Panel(question, len(rows), "series", series=stored_charts.trends(rows))


def _roofline(question: Question, rows: Sequence[Row]) -> Panel:
    return Panel(question, len(rows), "scatter", scatter=stored_charts.scatter(rows), rates=stored_charts.rates(rows))


@dataclass(frozen=True, slots=True)
class Shown:
    """A column of a table: its heading, the row's value it shows, and how."""

    heading: str
    name: str
    text: Callable[[Any], str] = str


def _ratio(value: Any) -> str:
    return DASH if value is None else f"{value - 1:+.1%}".replace("%", "\u00a0%")


def _milliseconds(value: Any) -> str:
    return DASH if value is None else f"{number(value, MILLISECOND.size)}\u00a0ms"


def _table(*shown: Shown, bad: bool = False) -> Callable[[Question, Sequence[Row]], Panel]:
    def make(question: Question, rows: Sequence[Row]) -> Panel:
        lines = [
            TableRow(
                [DASH if row[one.name] is None else one.text(row[one.name]) for one in shown],
                bad,
                str(row.get("cell_id") or ""),
            )
            for row in rows
        ]
        return Panel(question, len(rows), "table", columns=[one.heading for one in shown], table=lines)

    return make


def _commands(question: Question, rows: Sequence[Row]) -> Panel:
    columns = ["command", "backend", "metric", "value", "interval", "against the best", "status"]
    lines = [TableRow(_command(row), row["status"] != "ok", str(row["cell_id"])) for row in rows]
    return Panel(question, len(rows), "table", columns=columns, table=lines)


def _command(row: Row) -> list[str]:
    value, unit = row["value"], row["unit"] if row["unit"] != "1" else ""
    return [
        str(row["work"]),
        str(row["backend"]),
        str(row["metric"]),
        DASH if value is None else f"{number(value)}\u00a0{unit}".rstrip(),
        DASH if value is None else interval(row["low"], row["high"], value) or "no interval",
        DASH if row["ratio"] is None else f"{number(row['ratio'])}×",
        str(row["failures"] or row["status"]),
    ]


MAKERS: Mapping[str, Callable[[Question, Sequence[Row]], Panel]] = {
    "matrix": _matrix,
    "comparison": _pictures(stored_charts.comparisons),
    "first_epoch": _pictures(stored_charts.starts),
    "memory": _pictures(stored_charts.memories),
    "fc_scaling": _pictures(stored_charts.scalings),
    "figures": _figures,
    "commands": _commands,
    "trend": _trend,
    "roofline": _roofline,
    "regressions": _table(
        Shown("workload", "workload"),
        Shown("backend", "backend"),
        Shown("slower by", "ratio", _ratio),
        Shown("step now", "step_time_now_s", _milliseconds),
        Shown("since run", "at_run_id"),
        Shown("who should look", "look"),
        bad=True,
    ),
    "failures": _table(
        Shown("status", "status"),
        Shown("workload", "workload"),
        Shown("backend", "backend"),
        Shown("attempts", "attempts"),
        Shown("runs", "runs"),
        Shown("last run", "last_run_id"),
        Shown("for example", "example"),
        bad=True,
    ),
    "machines": _table(
        Shown("host", "host_id"),
        Shown("CPU", "cpu_model"),
        Shown("CPUs", "logical_cpus"),
        Shown("machine type", "machine_type"),
        Shown("device", "hardware"),
        Shown("backend", "backend"),
        Shown("version", "backend_version"),
        Shown("Keras", "keras_version"),
        Shown("runs", "runs"),
        Shown("attempts", "attempts"),
        Shown("last run", "last_run_id"),
    ),
    "runs": _table(
        Shown("run", "run_id"),
        Shown("matrix", "matrix_path"),
        Shown("planted", "fault"),
        Shown("cells", "cells"),
        Shown("attempts", "attempts"),
        Shown("ok", "ok"),
        Shown("failed", "failed"),
        Shown("CPU", "cpu_model"),
    ),
}
