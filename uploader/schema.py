"""The warehouse's tables, derived from the definitions of a record and of a finding; versioned.

    runs          one row per run
    cells         one row per attempt: the descriptive fields of its record
    measurements  one row per measured value, in long format by metric and step (epoch, worker or boundary)
    findings      one row per estimate or verdict, as `analysis` computed it

Every table has `day` (its partitioning column), `workload` and `backend` (its clustering columns; null if not
applicable), and `row_hash`, which `uploader verify` sums. JSON columns are used only for objects with open keys.

A new field of a record becomes a NULLABLE column, which `uploader migrate` adds. No other change is made to a table.

History of `TABLES_VERSION`:
  1  first version
  2  cells.usage_* and cells.tensorboard_*; values of `usage` are measurements and replace those of `task`
  3  cells.work_*: the work that a process did; cells.resolved_* for settings that a user's workload may decide
  4  metric times.suite_total_time_s; rows of records of schema version 3 and older keep its former name,
     times.seed_total_time_s, so that their keys and hashes stay equal; views and dashboards read both
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Any

from keras_matrix.records.findings import Finding
from keras_matrix.records.schema import Record

TABLES_VERSION = 4
APPENDED = "_appended"  # suffix of an append-only dataset's tables; the names without it are views
LONGEST_ROW_BYTES = 1 << 20


class Type(StrEnum):
    """Types of columns, by BigQuery's names."""

    STRING = "STRING"
    INT64 = "INT64"
    FLOAT64 = "FLOAT64"
    BOOL = "BOOL"
    DATE = "DATE"
    TIMESTAMP = "TIMESTAMP"
    JSON = "JSON"


class ColumnMode(StrEnum):
    """Mode of a column, by BigQuery's names."""

    REQUIRED = "REQUIRED"
    NULLABLE = "NULLABLE"
    REPEATED = "REPEATED"


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column; `path` is the field of a record that it stores, empty for a computed column."""

    name: str
    type: Type
    mode: ColumnMode
    meaning: str
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """One table. `key` are the columns that identify a row; NULL counts as a value there."""

    name: str
    meaning: str
    columns: tuple[TableColumn, ...]
    key: tuple[str, ...]
    clustered: tuple[str, ...] = ("workload", "backend")

    def column(self, name: str) -> TableColumn:
        """Return a column by its name."""
        return next(column for column in self.columns if column.name == name)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One field of a record: its path, its Python type and its meaning."""

    path: tuple[str, ...]
    kind: Any
    meaning: str


# Numbers in these groups are measurements; all other fields are descriptive.
MEASURED_GROUPS = (
    "times",
    "learning",
    "memory",
    "surroundings",
    "harness",
    "parallel",
    "replicas",
    "task",
    "usage",
    "input",
)
# Columns of settings have no prefix; those of other groups are prefixed with the group's name.
UNPREFIXED = "settings"
LEFT_OUT = {
    ("surroundings", "further_gpus"): "a nested table per GPU; energy and power of all GPUs are in usage",
    ("parallel", "places"): "nested arrays; they were validated before the record was published",
    ("replicas", "replicas"): "nested arrays; they were validated before the record was published",
    ("work", "stretches"): "arrays of counts, from which status and the work_* columns are derived; see the record",
    ("task", "metrics"): "each is a measurement `task.metrics.NAME`, in the unit that the user declared",
}
SCALARS = {str: Type.STRING, int: Type.INT64, float: Type.FLOAT64, bool: Type.BOOL}


def leaves(kind: type, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Yield every field of a dataclass, including those of nested dataclasses."""
    hints = typing.get_type_hints(kind)
    for field in fields(kind):
        inner, field_path = _without_none(hints[field.name]), (*path, field.name)
        meaning = field.metadata.get("meaning") or f"{field.name.replace('_', ' ')} (docs/matrix.md)"
        if is_dataclass(inner) and isinstance(inner, type):
            yield from leaves(inner, field_path)
        else:
            yield Leaf(field_path, hints[field.name], meaning)


@cache
def record_leaves() -> tuple[Leaf, ...]:
    """Return every field of a record; computed once, because each command loads this module."""
    return tuple(leaves(Record))


def is_metric(leaf: Leaf) -> bool:
    """Return whether a field of a record is a measurement: a number, or numbers, in a measured group."""
    return leaf.path[0] in MEASURED_GROUPS and leaf.path not in LEFT_OUT and _numbers(_without_none(leaf.kind))


def metrics() -> tuple[Leaf, ...]:
    """Return the measured fields of a record; keys below `learning.metrics` are open."""
    return tuple(leaf for leaf in record_leaves() if is_metric(leaf))


def unit_of(metric: str) -> str:
    """Return the unit of a metric from the suffix of its name, "1" if no suffix matches."""
    return next((unit for end, unit in UNITS if metric.endswith(end)), "1")


UNITS = (
    ("samples_per_s", "samples/s"),
    ("steps_per_s", "steps/s"),
    ("samples_per_j", "samples/J"),
    ("flop_per_s", "FLOP/s"),
    ("flops_per_step", "FLOP"),
    ("bytes_per_step", "B"),
    ("_bytes", "B"),
    ("_hz", "Hz"),
    ("_c", "°C"),
    ("_w", "W"),
    ("_j", "J"),
    ("_s", "s"),
)


def _without_none(kind: Any) -> Any:
    """Return a type without None; for a union of several types, a tuple."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind
    kinds = tuple(argument for argument in typing.get_args(kind) if argument is not type(None))
    return kinds[0] if len(kinds) == 1 else kinds


def _numbers(kind: Any) -> bool:
    if typing.get_origin(kind) is list:
        return _numbers(_without_none(typing.get_args(kind)[0]))
    if typing.get_origin(kind) is dict:
        return _numbers(typing.get_args(kind)[1])
    return kind in (int, float)


def _column(leaf: Leaf) -> TableColumn:
    name = "_".join(leaf.path[1:] if leaf.path[0] == UNPREFIXED else leaf.path)
    kind, mode = (
        _without_none(leaf.kind),
        ColumnMode.REQUIRED if leaf.kind == _without_none(leaf.kind) else ColumnMode.NULLABLE,
    )
    if leaf.path[0] not in TOP:
        mode = ColumnMode.NULLABLE  # the group may be absent, and a later version may add a field to it
    if typing.get_origin(kind) is list:
        return TableColumn(name, Type.STRING, ColumnMode.REPEATED, leaf.meaning, leaf.path)
    return TableColumn(name, _type(kind), mode, leaf.meaning, leaf.path)


def _type(kind: Any) -> Type:
    if typing.get_origin(kind) is dict:
        return Type.JSON
    if isinstance(kind, tuple):
        return Type.STRING  # such as a count or "all", stored as text
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return Type.STRING
    return SCALARS[kind]


TOP = ("run_id", "cell_id", "repeat", "attempt", "status", "started_at", "schema_version")
DAY = TableColumn("day", Type.DATE, ColumnMode.REQUIRED, "day on which the run began, UTC; the partitioning column")
ROW_HASH = TableColumn(
    "row_hash", Type.INT64, ColumnMode.REQUIRED, "first 40 bits of the sha256 of the row's other values"
)
WORKLOAD = TableColumn("workload", Type.STRING, ColumnMode.NULLABLE, "the workload")
BACKEND = TableColumn("backend", Type.STRING, ColumnMode.NULLABLE, "the backend")
SOURCE = TableColumn(
    "source", Type.STRING, ColumnMode.NULLABLE, "where an imported row came from; null for rows of this program"
)


def _of_record() -> tuple[TableColumn, ...]:
    columns = [_column(leaf) for leaf in record_leaves() if not is_metric(leaf) and leaf.path not in LEFT_OUT]
    column_by_name = {column.name: column for column in columns}
    column_by_name["started_at"] = replace(column_by_name["started_at"], type=Type.TIMESTAMP)
    return (DAY, *column_by_name.values(), SOURCE, ROW_HASH)


def _keys(*names: str) -> tuple[TableColumn, ...]:
    hints = {leaf.path[0]: leaf for leaf in record_leaves() if len(leaf.path) == 1}
    return tuple(_column(hints[name]) for name in names)


def _of_finding() -> tuple[TableColumn, ...]:
    identifiers = (
        TableColumn("run_id", Type.STRING, ColumnMode.REQUIRED, "the run"),
        TableColumn(
            "revision", Type.INT64, ColumnMode.REQUIRED, "revision of the run's findings; the highest one is current"
        ),
        TableColumn("finding_id", Type.STRING, ColumnMode.REQUIRED, "identifies the finding within its run"),
    )
    required = ("kind", "metric", "work", "method", "method_version", "unit")
    columns = [_column(leaf) for leaf in leaves(Finding)]
    return (
        DAY,
        *identifiers,
        *(
            replace(column, mode=ColumnMode.REQUIRED if column.name in required else ColumnMode.NULLABLE)
            for column in columns
        ),
        ROW_HASH,
    )


RUN_COLUMNS = (
    TableColumn("run_id", Type.STRING, ColumnMode.REQUIRED, "the start of the runner; sorts by time"),
    TableColumn("started_at", Type.TIMESTAMP, ColumnMode.NULLABLE, "wall-clock label, UTC"),
    TableColumn("session", Type.STRING, ColumnMode.NULLABLE, "first run of the session, shared by its arms"),
    TableColumn("arm", Type.STRING, ColumnMode.NULLABLE, "side of a comparison; empty for a run outside of one"),
    TableColumn("fault", Type.STRING, ColumnMode.NULLABLE, "injected fault; such a run is excluded from histories"),
    TableColumn("plan_id", Type.STRING, ColumnMode.NULLABLE, "hash of the plan"),
    TableColumn("planned", Type.INT64, ColumnMode.NULLABLE, "repeats planned"),
    TableColumn("start", Type.STRING, ColumnMode.NULLABLE, "fork or fresh"),
    TableColumn("stopping", Type.STRING, ColumnMode.NULLABLE, "how the number of repeats was decided"),
    TableColumn("order_seed", Type.INT64, ColumnMode.NULLABLE, "seed of the random order"),
    TableColumn("matrix_path", Type.STRING, ColumnMode.NULLABLE, "name of the matrix file, without its folders"),
    TableColumn("matrix_text", Type.STRING, ColumnMode.NULLABLE, "the matrix"),
    TableColumn("versions", Type.JSON, ColumnMode.NULLABLE, "installed version of each package"),
)

_RECORD_COLUMNS = _of_record()
_MACHINE = tuple(column for column in _RECORD_COLUMNS if column.path[:1] == ("machine",))
RUNS = Table(
    "runs",
    "One row per run: its plan, its matrix and its machine.",
    (DAY, *RUN_COLUMNS, *_MACHINE, ROW_HASH),
    ("run_id",),
    clustered=("run_id",),
)
CELLS = Table(
    "cells",
    "One row per attempt at a repeat of a cell: settings, resolved settings, device, machine and status.",
    _RECORD_COLUMNS,
    ("run_id", "cell_id", "repeat", "attempt"),
)
MEASUREMENTS = Table(
    "measurements",
    "One row per measured value of an attempt; a value that was not measured has no row.",
    (
        DAY,
        *_keys("run_id", "cell_id", "repeat", "attempt"),
        WORKLOAD,
        BACKEND,
        TableColumn("metric", Type.STRING, ColumnMode.REQUIRED, "the field of the record, such as times.step_time_s"),
        TableColumn(
            "step", Type.INT64, ColumnMode.NULLABLE, "index of an epoch, worker or boundary, from 0; null for a scalar"
        ),
        TableColumn("value", Type.FLOAT64, ColumnMode.REQUIRED, "the value, in `unit`"),
        TableColumn("unit", Type.STRING, ColumnMode.REQUIRED, "s, B, samples/s ...; 1 for counts and ratios"),
        ROW_HASH,
    ),
    ("run_id", "cell_id", "repeat", "attempt", "metric", "step"),
)
FINDINGS = Table(
    "findings",
    "One row per estimate or verdict on a run, as computed by analysis; dashboards show these.",
    _of_finding(),
    ("run_id", "revision", "finding_id"),
)
TABLES = (RUNS, CELLS, MEASUREMENTS, FINDINGS)
BY_NAME = {table.name: table for table in TABLES}
