"""Sends the batches of an outbox. Rows that a warehouse refuses are found by bisection and set aside.

If every row is refused, the cause is not a row: before a batch is split, `SAMPLES` of its rows are sent individually. A
batch whose samples are all refused waits until another row of its table arrives. If no row does, nothing is set aside
and the push fails with the reason; likewise if `SAMPLES` batches of one row are all refused. A batch that waits, also
for a damaged file of the warehouse, does not block the batches of other tables.

Rows that a warehouse already has are compared by their hashes: of each run with other values a row is set aside.

A module of its own: what is sent, and how, does not depend on where the rows come from (records, imports, a repair).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from keras_matrix.uploader import rows
from keras_matrix.uploader.errors import AllRowsRefused, FileDamaged, RowsRefused, WarehouseFailure
from keras_matrix.uploader.outbox import Batch, Outbox
from keras_matrix.uploader.warehouse import Warehouse

SAMPLES = 5
MOST_SAMPLED = 3  # batches of a table, each of whose samples was refused, before the table's other batches wait too

CONFLICT = (
    "have other values in the warehouse, which keeps them: another host or results folder has sent a run of the same "
    "name; to replace them, delete the run's rows from the warehouse, then push with --forget RUN"
)

Say = Callable[[str], None]


@dataclass(slots=True)
class PushSummary:
    """Summary of a push. `left_out` are runs and files that cannot be read, with the reason, `conflicts` runs of which
    the warehouse has other values, `uncompared` tables whose rows could not be compared with those that it had.

    `without_findings` are runs without a findings file; `expired` are runs that are older than the warehouse's
    retention and are not sent.
    """

    sealed: int = 0
    arrived: dict[str, int] = field(default_factory=dict)
    known: int = 0
    dead: int = 0
    conflicts: list[str] = field(default_factory=list)
    uncompared: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    without_findings: list[str] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)

    @property
    def new(self) -> int:
        """Number of rows that the warehouse did not have."""
        return sum(self.arrived.values())


def send(warehouse: Warehouse, outbox: Outbox, summary: PushSummary, say: Say) -> None:
    """Send every pending batch. Raises `UploadError`; unsent batches stay pending."""
    sender = _Sender(warehouse, outbox, summary, say)
    while batches := sender.waiting():
        for batch in batches:
            sender.send(batch)
    sender.end()


@dataclass(slots=True)
class _Sender:
    """One pass over an outbox.

    `suspects` are, by table, batches of one row or with every sample refused, with the reason. `stopped` are tables
    whose batches wait for the next push, with the reason.
    """

    warehouse: Warehouse
    outbox: Outbox
    done: PushSummary
    say: Say
    suspects: dict[str, dict[Batch, str]] = field(default_factory=dict)
    stopped: dict[str, WarehouseFailure] = field(default_factory=dict)

    def waiting(self) -> list[Batch]:
        """Return the pending batches that can be sent now."""
        return [batch for batch in self.outbox.pending() if self._can_be_sent(batch)]

    def send(self, batch: Batch) -> None:
        """Send a batch; split it if it is refused. Raises `WarehouseFailure` for an error that ends the push."""
        if batch.table.name in self.stopped:
            return
        self.suspects.get(batch.table.name, {}).pop(batch, None)
        try:
            refusal = self._merge(batch)
            if refusal is None:
                self.outbox.mark_done(batch)
            elif batch.contents().rows > 1 and (batch.table.name in self.done.arrived or self._sample_arrives(batch)):
                self.outbox.split(batch)
            else:
                self._suspect(batch, refusal)
        except FileDamaged as error:
            self.stopped[batch.table.name] = error

    def end(self) -> None:
        """Set aside the rows that were refused individually. Raises the failure of a stopped table."""
        for name, reasons in self.suspects.items():
            if name not in self.stopped:
                self._judge(name, reasons)
        failures = list(self.stopped.values())
        for failure in failures[1:]:
            self.say(str(failure))
        if failures:
            raise failures[0]

    def _can_be_sent(self, batch: Batch) -> bool:
        if batch in self.suspects.get(batch.table.name, {}):
            return batch.contents().rows > 1 and batch.table.name in self.done.arrived
        return batch.table.name not in self.stopped

    def _suspect(self, batch: Batch, reason: str) -> None:
        reasons = self.suspects.setdefault(batch.table.name, {})
        reasons[batch] = reason
        if sum(suspect.contents().rows > 1 for suspect in reasons) >= MOST_SAMPLED:
            self.stopped[batch.table.name] = self._all_refused(reasons)

    def _judge(self, table_name: str, reasons: dict[Batch, str]) -> None:
        """Set rows aside, unless at least `SAMPLES` rows of the table were tried and no row of it arrived."""
        if table_name not in self.done.arrived and _tried(reasons) >= SAMPLES:
            self.stopped[table_name] = self._all_refused(reasons)
            return
        for batch, reason in reasons.items():
            item = rows.item_of(batch.table, next(batch.values()))
            self.outbox.add_dead_letter(batch.table, item, batch.lines()[0], reason)
            self.outbox.mark_done(batch)

    def _sample_arrives(self, batch: Batch) -> bool:
        """Send single rows of a batch until one arrives; return whether one does or the batch has few rows."""
        lines = batch.lines()
        last_index = len(lines) - 1
        for number in range(SAMPLES if len(lines) >= SAMPLES else 0):
            with self.outbox.sample(batch.table, lines[number * last_index // (SAMPLES - 1)]) as sample:
                if self._merge(sample) is None:
                    return True
        return len(lines) < SAMPLES

    def _merge(self, batch: Batch) -> str | None:
        """Merge a batch into the warehouse; return the reason of a refused row, None once every row arrived."""
        name, count = batch.table.name, batch.contents().rows
        try:
            new = self.warehouse.merge(batch)
        except RowsRefused as error:
            return str(error)
        self.done.arrived[name] = self.done.arrived.get(name, 0) + new
        self.done.known += count - new
        self.say(f"{name}: {new:,} new of {count:,} rows")
        if new < count:
            self._compare(batch)
        return None

    def _compare(self, batch: Batch) -> None:
        """Set aside a row of each run of which the warehouse has other values: those of another host, for example."""
        try:
            stored_hashes = self.warehouse.row_hashes(batch.table, batch.contents().days)
        except WarehouseFailure as error:  # the rows have arrived
            reason = f"not compared with the rows that were already there: {error}; compare them with: uploader verify"
            self.done.uncompared.append(f"{batch.table.name}: {reason}")
            return
        differing: dict[str, list[tuple[str, str]]] = {}
        for line, values in zip(batch.lines(), batch.values(), strict=True):
            key = tuple(values.get(name) for name in batch.table.key)
            if stored_hashes.get(key, values["row_hash"]) != values["row_hash"]:
                differing.setdefault(str(values["run_id"]), []).append((rows.item_of(batch.table, values), line))
        for run_id, differing_rows in differing.items():
            count, (item, line) = len(differing_rows), differing_rows[0]
            reason = f"{count:,} rows of run {run_id} {CONFLICT}"
            self.outbox.add_dead_letter(batch.table, item, line, reason)
            self.done.conflicts.append(f"{batch.table.name}: {reason}")

    def _all_refused(self, reasons: Mapping[Batch, str]) -> AllRowsRefused:
        batch, reason = next(iter(reasons.items()))
        refusal_text = f"refuses every row of {batch.table.name} that was tried ({_tried(reasons)})"
        advice = "no row is set aside, all stay pending: correct the cause, then push again"
        return AllRowsRefused(f"{self.warehouse.address}: {refusal_text}: {reason}; {advice}")


def _tried(batches: Iterable[Batch]) -> int:
    return sum(1 if batch.contents().rows == 1 else SAMPLES for batch in batches)
