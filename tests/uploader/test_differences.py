"""A table that is not as it should be is told before a row is sent; only what may be NULL is ever added."""

from __future__ import annotations

import pytest

from uploader.differences import difference, differences, refuse
from uploader.errors import SchemaMismatch
from uploader.schema import CELLS, RUNS, TABLES, Mode, Table
from uploader.testing import FakeWarehouse


def as_defined() -> dict[str, tuple[str, str]]:
    return {column.name: (str(column.type), str(column.mode)) for column in CELLS.columns}


def test_a_table_as_defined_differs_in_nothing_also_by_the_names_of_the_api() -> None:
    names = {"INT64": "INTEGER", "FLOAT64": "FLOAT", "BOOL": "BOOLEAN"}
    told = {name: (names.get(kind, kind), mode) for name, (kind, mode) in as_defined().items()}
    assert difference(CELLS, as_defined()).any is False
    assert difference(CELLS, told).any is False


def test_cells_of_version_1_lack_only_what_migrate_adds() -> None:
    later = ("usage_", "tensorboard_")
    found = difference(CELLS, {name: told for name, told in as_defined().items() if not name.startswith(later)})
    assert [(one.name, one.mode) for one in found.missing] == [
        ("usage_host_source", Mode.NULLABLE),
        ("usage_course", Mode.NULLABLE),
        ("usage_device_power_source", Mode.NULLABLE),
        ("tensorboard_log_dir", Mode.NULLABLE),
        ("tensorboard_written", Mode.REPEATED),
        ("tensorboard_problem", Mode.NULLABLE),
    ]
    assert found.wrong == ()


@pytest.mark.parametrize("table", [RUNS, CELLS], ids=lambda table: table.name)
def test_tables_made_before_the_machine_type_lack_only_a_column_that_migrate_adds(table: Table) -> None:
    actual = {one.name: (str(one.type), str(one.mode)) for one in table.columns if one.name != "machine_machine_type"}
    found = difference(table, actual)
    assert [(one.name, one.mode) for one in found.missing] == [("machine_machine_type", Mode.NULLABLE)]
    assert found.wrong == ()


def test_a_missing_nullable_column_can_be_added() -> None:
    told = as_defined()
    del told["machine_os"]
    found = difference(CELLS, told)
    assert ([column.name for column in found.missing], found.wrong) == (["machine_os"], ())


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("batch_size", ("STRING", "NULLABLE"), "cells.batch_size: is STRING, must be INT64"),
        ("warnings", ("STRING", "NULLABLE"), "cells.warnings: is NULLABLE, must be REPEATED"),
        ("reason", ("STRING", "REQUIRED"), "cells.reason: is REQUIRED, must be NULLABLE"),
        ("stranger", ("STRING", "REQUIRED"), "cells.stranger: is an unknown REQUIRED column: no row can be added"),
    ],
)
def test_anything_else_is_refused_with_the_difference(name: str, kind: tuple[str, str], told: str) -> None:
    found = difference(CELLS, as_defined() | {name: kind})
    assert found.wrong == (told,)
    with pytest.raises(SchemaMismatch, match="correct the columns by hand"):
        refuse([found], "bigquery://p.d")


def test_a_missing_required_column_cannot_be_added() -> None:
    told = as_defined()
    del told["run_id"]
    assert difference(CELLS, told).wrong == ("cells.run_id: is missing and cannot be added (REQUIRED)",)


def test_a_column_of_someone_elses_that_may_be_null_does_no_harm() -> None:
    assert difference(CELLS, as_defined() | {"note": ("STRING", "NULLABLE")}).any is False


def test_missing_tables_are_made_by_init() -> None:
    with pytest.raises(
        SchemaMismatch, match=r"runs: is missing\n(.*\n)*create them with: uploader init --to x"
    ) as raised:
        refuse(differences(FakeWarehouse()), "x")
    assert str(raised.value).count("is missing") == len(TABLES)


def test_a_warehouse_that_was_made_differs_in_nothing() -> None:
    warehouse = FakeWarehouse()
    warehouse.create()
    assert differences(warehouse) == []
