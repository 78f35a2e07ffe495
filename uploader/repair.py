"""Restores rows that a warehouse has lost, independently of the outbox's markers.

For each table and run the rows in the warehouse are compared with the rows of the records (`uploader.verify`), and the
rows of each run that differs are sealed and sent again: a warehouse adds those whose key is missing. If a repair is
killed at any point, the next one completes it. Duplicate and altered rows are only reported. Rows without a record,
such as imported ones, cannot be restored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from keras_matrix.records.store import Results
from keras_matrix.records.store_failure import StoreFailure
from keras_matrix.uploader import rows
from keras_matrix.uploader.batch_sender import PushSummary, Say, send
from keras_matrix.uploader.outbox import Outbox, seal_all
from keras_matrix.uploader.push import short_enough, without_record
from keras_matrix.uploader.rows import WarehouseRow
from keras_matrix.uploader.schema import CELLS, MEASUREMENTS
from keras_matrix.uploader.verify import (
    Checksum,
    Checksums,
    RunDifference,
    attempts,
    checksums,
    differences,
    doubled,
    expected,
    rows_of,
)
from keras_matrix.uploader.warehouse import Warehouse


@dataclass(frozen=True, slots=True)
class RestoredRows:
    """Rows of one run in one table: missing before the repair, and restored by it."""

    table: str
    run_id: str
    missing: int
    restored: int

    def __str__(self) -> str:
        return f"{self.table}, run {self.run_id}: {self.missing:,} rows were missing, {self.restored:,} are restored"


@dataclass(frozen=True, slots=True)
class RepairSummary:
    """Summary of a repair. `remaining` are the runs that still differ; `unread` are records that cannot be compared.

    `expired` counts runs that are older than the warehouse's retention; `lost` counts attempts that were sent from this
    outbox, are missing, and have no record here, such as imported ones.
    """

    restored: tuple[RestoredRows, ...]
    remaining: tuple[RunDifference, ...]
    doubled: tuple[str, ...]
    unread: tuple[str, ...]
    expired: int
    lost: int


def repair(results: Results, warehouse: Warehouse, outbox: Outbox, summary: PushSummary, say: Say) -> RepairSummary:
    """Send missing rows again; `summary` counts them too. Raises `UploadError`."""
    expected_rows = expected(results, warehouse.retained_from())
    differences_before = differences(expected_rows, checksums(warehouse, expected_rows.since))
    with outbox.locked():
        seal_all(short_enough(_rows_to_resend(results, differences_before, outbox), outbox), outbox)
        send(warehouse, outbox, summary, say)
        summary.dead = len(outbox.dead())
        lost = _lost(results, warehouse, outbox, expected_rows.retained_from)
    sums_after = checksums(warehouse, expected_rows.since) if differences_before else {}
    return RepairSummary(
        tuple(_restored(difference, sums_after) for difference in differences_before if difference.missing),
        tuple(differences(expected_rows, sums_after)) if differences_before else (),
        tuple(doubled(warehouse, expected_rows.since)),
        tuple(expected_rows.unread),
        len(expected_rows.expired),
        lost,
    )


def _restored(difference: RunDifference, sums_after: Checksums) -> RestoredRows:
    name, run_id = difference.table.name, difference.run_id
    return RestoredRows(
        name, run_id, difference.missing, sums_after[name].get(run_id, Checksum()).rows - difference.actual.rows
    )


def _lost(results: Results, warehouse: Warehouse, outbox: Outbox, retained_from: str | None) -> int:
    """Return how many sent attempts have neither a record here nor a row in `cells` or `measurements`."""
    sent_by_table, dead = outbox.sent(), {letter.item for letter in outbox.dead()}
    lost: Counter[str] = Counter()
    for table in (CELLS, MEASUREMENTS):
        counts = Counter(without_record(results, sent_by_table[table.name] - dead))
        runs = {run_id: count for run_id, count in counts.items() if not rows.expired(run_id, retained_from)}
        existing = attempts(warehouse, table, rows.day_of(min(runs))) if runs else {}
        lost |= Counter({run_id: count - existing.get(run_id, 0) for run_id, count in runs.items()})
    return lost.total()


def _rows_to_resend(results: Results, differing: Sequence[RunDifference], outbox: Outbox) -> Iterator[WarehouseRow]:
    """Yield the rows of the runs and tables that differ, without dead letters."""
    keys = {(difference.table.name, difference.run_id) for difference in differing}
    runs = {run_id for _, run_id in keys}
    dead = {letter.row for letter in outbox.dead()}
    for run in results.runs():
        if run.run_id not in runs:
            continue
        try:
            for row in rows_of(run, []):
                if (row.table.name, run.run_id) in keys and row.line not in dead:
                    yield row
        except StoreFailure:
            continue  # reported as not compared
