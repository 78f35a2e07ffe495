"""Differences of a table's schema are reported before a row is sent; only NULLABLE columns are added."""

from __future__ import annotations

import pytest

from keras_matrix.uploader.bigquery.schema_check import difference, differences, refuse
from keras_matrix.uploader.errors import SchemaMismatch
from keras_matrix.uploader.schema import CELLS, RUNS, TABLES, ColumnMode, Table
from tests.fakes.warehouse import FakeWarehouse


def as_defined() -> dict[str, tuple[str, str]]:
    return {column.name: (str(column.type), str(column.mode)) for column in CELLS.columns}


def test_table_as_defined_has_no_differences_also_with_api_type_names() -> None:
    names = {"INT64": "INTEGER", "FLOAT64": "FLOAT", "BOOL": "BOOLEAN"}
    columns = {name: (names.get(kind, kind), mode) for name, (kind, mode) in as_defined().items()}
    assert difference(CELLS, as_defined()).lines() == []
    assert difference(CELLS, columns).lines() == []


def test_cells_of_version_1_lack_only_what_migrate_adds() -> None:
    later = ("usage_", "tensorboard_")
    found = difference(CELLS, {name: column for name, column in as_defined().items() if not name.startswith(later)})
    assert [(one.name, one.mode) for one in found.missing] == [
        ("usage_host_source", ColumnMode.NULLABLE),
        ("usage_course", ColumnMode.NULLABLE),
        ("usage_device_power_source", ColumnMode.NULLABLE),
        ("usage_cpu_energy_unread", ColumnMode.NULLABLE),
        ("tensorboard_log_dir", ColumnMode.NULLABLE),
        ("tensorboard_written", ColumnMode.REPEATED),
        ("tensorboard_problem", ColumnMode.NULLABLE),
    ]
    assert found.wrong == ()


@pytest.mark.parametrize("table", [RUNS, CELLS], ids=lambda table: table.name)
def test_tables_made_before_the_machine_type_lack_only_a_column_that_migrate_adds(table: Table) -> None:
    actual = {one.name: (str(one.type), str(one.mode)) for one in table.columns if one.name != "machine_machine_type"}
    found = difference(table, actual)
    assert [(one.name, one.mode) for one in found.missing] == [("machine_machine_type", ColumnMode.NULLABLE)]
    assert found.wrong == ()


@pytest.mark.fault("F38", mutation="a missing column counts as a wrong one")
def test_a_missing_nullable_column_can_be_added() -> None:
    columns = as_defined()
    del columns["machine_os"]
    found = difference(CELLS, columns)
    assert ([column.name for column in found.missing], found.wrong) == (["machine_os"], ())


@pytest.mark.fault("F38", mutation="the types of columns are not compared")
@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("batch_size", ("STRING", "NULLABLE"), "cells.batch_size: is STRING, must be INT64"),
        ("warnings", ("STRING", "NULLABLE"), "cells.warnings: is NULLABLE, must be REPEATED"),
        ("reason", ("STRING", "REQUIRED"), "cells.reason: is REQUIRED, must be NULLABLE"),
        ("stranger", ("STRING", "REQUIRED"), "cells.stranger: is an unknown REQUIRED column: no row can be added"),
    ],
)
def test_other_differences_are_rejected_with_a_message(name: str, kind: tuple[str, str], message: str) -> None:
    found = difference(CELLS, as_defined() | {name: kind})
    assert found.wrong == (message,)
    with pytest.raises(SchemaMismatch, match="correct the columns by hand"):
        refuse([found], "bigquery://p.d")


@pytest.mark.fault("F38", mutation="a required column may be added")
def test_a_missing_required_column_cannot_be_added() -> None:
    columns = as_defined()
    del columns["run_id"]
    assert difference(CELLS, columns).wrong == ("cells.run_id: is missing and cannot be added (REQUIRED)",)


def test_unknown_nullable_column_is_ignored() -> None:
    assert difference(CELLS, as_defined() | {"note": ("STRING", "NULLABLE")}).lines() == []


def test_missing_tables_are_created_by_init() -> None:
    with pytest.raises(
        SchemaMismatch, match=r"runs: is missing\n(.*\n)*create them with: uploader init --to x"
    ) as raised:
        refuse(differences(FakeWarehouse()), "x")
    assert str(raised.value).count("is missing") == len(TABLES)


def test_created_warehouse_has_no_differences() -> None:
    warehouse = FakeWarehouse()
    warehouse.create()
    assert differences(warehouse) == []
