"""The store: results as plain files, each published once and atomically.

    results/
      .lock                        locked (flock) by the runner that measures into this folder
      latest -> <run_id>           relative link to the newest run
      <run_id>/
        run.json                   what was planned, when, from which matrix
        calibration/<group>.json   steps per epoch found for cells that share them
        records/<cell_id>.<repeat>.<attempt>.json
        records/corrupt/           files that are not records, moved here and never deleted
        placements.json            of a cluster: what each machine measures at the moment
        usage/<cell_id>.<repeat>.<attempt>.json    usage series of the attempt, thinned
        work/                      scratch folders of the running cells and of their servers

After a crash at any point no record is damaged, lost or duplicated: a record is written to a temporary file, synced,
and then linked to its name, which fails if the name exists. The files are the only state: pending attempts are the
planned ones that are not published. Locks are local; a results folder on NFS is not supported.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from keras_matrix.records.codec import (
    CodecError,
    canonical,
    decode,
    dumps,
    loads,
    may_have_surrogates,
    without_surrogates,
)
from keras_matrix.records.files import (
    DOCUMENT_LIMIT_BYTES,
    LINK,
    NOT_REGULAR,
    DigestLedger,
    UnfitFile,
    make_folder,
    open_lock,
    publish,
    read_json,
    read_plain,
    refuse_links,
    replace,
    sync,
    write_synced,
)
from keras_matrix.records.identity import RUN_ID, run_id_problem
from keras_matrix.records.instruments.usage import FORMER_SERIES, SERIES, UsageSeries, usage_series_name
from keras_matrix.records.schema import MEASURED, SCHEMA_VERSION, Record
from keras_matrix.records.store_failure import StoreFailure, StoreInUse
from keras_matrix.records.trees import remove_tree
from keras_matrix.records.validity import check, check_names, migrated

RECORD_NAME = re.compile(r"([0-9a-f]{16})\.([0-9]{1,4})\.([0-9]{1,4})\.json")
RECORD_LIMIT_BYTES = 4 << 20
FINISHED = "finished.json"  # of a run whose session has ended; it says why
VERIFICATION = "whatif.json"  # of a run that measured predictions
DEFAULT_RESULTS = Path("results")  # the results folder of a command that names none


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that cannot be used, and why; whether it could not even be read, which says nothing about its content."""

    path: Path
    reason: str
    unreadable: bool = False


class Results:
    """The results folder: many runs, but one runner at a time that measures."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock: IO[str] | None = None

    def open_for_writing(self) -> None:
        """Create the folder, lock it and check that it is writable. Raises `StoreFailure`."""
        if self.root.exists() and not self.root.is_dir():
            raise StoreFailure(f"{self.root}: must be a folder, got a file; choose another one with --results")
        with _explained(self.root, "cannot be created"):
            make_folder(self.root)
        self._take_lock()
        probe = self.root / f".probe-{os.getpid()}"
        with _explained(self.root, "cannot be written"):
            try:
                write_synced(probe, "probe\n")
            finally:
                probe.unlink(missing_ok=True)

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def runs(self) -> list[Run]:
        """Return every run, oldest first, without those of `left_out`."""
        return [Run(self.root / name) for name, problem in self._named() if problem is None]

    def left_out(self) -> list[Problem]:
        """Return what has the name of a run, and cannot be one or be read, in the order of the names."""
        return [Problem(self.root / name, problem) for name, problem in self._named() if problem]

    def _named(self) -> list[tuple[str, str | None]]:
        """Return what has the name of a run, sorted: its name, and why it cannot be read, None if it can.

        A folder without `run.json` and without records is being created, and its reason is empty.
        """
        try:
            names = sorted(name for name in os.listdir(self.root) if RUN_ID.fullmatch(name))  # noqa: PTH208 - only names
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [(name, _run_problem(f"{self.root}/{name}", name)) for name in names]

    def named(self, name: str) -> Run:
        """Return the run that `run.json` of another one names. Raises `StoreFailure` for what is no name of a run."""
        if not RUN_ID.fullmatch(name) or (self.root / name).is_symlink():
            raise StoreFailure(f"{self.root}: a run's session must name runs of this folder, got {name[:80]!r}")
        return Run(self.root / name)

    def latest(self) -> Run | None:
        """Return the newest run, or None without any."""
        runs = self.runs()
        return runs[-1] if runs else None

    def create(self, run_id: str, about: dict[str, Any]) -> Run:
        """Create a run's folder, its `run.json` and the link `latest`."""
        folder = self.root / run_id
        with _explained(folder, "cannot be created"):
            (folder / "records").mkdir(parents=True)
            (folder / "calibration").mkdir()
            sync(folder)  # a run with run.json has its folders, also after a power failure
            publish(folder / "run.json", json.dumps(about, indent=1, allow_nan=False) + "\n")
            self._point_latest(run_id)
            sync(self.root)
        return Run(folder)

    def _take_lock(self) -> None:
        path = self.root / ".lock"
        with _explained(path, "cannot be opened"):
            handle = os.fdopen(open_lock(path), "r+", encoding="utf-8", errors="replace")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            handle.seek(0)
            holder = handle.read(200).strip() or "unknown"
            handle.close()
            raise StoreInUse(
                f"{self.root}: another runner measures into this folder (process {holder}); "
                "wait for it, or choose another results folder"
            ) from error
        with _explained(path, "cannot be written"):
            handle.truncate(0)
            handle.write(f"{os.getpid()} on {platform.node()}\n")
            handle.flush()
        self._lock = handle

    def _point_latest(self, run_id: str) -> None:
        temporary = self.root / f".latest-{os.getpid()}"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(run_id, target_is_directory=True)
        temporary.replace(self.root / "latest")


class Run:
    """One run's folder.

    `unread` has a problem for each file, other than a record, that was read and cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_id = folder.name
        self.work_folder = folder / "work"
        self.unread: dict[Path, Problem] = {}
        self._read: dict[str, Record] = {}
        self._ledger: DigestLedger | None = None

    def about(self) -> dict[str, Any]:
        """Return `run.json`. Raises `StoreFailure` when it is missing or not valid."""
        path = self.folder / "run.json"
        try:
            document = read_json(path)
        except (OSError, CodecError) as error:
            raise StoreFailure(f"{path}: cannot be read: {error}") from error
        if not isinstance(document, dict):
            raise StoreFailure(f"{path}: must be a JSON object, got {type(document).__name__}")
        return document

    def publish(self, record: Record) -> Path:
        """Publish a record under its key, once. Raises `StoreFailure` if it exists or cannot be written."""
        cell, repeat, attempt = record.key
        path = self.folder / "records" / f"{cell}.{repeat}.{attempt}.json"
        text = dumps(record)
        noting = self._ledger.publishing(path.name, text) if self._ledger else contextlib.nullcontext()
        with _explained(path, "cannot be published"), noting:
            publish(path, text)
        return path

    def watch(self) -> None:
        """From now on notice records that others change: cells can, which run as the same user.

        Raises `StoreFailure` for a record that cannot be read.
        """
        with _reading(self.folder / "records"):
            self._ledger = DigestLedger(self.folder / "records", RECORD_LIMIT_BYTES)

    def changed_by_others(self, *, thorough: bool = False) -> list[Problem]:
        """Set aside the records that others have changed since `watch` or the last call, and return them.

        Unless `thorough`, each record is read only if files were added, removed or replaced. Raises `StoreFailure`, and
        sets nothing aside, if one cannot be read.
        """
        if self._ledger is None or not (thorough or self._ledger.names_changed()):
            return []
        with _reading(self.folder / "records"):
            changes = self._ledger.changes()
        problems = [Problem(self.folder / "records" / name, change) for name, change in changes.items()]
        self.quarantine([problem for problem in problems if os.path.lexists(problem.path)])
        self._ledger.settle()
        for problem in problems:
            self._read.pop(problem.path.name, None)
        return problems

    def store_usage_series(self, record: Record, series: UsageSeries) -> None:
        """Store an attempt's usage over time, before its record is published. Raises `StoreFailure`.

        Replaces the series of a runner that was killed before it published the record.
        """
        path = self.folder / usage_series_name(record.key)
        with _explained(path, "cannot be written"):
            make_folder(path.parent)
            replace(path, canonical(series) + "\n")

    def usage_series(self, record: Record) -> UsageSeries | None:
        """Return an attempt's usage over time; None if the file is missing or damaged, see `unread`."""
        path = self.folder / usage_series_name(record.key)
        if not os.path.lexists(path):
            path = self.folder / usage_series_name(record.key, FORMER_SERIES)
        try:
            series = decode(UsageSeries, read_json(path, RECORD_LIMIT_BYTES, self.folder), "usage series")
        except FileNotFoundError:
            return None
        except (OSError, CodecError) as error:
            self.note_unread(path, error)  # a chart is missing, which is no reason to fail
            return None
        return series if series.complete else None

    def note_unread(self, path: Path, error: Exception) -> None:
        """Note a file that cannot be used, for `unread`."""
        self.unread[path] = Problem(path, getattr(error, "strerror", None) or str(error), isinstance(error, OSError))

    def load(self) -> tuple[list[Record], list[Problem]]:
        """Return every record, sorted by key, and a problem for each other file. Changes no file.

        Each file is read once, since a published record is never replaced.

        Raises `StoreFailure` for a record of a newer schema, which an older runner must neither misread nor measure
        again, and for a folder that cannot be listed, which is not the same as a run without records.
        """
        records, problems = [], []
        for name in self.record_names():
            path = self.folder / "records" / name
            if not RECORD_NAME.fullmatch(name) and path.is_dir():
                continue
            try:
                if path.name not in self._read:
                    self._read[path.name] = _read_record(path)
                records.append(self._read[path.name])
            except (OSError, CodecError) as error:
                problems.append(Problem(path, str(error), unreadable=isinstance(error, OSError)))
        return sorted(records, key=lambda record: record.key), problems

    def record_names(self) -> list[str]:
        """Return the names of the files in `records`, sorted, hidden ones left out. Raises `StoreFailure`."""
        folder = self.folder / "records"
        try:
            refuse_links(folder, self.folder)
            names = os.listdir(folder)  # noqa: PTH208 - only names are needed, and `glob` ignores an unreadable folder
        except FileNotFoundError:
            return []
        except (UnfitFile, OSError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StoreFailure(
                f"{folder}: cannot be listed: {reason}; make it readable, or move the run away"
            ) from error
        return sorted(name for name in names if not name.startswith("."))

    def quarantine(self, problems: list[Problem]) -> None:
        """Move files that are not records to `records/corrupt/`, so that their cells are measured again.

        Raises `StoreFailure`, before any is moved, if a file could not be read: it may be a record.
        """
        for problem in problems:
            if problem.unreadable:
                advice = "make it readable and run the same command again; nothing published is lost"
                raise StoreFailure(f"{problem.path}: cannot be read: {problem.reason}; {advice}")
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
        """Remove incomplete files of a killed runner: scratch folders and unpublished files."""
        remove_tree(self.work_folder)
        for name in ("records", SERIES):
            if (self.folder / name).is_symlink():
                continue
            for temporary in (self.folder / name).glob(".*.tmp"):
                temporary.unlink(missing_ok=True)

    def scratch(self, name: str) -> Path:
        """Create and return an empty scratch folder."""
        path = self.work_folder / name
        with _explained(path, "cannot be created"):
            remove_tree(path)
            path.mkdir(parents=True)
        return path

    def load_object(self, name: str) -> dict[str, Any] | None:
        """Return the JSON object in a file of this run; None if it is missing or damaged, see `unread`."""
        path = self.folder / name
        try:
            document = read_json(path, DOCUMENT_LIMIT_BYTES, self.folder)
        except FileNotFoundError:
            return None
        except (OSError, CodecError) as error:
            self.note_unread(path, error)
            return None
        if not isinstance(document, dict):
            self.note_unread(path, CodecError(f"must be a JSON object, got {type(document).__name__}"))
            return None
        return document

    def inside(self, name: str) -> Path | None:
        """Return the path of what a record names in this folder; None if it is missing, see `unread` for a link."""
        path = self.folder / name
        try:
            refuse_links(path, self.folder)
        except UnfitFile as error:
            self.note_unread(path, error)
            return None
        return path if path.exists() else None

    def store_object(self, name: str, value: dict[str, Any]) -> None:
        """Write a JSON object to a file of this run, replacing an earlier one."""
        path = self.folder / name
        with _explained(path, "cannot be published"):
            replace(path, json.dumps(value, indent=1, allow_nan=False) + "\n")

    def calibration(self, group: str) -> dict[str, Any] | None:
        """Return the calibration of a group of cells, or None."""
        return self.load_object(f"calibration/{group}.json")

    def store_calibration(self, group: str, document: dict[str, Any]) -> None:
        """Store the calibration of a group of cells."""
        self.store_object(f"calibration/{group}.json", document)


def latest_attempts(records: Iterable[Record]) -> list[Record]:
    """Return the attempt at each repeat of each cell that counts: the latest measured one, without one the latest.

    A repeat that was measured in a disturbed block is measured again; if that attempt fails, the first figure remains.
    """
    ordered = sorted(records, key=lambda record: (record.status in MEASURED, record.key))
    return sorted({(r.cell_id, r.repeat): r for r in ordered}.values(), key=lambda record: record.key)


def _run_problem(folder: str, name: str) -> str | None:
    """Return why a folder with the name of a run is not read as one, None if it is."""
    if problem := run_id_problem(name):
        return problem
    try:
        if stat.S_ISLNK(os.lstat(folder).st_mode):
            return LINK
        if stat.S_ISREG(os.lstat(f"{folder}/run.json").st_mode):
            return None
    except FileNotFoundError:
        # While a run is created, its folder of records is empty.
        return "run.json is missing" if _has_records(folder) else ""
    except NotADirectoryError:
        return "not a folder"
    except OSError as error:
        return f"run.json cannot be read: {error.strerror or error}"
    return f"run.json is {NOT_REGULAR}"


def _has_records(folder: str) -> bool:
    try:
        return bool(os.listdir(f"{folder}/records"))  # noqa: PTH208 - whether there is any name
    except OSError:
        return False


def _read_record(path: Path) -> Record:
    if not RECORD_NAME.fullmatch(path.name):
        raise CodecError("not the name of a record")
    raw = read_plain(path, RECORD_LIMIT_BYTES)
    data = loads(raw)
    if may_have_surrogates(raw) and isinstance(data, dict):
        check_names(data)
        data = without_surrogates(data)
    version = data.get("schema_version") if isinstance(data, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise StoreFailure(
            f"{path}: schema version {version} is newer than {SCHEMA_VERSION}, the newest this runner reads; "
            "update the runner or choose another results folder"
        )
    record = decode(Record, migrated(data))
    check(record)
    if path.name != "{}.{}.{}.json".format(*record.key):
        raise CodecError("contains the record of {}.{}.{}".format(*record.key))
    run_id = path.parent.parent.name
    if RUN_ID.fullmatch(run_id) and record.run_id != run_id:  # a folder with another name may be a copy of a run
        raise CodecError(f"run_id: must be {run_id}, the run of its folder, got {record.run_id!r}")
    return record


@contextlib.contextmanager
def _explained(path: Path, problem: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        advice = {
            errno.ENOSPC: "free some space and run the same command again; nothing published is lost",
            errno.EROFS: "choose a writable folder with --results",
            errno.EACCES: "choose a writable folder with --results",
            errno.EEXIST: "it already exists and is never replaced",
        }.get(error.errno or 0, "nothing published is lost")
        raise StoreFailure(f"{path}: {problem}: {error.strerror or error}; {advice}") from error


@contextlib.contextmanager
def _reading(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        path = error.filename or folder
        raise StoreFailure(f"{path}: cannot be read: {error.strerror or error}; nothing published is lost") from error


def put(path: Path, text: str) -> None:
    """Write a file atomically, with its folder. Raises `StoreFailure`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, text)
    except OSError as error:
        reason = error.strerror or error
        raise StoreFailure(f"{path}: cannot be written: {reason}; choose a writable folder with --results") from error
