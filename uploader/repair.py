"""Brings back rows that a warehouse has lost: what decides is the warehouse, not the outbox's marks.

Per table and run the rows in the warehouse are compared with those that the records make (`uploader.verify`), and the
rows of each run that differs are sealed and sent again: a warehouse adds those whose key is missing. Promise: killed at
any point, the next repair finishes it. Rows that are doubled or were altered are only reported. Rows without a record,
such as imported ones, cannot come back from here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from records.store import Results, StoreFailure
from uploader import rows
from uploader.outbox import Outbox, seal_all
from uploader.push import short_enough
from uploader.rows import Row
from uploader.schema import CELLS, MEASUREMENTS
from uploader.sending import Pushed, Say, send
from uploader.verify import Difference, Held, Holdings, attempts, differences, doubled, expected, holdings, rows_of
from uploader.warehouse import Warehouse


@dataclass(frozen=True, slots=True)
class Returned:
    """Rows of one run in one table: missing before, and back afterwards."""

    table: str
    run_id: str
    missing: int
    back: int

    def __str__(self) -> str:
        return f"{self.table}, run {self.run_id}: {self.missing:,} rows were missing, {self.back:,} are back"


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair did. `left` are the runs that still differ; `unread` says what could not be compared, and why.

    `expired` counts runs from before what the warehouse keeps; `lost` attempts that this outbox sent, that are missing
    and that have no record here, such as imported ones.
    """

    returned: tuple[Returned, ...]
    left: tuple[Difference, ...]
    doubled: tuple[str, ...]
    unread: tuple[str, ...]
    expired: int
    lost: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What an emptied warehouse had been sent: attempts, and those of them without a record in the results folder."""

    sent: int
    without_record: int


def repair(results: Results, warehouse: Warehouse, outbox: Outbox, done: Pushed, say: Say) -> Repaired:
    """Send again what is missing; `done` counts it too. Raises `UploadError`."""
    wanted = expected(results, warehouse.kept_from())
    before = differences(wanted, holdings(warehouse, wanted.since))
    with outbox.locked():
        seal_all(short_enough(_again(results, before, outbox), outbox), outbox)
        send(warehouse, outbox, done, say)
        done.dead = len(outbox.dead())
        lost = _lost(results, warehouse, outbox, wanted.kept_from)
    there = holdings(warehouse, wanted.since) if before else {}
    return Repaired(
        tuple(_returned(one, there) for one in before if one.missing),
        tuple(differences(wanted, there)) if before else (),
        tuple(doubled(warehouse, wanted.since)),
        tuple(wanted.unread),
        len(wanted.expired),
        lost,
    )


def _returned(before: Difference, there: Holdings) -> Returned:
    name, run_id = before.table.name, before.run_id
    return Returned(name, run_id, before.missing, there[name].get(run_id, Held()).rows - before.have.rows)


def forget_if_emptied(results: Results, warehouse: Warehouse, outbox: Outbox) -> Forgotten | None:
    """Drop the outbox's marks if the warehouse has no row, being deleted or made anew, so that a push sends all again.

    Return what had been sent; None if nothing is wrong. Raises `UploadError`.
    """
    with outbox.locked():
        if not outbox.done() or not warehouse.is_empty():
            return None
        kept_from = warehouse.kept_from()
        sent = [item for item in outbox.sent()[CELLS.name] if not rows.expired(item, kept_from)]
        if not sent:
            return None  # a warehouse that keeps rows for a time is empty by itself once all are old
        outbox.forget()
    return Forgotten(len(sent), len(_without_record(results, sent)))


def _without_record(results: Results, items: Iterable[str]) -> list[str]:
    """Return the run of each attempt that is of no run of the results folder."""
    known = {run.run_id for run in results.runs()}
    return [run_id for run_id in (item.partition("/")[0] for item in items) if run_id not in known]


def _lost(results: Results, warehouse: Warehouse, outbox: Outbox, kept_from: str | None) -> int:
    """Return how many attempts that were sent have no record here and no row in `cells` or in `measurements`."""
    sent, dead = outbox.sent(), {letter.item for letter in outbox.dead()}
    lost: Counter[str] = Counter()
    for table in (CELLS, MEASUREMENTS):
        found = Counter(_without_record(results, sent[table.name] - dead))
        runs = {run_id: count for run_id, count in found.items() if not rows.expired(run_id, kept_from)}
        there = attempts(warehouse, table, rows.day_of(min(runs))) if runs else {}
        lost |= Counter({run_id: count - there.get(run_id, 0) for run_id, count in runs.items()})
    return lost.total()


def _again(results: Results, found: Sequence[Difference], outbox: Outbox) -> Iterator[Row]:
    """Yield the rows of the runs and tables that differ, less those that were set aside."""
    wanted = {(one.table.name, one.run_id) for one in found}
    runs = {run_id for _, run_id in wanted}
    dead = {letter.row for letter in outbox.dead()}
    for run in results.runs():
        if run.run_id not in runs:
            continue
        try:
            for row in rows_of(run, []):
                if (row.table.name, run.run_id) in wanted and row.line not in dead:
                    yield row
        except StoreFailure:
            continue  # reported as not compared
