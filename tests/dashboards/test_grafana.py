"""Grafana's dashboards are current, and their SQL gives what the queries give."""

from __future__ import annotations

import json

import pytest

from keras_matrix.dashboards.grafana import build
from keras_matrix.dashboards.live.questions import Choice, answer, questions
from keras_matrix.records.store import Results
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from tests.dashboards.boards import stored, warehouse_of


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> LocalWarehouse:
    results: Results = stored(tmp_path_factory.mktemp("grafana") / "results", nights=8)
    return warehouse_of(results)


def as_grafana_asks(sql: str, **chosen: str) -> str:
    """Put values in as Grafana does, and take the project and dataset away, which the local warehouse has not."""
    sql = sql.replace("`${project}`.`${dataset}`.", "").replace("${__from:date:YYYY-MM-DD}", "2000-01-01")
    for name in ("workload", "backend", "cell"):
        text = chosen.get(name, "").replace("'", "''")
        sql = sql.replace(f"${{{name}:sqlstring}}", f"'{text}'")
    assert "${" not in sql
    return sql


@pytest.mark.parametrize("name", sorted(build.dashboards()))
def test_a_file_is_what_the_code_builds(name: str) -> None:
    """Made with: python -m keras_matrix.dashboards.grafana.build"""
    assert (build.FOLDER / name).read_text(encoding="utf-8") == build.text(build.dashboards()[name])


def test_every_question_has_a_panel_and_panels_do_not_overlap() -> None:
    found = [panel for one in build.dashboards().values() for panel in one["panels"]]
    assert {panel["title"] for panel in found} == {question.title for question in questions().values()}
    for dashboard in build.dashboards().values():
        rows = [panel["gridPos"]["y"] for panel in dashboard["panels"]]
        assert rows == sorted(set(rows))


@pytest.mark.parametrize("name", list(questions()))
def test_a_panels_sql_gives_the_querys_rows(warehouse: LocalWarehouse, name: str) -> None:
    question = questions()[name]
    for backend in ("", "jax"):
        found = warehouse.query(as_grafana_asks(build.sql(question), backend=backend))
        assert found == answer(warehouse, question, Choice(backend=backend))


def test_the_trends_series_has_time_value_and_name(warehouse: LocalWarehouse) -> None:
    panel = json.loads((build.FOLDER / "trend.json").read_text())["panels"][0]
    found = warehouse.query(as_grafana_asks(panel["targets"][0]["rawSql"]))
    assert found.columns == ("time", "value", "metric")
    assert len(found.rows) > 8
