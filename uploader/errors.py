"""The exceptions of the uploader, and the exit code of the program for each.

    UploadError                 3   base class: catch it to catch every error of the uploader
    ├── BadInput                2   invalid input: an option, an address, a query, a mapping
    ├── OutboxFailure           3   the outbox cannot be read or written; no sealed batch is lost
    └── WarehouseFailure        3   the warehouse rejected a request or cannot be reached; pending batches stay pending
        ├── Unreachable         3   retryable: retried, then left for the next push
        │   └── Contended       3   another uploader changes the table: retried until the deadline
        ├── QuotaExceeded       3   a quota is exceeded: not retried
        ├── NotAllowed          3   credentials are missing, expired or lack a permission, which the message names
        ├── SchemaMismatch      3   a table is missing, or a column is missing or of another type
        ├── ManifestDamaged     3   local: the manifest is missing or damaged; rebuilt by `uploader push --repair`
        ├── FileDamaged         3   local: a Parquet file cannot be read; `uploader push --repair` restores its rows
        ├── AllRowsRefused      3   every row tried of a table was refused: not the fault of a row, none is set aside
        └── RowsRefused         1   the warehouse refuses a row of a batch: the row is found by bisection and set aside

A row that is set aside is a dead letter with its reason, not an exception. A message says what is wrong, where, the
value received and what to do; it never contains a credential.
Messages also name this process's user, and whether it runs in a container.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import ClassVar


class UploadError(Exception):
    """Base of every error of the uploader."""

    exit_code: ClassVar[int] = 3


class BadInput(UploadError):
    """The user's input is invalid."""

    exit_code: ClassVar[int] = 2


class OutboxFailure(UploadError):
    """The outbox cannot be read or written."""


class WarehouseFailure(UploadError):
    """The warehouse rejected a request or cannot be reached."""


class Unreachable(WarehouseFailure):
    """The warehouse did not respond, or responded with a retryable error."""


class Contended(Unreachable):
    """Another uploader changed the table at the same time; this transaction was rolled back."""


class QuotaExceeded(WarehouseFailure):
    """A quota is exceeded."""


class NotAllowed(WarehouseFailure):
    """Credentials are missing, expired or lack a permission."""


class SchemaMismatch(WarehouseFailure):
    """A table does not have the schema that this version needs."""


class ManifestDamaged(WarehouseFailure):
    """The local warehouse's manifest is missing or cannot be used."""


class FileDamaged(WarehouseFailure):
    """A Parquet file of the local warehouse cannot be read."""


class AllRowsRefused(WarehouseFailure):
    """The warehouse refused every row that was tried of a table."""


class RowsRefused(WarehouseFailure):
    """The warehouse refuses at least one row of a batch."""

    exit_code: ClassVar[int] = 1


def in_container() -> bool:
    """Return whether this process runs in a container of Docker or Podman."""
    from keras_matrix.records.host.system import container_engine

    return container_engine() in ("docker", "podman")


def access_text(path: Path) -> str:
    """Return the user of this process and the owner of a path, or of its nearest accessible parent folder."""
    place, status = _nearest(path)
    mode = stat.S_IMODE(status.st_mode)
    return f"this process runs as user {os.geteuid()}, {place} belongs to user {status.st_uid} (mode {mode:04o})"


def not_writable(path: Path, error: OSError) -> str:
    """Return why a path cannot be written; for missing permissions also its owner and what to do."""
    why = error.strerror or str(error)
    if not isinstance(error, PermissionError):
        return why
    place, _ = _nearest(path)
    if in_container():
        folder = os.path.relpath(place)
        command = f"sudo chown -R {os.geteuid()} {folder}"
        advice = f"the container runs as the owner of ./results; on the host, run: {command}"
    else:
        advice = f"run uploader as that user, or run: sudo chown -R {os.geteuid()} {place}"
    return f"{why}: {access_text(path)}; {advice}"


def _nearest(path: Path) -> tuple[Path, os.stat_result]:
    """Return a path and its state, or those of its nearest accessible parent folder."""
    for place in (path, *path.absolute().parents):
        try:
            return place, place.stat()
        except OSError:
            continue
    raise AssertionError("the root folder is always accessible")
