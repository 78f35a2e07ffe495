"""The local warehouse: each row once under kills, overlaps and compactions; only SELECT is accepted."""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from keras_matrix.records.codec import dumps
from keras_matrix.records.schema import Learning
from keras_matrix.records.store import Results, Run
from keras_matrix.uploader.cli.main import main
from keras_matrix.uploader.errors import BadInput, WarehouseFailure
from keras_matrix.uploader.local import parquet
from keras_matrix.uploader.local import warehouse as local
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from keras_matrix.uploader.outbox import Batch, Outbox
from keras_matrix.uploader.push import push
from keras_matrix.uploader.rows import of_record
from keras_matrix.uploader.schema import CELLS, LONGEST_ROW_BYTES, MEASUREMENTS, ColumnMode, TableColumn, Type
from keras_matrix.uploader.verify import verify
from tests.conftest import make_settings
from tests.uploader.stored import content_of, full_at, results_with, states_if_killed, store_run


@pytest.fixture
def warehouse(tmp_path: Path) -> LocalWarehouse:
    made = LocalWarehouse(tmp_path / "warehouse")
    made.create()
    return made


def pushed(results: Results, warehouse: LocalWarehouse, name: str = "outbox") -> int:
    return push(results, warehouse, Outbox(results.root.parent / name)).new


def test_pushed_rows_match_the_records(tmp_path: Path, warehouse: LocalWarehouse) -> None:
    results = results_with(tmp_path / "results")
    assert pushed(results, warehouse) == 106
    found = verify(results, warehouse, values=True)
    assert (found.expected, found.found, found.foreign, found.problems) == (106, 106, 0, ())


def test_changed_value_in_the_warehouse_is_found(tmp_path: Path, warehouse: LocalWarehouse) -> None:
    results = results_with(tmp_path / "results", runs=1)
    pushed(results, warehouse)
    path = next((results.runs()[0].folder / "records").glob("*.json"))
    record = json.loads(path.read_text())
    record["times"]["step_time_s"] = 0.5
    path.write_text(json.dumps(record))
    problems = verify(Results(results.root), warehouse, values=True).problems
    assert [line.split(":")[0] for line in problems] == [f"measurements, run {results.runs()[0].run_id}"] * 2


def test_unreadable_record_is_reported_as_not_compared(tmp_path: Path, warehouse: LocalWarehouse) -> None:
    results = results_with(tmp_path / "results", runs=1)
    path = sorted((results.runs()[0].folder / "records").glob("*.json"))[0]
    path.write_text(path.read_text()[:-20])
    pushed(results, warehouse)
    found = verify(results, warehouse, values=True)
    assert found.expected == found.found
    [problem] = found.problems
    assert problem.startswith(f"not compared: {path}: ")


def test_lost_and_duplicate_rows_are_found(tmp_path: Path, warehouse: LocalWarehouse) -> None:
    results = results_with(tmp_path / "results", runs=1)
    pushed(results, warehouse)
    manifest = json.loads((warehouse.folder / "manifest.json").read_text())
    manifest["tables"]["cells"] *= 2
    manifest["tables"]["runs"] = []
    (warehouse.folder / "manifest.json").write_text(json.dumps(manifest))
    problems = "\n".join(verify(results, warehouse).problems)
    assert "runs, run 20260101T020000Z-000000: 0 rows, expected 1 from the records" in problems
    assert "cells, run 20260101T020000Z-000000: 3 duplicate keys" in problems


@pytest.mark.fault("F37", mutation="rows are written without a look at the existing keys")
def test_overlapping_batches_of_several_uploaders_add_each_row_once(tmp_path: Path, warehouse: LocalWarehouse) -> None:
    results = results_with(tmp_path / "results", runs=1)
    assert pushed(results, warehouse, "first") == 53
    store_run(results.root, 1)
    assert pushed(results, warehouse, "second") == 53
    assert verify(results, warehouse).problems == ()


@pytest.mark.fault("F37", mutation="a merge does not lock the folder")
def test_merges_into_the_same_folder_are_mutually_exclusive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, made, errors = _batch(tmp_path, 0), LocalWarehouse(tmp_path / "warehouse"), []
    write_new = parquet.write_new

    def watched(*args: Any) -> int:
        with (made.folder / ".lock").open("a") as other, pytest.raises(BlockingIOError) as refused:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        errors.append(refused.type)
        return write_new(*args)

    monkeypatch.setattr(parquet, "write_new", watched)
    made.create()
    assert made.merge(batch) == 1
    assert errors == [BlockingIOError]


@pytest.mark.fault("F37", mutation="a compaction removes the old files before the manifest names the new one")
def test_each_row_is_stored_once_when_a_merge_or_compaction_is_killed_at_any_file_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each merge of the third batch starts with the same two files, and compacts all three."""
    monkeypatch.setattr(local, "MOST_FILES", 2)
    batches = [_batch(tmp_path, number) for number in range(3)]
    before = LocalWarehouse(tmp_path / "before")
    before.create()
    for batch in batches[:2]:
        before.merge(batch)
    states = states_if_killed(monkeypatch, before.folder, lambda: before.merge(batches[2]))
    for folder in states:
        again = LocalWarehouse(folder)
        again.merge(batches[2])
        [(rows, keys)] = again.query("SELECT COUNT(*) AS n, COUNT(DISTINCT run_id) AS runs FROM cells").rows
        assert (rows, keys) == (3, 3)
        assert len(list((folder / "cells").iterdir())) == 1
    assert len(states) > 4


@pytest.mark.fault("F21", mutation="the manifest names a new file before it is written")
def test_disk_full_during_a_merge_is_reported_and_the_next_merge_adds_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "MOST_FILES", 1)
    batches = [_batch(tmp_path, number) for number in range(2)]
    before = LocalWarehouse(tmp_path / "before")
    before.create()
    before.merge(batches[0])
    seen = set[object]()
    for count in range(100):
        made = LocalWarehouse(shutil.copytree(before.folder, tmp_path / str(count)))
        with full_at(monkeypatch, count) as full:
            with contextlib.suppress(WarehouseFailure):
                made.merge(batches[1])
            was_full = full()
        if (left := content_of(made.folder)) not in seen:
            seen.add(left)
            made.merge(batches[1])
            [(rows, keys)] = made.query("SELECT COUNT(*) AS n, COUNT(DISTINCT run_id) AS runs FROM cells").rows
            assert (rows, keys) == (2, 2)
        if not was_full:
            break
    assert (count > 5, len(seen) > 1) == (True, True)


def _batch(root: Path, number: int) -> Batch:
    """A sealed batch with the cell of one run."""
    run = store_run(root / "results", number, count=1)
    lines = [row.line for record in run.load()[0] for row in of_record(record) if row.table is CELLS]
    outbox = Outbox(root / "sealed")
    with outbox.locked():
        return outbox.seal(CELLS, lines)


def test_small_files_are_compacted_and_old_ones_removed(
    tmp_path: Path, warehouse: LocalWarehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "MOST_FILES", 4)
    results = results_with(tmp_path / "results", runs=1, count=1)
    for number in range(1, local.MOST_FILES + 3):
        store_run(results.root, number, count=1)
        pushed(results, warehouse)
    files = list((warehouse.folder / "cells").glob("*.parquet"))
    assert len(files) <= local.MOST_FILES
    assert verify(results, warehouse, values=True).problems == ()


def test_query_is_repeated_after_a_concurrent_compaction(tmp_path: Path, warehouse: LocalWarehouse) -> None:
    results = results_with(tmp_path / "results", runs=1)
    pushed(results, warehouse)
    reader = LocalWarehouse(warehouse.folder)
    assert reader.query("SELECT COUNT(*) AS n FROM cells").rows == [(3,)]
    [old] = (warehouse.folder / "cells").glob("*.parquet")
    old.rename(old.with_name("other.parquet"))
    manifest = (warehouse.folder / "manifest.json").read_text().replace(old.name, "other.parquet")
    (warehouse.folder / "manifest.json").write_text(manifest)
    assert reader.query("SELECT COUNT(*) AS n FROM cells").rows == [(3,)]


def test_a_column_that_no_file_has_yet_shows_null(
    tmp_path: Path, warehouse: LocalWarehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = results_with(tmp_path / "results", runs=1)
    pushed(results, warehouse)
    newer = replace(
        CELLS, columns=(*CELLS.columns, TableColumn("added", Type.STRING, ColumnMode.NULLABLE, "a new one"))
    )
    monkeypatch.setattr(local, "TABLES", (newer, *(table for table in local.TABLES if table is not CELLS)))
    found = LocalWarehouse(warehouse.folder).query("SELECT added, COUNT(*) AS n FROM cells GROUP BY added")
    assert found.rows == [(None, 3)]


def test_a_row_just_below_the_limit_arrives(tmp_path: Path, warehouse: LocalWarehouse) -> None:
    long = "x" * (LONGEST_ROW_BYTES - 4096)
    store_run(tmp_path / "results", 0, count=1, reason=long)
    pushed(Results(tmp_path / "results"), warehouse)
    assert warehouse.query("SELECT reason FROM cells").rows == [(long,)]


def test_no_column_has_to_be_added_where_files_are_older(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = results_with(tmp_path / "results", runs=1)
    made = LocalWarehouse(results.root / "warehouse")
    made.create()
    pushed(results, made)
    [path] = (made.folder / "cells").glob("*.parquet")
    complete = path.rename(tmp_path / "complete.parquet")
    duckdb.sql(f"COPY (SELECT * EXCLUDE (machine_os) FROM '{complete}') TO '{path}'")
    assert main(["migrate", "--dry-run", "--results", str(results.root)]) == 0
    assert capsys.readouterr().out == "the tables have the schema of this version\n"
    assert LocalWarehouse(made.folder).query("SELECT machine_os, COUNT(*) AS n FROM cells GROUP BY 1").rows == [
        (None, 3)
    ]


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE cells",
        "SELECT 1; SELECT 2",
        "COPY cells TO '/tmp/x'",
        "ATTACH 'x.db'",
        "INSERT INTO cells (run_id) VALUES ('x')",
        "SELECT",
        "",
    ],
)
def test_only_a_single_select_is_accepted(warehouse: LocalWarehouse, sql: str) -> None:
    with pytest.raises(BadInput, match="the query"):
        warehouse.query(sql)


def test_user_query_reads_no_other_file(tmp_path: Path, warehouse: LocalWarehouse) -> None:
    (tmp_path / "secret.csv").write_text("a\ncanary\n")
    warehouse.restrict_file_access()
    with pytest.raises(WarehouseFailure) as raised:
        warehouse.query(f"SELECT * FROM read_csv('{tmp_path}/secret.csv')")
    assert "canary" not in str(raised.value)
    assert warehouse.query("SELECT COUNT(*) AS n FROM measurements").rows == [(0,)]


def test_hostile_names_are_stored_unchanged(tmp_path: Path, warehouse: LocalWarehouse) -> None:
    hostile = "'; DROP TABLE cells; -- \"`$1@x%s{}\\\u2028\x85\t\u202e\U0001f4a9"
    learning = Learning([1.0], {hostile: [0.5]})
    settings = make_settings(workload=hostile, params={hostile: hostile})
    store_run(tmp_path / "results", 0, settings=settings, reason=hostile, warnings=[hostile])
    run = Run(next((tmp_path / "results").glob("2*")))
    (path, *_) = sorted((run.folder / "records").iterdir())
    path.write_text(dumps(replace(run.load()[0][0], learning=learning)))
    results = Results(tmp_path / "results")
    pushed(results, warehouse)
    assert verify(results, warehouse, values=True).problems == ()
    sql = "SELECT DISTINCT workload, reason FROM cells WHERE workload = @workload"
    assert warehouse.query(sql, {"workload": hostile}).rows == [(hostile, hostile)]
    sql = "SELECT value FROM measurements WHERE metric = @metric"
    assert warehouse.query(sql, {"metric": f"learning.metrics.{hostile}"}).rows == [(0.5,)]


def test_a_manifest_of_a_newer_version_is_refused(warehouse: LocalWarehouse) -> None:
    (warehouse.folder / "manifest.json").write_text('{"version": 9, "tables": {}}')
    with pytest.raises(WarehouseFailure, match="version 9 is newer than 1"):
        warehouse.query("SELECT 1 AS one")


def test_parameters_are_values_and_never_text_of_the_query(tmp_path: Path, warehouse: LocalWarehouse) -> None:
    pushed(results_with(tmp_path / "results", runs=1), warehouse)
    sql = "SELECT COUNT(*) AS n FROM cells WHERE workload = @workload"
    assert warehouse.query(sql, {"workload": "x' OR '1' = '1"}).rows == [(0,)]
    assert warehouse.query(sql, {"workload": "mnist_mlp"}).rows == [(3,)]


def test_duckdb_knows_the_types_of_all_tables() -> None:
    connection = parquet.engine()
    parquet.create_view(connection, MEASUREMENTS, [])
    assert connection.execute("SELECT * FROM measurements").fetchall() == []
