"""Push: what a results folder holds and no batch does yet is sealed, then every pending batch is sent.

Promise: one row a key arrives whatever is killed, sent twice or sent by several at once. A row that the warehouse can
never take is set aside with its reason and the rest goes. Measuring knows nothing of it: records are only read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from records import findings
from records.store import RECORD_NAME, Problem, Results, Run, StoreFailure
from uploader import rows
from uploader.outbox import Outbox, seal_all
from uploader.rows import Row
from uploader.schema import CELLS, FINDINGS, LONGEST_ROW_BYTES, MEASUREMENTS, RUNS
from uploader.sending import Pushed, Say, send
from uploader.warehouse import Warehouse

__all__ = ["Pushed", "Say", "push", "send", "short_enough", "unsealed"]

REVISION = re.compile(rb'"revision": ([0-9]+)')
HEAD_BYTES = 400


def push(results: Results, warehouse: Warehouse, outbox: Outbox, say: Say = lambda text: None) -> Pushed:
    """Seal what is new and send all that is pending. Raises `UploadError`; what is pending then stays so."""
    done = Pushed()
    with outbox.locked():
        found = _collect(results, warehouse.kept_from(), outbox, done)
        done.sealed = seal_all(short_enough(found, outbox), outbox)
        send(warehouse, outbox, done, say)
        done.dead = len(outbox.dead())
    return done


def unsealed(results: Results, outbox: Outbox) -> int:
    """Return how many attempts no batch holds yet, those set aside left out; by the names of their records."""
    held = outbox.sent()[CELLS.name] | {letter.item for letter in outbox.dead()}
    return sum(len(_items(run) - held) for run in results.runs())


def short_enough(found: Iterable[Row], outbox: Outbox) -> Iterator[Row]:
    """Yield the rows that a warehouse may take; one that is too long is set aside."""
    for row in found:
        size = len(row.line.encode())
        if size > LONGEST_ROW_BYTES:
            outbox.bury(row.table, row.item, row.line, f"{size:,} bytes, more than {LONGEST_ROW_BYTES:,}")
        else:
            yield row


def _collect(results: Results, kept_from: str | None, outbox: Outbox, done: Pushed) -> Iterator[Row]:
    """Yield the rows of what is not sent yet; a run from before what the warehouse keeps would vanish on arrival."""
    sent = outbox.sent()
    for run in results.runs():
        if rows.expired(run.run_id, kept_from):
            done.expired.append(run.run_id)
        else:
            yield from _of_run(run, sent, done)


def _of_run(run: Run, sent: dict[str, set[str]], done: Pushed) -> Iterator[Row]:
    try:
        if run.run_id not in sent[RUNS.name]:
            yield rows.of_run(run.run_id, run.about())
        yield from _of_records(run, sent, done)
        yield from _of_findings(run, sent, done)
    except StoreFailure as error:
        done.left_out.append(str(error))


def _of_records(run: Run, sent: dict[str, set[str]], done: Pushed) -> Iterator[Row]:
    """Yield the rows of new records. Names tell which are new: reading all records every night would take minutes."""
    if not _items(run) - (sent[CELLS.name] & sent[MEASUREMENTS.name]):
        return
    records, problems = run.load()
    done.left_out += [_told(problem) for problem in problems]
    for record in records:
        item = rows.item_of_record(record)
        if item in sent[CELLS.name] and item in sent[MEASUREMENTS.name]:
            continue
        yield from (row for row in rows.of_record(record) if row.item not in sent[row.table.name])


def _items(run: Run) -> set[str]:
    """Return the items of a run's records. Raises `StoreFailure`."""
    names = (name for name in run.record_names() if RECORD_NAME.fullmatch(name))
    return {f"{run.run_id}/{name.removesuffix('.json')}" for name in names}


def _of_findings(run: Run, sent: dict[str, set[str]], done: Pushed) -> Iterator[Row]:
    try:
        with (run.folder / findings.FILE).open("rb") as file:
            head = REVISION.search(file.read(HEAD_BYTES))
    except FileNotFoundError:
        done.without_findings.append(run.run_id)
        return
    if head and f"{run.run_id}/{int(head[1])}" in sent[FINDINGS.name]:
        return
    found = findings.load(run)
    if found is not None:
        yield from rows.of_findings(found)


def _told(problem: Problem) -> str:
    return f"{problem.path}: {problem.reason}"
