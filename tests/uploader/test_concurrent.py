"""Concurrent uploaders with overlapping batches: the lease row ensures that each row is stored once."""

from __future__ import annotations

import re
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.uploader.bigquery import client as connecting
from keras_matrix.uploader.bigquery import ddl
from keras_matrix.uploader.bigquery.jobs import RetryPolicy
from keras_matrix.uploader.bigquery.warehouse import BigQueryWarehouse
from keras_matrix.uploader.errors import SchemaMismatch
from keras_matrix.uploader.outbox import Batch, Outbox
from keras_matrix.uploader.rows import of_record
from keras_matrix.uploader.schema import CELLS
from keras_matrix.uploader.warehouse import BIGQUERY, Options
from tests.uploader.stored import store_run

pytestmark = pytest.mark.google_client
UPLOADERS = 6
LEASED = re.compile(r"UPDATE [^;]+;\nSET leased = @@row_count;")


def opened(address: str, *, append_only: bool = False) -> BigQueryWarehouse:
    found = BIGQUERY.fullmatch(address)
    assert found is not None
    policy = RetryPolicy(tries=12, first_s=0.05, most_s=0.5)
    return connecting.connect(found["project"], found["dataset"], Options(append_only=append_only), policy)


@pytest.fixture
def overlapping(tmp_path: Path) -> list[Batch]:
    """Batches of the same three runs: every other one lacks the first run, so that their contents differ."""
    runs = [store_run(tmp_path / "results", night) for night in range(3)]
    lines = [[row.line for row in of_record(one) if row.table is CELLS] for run in runs for one in run.load()[0]]
    outbox = Outbox(tmp_path / "outbox")
    with outbox.locked():
        return [outbox.seal(CELLS, [text for part in lines[number % 3 :] for text in part]) for number in range(3)]


def merged_at_once(address: str, batches: list[Batch], at: str = "_inserted") -> list[int]:
    """Merge batches concurrently, synchronised at one method; return how many rows each uploader added."""
    added: list[int] = []
    start = threading.Barrier(UPLOADERS)

    def upload(number: int) -> None:
        warehouse = opened(address)
        _met_before(warehouse, at, start)
        added.append(warehouse.merge(batches[number % len(batches)]))
        warehouse.close()

    threads = [threading.Thread(target=upload, args=(number,)) for number in range(UPLOADERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return added


def _met_before(warehouse: BigQueryWarehouse, name: str, start: threading.Barrier) -> None:
    """Block the first call of a method until the other uploaders have called it."""
    call, waits = getattr(warehouse, name), [start.wait]

    def wrapped(*given: Any) -> Any:
        if waits:
            waits.pop()()
        return call(*given)

    setattr(warehouse, name, wrapped)


def stored(warehouse: BigQueryWarehouse, table: str = "cells") -> Counter[tuple[object, ...]]:
    """Return the number of rows of each key."""
    return Counter(warehouse.query(f"SELECT {', '.join(CELLS.key)} FROM {table}").rows)


def test_concurrent_merges_of_overlapping_batches_add_each_row_once(emulated: str, overlapping: list[Batch]) -> None:
    warehouse = opened(emulated)
    warehouse.create()
    added = merged_at_once(emulated, overlapping)
    there = stored(warehouse)
    assert (len(there), set(there.values())) == (9, {1})
    assert (len(added), sum(added)) == (UPLOADERS, 9)


@pytest.mark.emulated_at_night
def test_without_the_lease_row_overlapping_batches_insert_duplicates(
    emulated: str, overlapping: list[Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shows the documented behaviour of INSERT, and that the previous test can fail."""
    script = ddl.insert_missing
    monkeypatch.setattr(ddl, "insert_missing", lambda *given: LEASED.sub("SET leased = 1;", script(*given)))
    warehouse = opened(emulated)
    warehouse.create()
    for _ in range(10):
        merged_at_once(emulated, overlapping)
        if max(stored(warehouse).values()) > 1:
            return
        warehouse._run("empty cells", f"DELETE FROM `{warehouse._dataset}.cells` WHERE TRUE")
    raise AssertionError("no row was doubled in ten rounds")


@pytest.mark.emulated_at_night
def test_push_fails_until_init_creates_a_missing_lease_row(emulated: str, overlapping: list[Batch]) -> None:
    """An UPDATE of no row does not conflict, so overlapping batches would insert duplicates."""
    warehouse = opened(emulated)
    warehouse.create()
    assert "row of table lease" not in warehouse.create()
    warehouse._run("empty lease", f"DELETE FROM `{warehouse._dataset}.lease` WHERE TRUE")
    with pytest.raises(
        SchemaMismatch, match=r"lease: has no row.*nothing was inserted.*uploader init --to bigquery://"
    ):
        warehouse.merge(overlapping[0])
    assert stored(warehouse) == Counter()
    assert "row of table lease" in warehouse.create()
    assert sum(merged_at_once(emulated, overlapping)) == 9
    assert set(stored(warehouse).values()) == {1}


@pytest.mark.emulated_at_night
def test_without_dml_concurrently_appended_rows_appear_once(emulated: str, overlapping: list[Batch]) -> None:
    warehouse = opened(emulated, append_only=True)
    warehouse.create()
    merged_at_once(emulated, overlapping, at="_load")
    there = stored(warehouse)
    assert (len(there), set(there.values())) == (9, {1})
    assert max(stored(warehouse, "cells_appended").values()) == UPLOADERS


@pytest.mark.parametrize("append_only", [pytest.param(False, marks=pytest.mark.emulated_at_night), True])
def test_duplicate_key_within_a_batch_is_added_once(
    emulated: str, overlapping: list[Batch], tmp_path: Path, append_only: bool
) -> None:
    """Such as in a batch file written by hand: both rows are in the staging table."""
    lines, outbox = overlapping[0].lines(), Outbox(tmp_path / "twice")
    with outbox.locked():
        batch = outbox.seal(CELLS, [*lines, *lines])
    warehouse = opened(emulated, append_only=append_only)
    warehouse.create()
    assert warehouse.merge(batch) == 9
    there = stored(warehouse, "cells_appended" if append_only else "cells")
    assert (len(there), set(there.values())) == (9, {1})
