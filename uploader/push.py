"""Push: what a results folder holds and no batch does yet is sealed, then every pending batch is sent.

Promise: one row a key arrives whatever is killed, sent twice or sent by several at once. A row that the warehouse can
never take is set aside with its reason and the rest goes. Measuring knows nothing of it: records are only read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from records import findings
from records.store import RECORD_NAME, Problem, Results, Run, StoreFailure
from uploader import rows
from uploader.errors import RowsRefused
from uploader.outbox import Batch, Outbox, seal_all
from uploader.rows import Row
from uploader.schema import CELLS, FINDINGS, LONGEST_ROW_BYTES, MEASUREMENTS, RUNS
from uploader.warehouse import Warehouse

REVISION = re.compile(rb'"revision": ([0-9]+)')
HEAD_BYTES = 400

Say = Callable[[str], None]


@dataclass(slots=True)
class Pushed:
    """What a push did. `left_out` are runs and files that could not be read, with why; `without_findings` are runs."""

    sealed: int = 0
    arrived: dict[str, int] = field(default_factory=dict)
    known: int = 0
    dead: int = 0
    left_out: list[str] = field(default_factory=list)
    without_findings: list[str] = field(default_factory=list)

    @property
    def new(self) -> int:
        """Rows that the warehouse did not have."""
        return sum(self.arrived.values())


def push(results: Results, warehouse: Warehouse, outbox: Outbox, say: Say = lambda text: None) -> Pushed:
    """Seal what is new and send all that is pending. Raises `UploadError`; what is pending then stays so."""
    done = Pushed()
    with outbox.locked():
        done.sealed = seal_all(short_enough(_collect(results, outbox, done), outbox), outbox)
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


def send(warehouse: Warehouse, outbox: Outbox, done: Pushed, say: Say) -> None:
    """Send every pending batch; halve one that is refused until the row that is to blame stands alone."""
    while batches := outbox.pending():
        for batch in batches:
            count = batch.contents().rows
            try:
                new = warehouse.merge(batch)
            except RowsRefused as refused:
                _refused(outbox, batch, str(refused))
                continue
            outbox.settle(batch)
            done.arrived[batch.table.name] = done.arrived.get(batch.table.name, 0) + new
            done.known += count - new
            say(f"{batch.table.name}: {new:,} new of {count:,} rows")


def _refused(outbox: Outbox, batch: Batch, reason: str) -> None:
    lines = batch.lines()
    if len(lines) > 1:
        outbox.split(batch)
        return
    item = rows.item_of(batch.table, next(batch.values()))
    outbox.bury(batch.table, item, lines[0], reason)
    outbox.settle(batch)


def _collect(results: Results, outbox: Outbox, done: Pushed) -> Iterator[Row]:
    """Yield the rows of what is not sent yet."""
    sent = outbox.sent()
    for run in results.runs():
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
    """Return the items of a run's records."""
    names = (path.name for path in (run.folder / "records").glob("[!.]*") if RECORD_NAME.fullmatch(path.name))
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
