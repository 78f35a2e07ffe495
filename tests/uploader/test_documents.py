"""The views and the SQL in the documentation have the documented meaning; tests/docs checks its commands."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.uploader.local.warehouse import LocalWarehouse
from keras_matrix.uploader.schema import BY_NAME
from keras_matrix.uploader.sql import views

ROOT = Path(__file__).parents[2]
SQL, VIEWS = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("python.md", "dashboards.md"))


def test_documented_views_are_the_created_ones() -> None:
    [names] = re.findall(r"The views (.*?) are flat enough", VIEWS)
    assert set(re.findall(r"`(\w+)`", names)) == set(views())
    linked = re.findall(r"ds0\.tableId=(\w+)", VIEWS)
    assert set(linked) <= set(views()) | set(BY_NAME)


@pytest.mark.parametrize(
    ("written", "sql", "meant"),
    [
        ("SAFE_DIVIDE(a, b)", "SELECT SAFE_DIVIDE(a, b) AS x FROM (SELECT 1 AS a, 0 AS b) AS t", None),
        ("SUM(IF(x, 1, 0))", "SELECT SUM(IF(x, 1, 0)) AS n FROM (SELECT TRUE AS x UNION ALL SELECT FALSE) AS t", 1),
        (
            "MAX(IF(metric = '...', value, NULL))",
            "SELECT MAX(IF(metric = 'b', value, NULL)) AS b "
            "FROM (SELECT 'a' AS metric, 2 AS value UNION ALL SELECT 'b', 1) AS t",
            1,
        ),
        (
            "CAST(DATE_TRUNC(d, MONTH) AS DATE)",
            "SELECT CAST(DATE_TRUNC(d, MONTH) AS DATE) AS m FROM (SELECT DATE '2026-02-17' AS d) AS t",
            date(2026, 2, 1),
        ),
        (
            "TIMESTAMP_DIFF(a, b, MILLISECOND)",
            "SELECT TIMESTAMP_DIFF(a, b, MILLISECOND) / 60000 AS minutes FROM (SELECT "
            "TIMESTAMP '2026-01-01 00:01:00+00' AS a, TIMESTAMP '2026-01-01 00:00:30+00' AS b) AS t",
            0.5,
        ),
        (
            "a subquery that names `a - b` first",
            "SELECT DIV(x, 60) AS y FROM (SELECT a - b AS x FROM (SELECT 150 AS a, 30 AS b) AS t) AS u",
            2,
        ),
    ],
)
def test_documented_sql_alternatives_are_equivalent(tmp_path: Path, written: str, sql: str, meant: Any) -> None:
    assert f"| {written.partition('`')[0]}" in SQL.replace("| `", "| ")
    warehouse = LocalWarehouse(tmp_path)
    warehouse.create()
    assert warehouse.query(sql).rows == [(meant,)]
