"""The outbox: rows to be sent to one warehouse, in sealed (immutable) batches of JSON lines.

    results/outbox/<warehouse>/
      .lock                                locked (flock) while batches are sealed and sent
      pending/<table>-<sha256>.ndjson      sealed, not known to have arrived; named by the hash of its content
      done/<table>-<sha256>.json           marker of a batch that arrived: its items
      dead/<table>-<sha256>.json           a dead letter: one row that the warehouse refuses, and the reason

Nothing is lost by a crash at any point: a batch is written atomically, an item counts as sent only while a batch with
it is pending or done, and a batch is removed from `pending` only after its marker is in `done`. Sending a batch twice
is harmless: a warehouse stores each row once.
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

from keras_matrix.records.files import (
    UnfitFile,
    make_folder,
    open_lock,
    publish,
    read_json,
    read_plain,
    refuse_links,
    replace,
    write_synced,
)
from keras_matrix.uploader.errors import OutboxFailure, not_writable
from keras_matrix.uploader.rows import WarehouseRow, item_of
from keras_matrix.uploader.schema import BY_NAME, FINDINGS, LONGEST_ROW_BYTES, MEASUREMENTS, Table

FOLDERS = ("pending", "done", "dead")
MOST_ROWS = 100_000
LARGEST_BATCH_BYTES = 1 << 30
METRIC = ',"metric":'
WITH_METRIC = (MEASUREMENTS, FINDINGS)
MARKER = {"table": str, "items": list}
DEAD_LETTER = {"table": str, "item": str, "reason": str, "row": str}


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a batch: number of rows, first and last day (the partitions it touches), and items."""

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
        """The batch's name: equal for equal rows."""
        return f"{self.table.name}-{self.sha}"

    def content(self) -> bytes:
        """Return its file. Raises `OutboxFailure` if that cannot be read, or was changed after it was sealed."""
        with _explained(self.path, "cannot be read"):
            raw = read_plain(self.path, LARGEST_BATCH_BYTES)
        if hashlib.sha256(raw).hexdigest() != self.sha:
            raise OutboxFailure(f"{self.path}: was changed after it was sealed; remove it: its rows are sent again")
        return raw

    def lines(self) -> list[str]:
        """Return its rows. Raises `OutboxFailure`, see `content`."""
        try:
            return self.content().decode().split("\n")[:-1]
        except UnicodeDecodeError as error:
            raise OutboxFailure(f"{self.path}: is not UTF-8 ({error}); move the file away") from error

    def values(self) -> Iterator[dict[str, Any]]:
        """Return its rows, parsed."""
        return (json.loads(line) for line in self.lines())

    def contents(self) -> Contents:
        """Return its contents, read once per batch."""
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
        """Lock the outbox; wait until another push with the same outbox ends. Raises `OutboxFailure`."""
        with _explained(self.folder, "cannot be created"):
            for name in FOLDERS:
                make_folder(self.folder / name)
            refuse_links(self.folder / "done", self.folder)
            refuse_links(self.folder / "dead", self.folder)
            refuse_links(self.folder / "pending", self.folder)
            handle = os.fdopen(open_lock(self.folder / ".lock"), "r+")
        with handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            self._sweep()
            yield

    def sent(self) -> dict[str, set[str]]:
        """Return, by table, the items that are pending or done."""
        items_by_table: dict[str, set[str]] = {name: set() for name in BY_NAME}
        for path in (self.folder / "done").glob("[!.]*.json"):
            marker = _loaded(path, MARKER)
            items_by_table[marker["table"]].update(marker["items"])
        for batch in self.pending():
            items_by_table[batch.table.name] |= batch.contents().items
        return items_by_table

    def seal(self, table: Table, lines: Sequence[str]) -> Batch:
        """Seal rows as a batch. Raises `OutboxFailure` if no batch was written."""
        text = "\n".join(lines) + "\n"
        sha = hashlib.sha256(text.encode()).hexdigest()
        batch = Batch(table, sha, self.folder / "pending" / f"{table.name}-{sha}.ndjson")
        with contextlib.suppress(FileExistsError), _explained(batch.path, "cannot be sealed"):
            publish(batch.path, text)
        return batch

    def pending(self) -> list[Batch]:
        """Return the pending batches, by table in the order of `TABLES`, then by name."""
        batches = [_batch(path) for path in (self.folder / "pending").glob("[!.]*.ndjson")]
        order = list(BY_NAME)
        return sorted(batches, key=lambda batch: (order.index(batch.table.name), batch.sha))

    def mark_done(self, batch: Batch) -> None:
        """Mark a batch as arrived and remove it from `pending`."""
        self._write_marker("done", batch.name, {"table": batch.table.name, "items": sorted(batch.contents().items)})
        self._remove(batch)

    def split(self, batch: Batch) -> None:
        """Replace a batch by its two halves."""
        lines = batch.lines()
        middle = len(lines) // 2
        self.seal(batch.table, lines[:middle])
        self.seal(batch.table, lines[middle:])
        self._remove(batch)

    @contextlib.contextmanager
    def sample(self, table: Table, line: str) -> Iterator[Batch]:
        """Yield a temporary batch with one row of a pending batch. Raises `OutboxFailure`."""
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

    def add_dead_letter(self, table: Table, item: str, row: str, reason: str) -> None:
        """Set a row aside with the reason of its refusal."""
        name = f"{table.name}-{hashlib.sha256(row.encode()).hexdigest()}"
        self._write_marker("dead", name, {"table": table.name, "item": item, "reason": reason, "row": row})

    def dead(self) -> list[DeadLetter]:
        """Return the rows that were set aside."""
        letters = {path: _loaded(path, DEAD_LETTER) for path in sorted((self.folder / "dead").glob("[!.]*.json"))}
        return [
            DeadLetter(letter["table"], letter["item"], letter["reason"], letter["row"], path)
            for path, letter in letters.items()
        ]

    def requeue_dead_letters(self) -> int:
        """Seal the dead letters again, except rows that are too long; return how many."""
        letters = [letter for letter in self.dead() if len(letter.row.encode()) <= LONGEST_ROW_BYTES]
        for table in BY_NAME.values():
            lines = [letter.row for letter in letters if letter.table == table.name]
            if lines:
                self.seal(table, lines)
        for letter in letters:
            letter.path.unlink(missing_ok=True)
        return len(letters)

    def forget(self, run_id: str) -> int:
        """Remove the rows of a run: pending, sent and set aside, so that a push seals it again. Return how many items.

        If the process is killed before the end, the next call completes it.
        """
        items = set()
        for batch in self.pending():
            lines = [(line, json.loads(line)) for line in batch.lines()]
            removed_items = {item_of(batch.table, values) for _, values in lines if values["run_id"] == run_id}
            if removed_items:
                items |= removed_items
                if remaining := [line for line, values in lines if values["run_id"] != run_id]:
                    self.seal(batch.table, remaining)
                self._remove(batch)
        for path in (self.folder / "done").glob("[!.]*.json"):
            marker = _loaded(path, MARKER)
            remaining = [item for item in marker["items"] if item.partition("/")[0] != run_id]
            if len(remaining) < len(marker["items"]):
                items |= set(marker["items"]) - set(remaining)
                with _explained(path, "cannot be written"):
                    replace(path, json.dumps({**marker, "items": remaining}, ensure_ascii=False) + "\n")
        for letter in self.dead():
            if letter.item.partition("/")[0] == run_id:
                items.add(letter.item)
                letter.path.unlink(missing_ok=True)
        return len(items)

    def clear_done(self) -> None:
        """Remove the markers of arrived batches, so that the next push seals and sends everything again.

        If the process is killed before the end, some markers remain.
        """
        for path in (self.folder / "done").glob("[!.]*.json"):
            with _explained(path, "cannot be removed"):
                path.unlink(missing_ok=True)

    def done(self) -> int:
        """Return how many batches have arrived."""
        return sum(1 for _ in (self.folder / "done").glob("[!.]*.json"))

    def _write_marker(self, folder: str, name: str, content: dict[str, Any]) -> None:
        path = self.folder / folder / f"{name}.json"
        with contextlib.suppress(FileExistsError), _explained(path, "cannot be written"):
            publish(path, json.dumps(content, ensure_ascii=False) + "\n")

    def _remove(self, batch: Batch) -> None:
        with _explained(batch.path, "cannot be removed"):
            batch.path.unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Remove the temporary files of a killed push."""
        for temporary in (path for name in FOLDERS for path in (self.folder / name).glob(".*.tmp")):
            temporary.unlink(missing_ok=True)


def seal_all(rows: Iterable[WarehouseRow], outbox: Outbox, most_rows: int = MOST_ROWS) -> int:
    """Seal rows in batches of about `most_rows` rows; return how many batches.

    An item is never split between batches: it would count as sent once its first batch was.
    """
    waiting_lines: dict[str, list[str]] = {name: [] for name in BY_NAME}
    last_items: dict[str, str] = {}
    sealed = 0
    for row in rows:
        name = row.table.name
        if len(waiting_lines[name]) >= most_rows and last_items[name] != row.item:
            outbox.seal(row.table, waiting_lines[name])
            waiting_lines[name], sealed = [], sealed + 1
        waiting_lines[name].append(row.line)
        last_items[name] = row.item
    for name, lines in waiting_lines.items():
        if lines:
            outbox.seal(BY_NAME[name], lines)
            sealed += 1
    return sealed


@lru_cache(maxsize=8)
def _contents(batch: Batch) -> Contents:
    lines = batch.lines()
    try:
        rows = [json.loads(line) for line in _heads(batch.table, lines)]
        days = {str(row["day"]) for row in rows}
        return Contents(len(lines), (min(days), max(days)), frozenset(item_of(batch.table, row) for row in rows))
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise OutboxFailure(
            f"{batch.path}: has no rows of {batch.table.name} ({reason}); move the file away: its rows are sent again"
        ) from error


def _heads(table: Table, lines: Iterable[str]) -> Iterable[str]:
    """Return the JSON members of each row before `metric`, deduplicated: they identify the item.

    Only strings and numbers precede `metric`, and JSON escapes the quotes within strings, so the search is exact.
    """
    if table not in WITH_METRIC:
        return lines
    return {line.partition(METRIC)[0] + "}" for line in lines}


def _batch(path: Path) -> Batch:
    name, _, sha = path.stem.rpartition("-")
    if name not in BY_NAME:
        raise OutboxFailure(f"{path}: must be a batch of this outbox (TABLE-SHA256.ndjson); move the file elsewhere")
    return Batch(BY_NAME[name], sha, path)


def _loaded(path: Path, members: Mapping[str, type]) -> dict[str, Any]:
    """Return an object with these members. Raises `OutboxFailure` for anything else."""
    with _explained(path, "cannot be read"):
        try:
            contents = read_json(path)
            problem = _problem(contents, members)
        except UnfitFile:
            raise
        except ValueError as error:
            contents, problem = {}, str(error)
    if problem:
        raise OutboxFailure(f"{path}: is damaged ({problem}); remove it: its rows are sent again")
    return dict(contents)


def _problem(contents: object, members: Mapping[str, type]) -> str:
    """Return the problem of a marker or a dead letter, "" if it is valid."""
    if not isinstance(contents, dict):
        return f"must be an object, got {type(contents).__name__}"
    for name, kind in members.items():
        if not isinstance(contents.get(name), kind):
            return f"{name}: must be a {kind.__name__}, got {type(contents.get(name)).__name__}"
    if not all(isinstance(item, str) for item in contents.get("items", [])):
        return "items: must be a list of texts"
    if contents["table"] not in BY_NAME:
        return f"table: must be one of {', '.join(BY_NAME)}, got {contents['table'][:80]!r}"
    return ""


@contextlib.contextmanager
def _explained(path: Path, problem: str) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise
    except UnfitFile as error:
        raise OutboxFailure(f"{path}: {problem}: {error}; move it away: its rows are sent again") from error
    except OSError as error:
        raise OutboxFailure(
            f"{path}: {problem}: {not_writable(path, error)}; no sealed batch is lost; correct this, then push again"
        ) from error
