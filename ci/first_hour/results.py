"""The results that a first hour pushes: the user's, or synthetic ones of recent days and of an old one."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

from keras_matrix.records import findings
from keras_matrix.records.store import Results, Run
from keras_matrix.uploader import rows
from keras_matrix.uploader.rows import WarehouseRow
from keras_matrix.uploader.schema import TABLES
from tests.sessions import FIRST
from tests.uploader.stored import store_run

OLD_DAYS = 90  # before today: more than the 60 days that a project without billing retains
KILLS = 5
MACHINES = 4
SHARED = 3  # consecutive runs that each machine of the concurrent pushes has, of as many runs as there are machines

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Folders:
    """The results folders, in a working folder: `base` is pushed first, `all` has every run."""

    root: Path
    began: datetime

    @property
    def today(self) -> date:
        """The day on which the hour began."""
        return self.began.date()

    @property
    def days(self) -> tuple[str, str]:
        """The first and the last day of the pushed runs."""
        days = sorted(rows.day_of(run.run_id) for run in Results(self.all).runs())
        return days[0], days[-1]

    @property
    def base(self) -> Path:
        """The folder that is pushed first."""
        return self.root / "base"

    @property
    def killed(self) -> Path:
        """The folder that is pushed by processes that are killed."""
        return self.root / "killed"

    @property
    def machines(self) -> list[Path]:
        """The folders that are pushed concurrently and share runs."""
        return [self.root / f"machine-{number}" for number in range(MACHINES)]

    @property
    def all(self) -> Path:
        """The folder with every pushed run."""
        return self.root / "all"

    def make_base(self, own_results: Path | None) -> None:
        """Fill the first folder: with a copy of a user's runs, or with synthetic ones."""
        if own_results is None:
            for days_ago in (OLD_DAYS, 1):
                self._store(self.base, days_ago)
        else:
            for run in Results(own_results).runs():
                shutil.copytree(run.folder, self.base / run.run_id, symlinks=True)
        self._add_to_all([self.base])

    def add_killed(self, number: int) -> None:
        """Add one synthetic run to the folder of the killed pushes."""
        self._store(self.killed, 2 + number)
        self._add_to_all([self.killed])

    def make_machines(self) -> None:
        """Fill the folders of concurrent pushes."""
        for number, folder in enumerate(self.machines):
            for shared in range(SHARED):
                self._store(folder, 2 + KILLS + (number + shared) % MACHINES)
        self._add_to_all(self.machines)

    def _store(self, root: Path, days_ago: int) -> None:
        store_run(root, (self.today - FIRST.date()).days - days_ago)

    def _add_to_all(self, folders: Sequence[Path]) -> None:
        for folder in folders:
            for run in Results(folder).runs():
                if not (self.all / run.run_id).exists():
                    shutil.copytree(run.folder, self.all / run.run_id, symlinks=True)


def has_runs(folder: Path) -> bool:
    """Return whether a folder is a results folder with runs."""
    return folder.is_dir() and not (folder / "run.json").exists() and bool(Results(folder).runs())


def keys_of(results: Path, retained_from: str | None = None) -> dict[str, Counter[Key]]:
    """Return for each table the keys, with the row hash as last member, that must exist exactly once.

    Rows of days before `retained_from` are excluded: their partitions have expired.
    """
    keys: dict[str, Counter[Key]] = {table.name: Counter() for table in TABLES}
    for row in _rows(results):
        values = json.loads(row.line)
        if retained_from is None or values["day"] >= retained_from:
            keys[row.table.name][(*(values.get(name) for name in row.table.key), values["row_hash"])] += 1
    return keys


def _rows(results: Path) -> Iterator[WarehouseRow]:
    for run in Results(results).runs():
        yield rows.of_run(run.run_id, run.about())
        for record in run.load()[0]:
            yield from rows.of_record(record)
        yield from _findings(run)


def _findings(run: Run) -> Iterator[WarehouseRow]:
    if (run_findings := findings.load(run)) is not None:
        yield from rows.of_findings(run_findings)
