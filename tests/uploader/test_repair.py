"""Repairs restore lost rows from the records: after damaged files or manifests, and of rows marked as sent."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from keras_matrix.records.store import Results
from keras_matrix.uploader.batch_sender import PushSummary
from keras_matrix.uploader.errors import FileDamaged, WarehouseFailure
from keras_matrix.uploader.local import warehouse
from keras_matrix.uploader.local.manifest import NAME
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from keras_matrix.uploader.outbox import Outbox
from keras_matrix.uploader.push import push, repair, reset_if_emptied
from keras_matrix.uploader.schema import CELLS, TABLES
from keras_matrix.uploader.verify import verify
from tests.fakes.warehouse import FakeWarehouse
from tests.uploader.stored import (
    import_two_rows,
    pushed_results,
    results_with,
    states_if_killed,
    store_run,
    tried,
    uploader,
)

COUNT = "SELECT COUNT(*) AS n FROM measurements"


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Two runs, pushed: a file of each table."""
    return pushed_results(tmp_path / "results")


@pytest.fixture
def folder(results: Results) -> Path:
    return results.root / "warehouse"


def outbox(results: Results) -> Outbox:
    return Outbox(results.root / "outbox" / "local")


def only_file(folder: Path, table: str) -> Path:
    [path] = (folder / table).glob("*.parquet")
    return path


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def garble(path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[:4] + bytes(len(raw) - 500 - 4) + raw[-500:])


def turn_into_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: list[Callable[[Path], None]] = [
    cut,
    garble,
    Path.unlink,
    turn_into_a_folder,
    lambda path: path.write_bytes(b""),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_file_is_reported_by_query_verify_and_push_and_repaired_by_one_command(
    damage: Callable[[Path], None], results: Results, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = only_file(folder, "measurements")
    damage(path)
    store_run(results.root, 2, count=1)
    for command in (["query", COUNT], ["verify"], ["push"]):
        if command == ["push"] and damage is garble:
            continue  # the keys are still readable, so new rows are added
        assert uploader(results, *command) == 3
        assert str(path) in capsys.readouterr().err  # the texts of repairs are in golden/push_repair.txt
    assert outbox(results).dead() == []
    assert uploader(results, "push", "--repair") == 0
    assert uploader(results, "verify", "--values") == 0


@pytest.mark.parametrize("damage", [one for one in DAMAGES if one is not garble])
def test_push_without_new_rows_reports_a_missing_or_truncated_file(
    damage: Callable[[Path], None], results: Results, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = only_file(folder, "cells")
    damage(path)
    assert uploader(results, "push") == 3
    assert str(path) in capsys.readouterr().err
    assert uploader(results, "push", "--repair") == 0
    assert uploader(results, "push") == 0


def test_rows_of_other_tables_arrive_while_a_file_is_damaged(results: Results, folder: Path) -> None:
    cut(only_file(folder, "measurements"))
    store_run(results.root, 2, count=1)
    assert uploader(results, "push") == 3
    assert [batch.table.name for batch in outbox(results).pending()] == ["measurements"]
    assert len(list((folder / "cells").iterdir())) == 2


def test_a_damaged_file_that_was_replaced_by_a_good_copy_needs_no_repair(results: Results, folder: Path) -> None:
    path = only_file(folder, "measurements")
    good = path.read_bytes()
    cut(path)
    store_run(results.root, 2, count=1)
    assert uploader(results, "push") == 3
    path.write_bytes(good)
    assert uploader(results, "push") == 0
    assert uploader(results, "verify", "--values") == 0


def test_file_set_aside_is_added_again_once_it_is_readable(results: Results, folder: Path) -> None:
    path = only_file(folder, "measurements")
    good = path.read_bytes()
    cut(path)
    shutil.rmtree(results.runs()[0].folder)  # its rows no longer have a record
    assert uploader(results, "push", "--repair") == 1
    aside = folder / "damaged" / "measurements" / path.name
    assert LocalWarehouse(folder).query(COUNT).rows == [(16,)]
    aside.write_bytes(good)
    assert uploader(results, "push", "--repair") == 0
    assert (LocalWarehouse(folder).query(COUNT).rows, aside.exists()) == ([(32,)], False)


def test_imported_attempts_in_a_damaged_file_are_reported_as_lost(
    results: Results, folder: Path, tmp_path: Path
) -> None:
    import_two_rows(results, tmp_path)
    for path in (folder / "cells").glob("*.parquet"):
        cut(path)
    assert uploader(results, "push", "--repair") == 1
    import_two_rows(results, tmp_path)
    assert uploader(results, "push", "--repair") == 0


@pytest.mark.parametrize("table", [table.name for table in TABLES])
def test_repair_restores_rows_of_every_table_that_are_marked_as_sent(
    results: Results, folder: Path, table: str
) -> None:
    manifest = json.loads((folder / NAME).read_text())
    manifest["tables"][table] = []
    (folder / NAME).write_text(json.dumps(manifest))
    assert uploader(results, "push", "--quiet") == 0
    assert uploader(results, "verify") == 1
    assert uploader(results, "push", "--repair", "--quiet") == 0
    assert uploader(results, "verify") == 0


def test_batch_with_the_name_of_an_existing_file_restores_rows_of_another_file(tmp_path: Path) -> None:
    """The first file of the second batch lacks the rows of the first batch."""
    results, made = results_with(tmp_path / "results", runs=1, count=1), LocalWarehouse(tmp_path / "warehouse")
    made.create()
    push(results, made, Outbox(tmp_path / "one"))
    first = only_file(made.folder, "cells")
    run = results.runs()[0]
    store_run(tmp_path / "copy", 0, count=2)
    shutil.copytree(tmp_path / "copy" / run.run_id, run.folder, dirs_exist_ok=True)
    push(results, made, Outbox(tmp_path / "two"))
    cut(first)
    assert len(made.repair()) == 2
    repair(results, made, Outbox(tmp_path / "two"), PushSummary(), lambda text: None)
    assert made.query("SELECT COUNT(*) AS n FROM cells").rows == [(2,)]


def test_altered_and_duplicate_rows_remain_until_their_files_are_moved(results: Results, folder: Path) -> None:
    import duckdb

    path = only_file(folder, "cells")
    first, second = (run.run_id for run in results.runs())
    original = path.rename(folder / "original.parquet")
    changed = f"CASE WHEN run_id = '{first}' THEN row_hash + 1 ELSE row_hash END"
    altered = f"SELECT * REPLACE ({changed} AS row_hash) FROM '{original}'"
    duckdb.sql(f"COPY ({altered} UNION ALL SELECT * FROM '{original}' WHERE run_id = '{second}') TO '{path}'")
    assert uploader(results, "push", "--repair") == 1
    path.rename(folder / "elsewhere.parquet")
    assert uploader(results, "push", "--repair") == 0
    assert uploader(results, "verify") == 0


def test_repair_retries_rows_that_were_set_aside(results: Results, folder: Path) -> None:
    box = outbox(results)
    [row] = [row for row in box_rows(results) if row["run_id"] == results.runs()[0].run_id]
    shutil.rmtree(folder)
    with box.locked():
        box.add_dead_letter(CELLS, "item", json.dumps(row), "no")
    assert uploader(results, "push", "--repair") == 0
    assert (box.dead(), verify(results, LocalWarehouse(folder)).problems) == ([], ())


def box_rows(results: Results) -> list[dict[str, object]]:
    from keras_matrix.uploader.rows import of_record

    found = [row for run in results.runs() for record in run.load()[0] for row in of_record(record)]
    return [json.loads(row.line) for row in found if row.table is CELLS]


def test_push_detects_a_deleted_warehouse_and_sends_everything_again(
    results: Results, folder: Path, tmp_path: Path
) -> None:
    shutil.rmtree(folder)
    assert uploader(results, "push") == 0
    assert uploader(results, "verify") == 0
    import_two_rows(results, tmp_path)
    shutil.rmtree(folder)
    assert uploader(results, "push") == 1
    import_two_rows(results, tmp_path)
    assert uploader(results, "push", "--repair") == 0


def test_an_import_into_a_deleted_warehouse_lets_the_next_push_send_everything(
    results: Results, folder: Path, tmp_path: Path
) -> None:
    shutil.rmtree(folder)
    import_two_rows(results, tmp_path)
    assert uploader(results, "push") == 0
    assert uploader(results, "verify") == 0


class Forgetful(LocalWarehouse):
    """A warehouse that retains rows from the second run's day on."""

    def retained_from(self) -> str | None:
        return "2026-01-02"


def test_runs_older_than_the_retention_are_neither_sent_nor_compared(tmp_path: Path) -> None:
    results, made = results_with(tmp_path / "results", runs=2, count=1), Forgetful(tmp_path / "warehouse")
    made.create()
    done = push(results, made, Outbox(tmp_path / "outbox"))
    assert (done.new, done.expired) == (19, [results.runs()[0].run_id])
    found = verify(results, made, values=True)
    assert (found.expected, found.found, found.expired, found.problems) == (19, 19, 1, ())
    repaired = repair(results, made, Outbox(tmp_path / "outbox"), done, lambda text: None)
    assert (repaired.restored, repaired.remaining, repaired.expired, repaired.lost) == ((), (), 1, 0)


def test_attempts_older_than_the_retention_do_not_count_as_lost(tmp_path: Path) -> None:
    results, outbox = results_with(tmp_path / "results", runs=2, count=1), Outbox(tmp_path / "outbox")
    push(results, FakeWarehouse(), outbox)
    shutil.rmtree(results.runs()[0].folder)
    lost = []
    for made in (LocalWarehouse(tmp_path / "all"), Forgetful(tmp_path / "new")):
        made.create()
        lost.append(repair(results, made, outbox, PushSummary(), lambda text: None).lost)
        assert made.query("SELECT COUNT(*) AS n FROM cells").rows == [(1,)]
    assert lost == [1, 0]


@pytest.mark.parametrize(("first_day", "forgotten"), [(None, 2), ("2026-01-02", 1), ("2026-01-03", 0)])
def test_warehouse_whose_rows_have_all_expired_counts_as_complete(
    first_day: str | None, forgotten: int, tmp_path: Path
) -> None:
    results, box = results_with(tmp_path / "results", runs=2, count=1), Outbox(tmp_path / "outbox")
    push(results, FakeWarehouse(), box)
    sent, _ = reset_if_emptied(results, FakeWarehouse(first_day=first_day), box)
    assert (sent, box.done()) == (forgotten, 0 if forgotten else 4)


def test_unreadable_records_folder_is_skipped_and_never_counts_as_complete(
    results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = results.runs()[0].folder / "records"
    shutil.rmtree(folder)
    folder.symlink_to(folder)
    assert uploader(results, "verify") == 1
    assert "0 lost" not in capsys.readouterr().out
    assert uploader(results, "push") == 1
    assert uploader(results, "push", "--repair") == 1


def test_file_access_stays_restricted_after_the_connection_is_reopened(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a\ncanary\n")
    made = LocalWarehouse(folder)
    made.restrict_file_access()
    made.close()
    with pytest.raises(WarehouseFailure, match="file system operations are disabled"):
        made.query(f"SELECT * FROM read_csv('{tmp_path}/secret.csv')")
    assert made.query(COUNT).rows == [(32,)]


@pytest.mark.parametrize("spoil", ["a damaged file", "a missing manifest"])
def test_next_repair_completes_one_that_was_killed_at_any_file_operation(
    spoil: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warehouse, "translated_views", dict)  # no view is read here
    results = results_with(tmp_path / "results", runs=1, count=1)
    push_into(results, tmp_path / "before")
    cells = only_file(tmp_path / "before" / "warehouse", "cells")
    if spoil == "a damaged file":
        cut(cells)
    else:
        shutil.copy(cells, cells.with_name("again.parquet"))
        (tmp_path / "before" / "warehouse" / NAME).unlink()
    states = states_if_killed(monkeypatch, tmp_path / "before", lambda: repair_into(results, tmp_path / "before"))
    for place in tried(states):
        repair_into(results, place)
        sql = "SELECT COUNT(*) AS n FROM runs UNION ALL SELECT COUNT(*) FROM cells"
        assert LocalWarehouse(place / "warehouse").query(sql).rows == [(1,), (1,)]
    assert len(states) > 3
    assert verify(results, LocalWarehouse(place / "warehouse"), values=True).problems == ()


def push_into(results: Results, place: Path) -> None:
    made = LocalWarehouse(place / "warehouse")
    made.create()
    push(results, made, Outbox(place / "outbox"))


def repair_into(results: Results, place: Path) -> None:
    made = LocalWarehouse(place / "warehouse")
    made.repair()
    repair(results, made, Outbox(place / "outbox"), PushSummary(), lambda text: None)


def test_error_without_a_damaged_file_names_no_file(folder: Path) -> None:
    with pytest.raises(WarehouseFailure, match="the query failed: Conversion Error") as raised:
        LocalWarehouse(folder).query("SELECT CAST(run_id AS INT64) AS n FROM runs")
    assert not isinstance(raised.value, FileDamaged)


def test_every_statement_of_verify_and_repair_is_bounded_by_day(
    results: Results, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sqlglot import exp, parse_one

    statements: list[str] = []
    query = LocalWarehouse.query

    def noted(self: LocalWarehouse, sql: str, parameters: dict[str, str] | None = None) -> object:
        statements.append(sql)
        return query(self, sql, parameters)

    monkeypatch.setattr(LocalWarehouse, "query", noted)
    assert uploader(results, "verify", "--values") == 0
    assert uploader(results, "push", "--repair") == 0
    for sql in statements:
        for table in parse_one(sql, read="bigquery").find_all(exp.Table):
            select = table.find_ancestor(exp.Select)
            assert select is not None
            bound = [one for one in select.args["where"].find_all(exp.Column) if one.name == "day"]
            assert bound, sql
    assert len(statements) > 8
