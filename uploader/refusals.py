"""What BigQuery's refusals mean: for now, for today, for this row, or for these rights; and the advice that follows.

Reasons are those of BigQuery's error table (cloud.google.com/bigquery/docs/error-messages). A reason that is not known
is judged by the HTTP status. No message repeats a header, so that none holds a token.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from uploader import process
from uploader.errors import Contended, NotAllowed, QuotaSpent, RowsRefused, SchemaDiffers, Unreachable, WarehouseFailure

FOR_NOW = frozenset(
    {
        "backendError",
        "internalError",
        "jobBackendError",
        "jobInternalError",
        "jobRateLimitExceeded",
        "rateLimitExceeded",
        "resourcesExceeded",  # also: too many DML statements outstanding against a table
        "tableUnavailable",
        "stopped",
        "timeout",
    }
)
BAD_ROWS = frozenset({"invalid", "parseError", "invalidQuery"})
ADVICE: Mapping[str, tuple[type[WarehouseFailure], str]] = {
    "accessDenied": (NotAllowed, "grant what the message names: uploader init prints the least roles"),
    "forbidden": (NotAllowed, "grant what the message names: uploader init prints the least roles"),
    "authError": (NotAllowed, "log in again: gcloud auth application-default login"),
    "billingNotEnabled": (
        NotAllowed,
        "without billing there is no DML: enable it, or make another dataset with: uploader init --append-only",
    ),
    "billingTierLimitExceeded": (NotAllowed, "raise --maximum-bytes-billed, or ask for fewer days"),
    "bytesBilledLimitExceeded": (NotAllowed, "raise --maximum-bytes-billed, or ask for fewer days"),
    "accessNotConfigured": (NotAllowed, "enable the API: gcloud services enable bigquery.googleapis.com"),
    "quotaExceeded": (QuotaSpent, "what is pending stays pending: push again when the quota is refilled"),
    "notFound": (
        SchemaDiffers,
        "check the name, or make what is missing with: uploader init --to bigquery://PROJECT.DATASET",
    ),
}
FOR_NOW_CODES = frozenset({408, 429, 500, 502, 503, 504})
BY_CODE = {401: "authError", 403: "accessDenied", 404: "notFound", 400: "invalid"}
# What BigQuery says, and the emulator, where two changes of a table conflict; the reason alone is `invalidQuery`.
CONFLICTS = ("aborted due to concurrent update", "Could not serialize access", "Failed to commit")
MOST_TEXT = 400
LOGIN = "log in with: gcloud auth application-default login, or see docs/bigquery.md for workload identity"
LOGIN_IN_CONTAINER = (
    "a container has those that GOOGLE_APPLICATION_CREDENTIALS names outside of it, such as "
    "~/.config/gcloud/application_default_credentials.json from: gcloud auth application-default login; files that it "
    "refers to need a mount of their own: docs/containers.md"
)
MOUNTED = Path("/credentials.json")  # compose.yaml


def kinds() -> tuple[type[Exception], ...]:
    """Return what Google's client, its credentials and its transport raise."""
    from google.api_core import exceptions as api
    from google.auth import exceptions as auth
    from requests import exceptions as http

    return (api.GoogleAPIError, auth.GoogleAuthError, http.RequestException, OSError, ValueError)


def explained(doing: str, error: Exception) -> WarehouseFailure:
    """Return our error for one of the client's; an error that is no refusal is raised again."""
    from google.api_core import exceptions as api
    from google.auth import exceptions as auth
    from requests import exceptions as http

    for_now = isinstance(error, auth.TransportError) or (isinstance(error, auth.GoogleAuthError) and error.retryable)
    if isinstance(error, auth.GoogleAuthError) and not for_now:
        advice = LOGIN_IN_CONTAINER if process.in_container() else LOGIN
        return NotAllowed(f"{doing}: no usable credentials ({_short(str(error))}); {advice}")
    if isinstance(error, IsADirectoryError) and error.filename:
        return NotAllowed(f"{doing}: {error.filename}: is a folder; GOOGLE_APPLICATION_CREDENTIALS must name a file")
    if isinstance(error, PermissionError) and error.filename:
        return NotAllowed(f"{doing}: {_unreadable(Path(error.filename))}")
    if for_now or isinstance(error, http.RequestException | ConnectionError | TimeoutError | api.RetryError):
        return Unreachable(f"{doing}: no answer ({type(error).__name__}: {_short(str(error))}); push again later")
    if isinstance(error, api.GoogleAPICallError):
        return by_reason(doing, error.errors, error.code, error.message)
    if isinstance(error, ValueError):
        return Unreachable(f"{doing}: half an answer ({type(error).__name__}); push again later")
    raise error


def by_reason(doing: str, errors: Sequence[Any], code: int | None, message: str) -> WarehouseFailure:
    """Return our error for a reason of BigQuery's."""
    reasons = [str(one.get("reason")) for one in errors if isinstance(one, Mapping)]
    if any(words in message for words in CONFLICTS):
        return Contended(f"{doing}: another uploader changes the table: {_short(message)}; push again later")
    reason = next(iter(reasons), None) or BY_CODE.get(int(code or 0), "")
    told = f"{doing}: {_short(message)} ({reason or code})"
    if reason in FOR_NOW or (reason not in ADVICE and reason not in BAD_ROWS and code in FOR_NOW_CODES):
        return Unreachable(f"{told}; push again later")
    if reason in BAD_ROWS:
        return RowsRefused(told)
    kind, advice = ADVICE.get(reason, (WarehouseFailure, "nothing was lost"))
    return kind(f"{told}; {advice}")


def _unreadable(path: Path) -> str:
    """Return why a file that was needed cannot be read, and what to do."""
    whose, let = "", f"let this user read it: setfacl -m u:{os.geteuid()}:r {path}"
    if path == MOUNTED and process.in_container():
        whose = " (the file that GOOGLE_APPLICATION_CREDENTIALS names outside of the container)"
        let = (
            "the container runs as the owner of ./results: use a file of that owner's, or let that user read yours: "
            f'setfacl -m u:{os.geteuid()}:r "$GOOGLE_APPLICATION_CREDENTIALS"'
        )
    return f"{path}{whose}: cannot be read: {process.access_text(path)}; {let}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MOST_TEXT else line[: MOST_TEXT - 3] + "..."
