"""Restrictions of the fake service: permissions of accounts, quotas, and the sandbox.

Sources, all below cloud.google.com/bigquery: docs/access-control (permissions), quotas (quotas and limits),
docs/sandbox (limits).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.uploader.service import problems

DAY_S = 24 * 3600
SANDBOX_DAYS = 60
JOB_USER = frozenset({"jobs.create"})
DATA_VIEWER = frozenset({"datasets.get", "tables.get", "tables.list", "tables.getData"})
DATA_EDITOR = DATA_VIEWER | {
    "datasets.create",
    "tables.create",
    "tables.update",
    "tables.updateData",
    "tables.delete",
}
ADMIN = JOB_USER | DATA_EDITOR | {"datasets.delete", "datasets.update", "jobs.get", "jobs.listAll"}


@dataclass(frozen=True)
class Quotas:
    """Limits of a project; None for one that is not enforced. The service's own defaults are larger.

    `appends_per_table`: load and append jobs a table and day, failed ones included. `statements`: UPDATE, DELETE and
    MERGE statements outstanding on a table. `requests` and `jobs`: API requests, and inserted jobs, of an account in a
    second of the service's clock.
    """

    appends_per_table: int | None = None
    statements: int | None = 20
    requests: int | None = None
    jobs: int | None = None


@dataclass
class Limits:
    """Counts requests, and rejects those that are not allowed."""

    clock: Callable[[], float]
    quotas: Quotas = field(default_factory=Quotas)
    sandbox: bool = False
    accounts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    _counts: Counter[tuple[object, ...]] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def may(self, account: str, permission: str) -> bool:
        """Return whether an account has a permission; an account that is not listed has all."""
        return account not in self.accounts or permission in self.accounts[account]

    def require(self, account: str, permission: str, kind: str, name: str) -> None:
        """Raise `Refusal` if an account lacks a permission on a resource."""
        if not self.may(account, permission):
            raise problems.denied(kind, name, permission)

    def require_query(self, account: str, table: str) -> None:
        """Raise `Refusal` if an account may not read a table's rows; the message is that of queries."""
        if not self.may(account, "tables.getData"):
            text = f"User does not have permission to query table {table}, or perhaps it does not exist."
            raise problems.Refusal("accessDenied", f"Access Denied: Table {table}: {text}")

    def require_billing(self, what: str) -> None:
        """Raise `Refusal` in the sandbox."""
        if self.sandbox:
            raise problems.no_billing(what)

    def count_request(self, account: str, *, job: bool) -> None:
        """Count a request. Raises `Refusal` above the rate."""
        second = int(self.clock())
        for limit, reason, counted in (
            (self.quotas.requests, "rateLimitExceeded", True),
            (self.quotas.jobs, "jobRateLimitExceeded", job),
        ):
            if limit is not None and counted and self._count((reason, account, second)) > limit:
                raise problems.too_many_requests(reason, limit)

    def count_append(self, table: str) -> None:
        """Count a load or append job of a table. Raises `Refusal` above the quota of a day."""
        limit = self.quotas.appends_per_table
        if limit is not None and self._count(("append", table, int(self.clock() // DAY_S))) > limit:
            raise problems.too_many_appends(limit)

    @contextmanager
    def outstanding(self, table: str) -> Iterator[None]:
        """Count a mutating statement of a table within the block. Raises `Refusal` if too many are outstanding."""
        key, limit = ("outstanding", table), self.quotas.statements
        try:
            if self._count(key) > (limit if limit is not None else float("inf")):
                raise problems.too_many_statements(table, int(limit or 0))
            yield
        finally:
            self._count(key, -1)

    def _count(self, key: tuple[object, ...], by: int = 1) -> int:
        with self._lock:
            self._counts[key] += by
            return self._counts[key]
