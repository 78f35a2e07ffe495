"""The outbox: rows on their way to one warehouse, as sealed batches of JSON lines.

    results/outbox/<warehouse>/
      .lock                                held (flock) while batches are sealed and sent
      pending/<table>-<sha256>.ndjson      sealed, not known to have arrived; the name is the hash of the content
      done/<table>-<sha256>.json           arrived: which items were in it
      dead/<table>-<sha256>.json           one row that the warehouse can never take, and why

Promise: after a crash at any point nothing is lost: a batch appears whole or not at all, an item counts as sent only
while a batch that holds it is pending or done, and a batch leaves `pending` after its mark stands in `done`. Sending
one twice does no harm: a warehouse takes each row once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from records.files import publish, write_synced
from uploader.errors import OutboxFailure
from uploader.process import not_writable
from uploader.rows import Row, item_of
from uploader.schema import BY_NAME, FINDINGS, LONGEST_ROW_BYTES, MEASUREMENTS, Table

FOLDERS = ("pending", "done", "dead")
MOST_ROWS = 100_000
METRIC = ',"metric":'
WITH_METRIC = (MEASUREMENTS, FINDINGS)
MARK = {"table": str, "items": list}
LETTER = {"table": str, "item": str, "reason": str, "row": str}


@dataclass(frozen=True, slots=True)
class Contents:
    """What a batch holds: rows, the first and last of their days (the partitions it touches), and items."""

    rows: int
    days: tuple[str, str]
    items: frozenset[str]


@dataclass(frozen=True, slots=True)
class Batch:
    """One sealed file of rows of one table."""

    table: Table
    sha: str
    path: Path

    @property
    def name(self) -> str:
        """The batch's name, the same wherever the same rows are sealed."""
        return f"{self.table.name}-{self.sha}"

    def lines(self) -> list[str]:
        """Return its rows as they were sealed. Raises `OutboxFailure` where they are no more."""
        with _explained(self.path, "cannot be read"):
            raw = self.path.read_bytes()
        if hashlib.sha256(raw).hexdigest() != self.sha:
            raise OutboxFailure(f"{self.path}: is not what was sealed; remove it: what was in it is sent again")
        return raw.decode().split("\n")[:-1]

    def values(self) -> Iterator[dict[str, Any]]:
        """Yield its rows."""
        return (json.loads(line) for line in self.lines())

    def contents(self) -> Contents:
        """Return what is in it; its name is its content's, so that it is read once."""
        return _contents(self)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A row that was set aside."""

    table: str
    item: str
    reason: str
    row: str
    path: Path


class Outbox:
    """The batches of one results folder for one warehouse."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the outbox; wait for another push into the same one to end. Raises `OutboxFailure`."""
        with _explained(self.folder, "cannot be created"):
            for name in FOLDERS:
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            handle = (self.folder / ".lock").open("a")
        with handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            self._sweep()
            yield

    def sent(self) -> dict[str, set[str]]:
        """Return, by table, the items that are pending or done."""
        found: dict[str, set[str]] = {name: set() for name in BY_NAME}
        for mark in self._marks():
            found[mark["table"]].update(mark["items"])
        for batch in self.pending():
            found[batch.table.name] |= batch.contents().items
        return found

    def seal(self, table: Table, lines: Sequence[str]) -> Batch:
        """Seal rows as a batch. Raises `OutboxFailure`; then nothing was sealed."""
        text = "\n".join(lines) + "\n"
        sha = hashlib.sha256(text.encode()).hexdigest()
        batch = Batch(table, sha, self.folder / "pending" / f"{table.name}-{sha}.ndjson")
        with contextlib.suppress(FileExistsError), _explained(batch.path, "cannot be sealed"):
            publish(batch.path, text)
        return batch

    def pending(self) -> list[Batch]:
        """Return what is sealed and not known to have arrived, by table in the order of `TABLES`, then by name."""
        found = [_batch(path) for path in (self.folder / "pending").glob("[!.]*.ndjson")]
        order = list(BY_NAME)
        return sorted(found, key=lambda batch: (order.index(batch.table.name), batch.sha))

    def settle(self, batch: Batch) -> None:
        """Note that a batch has arrived, and let go of it."""
        self._mark("done", batch.name, {"table": batch.table.name, "items": sorted(batch.contents().items)})
        self._let_go(batch)

    def split(self, batch: Batch) -> None:
        """Seal the halves of a batch in its place."""
        lines = batch.lines()
        middle = len(lines) // 2
        self.seal(batch.table, lines[:middle])
        self.seal(batch.table, lines[middle:])
        self._let_go(batch)

    @contextlib.contextmanager
    def sample(self, table: Table, line: str) -> Iterator[Batch]:
        """Give a batch of one row that is not pending: the row is part of another batch. Raises `OutboxFailure`."""
        text = line + "\n"
        sha = hashlib.sha256(text.encode()).hexdigest()
        batch = Batch(table, sha, self.folder / "pending" / f".{table.name}-{sha}.{os.getpid()}.tmp")
        try:
            with _explained(batch.path, "cannot be written"):
                write_synced(batch.path, text)
            yield batch
        finally:
            with contextlib.suppress(OSError):
                batch.path.unlink()

    def bury(self, table: Table, item: str, row: str, reason: str) -> None:
        """Set a row aside with its reason, once."""
        name = f"{table.name}-{hashlib.sha256(row.encode()).hexdigest()}"
        self._mark("dead", name, {"table": table.name, "item": item, "reason": reason, "row": row})

    def dead(self) -> list[DeadLetter]:
        """Return the rows that were set aside."""
        found = []
        for path in sorted((self.folder / "dead").glob("[!.]*.json")):
            told = _loaded(path, LETTER)
            found.append(DeadLetter(told["table"], told["item"], told["reason"], told["row"], path))
        return found

    def revive(self) -> int:
        """Seal the rows that were set aside again, those that are too long left out; return how many."""
        letters = [letter for letter in self.dead() if len(letter.row.encode()) <= LONGEST_ROW_BYTES]
        for table in BY_NAME.values():
            lines = [letter.row for letter in letters if letter.table == table.name]
            if lines:
                self.seal(table, lines)
        for letter in letters:
            letter.path.unlink(missing_ok=True)
        return len(letters)

    def forget(self) -> None:
        """Remove the marks of the batches that have arrived: a push then seals and sends everything again.

        Killed in between, some marks are left.
        """
        for path in (self.folder / "done").glob("[!.]*.json"):
            with _explained(path, "cannot be removed"):
                path.unlink(missing_ok=True)

    def done(self) -> int:
        """Return how many batches have arrived."""
        return sum(1 for _ in (self.folder / "done").glob("[!.]*.json"))

    def _marks(self) -> Iterator[dict[str, Any]]:
        return (_loaded(path, MARK) for path in (self.folder / "done").glob("[!.]*.json"))

    def _mark(self, folder: str, name: str, told: dict[str, Any]) -> None:
        path = self.folder / folder / f"{name}.json"
        with contextlib.suppress(FileExistsError), _explained(path, "cannot be written"):
            publish(path, json.dumps(told, ensure_ascii=False) + "\n")

    def _let_go(self, batch: Batch) -> None:
        with _explained(batch.path, "cannot be removed"):
            batch.path.unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Remove what a killed push left half-written."""
        for aside in (path for name in FOLDERS for path in (self.folder / name).glob(".*.tmp")):
            aside.unlink(missing_ok=True)


def seal_all(rows: Iterable[Row], outbox: Outbox, most_rows: int = MOST_ROWS) -> int:
    """Seal rows in batches of whole items, at most about `most_rows` each; return how many batches.

    An item that was cut in two would count as sent while its second half was not.
    """
    waiting: dict[str, list[str]] = {name: [] for name in BY_NAME}
    last: dict[str, str] = {}
    sealed = 0
    for row in rows:
        name = row.table.name
        if len(waiting[name]) >= most_rows and last[name] != row.item:
            outbox.seal(row.table, waiting[name])
            waiting[name], sealed = [], sealed + 1
        waiting[name].append(row.line)
        last[name] = row.item
    for name, lines in waiting.items():
        if lines:
            outbox.seal(BY_NAME[name], lines)
            sealed += 1
    return sealed


@lru_cache(maxsize=8)
def _contents(batch: Batch) -> Contents:
    lines = batch.lines()
    rows = [json.loads(line) for line in _heads(batch.table, lines)]
    days = {row["day"] for row in rows}
    return Contents(len(lines), (min(days), max(days)), frozenset(item_of(batch.table, row) for row in rows))


def _heads(table: Table, lines: Iterable[str]) -> Iterable[str]:
    """Return as JSON what rows begin with, up to their metric: enough to name their item, and of one attempt the same.

    Only text and numbers come before it, and within a text JSON escapes the mark's quotes.
    """
    if table not in WITH_METRIC:
        return lines
    return {line.partition(METRIC)[0] + "}" for line in lines}


def _batch(path: Path) -> Batch:
    name, _, sha = path.stem.rpartition("-")
    if name not in BY_NAME:
        raise OutboxFailure(f"{path}: is no batch of this outbox; move it away")
    return Batch(BY_NAME[name], sha, path)


def _loaded(path: Path, members: Mapping[str, type]) -> dict[str, Any]:
    """Return an object with these members. Raises `OutboxFailure` for anything else."""
    with _explained(path, "cannot be read"):
        try:
            found = json.loads(path.read_bytes())
            problem = _problem(found, members)
        except (ValueError, RecursionError) as error:
            found, problem = {}, str(error)
    if problem:
        raise OutboxFailure(f"{path}: is damaged ({problem}); remove it: what was in it is sent again")
    return dict(found)


def _problem(found: object, members: Mapping[str, type]) -> str:
    """Return what is wrong with a mark or a dead letter, "" if nothing is."""
    if not isinstance(found, dict):
        return f"must be an object, got {type(found).__name__}"
    for name, kind in members.items():
        if not isinstance(found.get(name), kind):
            return f"{name}: must be a {kind.__name__}, got {type(found.get(name)).__name__}"
    if found["table"] not in BY_NAME:
        return f"table: must be one of {', '.join(BY_NAME)}, got {found['table'][:80]!r}"
    return ""


@contextlib.contextmanager
def _explained(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        raise OutboxFailure(
            f"{path}: {what}: {not_writable(path, error)}; nothing sealed is lost, push again once it can be"
        ) from error
