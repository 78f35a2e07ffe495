"""Errors of the fake service: reason, HTTP status and wording follow the service's documentation.

Source: cloud.google.com/bigquery/docs/error-messages (the table of reasons and statuses); where that page gives no
wording, the message is the one that the service is known to send.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

STATUS = {
    "accessDenied": 403,
    "backendError": 503,
    "billingNotEnabled": 403,
    "bytesBilledLimitExceeded": 400,
    "duplicate": 409,
    "internalError": 500,
    "invalid": 400,
    "invalidQuery": 400,
    "jobRateLimitExceeded": 400,
    "notFound": 404,
    "notImplemented": 501,
    "quotaExceeded": 403,
    "rateLimitExceeded": 403,
    "resourceInUse": 400,
    "resourcesExceeded": 400,
}
QUOTA_PAGE = "For more information, see https://cloud.google.com/bigquery/docs/troubleshoot-quotas"


@dataclass(eq=False)
class Refusal(Exception):
    """One immutable error of the service. `more` are the further entries of a job's list of errors."""

    reason: str
    message: str
    location: str | None = None
    more: Sequence[Refusal] = ()

    @property
    def status(self) -> int:
        """HTTP status of the reason."""
        return STATUS.get(self.reason, 400)

    def entry(self) -> dict[str, Any]:
        """Return the error as one entry of `errors`."""
        found = {"reason": self.reason, "message": self.message, "location": self.location}
        return {name: value for name, value in found.items() if value is not None}

    def entries(self) -> list[dict[str, Any]]:
        """Return the error, followed by its details."""
        return [self.entry(), *(one.entry() for one in self.more)]

    def body(self) -> dict[str, Any]:
        """Return the body of an HTTP response."""
        found = {"code": self.status, "message": self.message, "errors": self.entries(), "status": self.reason}
        return {"error": found}


def invalid(message: str) -> Refusal:
    """Return the error for an invalid request or value."""
    return Refusal("invalid", message)


def invalid_query(message: str) -> Refusal:
    """Return the error for an invalid query."""
    return Refusal("invalidQuery", message, "query")


def unmodelled(what: str) -> Refusal:
    """Return the error for a feature that the fake does not implement."""
    return Refusal("notImplemented", f"The fake service does not model {what}")


def not_found(kind: str, name: str, location: str | None = None) -> Refusal:
    """Return the error for a missing dataset, table or job, with the location if one was requested."""
    where = f" was not found in location {location}" if location else ""
    return Refusal("notFound", f"Not found: {kind} {name}{where}")


def duplicate(kind: str, name: str) -> Refusal:
    """Return the error for a name in use."""
    return Refusal("duplicate", f"Already Exists: {kind} {name}")


def denied(kind: str, name: str, permission: str) -> Refusal:
    """Return the error for a missing permission on a resource."""
    if kind == "Project":
        text = f"User does not have bigquery.{permission} permission in project {name}."
    else:
        text = f"Permission bigquery.{permission} denied on {kind.lower()} {name} (or it may not exist)."
    return Refusal("accessDenied", f"Access Denied: {kind} {name}: {text}")


def aborted(table: str) -> Refusal:
    """Return the error for a conflict of transactions (docs/transactions: concurrency)."""
    return invalid_query(f"Transaction is aborted due to concurrent update against table {table}.")


def not_serialized(table: str) -> Refusal:
    """Return the error for repeated conflicts of a statement (docs/data-manipulation-language: conflicts)."""
    return invalid_query(f"Could not serialize access to table {table} due to concurrent update")


def too_many_statements(table: str, limit: int) -> Refusal:
    """Return the error for too many queued statements (docs/data-manipulation-language: concurrent jobs)."""
    text = f"Too many DML statements outstanding against table {table}, limit is {limit}."
    return Refusal("resourcesExceeded", f"Resources exceeded during query execution: {text}")


def too_many_appends(limit: int) -> Refusal:
    """Return the error for too many loads into a table per day (quotas: standard tables)."""
    text = "Quota exceeded: Your table exceeded quota for imports or query appends per table."
    return Refusal("quotaExceeded", f"{text} {QUOTA_PAGE}", f"load_job_per_table.long: {limit}")


def too_many_requests(reason: str, limit: int) -> Refusal:
    """Return the error for too many requests of an account (quotas: API requests)."""
    what = "job creation requests" if reason == "jobRateLimitExceeded" else "api requests per user per method"
    return Refusal(reason, f"Exceeded rate limits: too many {what} for this user (limit {limit}/s). {QUOTA_PAGE}")


def no_billing(what: str) -> Refusal:
    """Return the error for an operation that the sandbox does not allow (docs/sandbox: limits)."""
    text = f"Billing has not been enabled for this project. {what} not allowed in the free tier."
    link = "Enable billing at https://console.cloud.google.com/billing."
    return Refusal("billingNotEnabled", f"Billing not enabled: {text} {link}")
