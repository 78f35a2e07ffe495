"""Which filters bound the days that a statement reads, and which do not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from keras_matrix.uploader.bigquery import ddl
from keras_matrix.uploader.bigquery.partition_pruning import push_down_day_filters, tables_read, unbounded
from keras_matrix.uploader.local import parquet
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from keras_matrix.uploader.outbox import Outbox
from keras_matrix.uploader.push import push
from keras_matrix.uploader.schema import BY_NAME, FINDINGS
from keras_matrix.uploader.sql import EVERY_DAY, since, to_duckdb, views
from keras_matrix.uploader.verify import verify
from keras_matrix.uploader.warehouse import QueryResult, Scalar
from tests.uploader.stored import results_with

FINDINGS_ONCE = "PARTITION BY day, run_id, revision, finding_id ORDER BY row_hash"


@pytest.mark.parametrize(
    "bound",
    [
        "day >= CAST(@since AS DATE)",
        "c.day > DATE '2026-01-01'",
        "day = '2026-01-01'",
        "'2026-01-01' <= c.day",
        "c.day BETWEEN @first AND @last",
        "c.status = 'ok' AND (c.repeat = 0 OR c.repeat = 1) AND c.day >= DATE_SUB(CURRENT_DATE(), INTERVAL 7 DAY)",
    ],
)
def test_comparison_of_day_with_a_constant_bounds_a_scan(bound: str) -> None:
    assert unbounded(f"SELECT run_id FROM cells AS c WHERE {bound}") == []


@pytest.mark.parametrize(
    "condition",
    [
        "TRUE",
        "c.day <= DATE '2026-01-01'",
        "c.day >= DATE '2026-01-01' OR c.repeat = 0",
        "c.day >= (SELECT MAX(day) FROM runs WHERE day >= @since)",
        "c.day >= DATE(c.started_at)",
        "CAST(c.day AS STRING) >= '2026-01-01'",
        "c.day >= NULL",
    ],
)
def test_condition_other_than_a_constant_lower_bound_does_not_bound_a_scan(condition: str) -> None:
    assert unbounded(f"SELECT run_id FROM cells AS c WHERE {condition}") == ["cells"]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1 FROM (SELECT * FROM cells) AS c WHERE c.day >= @since", ["cells"]),
        ("WITH c AS (SELECT * FROM cells) SELECT 1 FROM c WHERE c.day >= @since", ["cells"]),
        ("SELECT 1 FROM runs AS r JOIN cells AS c ON c.run_id = r.run_id WHERE r.day >= @since", ["cells"]),
        ("SELECT 1 FROM runs AS r JOIN cells AS c ON c.day = r.day WHERE r.day >= @since", ["cells"]),
        ("SELECT 1 FROM runs AS r JOIN cells AS c ON c.day >= @since WHERE r.day >= @since", []),
        ("SELECT 1 FROM runs AS r LEFT JOIN cells AS c ON c.day >= @since AND r.day >= @since", ["runs"]),
        (
            "SELECT 1 FROM runs AS r LEFT JOIN cells AS c ON c.run_id = r.run_id WHERE c.day >= @since",
            ["cells", "runs"],
        ),
        ("SELECT 1 FROM runs WHERE day >= @since UNION ALL SELECT 1 FROM runs", ["runs"]),
        ("SELECT 1 FROM runs WHERE day >= @since AND run_id IN (SELECT run_id FROM cells)", ["cells"]),
        ("SELECT 1 FROM elsewhere", []),
        ("SELECT 1 FROM `other.data.cells_appended`", ["cells_appended"]),
    ],
)
def test_a_bound_counts_in_the_block_that_scans_the_table(sql: str, expected: list[str]) -> None:
    assert unbounded(sql) == expected


def test_the_tables_of_a_view_are_read_by_a_query_of_it() -> None:
    assert tables_read("SELECT * FROM newest_cells JOIN elsewhere.cells AS e USING (cell_id)") == {
        "findings",
        "runs",
        "elsewhere.cells",
    }


def test_a_statement_for_an_append_only_dataset_filters_by_day_before_it_numbers_rows() -> None:
    found = push_down_day_filters(
        "SELECT f.run_id FROM findings AS f WHERE f.kind = 'ratio' AND f.day >= CAST(@since AS DATE)"
    )
    assert found == (
        "SELECT f.run_id FROM (SELECT * FROM findings_appended WHERE day >= CAST(@since AS DATE) "
        f"QUALIFY ROW_NUMBER() OVER ({FINDINGS_ONCE}) = 1) AS f "
        "WHERE f.kind = 'ratio' AND f.day >= CAST(@since AS DATE)"
    )


@pytest.mark.parametrize(
    "sql", ["SELECT run_id FROM findings", "SELECT run_id FROM other.findings WHERE day >= @since"]
)
def test_scans_without_a_bound_and_tables_of_other_datasets_stay_as_they_are(sql: str) -> None:
    assert push_down_day_filters(sql) == sql


def test_the_number_of_an_interval_keeps_its_type() -> None:
    assert "INTERVAL 7 DAY) QUALIFY" in push_down_day_filters(
        "SELECT run_id FROM cells WHERE day >= DATE_SUB(CURRENT_DATE(), INTERVAL 7 DAY)"
    )


@pytest.mark.parametrize("name", list(views()))
@pytest.mark.parametrize("append_only", [False, True], ids=["merged", "appended"])
@pytest.mark.parametrize(
    ("first_day", "bound", "meaning"),
    [
        (None, "DATE_SUB(CURRENT_DATE(), INTERVAL 400 DAY)", "Reads the last 400 days."),
        ("2020-02-29", "DATE '2020-02-29'", "Reads the days from 2020-02-29 on."),
    ],
)
def test_view_of_a_dataset_bounds_its_days_and_describes_them(
    name: str, append_only: bool, first_day: str | None, bound: str, meaning: str
) -> None:
    made = ddl.create_view("p.d", name, first_day, append_only=append_only)
    head, _, body = made.partition("\nAS ")
    assert meaning in head
    assert bound in body
    assert "@" not in body
    assert unbounded(body.replace("`p`.`d`.latest_findings", "elsewhere")) == []
    assert ("_appended" in body) == append_only


def test_the_view_of_an_append_only_table_numbers_rows_by_day_too() -> None:
    assert FINDINGS_ONCE in ddl.deduplicating_view("p.d", FINDINGS)


def test_views_over_appended_rows_have_the_rows_of_views_over_merged_ones(tmp_path: Path) -> None:
    """Every key twice, on two days: filtered before and after deduplication."""
    results = results_with(tmp_path / "results", runs=3)
    warehouse = LocalWarehouse(results.root / "warehouse")
    warehouse.create()
    push(results, warehouse, Outbox(results.root / "outbox"))
    engine = parquet.engine()
    for table in ("runs", "findings"):
        [path] = (warehouse.folder / table).glob("*.parquet")
        twice = f"SELECT * FROM '{path}' UNION ALL SELECT * FROM '{path}'"
        engine.execute(f"CREATE TABLE {table}_appended AS {twice}")
        engine.execute(f"CREATE VIEW {table} AS SELECT * FROM '{path}'")
    found = {}
    for way, view in (("merged", lambda sql: sql), ("appended", push_down_day_filters)):
        for name in ("latest_findings", "newest_cells"):
            sql = since(view(views()[name]), "DATE '2026-01-02'" if name == "newest_cells" else EVERY_DAY)
            engine.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {to_duckdb(sql)}")
        found[way] = {
            name: engine.execute(f"SELECT * FROM {name} ORDER BY ALL").fetchall()
            for name in ("latest_findings", "newest_cells")
        }
    assert found["appended"] == found["merged"]
    assert {name: len(rows) for name, rows in found["merged"].items()} == {"latest_findings": 3, "newest_cells": 1}


def test_views_of_the_local_warehouse_read_every_day() -> None:
    for name, sql in views().items():
        assert not re.search(r"[@$]since", to_duckdb(since(sql, EVERY_DAY)))
        assert EVERY_DAY in since(sql, EVERY_DAY), name


class Recording(LocalWarehouse):
    """A local warehouse that records its statements."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.statements: list[str] = []

    def query(self, sql: str, parameters: Mapping[str, Scalar] | None = None) -> QueryResult:
        """Record and run a statement."""
        self.statements.append(sql)
        return super().query(sql, parameters)


def test_verify_reads_no_table_for_all_days(tmp_path: Path) -> None:
    results = results_with(tmp_path / "results", runs=2)
    warehouse = Recording(results.root / "warehouse")
    warehouse.create()
    push(results, warehouse, Outbox(results.root / "outbox"))
    assert verify(results, warehouse, values=True).problems == ()
    assert {name for sql in warehouse.statements for name in tables_read(sql)} >= set(BY_NAME)
    assert {sql: tables for sql in warehouse.statements if (tables := unbounded(sql))} == {}
