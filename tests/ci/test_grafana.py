"""Grafana's dashboards are current, and their SQL returns what the queries return."""

from __future__ import annotations

import json

import pytest

from ci import grafana
from keras_matrix.dashboards.live.questions import Choice, answer, questions
from keras_matrix.records.store import Results
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from tests.dashboards.boards import stored, warehouse_of


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> LocalWarehouse:
    results: Results = stored(tmp_path_factory.mktemp("grafana") / "results", nights=8)
    return warehouse_of(results)


def interpolated(sql: str, **chosen: str) -> str:
    """Insert values as Grafana does, and remove project and dataset, which a local warehouse does not have."""
    sql = sql.replace("`${project}`.`${dataset}`.", "").replace("${__from:date:YYYY-MM-DD}", "2000-01-01")
    for name in ("workload", "backend", "cell"):
        text = chosen.get(name, "").replace("'", "''")
        sql = sql.replace(f"${{{name}:sqlstring}}", f"'{text}'")
    assert "${" not in sql
    return sql


@pytest.mark.parametrize("name", sorted(grafana.dashboards()))
def test_file_is_current(name: str) -> None:
    """Written by: python ci/grafana.py"""
    assert (grafana.FOLDER / name).read_text(encoding="utf-8") == grafana.text(grafana.dashboards()[name])


def test_every_question_has_a_panel_and_panels_do_not_overlap() -> None:
    found = [panel for one in grafana.dashboards().values() for panel in one["panels"]]
    assert {panel["title"] for panel in found} == {question.title for question in questions().values()}
    for dashboard in grafana.dashboards().values():
        rows = [panel["gridPos"]["y"] for panel in dashboard["panels"]]
        assert rows == sorted(set(rows))


@pytest.mark.parametrize("name", list(questions()))
def test_sql_of_a_panel_returns_the_rows_of_its_query(warehouse: LocalWarehouse, name: str) -> None:
    question = questions()[name]
    for backend in ("", "jax"):
        found = warehouse.query(interpolated(grafana.sql(question), backend=backend))
        assert found == answer(warehouse, question, Choice(backend=backend))


def test_series_of_the_trend_panel_has_time_value_and_name(warehouse: LocalWarehouse) -> None:
    panel = json.loads((grafana.FOLDER / "trend.json").read_text())["panels"][0]
    found = warehouse.query(interpolated(panel["targets"][0]["rawSql"]))
    assert found.columns == ("time", "value", "metric")
    assert len(found.rows) > 8
