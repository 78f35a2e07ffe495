"""Push: seals the new rows of a results folder in batches, then sends every pending batch.

Exactly one row per key arrives, also if processes are killed, rows are sent twice, or several pushes run at once. A row
that the warehouse refuses is set aside with the reason; the others are sent. Records are only read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from keras_matrix.records import findings
from keras_matrix.records.files import UnfitFile, read_range
from keras_matrix.records.store import RECORD_NAME, Results, Run
from keras_matrix.records.store_failure import StoreFailure
from keras_matrix.uploader import rows
from keras_matrix.uploader.batch_sender import PushSummary, Say, send
from keras_matrix.uploader.outbox import Outbox, seal_all
from keras_matrix.uploader.rows import WarehouseRow
from keras_matrix.uploader.schema import CELLS, FINDINGS, LONGEST_ROW_BYTES, MEASUREMENTS, RUNS
from keras_matrix.uploader.warehouse import Warehouse

__all__ = ["PushSummary", "Say", "push", "reset_if_emptied", "send", "short_enough", "unsealed", "without_record"]

REVISION = re.compile(rb'"revision": ([0-9]+)')
HEAD_BYTES = 400


def push(results: Results, warehouse: Warehouse, outbox: Outbox, say: Say = lambda text: None) -> PushSummary:
    """Seal new rows and send every pending batch. Raises `UploadError`; unsent batches stay pending."""
    summary = PushSummary()
    with outbox.locked():
        warehouse_rows = _collect(results, warehouse.retained_from(), outbox, summary)
        summary.sealed = seal_all(short_enough(warehouse_rows, outbox), outbox)
        send(warehouse, outbox, summary, say)
        summary.dead = len(outbox.dead())
    return summary


def reset_if_emptied(results: Results, warehouse: Warehouse, outbox: Outbox) -> tuple[int, int]:
    """Remove the outbox's markers if the warehouse was deleted or created again, so that a push sends everything.

    Returns how many attempts had been sent, and how many of them have no record here; both are 0 if the warehouse is
    not empty or nothing was sent. Raises `UploadError`.
    """
    with outbox.locked():
        if not outbox.done() or not warehouse.is_empty():
            return 0, 0
        retained_from = warehouse.retained_from()
        sent_items = [item for item in outbox.sent()[CELLS.name] if not rows.expired(item, retained_from)]
        if not sent_items:
            return 0, 0  # every row that was sent has expired
        outbox.clear_done()
    return len(sent_items), len(without_record(results, sent_items))


def without_record(results: Results, items: Iterable[str]) -> list[str]:
    """Return the run of each attempt whose run is not in the results folder."""
    run_ids = {run.run_id for run in results.runs()}
    return [run_id for run_id in (item.partition("/")[0] for item in items) if run_id not in run_ids]


def unsealed(results: Results, outbox: Outbox) -> int:
    """Return how many attempts are in no batch yet, without dead letters; by the names of their records."""
    sealed = outbox.sent()[CELLS.name] | {letter.item for letter in outbox.dead()}
    return sum(len(_items(run) - sealed) for run in results.runs())


def short_enough(warehouse_rows: Iterable[WarehouseRow], outbox: Outbox) -> Iterator[WarehouseRow]:
    """Yield the rows within the size limit; set aside the longer ones."""
    for row in warehouse_rows:
        size_bytes = len(row.line.encode())
        if size_bytes > LONGEST_ROW_BYTES:
            outbox.add_dead_letter(
                row.table, row.item, row.line, f"{size_bytes:,} bytes, more than {LONGEST_ROW_BYTES:,}"
            )
        else:
            yield row


def _collect(
    results: Results, retained_from: str | None, outbox: Outbox, summary: PushSummary
) -> Iterator[WarehouseRow]:
    """Yield the rows that are not sent yet, without expired runs, whose partitions the warehouse would delete."""
    sent_by_table = outbox.sent()
    summary.left_out += [f"{problem.path}: {problem.reason}" for problem in results.left_out()]
    for run in results.runs():
        if rows.expired(run.run_id, retained_from):
            summary.expired.append(run.run_id)
        else:
            yield from _of_run(run, sent_by_table, summary)


def _of_run(run: Run, sent_by_table: dict[str, set[str]], summary: PushSummary) -> Iterator[WarehouseRow]:
    try:
        if run.run_id not in sent_by_table[RUNS.name]:
            yield rows.of_run(run.run_id, run.about())
        yield from _of_records(run, sent_by_table, summary)
        yield from _of_findings(run, sent_by_table, summary)
    except StoreFailure as error:
        summary.left_out.append(str(error))


def _of_records(run: Run, sent_by_table: dict[str, set[str]], summary: PushSummary) -> Iterator[WarehouseRow]:
    """Yield the rows of new records, found by file name: reading all records for every push would take minutes."""
    if not _items(run) - (sent_by_table[CELLS.name] & sent_by_table[MEASUREMENTS.name]):
        return
    records, problems = run.load()
    summary.left_out += [f"{problem.path}: {problem.reason}" for problem in problems]
    for record in records:
        item = rows.item_of_record(record)
        if item in sent_by_table[CELLS.name] and item in sent_by_table[MEASUREMENTS.name]:
            continue
        yield from (row for row in rows.of_record(record) if row.item not in sent_by_table[row.table.name])


def _items(run: Run) -> set[str]:
    """Return the items of a run's records. Raises `StoreFailure`."""
    names = (name for name in run.record_names() if RECORD_NAME.fullmatch(name))
    return {f"{run.run_id}/{name.removesuffix('.json')}" for name in names}


def _of_findings(run: Run, sent_by_table: dict[str, set[str]], summary: PushSummary) -> Iterator[WarehouseRow]:
    path = run.folder / findings.FILE
    try:
        head = REVISION.search(read_range(path, 0, HEAD_BYTES))
    except FileNotFoundError:
        summary.without_findings.append(run.run_id)
        return
    except (UnfitFile, OSError) as error:
        raise StoreFailure(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if head and f"{run.run_id}/{int(head[1])}" in sent_by_table[FINDINGS.name]:
        return
    run_findings = findings.load(run)
    if run_findings is not None:
        yield from rows.of_findings(run_findings)
