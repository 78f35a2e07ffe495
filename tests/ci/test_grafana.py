"""Grafana's dashboards are current, their SQL returns what the queries return, and compose.yaml provisions them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from ci import grafana
from keras_matrix.dashboards.live.questions import DashboardFilter, answer, questions
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
    assert {panel["title"].partition(":")[0] for panel in found} == {one.title for one in questions().values()}
    for dashboard in grafana.dashboards().values():
        rows = [panel["gridPos"]["y"] for panel in dashboard["panels"]]
        assert rows == sorted(set(rows))


@pytest.mark.parametrize("name", list(questions()))
def test_sql_of_a_panel_returns_the_rows_of_its_query(warehouse: LocalWarehouse, name: str) -> None:
    question = questions()[name]
    for backend in ("", "jax"):
        found = warehouse.query(interpolated(grafana.sql(question), backend=backend))
        assert found == answer(warehouse, question, DashboardFilter(backend=backend))


def answered(warehouse: LocalWarehouse, name: str) -> Any:
    """Return the answer of the picture of a question."""
    panels = [panel for one in grafana.dashboards().values() for panel in one["panels"]]
    [panel] = [one for one in panels if one["title"] == questions()[name].title]
    return warehouse.query(interpolated(panel["targets"][0]["rawSql"]))


def test_questions_about_figures_are_pictures() -> None:
    kinds = {panel["title"]: panel["type"] for one in grafana.dashboards().values() for panel in one["panels"]}
    tables = {question.name for question in questions().values() if kinds[question.title] == "table"}
    assert tables == {"figures", "commands", "regressions", "failures", "machines", "runs"}
    assert {kinds[questions()[name].title] for name in grafana.PICTURES} == {"barchart", "timeseries"}


@pytest.mark.parametrize("name", [name for name, one in grafana.PICTURES.items() if one.kind == "barchart"])
def test_bars_have_one_text_and_numbers_and_a_row_for_every_figure(warehouse: LocalWarehouse, name: str) -> None:
    found = answered(warehouse, name)
    assert found.columns[0] == grafana.PICTURES[name].row
    assert found.rows
    assert all(isinstance(row[0], str) for row in found.rows)
    values = [value for row in found.rows for value in row[1:] if value is not None]
    assert values
    assert all(isinstance(value, float | int) for value in values)


def test_bars_of_backends_show_the_figures_of_their_query(warehouse: LocalWarehouse) -> None:
    rows = answer(warehouse, questions()["matrix"], DashboardFilter()).dicts()
    expected = sorted(row["step_time_s"] for row in rows if row["step_time_s"] is not None)
    found = answered(warehouse, "matrix")
    assert found.columns == ("work", "tensorflow", "jax", "torch", "openvino")
    assert sorted(value for row in found.rows for value in row[1:] if value is not None) == expected


def test_backend_with_the_lowest_time_has_a_bar_of_1(warehouse: LocalWarehouse) -> None:
    found = answered(warehouse, "comparison")
    [row] = [row for row in found.dicts() if row["work"] == "mnist_mlp"]
    assert row["tensorflow"] == 1.0
    assert row["torch"] == pytest.approx(4, rel=0.02)


@pytest.mark.parametrize("name", ["trend", "input_stalls"])
def test_series_over_time_have_time_value_and_name(warehouse: LocalWarehouse, name: str) -> None:
    found = answered(warehouse, name)
    assert found.columns == ("time", "value", "metric")
    assert len(found.rows) >= 8
    assert found.rows[0][0].hour == 2  # of the run's identifier, not midnight of its day


def provisioned(kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((grafana.FOLDER / "provisioning" / kind / name).read_text(encoding="utf-8"))
    return found


def test_service_of_compose_provisions_the_data_source_and_every_dashboard() -> None:
    """Mutation: a dashboard that is not mounted, or a variable that the service does not set."""
    root = grafana.FOLDER.parents[1]
    service = yaml.safe_load((root / "compose.yaml").read_text(encoding="utf-8"))["services"]["grafana"]
    mounts = {one.split(":")[1]: one.split(":")[0] for one in service["volumes"] if isinstance(one, str)}
    source = provisioned("datasources", "bigquery.yaml")
    provider = provisioned("dashboards", "benchmarks.yaml")
    assert (source["apiVersion"], provider["apiVersion"]) == (1, 1)
    [found] = source["datasources"]
    assert found["type"] == grafana.SOURCE["type"] == service["environment"]["GF_INSTALL_PLUGINS"]
    used = {value[1:] for value in found["jsonData"].values() if value.startswith("$")}
    assert used == {name for name in service["environment"] if name.startswith("GRAFANA_")}
    [key] = [one for one in service["volumes"] if isinstance(one, dict)]
    assert found["jsonData"]["privateKeyPath"] == key["target"]
    [folder] = [one["options"]["path"] for one in provider["providers"]]
    assert {f"{folder}/{name}" for name in grafana.dashboards()} == {path for path in mounts if path.endswith(".json")}
    assert mounts["/etc/grafana/provisioning"] == "./dashboards/grafana/provisioning"
    assert all((root / path).exists() for path in mounts.values() if path.startswith("./"))
    assert service["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] in mounts
