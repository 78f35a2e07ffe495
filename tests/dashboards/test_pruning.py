"""No statement of dashboards, Grafana, the static site or a view reads a partitioned table for all days."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlglot import exp

from ci import grafana
from keras_matrix.dashboards.live.app import application, refreshed
from keras_matrix.dashboards.live.app.needed import needed
from keras_matrix.dashboards.live.questions import DashboardFilter, answer, questions
from keras_matrix.dashboards.report import site
from keras_matrix.uploader.bigquery import ddl
from keras_matrix.uploader.bigquery.partition_pruning import scans, tables_read, unbounded
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from keras_matrix.uploader.schema import APPENDED, BY_NAME
from keras_matrix.uploader.sql import SINCE, parsed, views, with_views
from tests.dashboards.boards import NIGHTS, all_nights


def _grafana() -> Iterator[tuple[str, str]]:
    for name, dashboard in grafana.dashboards().items():
        for panel in dashboard["panels"]:
            sql = panel["targets"][0]["rawSql"].replace("`${project}`.`${dataset}`.", "")
            yield f"{name}: {panel['title']}", re.sub(r"\$\{(\w+):sqlstring\}", r"@\1", sql)


def statements() -> dict[str, str]:
    """Every statement that reads our tables, by its origin."""
    own = {name: question.sql for name, question in questions().items()}
    made = {
        f"view {name}{suffix}": ddl.create_view("p.d", name, append_only=append_only)
        .partition("\nAS ")[2]
        .replace("`p`.`d`.", "")
        for name in views()
        for append_only, suffix in ((False, ""), (True, ", appended"))
    }
    asked = application.statements()
    live = {f"live {place}": sql for place, sql in enumerate(asked[len(own) :])}
    copied = {f"copy of {name}": refreshed.statement(name, read) for name, read in needed(asked).columns.items()}
    return own | dict(_grafana()) | made | live | copied | {"cells of the site": site.CELLS}


STATEMENTS = statements()


@pytest.mark.parametrize("name", STATEMENTS)
def test_every_scan_has_a_first_day(name: str) -> None:
    assert tables_read(STATEMENTS[name]) <= {one + suffix for one in BY_NAME for suffix in ("", APPENDED)}
    assert unbounded(STATEMENTS[name]) == []


@pytest.mark.parametrize("name", STATEMENTS)
def test_removing_any_bound_is_detected(name: str) -> None:
    tree = parsed(with_views(STATEMENTS[name]))
    found = scans(tree)
    assert found
    for scan in found:
        replaced = [(bound, bound.replace(exp.true())) for bound in scan.bounds]
        assert [one.table for one in scans(tree) if not one.bounds] == [scan.table]
        for bound, always in replaced:
            always.replace(bound)


@pytest.fixture(scope="module")
def warehouse() -> LocalWarehouse:
    return all_nights()[1]


def _without_inner_bounds(sql: str) -> str:
    """A question with only its outer condition on the day."""
    head, separator, body = sql.partition("-- title")
    return head.replace(SINCE, "DATE '0001-01-01'") + separator + body


@pytest.mark.parametrize("name", list(questions()))
@pytest.mark.parametrize("after_days", [0, 3, 8, 11, 12])
def test_bounds_of_inner_scans_do_not_change_the_rows(warehouse: LocalWarehouse, name: str, after_days: int) -> None:
    [(first,)] = warehouse.query("SELECT MIN(day) AS day FROM runs").rows
    choice = DashboardFilter(since=(first + timedelta(days=after_days)).isoformat())
    question = questions()[name]
    before = warehouse.query(_without_inner_bounds(question.sql), choice.parameters(question.sql))
    assert answer(warehouse, question, choice) == before
    assert bool(before.rows) == (after_days < NIGHTS)
