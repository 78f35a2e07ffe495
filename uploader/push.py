"""Push: seals the new rows of a results folder in batches, then sends every pending batch; and repair.

Exactly one row per key arrives, also if processes are killed, rows are sent twice, or several pushes run at once. A row
that the warehouse refuses is set aside with the reason; the others are sent. Records are only read.

Repair restores rows that a warehouse has lost, independently of the outbox's markers. For each table and run the rows
in the warehouse are compared with the rows of the records (`uploader.verify`), and the rows of each run that differs
are sealed and sent again: a warehouse adds those whose key is missing. If a repair is killed at any point, the next one
completes it. Duplicate and altered rows are only reported. Rows without a record, such as imported ones, cannot be
restored.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keras_matrix.records import findings
from keras_matrix.records.files import UnfitFile, read_range
from keras_matrix.records.store import RECORD_NAME, Results, Run
from keras_matrix.records.store_failure import StoreFailure
from keras_matrix.records.text import plural
from keras_matrix.uploader import errors, rows
from keras_matrix.uploader.batch_sender import PushSummary, Say, send
from keras_matrix.uploader.outbox import Outbox, seal_all
from keras_matrix.uploader.rows import WarehouseRow
from keras_matrix.uploader.schema import CELLS, FINDINGS, LONGEST_ROW_BYTES, MEASUREMENTS, RUNS
from keras_matrix.uploader.verify import (
    Checksum,
    Checksums,
    RunDifference,
    attempts,
    checksums,
    differences,
    doubled,
    expected,
    listed,
    rows_of,
)
from keras_matrix.uploader.warehouse import Warehouse, is_local

if TYPE_CHECKING:
    from keras_matrix.uploader.opening import PushChoices, Target

__all__ = [
    "PushSummary",
    "RepairSummary",
    "Say",
    "prepare",
    "push",
    "push_to",
    "repair",
    "resend_if_emptied",
    "reset_if_emptied",
    "send",
    "short_enough",
    "unsealed",
    "without_record",
]

REVISION = re.compile(rb'"revision": ([0-9]+)')
HEAD_BYTES = 400
MOST_LISTED = 20
REPLACE_LOCAL = (
    "duplicate and altered rows are not changed: to replace them, move the Parquet files of their table elsewhere and "
    "run the same command again, which sends the rows that have a record"
)
REPLACE_BIGQUERY = (
    "duplicate and altered rows are not changed: to replace them, delete the rows of their run from the table (by day "
    "and run_id) and run the same command again"
)


def say_nothing(text: str) -> None:
    """Take the place of `say` where only problems are reported."""


def push_to(target: Target, choices: PushChoices, say: Say, report: Say) -> bool:
    """Push to the warehouse of a target: `say` gets what was done, `report` every problem. Raises `UploadError`.

    Returns False if rows were set aside, skipped, lost or not compared, or still differ after a repair.
    """
    from keras_matrix.uploader.local.warehouse import LocalWarehouse

    outbox, results = target.outbox(), Results(target.results)
    with target.opened() as warehouse:
        if choices.repair and isinstance(warehouse, LocalWarehouse):
            for line in warehouse.repair():
                report(line)
        prepare(warehouse, target.address)
        was_lost = resend_if_emptied(results, warehouse, outbox, report)
        if choices.retry_dead or choices.repair:
            with outbox.locked():
                say(f"tried again: {plural(outbox.requeue_dead_letters(), 'row')} that had been set aside")
        summary = push(results, warehouse, outbox, say)
        repaired = None
        if choices.repair:
            repaired = repair(results, warehouse, outbox, summary, say)
        if isinstance(warehouse, LocalWarehouse):
            warehouse.check_files()  # a push without new rows does not open the files
    say(f"{summary.new:,} new rows, {summary.known:,} already present")
    for line in [*_problems(summary), *(repair_lines(repaired, target.address) if repaired else [])]:
        report(line)
    failed = summary.dead or summary.left_out or summary.uncompared or was_lost
    return not (failed or (repaired and differs(repaired)))


def prepare(warehouse: Warehouse, address: str) -> None:
    """Create a local warehouse if it is missing. Raises `SchemaMismatch` if a dataset's tables differ."""
    if is_local(address):
        warehouse.create()
    else:
        from keras_matrix.uploader.bigquery import schema_check

        schema_check.refuse(schema_check.differences(warehouse), address)


def resend_if_emptied(results: Results, warehouse: Warehouse, outbox: Outbox, report: Say) -> bool:
    """Send everything again if the warehouse was emptied, and report that; return whether attempts are lost."""
    sent_count, lost_count = reset_if_emptied(results, warehouse, outbox)
    if sent_count:
        report(
            f"{warehouse.address} has no rows, but {plural(sent_count, 'attempt')} had been sent to it before: "
            "sending all again"
        )
    if lost_count:
        report(f"{lost_count:,} of these have no record here: repeat their import")
    return bool(lost_count)


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
        match = REVISION.search(read_range(path, 0, HEAD_BYTES))
    except FileNotFoundError:
        summary.without_findings.append(run.run_id)
        return
    except (UnfitFile, OSError) as error:
        raise StoreFailure(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if match and f"{run.run_id}/{int(match[1])}" in sent_by_table[FINDINGS.name]:
        return
    run_findings = findings.load(run)
    if run_findings is not None:
        yield from rows.of_findings(run_findings)


def _problems(summary: PushSummary) -> list[str]:
    """Return a line for each problem of a push."""
    lines = [f"skipped: {line}" for line in summary.left_out] + summary.conflicts + summary.uncompared
    if summary.dead:
        lines.append(f"{plural(summary.dead, 'row')} set aside: uploader status lists the reasons")
    if summary.expired:
        lines.append(f"not sent: {plural(len(summary.expired), 'run')} older than the warehouse's retention")
    if summary.without_findings:
        lines.append(_findings_advice(summary.without_findings))
    return lines


def _findings_advice(runs: Sequence[str]) -> str:
    """Return how to create the findings of these runs: by finishing a run, or by its report."""
    subject_text = f"run {runs[0]} has" if len(runs) == 1 else f"{len(runs)} runs, the newest {max(runs)}, have"
    report_command = "docker compose run --rm jax-cpu report" if errors.in_container() else "runner report"
    return f"{subject_text} no findings: finish the run, or {report_command} --run {max(runs)}; then push again"


def repair_lines(repaired: RepairSummary, address: str) -> list[str]:
    """Return lines on restored rows, remaining differences and what to do."""
    texts = [str(restored_rows) for restored_rows in repaired.restored[:MOST_LISTED]]
    if (unlisted_count := len(repaired.restored) - MOST_LISTED) > 0:
        texts.append(f"rows of {unlisted_count} more runs were missing")
    texts += [*listed(list(repaired.remaining)), *repaired.doubled, *repaired.unread]
    if repaired.doubled or any(not difference.missing for difference in repaired.remaining):
        texts.append(REPLACE_LOCAL if is_local(address) else REPLACE_BIGQUERY)
    if repaired.expired:
        texts.append(f"not compared: {plural(repaired.expired, 'run')} older than the warehouse's retention")
    if repaired.lost:
        texts.append(f"{repaired.lost:,} attempts are missing and have no record here: repeat their import")
    missing_count = sum(restored_rows.missing for restored_rows in repaired.restored)
    restored_count = sum(restored_rows.restored for restored_rows in repaired.restored)
    remaining_text = f"{_remaining(repaired)} differences remain"
    return [*texts, f"repair: {missing_count:,} rows were missing, {restored_count:,} are restored, {remaining_text}"]


def differs(repaired: RepairSummary) -> bool:
    """Return whether rows still differ, are lost, or could not be compared."""
    return bool(_remaining(repaired) or repaired.unread or repaired.lost)


def _remaining(repaired: RepairSummary) -> int:
    return len(repaired.remaining) + len(repaired.doubled)


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
