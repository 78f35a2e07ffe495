"""The store: results as plain files, each published once and atomically.

    results/
      .lock                        held (flock) by the one runner that measures into this folder
      latest -> <run_id>           relative link to the newest run
      <run_id>/
        run.json                   what was planned, when, from which matrix
        calibration/<group>.json   steps per epoch found for cells that share them
        records/<cell_id>.<repeat>.<attempt>.json
        records/corrupt/           files that were not records, set aside and never deleted
        courses/<cell_id>.<repeat>.<attempt>.json    what the attempt used over time, thinned
        work/                      scratch of the cell that runs now

Promise: after a crash at any point no record is torn, lost or doubled: a record is written aside, synced, and then
linked to its name, which fails if the name exists. State is files: what is pending is what was planned less what is
published. Locks are local; a results folder on NFS is not supported.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from keras_matrix.records.codec import CodecError, canonical, decode, dumps, loads
from keras_matrix.records.files import publish, write_synced
from keras_matrix.records.identity import RUN_ID
from keras_matrix.records.instruments.usage import COURSES, UsageSeries, usage_series_name
from keras_matrix.records.migration import migrated
from keras_matrix.records.schema import SCHEMA_VERSION, Record

RECORD_NAME = re.compile(r"([0-9a-f]{16})\.([0-9]{1,4})\.([0-9]{1,4})\.json")
RECORD_LIMIT_BYTES = 4 << 20


class StoreFailure(Exception):
    """The store cannot keep or give what was asked. The message says what, where, and what to do."""


class StoreInUse(StoreFailure):
    """Another runner holds the results folder."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that was set aside, and why."""

    path: Path
    reason: str


class Results:
    """The results folder: many runs, one measuring runner at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock: IO[str] | None = None

    def open_for_writing(self) -> None:
        """Create the folder, take its lock and prove that it can be written. Raises `StoreFailure`."""
        if self.root.exists() and not self.root.is_dir():
            raise StoreFailure(f"{self.root}: is a file, not a folder; name another with --results")
        with _explained(self.root, "cannot be created"):
            self.root.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        probe = self.root / f".probe-{os.getpid()}"
        with _explained(self.root, "cannot be written"):
            try:
                write_synced(probe, "probe\n")
            finally:
                probe.unlink(missing_ok=True)

    def close(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def runs(self) -> list[Run]:
        """Return every run, oldest first."""
        if not self.root.is_dir():
            return []
        names = sorted(p.name for p in self.root.iterdir() if RUN_ID.fullmatch(p.name) and (p / "run.json").is_file())
        return [Run(self.root / name) for name in names]

    def latest(self) -> Run | None:
        """Return the newest run, or None where there is none."""
        found = self.runs()
        return found[-1] if found else None

    def create(self, run_id: str, about: dict[str, Any]) -> Run:
        """Begin a run: its folder, `run.json` and the link `latest`."""
        folder = self.root / run_id
        with _explained(folder, "cannot be created"):
            (folder / "records").mkdir(parents=True)
            (folder / "calibration").mkdir()
            publish(folder / "run.json", json.dumps(about, indent=1, allow_nan=False) + "\n")
            self._point_latest(run_id)
        return Run(folder)

    def _take_lock(self) -> None:
        path = self.root / ".lock"
        with _explained(path, "cannot be opened"):
            handle = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            handle.seek(0)
            holder = handle.read(200).strip() or "unknown"
            handle.close()
            raise StoreInUse(
                f"{self.root}: another runner measures into this folder (process {holder}); "
                "wait for it, or choose another folder with --results"
            ) from error
        handle.truncate(0)
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        self._lock = handle

    def _point_latest(self, run_id: str) -> None:
        aside = self.root / f".latest-{os.getpid()}"
        aside.unlink(missing_ok=True)
        aside.symlink_to(run_id, target_is_directory=True)
        aside.replace(self.root / "latest")


class Run:
    """One run's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_id = folder.name
        self._read: dict[str, Record] = {}

    def about(self) -> dict[str, Any]:
        """Return `run.json`. Raises `StoreFailure` when it is missing or not valid."""
        path = self.folder / "run.json"
        try:
            found = loads(path.read_bytes())
        except (OSError, CodecError) as error:
            raise StoreFailure(f"{path}: cannot be read: {error}") from error
        if not isinstance(found, dict):
            raise StoreFailure(f"{path}: must hold a JSON object, got {type(found).__name__}")
        return found

    def publish(self, record: Record) -> Path:
        """Publish a record under its key, once. Raises `StoreFailure` when it exists or cannot be kept."""
        cell, repeat, attempt = record.key
        path = self.folder / "records" / f"{cell}.{repeat}.{attempt}.json"
        with _explained(path, "cannot be published"):
            publish(path, dumps(record))
        return path

    def store_usage_series(self, record: Record, course: UsageSeries) -> None:
        """Keep what an attempt used over time, before its record is published. Raises `StoreFailure`.

        One that a runner left which was killed before it published the record is replaced.
        """
        path = self.folder / usage_series_name(record.key)
        with _explained(path, "cannot be kept"):
            path.parent.mkdir(exist_ok=True)
            path.unlink(missing_ok=True)
            publish(path, canonical(course) + "\n")

    def course(self, record: Record) -> UsageSeries | None:
        """Return what an attempt used over time; None where that was not kept, or cannot be read."""
        try:
            found = decode(UsageSeries, loads(_bounded(self.folder / usage_series_name(record.key))), "course")
        except (OSError, CodecError):
            return None  # a picture less
        return found if found.whole else None

    def load(self) -> tuple[list[Record], list[Problem]]:
        """Return every record, sorted by key, and what is not one. Changes nothing.

        A record is published once and never replaced, so that each file is read once.

        Raises `StoreFailure` for a record of a newer schema, which an older runner must not misread or re-measure, and
        for a folder that cannot be listed, which is not a run without records.
        """
        records, problems = [], []
        for name in self.record_names():
            path = self.folder / "records" / name
            if path.is_dir():
                continue
            try:
                if path.name not in self._read:
                    self._read[path.name] = _read_record(path)
                records.append(self._read[path.name])
            except (OSError, CodecError) as error:
                problems.append(Problem(path, str(error)))
        return sorted(records, key=lambda record: record.key), problems

    def record_names(self) -> list[str]:
        """Return the names of the files in `records`, sorted, hidden ones left out. Raises `StoreFailure`."""
        folder = self.folder / "records"
        try:
            found = os.listdir(folder)  # noqa: PTH208 - names are what is wanted; `glob` hides that a folder is unreadable
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreFailure(
                f"{folder}: cannot be listed: {error.strerror or error}; let this user read it, or move the run away"
            ) from error
        return sorted(name for name in found if not name.startswith("."))

    def quarantine(self, problems: list[Problem]) -> None:
        """Move files that are not records to `records/corrupt/`, so that their cells run again."""
        for problem in problems:
            corrupt = problem.path.parent / "corrupt"
            corrupt.mkdir(exist_ok=True)
            target = corrupt / problem.path.name
            number = 0
            while target.exists():
                number += 1
                target = corrupt / f"{problem.path.name}.{number}"
            problem.path.rename(target)

    def clear_leftovers(self) -> None:
        """Remove what a killed runner left half-made: scratch folders and unpublished files."""
        shutil.rmtree(self.folder / "work", ignore_errors=True)
        for name in ("records", COURSES):
            for aside in (self.folder / name).glob(".*.tmp"):
                aside.unlink(missing_ok=True)

    def scratch(self, name: str) -> Path:
        """Make and return an empty scratch folder."""
        path = self.folder / "work" / name
        with _explained(path, "cannot be created"):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True)
        return path

    def kept(self, name: str) -> dict[str, Any] | None:
        """Return what was kept under a file name of this run, or None."""
        path = self.folder / name
        try:
            found = loads(path.read_bytes())
        except (OSError, CodecError):
            return None  # missing or torn: it is made again
        return found if isinstance(found, dict) else None

    def keep(self, name: str, value: dict[str, Any]) -> None:
        """Keep a JSON object under a file name of this run, in place of an earlier one."""
        path = self.folder / name
        with _explained(path, "cannot be published"):
            path.unlink(missing_ok=True)
            publish(path, json.dumps(value, indent=1, allow_nan=False) + "\n")

    def calibration(self, group: str) -> dict[str, Any] | None:
        """Return what was calibrated for a group of cells, or None."""
        return self.kept(f"calibration/{group}.json")

    def store_calibration(self, group: str, found: dict[str, Any]) -> None:
        """Keep what was calibrated for a group of cells."""
        self.keep(f"calibration/{group}.json", found)


def latest_attempts(records: Iterable[Record]) -> list[Record]:
    """Return, of each repeat of each cell, the latest attempt: the one that counts."""
    return list({(r.cell_id, r.repeat): r for r in sorted(records, key=lambda record: record.key)}.values())


def _bounded(path: Path) -> bytes:
    if path.stat().st_size > RECORD_LIMIT_BYTES:
        raise CodecError(f"larger than {RECORD_LIMIT_BYTES} bytes")
    return path.read_bytes()


def _read_record(path: Path) -> Record:
    if not RECORD_NAME.fullmatch(path.name):
        raise CodecError("not the name of a record")
    if path.is_symlink() or not path.is_file():
        raise CodecError("not a regular file")
    data = loads(_bounded(path))
    version = data.get("schema_version") if isinstance(data, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise StoreFailure(
            f"{path}: schema version {version} is newer than {SCHEMA_VERSION}, the newest this runner reads; "
            "update the runner or choose another folder with --results"
        )
    record = decode(Record, migrated(data))
    if record.times.step_time_s is not None and record.times.step_time_s <= 0:
        raise CodecError(f"times.step_time_s must be above 0, got {record.times.step_time_s:g}: no clock measured this")
    if path.name != "{}.{}.{}.json".format(*record.key):
        raise CodecError(f"holds the record of {record.key}")
    run_id = path.parent.parent.name
    if RUN_ID.fullmatch(run_id) and record.run_id != run_id:  # a folder with another name may be a copy of a run
        raise CodecError(f"run_id: must be {run_id}, the run of its folder, got {record.run_id!r}")
    return record


@contextlib.contextmanager
def _explained(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        advice = {
            errno.ENOSPC: "free some space and run the same command again; nothing published is lost",
            errno.EROFS: "choose a writable folder with --results",
            errno.EACCES: "choose a writable folder with --results",
            errno.EEXIST: "it is already there and is never replaced",
        }.get(error.errno or 0, "nothing published is lost")
        raise StoreFailure(f"{path}: {what}: {error.strerror or error}; {advice}") from error
