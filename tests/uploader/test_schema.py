"""The tables are derived from the record: each field is in them exactly once."""

from __future__ import annotations

import pytest

from keras_matrix.records.findings import Finding
from keras_matrix.records.schema import Record
from keras_matrix.uploader.bigquery import ddl
from keras_matrix.uploader.local import parquet
from keras_matrix.uploader.schema import (
    BY_NAME,
    CELLS,
    FINDINGS,
    LEFT_OUT,
    MEASUREMENTS,
    TABLES,
    ColumnMode,
    Type,
    is_metric,
    leaves,
    metrics,
    unit_of,
)
from keras_matrix.uploader.sql import meaning_of_view, to_duckdb, views


def test_every_field_of_a_record_is_a_column_a_metric_or_omitted_with_a_reason() -> None:
    columns = {column.path for column in CELLS.columns if column.path}
    found = {leaf.path: (leaf.path in columns, is_metric(leaf), leaf.path in LEFT_OUT) for leaf in leaves(Record)}
    assert {path: homes for path, homes in found.items() if sum(homes) != 1} == {}


def test_every_value_of_a_finding_is_a_column() -> None:
    columns = {column.name for column in FINDINGS.columns}
    assert {leaf.path[0] for leaf in leaves(Finding)} <= columns


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_table_has_unique_columns_its_key_and_its_partitioning_column(table: object) -> None:
    table = BY_NAME[str(getattr(table, "name", ""))]
    names = [column.name for column in table.columns]
    assert len(names) == len(set(names))
    assert {*table.key, *table.clustered, "day", "row_hash"} <= set(names)
    assert all(name.isidentifier() and name == name.lower() for name in names)


def test_only_objects_with_open_keys_are_json() -> None:
    found = {f"{table.name}.{c.name}" for table in TABLES for c in table.columns if c.type is Type.JSON}
    assert found == {"runs.versions", "cells.params", "cells.versions", "findings.facts"}


def test_columns_of_groups_are_nullable_so_that_fields_can_be_added() -> None:
    grouped = [column for column in CELLS.columns if len(column.path) > 1]
    assert {column.mode for column in grouped} <= {ColumnMode.NULLABLE, ColumnMode.REPEATED}


@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        ("times.step_time_s", "s"),
        ("times.samples_per_s", "samples/s"),
        ("memory.peak_host_memory_bytes", "B"),
        ("learning.loss", "1"),
        ("surroundings.gpu.powers_w", "W"),
        ("parallel.flops_per_step", "FLOP"),
    ],
)
def test_unit_of_a_metric_follows_from_its_suffix(metric: str, unit: str) -> None:
    assert unit_of(metric) == unit
    assert metric in {".".join(leaf.path) for leaf in metrics()}


def test_the_ddl_partitions_by_day_and_clusters_by_workload_and_backend() -> None:
    made = ddl.create_table("p.d", MEASUREMENTS)
    assert made.startswith("CREATE TABLE IF NOT EXISTS `p.d.measurements` (\n  day DATE NOT NULL OPTIONS")
    assert "PARTITION BY day\nCLUSTER BY workload, backend\n" in made


def test_page_of_the_tables_describes_every_column_and_view() -> None:
    sections = dict(part.split("\n", 1) for part in ddl.page().split("\n## ")[1:])
    assert set(sections) == {*BY_NAME, *(f"{name} (view)" for name in views())}
    rows = [row.split(" | ") for row in ddl.page().splitlines() if row.startswith("| `")]
    assert len(rows) == sum(len(table.columns) for table in TABLES) > 100
    for table in TABLES:
        for c in table.columns:
            assert f"| `{c.name}` | {c.type} | {c.mode.lower()} | {c.meaning} |\n" in sections[table.name]
    assert all(meaning_of_view(sql) in sections[f"{name} (view)"] for name, sql in views().items())


def test_view_of_appended_rows_removes_duplicates_also_of_null_keys() -> None:
    engine = parquet.engine()
    parquet.create_view(engine, MEASUREMENTS, [])
    names = ", ".join(MEASUREMENTS.key)
    engine.execute("CREATE TABLE given AS SELECT * FROM measurements")
    for step, row_hash in (("NULL", 1), ("NULL", 2), ("0", 3), ("1", 4), ("1", 4)):
        values = f"'run', 'cell', 0, 0, 'learning.loss', {step}, {row_hash}"
        engine.execute(f"INSERT INTO given ({names}, row_hash) VALUES ({values})")
    view = ddl.deduplicating_view("p.d", MEASUREMENTS).replace("`p.d.measurements_appended`", "given")
    shown = to_duckdb(view.partition("\nAS ")[2])
    assert engine.execute(f"SELECT step, row_hash FROM ({shown}) ORDER BY row_hash").fetchall() == [
        (None, 1),
        (0, 3),
        (1, 4),
    ]
