"""Converts errors of BigQuery and its client to errors of `uploader.errors`, with advice.

Reasons are those of BigQuery's error table (cloud.google.com/bigquery/docs/error-messages). An unknown reason is
classified by the HTTP status. Messages contain no headers and therefore no tokens.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_matrix.uploader import errors
from keras_matrix.uploader.errors import (
    Contended,
    NotAllowed,
    QuotaExceeded,
    RowsRefused,
    SchemaMismatch,
    Unreachable,
    WarehouseFailure,
    access_text,
)

RETRYABLE = frozenset(
    {
        "backendError",
        "internalError",
        "jobBackendError",
        "jobInternalError",
        "jobRateLimitExceeded",
        "rateLimitExceeded",
        "resourcesExceeded",  # also for too many outstanding DML statements of a table
        "tableUnavailable",
        "stopped",
        "timeout",
    }
)
BAD_ROWS = frozenset({"invalid", "parseError", "invalidQuery"})
ADVICE: Mapping[str, tuple[type[WarehouseFailure], str]] = {
    "accessDenied": (NotAllowed, "grant the permission that the message names: uploader init prints the roles"),
    "forbidden": (NotAllowed, "grant the permission that the message names: uploader init prints the roles"),
    "authError": (NotAllowed, "log in again: gcloud auth application-default login"),
    "billingNotEnabled": (
        NotAllowed,
        "DML needs billing: enable billing, or create another dataset with: uploader init --append-only",
    ),
    "billingTierLimitExceeded": (NotAllowed, "raise --maximum-bytes-billed, or query fewer days"),
    "bytesBilledLimitExceeded": (NotAllowed, "raise --maximum-bytes-billed, or query fewer days"),
    "accessNotConfigured": (NotAllowed, "enable the API: gcloud services enable bigquery.googleapis.com"),
    "quotaExceeded": (QuotaExceeded, "pending batches stay pending: push again when the quota is refilled"),
    "notFound": (
        SchemaMismatch,
        "check the name, or create what is missing with: uploader init --to bigquery://PROJECT.DATASET",
    ),
}
RETRYABLE_CODES = frozenset({408, 429, 500, 502, 503, 504})
BY_CODE = {401: "authError", 403: "accessDenied", 404: "notFound", 400: "invalid"}
# Messages of BigQuery and of the emulator for conflicting changes of a table; their reason is `invalidQuery`.
CONFLICTS = ("aborted due to concurrent update", "Could not serialize access", "Failed to commit")
MOST_TEXT = 400
LOGIN = "log in with: gcloud auth application-default login, or see docs/bigquery.md for workload identity"
LOGIN_IN_CONTAINER = (
    "on the host, set GOOGLE_APPLICATION_CREDENTIALS to a file, such as "
    "~/.config/gcloud/application_default_credentials.json from: gcloud auth application-default login; mount files "
    "that it refers to separately: docs/containers.md"
)
MOUNTED = Path("/credentials.json")  # compose.yaml


def client_errors() -> tuple[type[Exception], ...]:
    """Return the exception types of Google's client, its credentials and its transport."""
    from google.api_core import exceptions as api
    from google.auth import exceptions as auth
    from requests import exceptions as http

    return (api.GoogleAPIError, auth.GoogleAuthError, http.RequestException, OSError, ValueError)


def to_upload_error(action: str, error: Exception) -> WarehouseFailure:
    """Return the uploader's error for one of the client's; raise an error of any other kind again."""
    from google.api_core import exceptions as api
    from google.auth import exceptions as auth
    from requests import exceptions as http

    retryable = isinstance(error, auth.TransportError) or (isinstance(error, auth.GoogleAuthError) and error.retryable)
    if isinstance(error, auth.GoogleAuthError) and not retryable:
        advice = LOGIN_IN_CONTAINER if errors.in_container() else LOGIN
        return NotAllowed(f"{action}: no usable credentials ({_short(str(error))}); {advice}")
    if isinstance(error, IsADirectoryError) and error.filename:
        return NotAllowed(f"{action}: {error.filename}: is a folder; GOOGLE_APPLICATION_CREDENTIALS must name a file")
    if isinstance(error, PermissionError) and error.filename:
        return NotAllowed(f"{action}: {_unreadable(Path(error.filename))}")
    if retryable or isinstance(error, http.RequestException | ConnectionError | TimeoutError | api.RetryError):
        return Unreachable(f"{action}: no response ({type(error).__name__}: {_short(str(error))}); push again later")
    if isinstance(error, api.GoogleAPICallError):
        return by_reason(action, error.errors, error.code, error.message)
    if isinstance(error, ValueError):
        return Unreachable(f"{action}: incomplete response ({type(error).__name__}); push again later")
    raise error


def by_reason(action: str, errors: Sequence[Any], code: int | None, message: str) -> WarehouseFailure:
    """Return the uploader's error for a reason in BigQuery's error table."""
    reasons = [str(error.get("reason")) for error in errors if isinstance(error, Mapping)]
    if any(words in message for words in CONFLICTS):
        return Contended(f"{action}: another uploader changes the table: {_short(message)}; push again later")
    reason = next(iter(reasons), None) or BY_CODE.get(int(code or 0), "")
    text = f"{action}: {_short(message)} ({reason or code})"
    if reason in RETRYABLE or (reason not in ADVICE and reason not in BAD_ROWS and code in RETRYABLE_CODES):
        return Unreachable(f"{text}; push again later")
    if reason in BAD_ROWS:
        return RowsRefused(text)
    kind, advice = ADVICE.get(reason, (WarehouseFailure, "nothing was lost"))
    return kind(f"{text}; {advice}")


def _unreadable(path: Path) -> str:
    """Return why a required file cannot be read, and what to do."""
    origin_text, advice = "", f"grant this user read access: setfacl -m u:{os.geteuid()}:r {path}"
    if path == MOUNTED and errors.in_container():
        origin_text = " (the file that GOOGLE_APPLICATION_CREDENTIALS names on the host)"
        advice = (
            "the container runs as the owner of ./results: use a file of that user, or grant that user read access: "
            f'setfacl -m u:{os.geteuid()}:r "$GOOGLE_APPLICATION_CREDENTIALS"'
        )
    return f"{path}{origin_text}: cannot be read: {access_text(path)}; {advice}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MOST_TEXT else line[: MOST_TEXT - 3] + "..."
