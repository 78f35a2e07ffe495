"""The one tree of errors the uploader raises, and the exit code each one ends the program with.

    UploadError                 3   base: catch this to catch every error of ours
    ├── BadInput                2   what the user gave cannot be used: a flag, an address, a query, a mapping
    ├── OutboxFailure           3   the outbox cannot be read or written; nothing sealed is lost
    └── WarehouseFailure        3   the warehouse refused or could not be reached; what is pending stays pending
        ├── Unreachable         3   for now: tried again, then left for the next push
        │   └── Contended       3   another uploader changes the table: tried again until the deadline
        ├── QuotaSpent          3   not before the quota is refilled: no try again
        ├── NotAllowed          3   credentials are missing, expired or lack a right; the message names it
        ├── SchemaDiffers       3   a table is missing, or a column is missing or of another type
        ├── ManifestDamaged     3   local: the manifest is missing or damaged; rebuilt by `uploader push --repair`
        ├── FileDamaged         3   local: a Parquet file cannot be read; its rows come back by `uploader push --repair`
        ├── AllRefused          3   every row that was tried of a table was refused: no row's fault, none is set aside
        └── RowsRefused         1   the warehouse refuses some row of a batch: found by halving, set aside

A row that is set aside is a dead letter with its reason, not an exception. A message says what is wrong, where, the
value received and what to do; it never holds a credential.
"""

from __future__ import annotations

from typing import ClassVar


class UploadError(Exception):
    """Base of every error of the uploader."""

    exit_code: ClassVar[int] = 3


class BadInput(UploadError):
    """What the user gave cannot be used."""

    exit_code: ClassVar[int] = 2


class OutboxFailure(UploadError):
    """The outbox cannot be read or written."""


class WarehouseFailure(UploadError):
    """The warehouse refused or could not be reached."""


class Unreachable(WarehouseFailure):
    """The warehouse did not answer, or asked to be tried again."""


class Contended(Unreachable):
    """Another uploader changed the table at the same time; this change was aborted whole."""


class QuotaSpent(WarehouseFailure):
    """A quota is used up."""


class NotAllowed(WarehouseFailure):
    """Credentials are missing, expired or lack a right."""


class SchemaDiffers(WarehouseFailure):
    """A table is not as this version needs it."""


class ManifestDamaged(WarehouseFailure):
    """The local warehouse's manifest is missing or cannot be used."""


class FileDamaged(WarehouseFailure):
    """A Parquet file of the local warehouse cannot be read."""


class AllRefused(WarehouseFailure):
    """The warehouse refused every row of a table that was tried."""


class RowsRefused(WarehouseFailure):
    """The warehouse refuses some row of a batch."""

    exit_code: ClassVar[int] = 1
