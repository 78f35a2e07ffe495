"""One SQL dialect for two engines: accepted statements, their translation, and qualified names in views."""

from __future__ import annotations

import pytest

from keras_matrix.uploader.errors import BadInput
from keras_matrix.uploader.sql import (
    meaning_of_view,
    parsed,
    qualified,
    to_duckdb,
    translate_views,
    translated_views,
    views,
)


def test_the_translated_views_are_current() -> None:
    """Generate them with: python -m keras_matrix.uploader.sql"""
    assert translated_views() == translate_views()


@pytest.mark.parametrize("name", list(views()))
def test_view_has_a_description_and_is_a_single_select(name: str) -> None:
    assert meaning_of_view(views()[name]).endswith(".")
    parsed(views()[name])  # raises `BadInput` unless it is one SELECT


def test_tables_get_their_dataset_and_other_names_do_not() -> None:
    sql = "SELECT c.run_id FROM cells AS c JOIN elsewhere.cells AS e ON e.run_id = c.run_id"
    found = qualified(sql, "my-project.data", ["cells"])
    assert found.replace("`", "") == (
        "SELECT c.run_id FROM my-project.data.cells AS c JOIN elsewhere.cells AS e ON e.run_id = c.run_id"
    )


def test_parameters_and_json_are_translated() -> None:
    found = to_duckdb("SELECT JSON_VALUE(facts, '$.keras') AS keras FROM findings WHERE backend = @backend")
    assert "$backend" in found
    assert "->>" in found


@pytest.mark.parametrize(
    "sql", ["DELETE FROM cells WHERE TRUE", "SELECT 1; DROP TABLE cells", "CREATE TABLE x (a INT64)"]
)
def test_only_a_single_select_is_allowed(sql: str) -> None:
    for read in (parsed, to_duckdb):
        with pytest.raises(BadInput, match="must be one SELECT"):
            read(sql)
