"""Runs BigQuery jobs to completion, also if responses are lost, and states the list price of the bytes that they bill.

Each job has a random ID, which does not decide whether its rows are in a table. A jobs.insert request whose response
was lost is repeated with the same ID; if BigQuery rejects it because the job exists (409), the job is read from the
dataset's location. A job that failed with a retryable error is followed by a job with a new ID.

Retries after retryable errors: exponential backoff with jitter, within a deadline.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from keras_matrix.records.text import TIB
from keras_matrix.uploader.bigquery import error_mapping
from keras_matrix.uploader.errors import Contended, RowsRefused, Unreachable, WarehouseFailure

if TYPE_CHECKING:
    from google.cloud import bigquery

REQUEST_S = 60.0
UPLOAD_S = 300.0
JOB_S = 1800.0  # of one job, if the push has no deadline
FIRST_POLL_S = 0.01  # a small batch takes hundredths of a second
MOST_POLL_S = 2.0
USD_PER_TIB = 6.25
PRICE_SINCE = "2023-07-05"
LEAST_BYTES = 10 << 20  # billed for each table that a query references, and for a query
UNIT_BYTES = 1 << 20  # billed bytes are rounded up to it

T = TypeVar("T")


@dataclass(slots=True)
class Deadline:
    """A common time limit for many calls, from the first one on; None is no limit."""

    limit_s: float | None = None
    clock: Callable[[], float] = time.monotonic
    _end_s: float | None = None

    def left_s(self, most_s: float) -> float:
        """Return the time limit of the next call, at most `most_s`. Raises `Unreachable` after the deadline."""
        if self.limit_s is None:
            return most_s
        if self._end_s is None:
            self._end_s = self.clock() + self.limit_s
        left_s = self._end_s - self.clock()
        if left_s <= 0:
            raise Unreachable(
                f"not finished after {self.limit_s / 60:.3g} minutes; pending batches stay pending: push again, with a "
                "longer --deadline if there is much to send"
            )
        return min(most_s, left_s)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Number of attempts, and the bound of the wait between them: `first_s`, doubled each time, at most `most_s`.

    Each wait is uniformly distributed between 0 and its bound, so that uploaders that failed at the same time retry at
    different times (Brooker, "Exponential backoff and jitter", AWS Architecture Blog, 2015: "full jitter").
    """

    tries: int = 6
    first_s: float = 1.0
    most_s: float = 32.0
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = field(default=random.random)

    def waits_s(self) -> Iterator[float]:
        """Yield the waits between attempts in seconds, indefinitely."""
        bound_s = self.first_s
        while True:
            yield self.draw() * bound_s
            bound_s = min(self.most_s, 2 * bound_s)

    def retry(self, call: Callable[[], T], deadline: Deadline | None = None) -> T:
        """Return the result of `call`, which is called up to `tries` times while it raises `Unreachable`."""
        for tries_left, wait_s in zip(reversed(range(self.tries)), self.waits_s(), strict=False):
            try:
                return call()
            except Unreachable:
                if not tries_left:
                    raise
                self.pause(wait_s, deadline)
        raise AssertionError("the last attempt returns or raises")

    def retry_contended(self, call: Callable[[], T], deadline: Deadline) -> T:
        """Return the result of `call`, which is called again while it raises `Contended`, until the deadline."""
        for wait_s in self.waits_s():
            try:
                return call()
            except Contended as error:
                try:
                    self.pause(wait_s, deadline)
                except Unreachable:
                    raise error from None
        raise AssertionError("waits_s is infinite")

    def pause(self, wait_s: float, deadline: Deadline | None) -> None:
        """Sleep, at most until the deadline. Raises `Unreachable` after it."""
        self.sleep(wait_s if deadline is None else deadline.left_s(wait_s))


@dataclass(slots=True)
class Jobs:
    """Sends requests and jobs of a client, with one retry policy and one deadline for all of them."""

    client: bigquery.Client
    policy: RetryPolicy
    deadline: Deadline
    check: Callable[[], None] | None = None

    def call(self) -> dict[str, Any]:
        """Return the keyword arguments of every client call: no retries by the library, and a timeout."""
        return {"retry": None, "timeout": self.deadline.left_s(REQUEST_S)}

    def request(self, action: str, send: Callable[[], T]) -> T:
        """Send a request, retried after retryable errors. Raises `WarehouseFailure`."""
        if self.check is not None:
            self.check()
            self.check = None

        def once() -> T:
            try:
                return send()
            except WarehouseFailure:
                raise
            except error_mapping.client_errors() as error:
                # `from None`: the client's traceback shows requests with their headers.
                raise error_mapping.to_upload_error(action, error) from None

        return self.policy.retry(once, self.deadline)

    def run(self, name: str, start: Callable[[str], Any], location: str | None) -> Any:
        """Start a job and return it when it has succeeded. Raises `WarehouseFailure` with the job's error."""
        for tries_left, wait_s in zip(reversed(range(self.policy.tries)), self.policy.waits_s(), strict=False):
            result = self._attempt(name, start, location)
            if not isinstance(result, WarehouseFailure):
                return result
            if not tries_left or not isinstance(result, Unreachable) or isinstance(result, Contended):
                raise result
            self.policy.pause(wait_s, self.deadline)
        raise AssertionError("the last attempt returns or raises")

    def _attempt(self, name: str, start: Callable[[str], Any], location: str | None) -> Any:
        """Return a job that succeeded, or its failure. Raises `WarehouseFailure` if BigQuery does not respond."""
        job_id = f"bench-{name}-{uuid.uuid4().hex}"
        job = self.request(name, lambda: self._started(job_id, start, location))
        if job is None:
            return Unreachable(f"{name}: job {job_id} was accepted, but may not be read by its owner; push again later")
        job = self._ended(name, job, location)
        return _failure(name, job) if job.error_result else job

    def _started(self, job_id: str, start: Callable[[str], Any], location: str | None) -> Any:
        """Return a job started by this request or by one whose response was lost; None if it may not be read."""
        from google.api_core.exceptions import Conflict, Forbidden, NotFound

        try:
            return start(job_id)
        except Conflict:
            try:
                return self.client.get_job(job_id, location=location, **self.call())
            except Forbidden:
                return None
            except NotFound:  # an accepted job may not be readable immediately
                raise Unreachable(f"job {job_id}: was accepted, but cannot be found yet; push again later") from None

    def _ended(self, name: str, job: Any, location: str | None) -> Any:
        """Return a job once its state is DONE."""
        deadline = Deadline(JOB_S) if self.deadline.limit_s is None else self.deadline
        wait_s = FIRST_POLL_S
        while job.state != "DONE":
            self.policy.pause(wait_s, deadline)
            wait_s = min(MOST_POLL_S, 2 * wait_s)
            job = self.request(name, partial(self._read, job.job_id, job.location or location))
        return job

    def _read(self, job_id: str, location: str | None) -> Any:
        return self.client.get_job(job_id, location=location, **self.call())


def _failure(name: str, job: Any) -> WarehouseFailure:
    """Return the exception for a failed job, whose error is reported in the job's status."""
    result = job.error_result
    failure = error_mapping.by_reason(name, [result], None, str(result.get("message", "")))
    if type(failure) is not RowsRefused:
        return failure
    messages = [str(error.get("message", "")) for error in (job.errors or []) if isinstance(error, Mapping)]
    text = "; ".join(dict.fromkeys(" ".join(message.split()) for message in messages[:3] if message))
    return RowsRefused(text or str(failure))


def cost_usd(billed_bytes: int) -> float:
    """Return the list price of billed bytes in USD, without the free quota.

    Source: https://cloud.google.com/bigquery/pricing, on-demand compute in the US multi-region, valid since 2023-07-05.
    Other regions, reservations and negotiated prices differ.
    """
    return billed_bytes / TIB * USD_PER_TIB


def billed(read_bytes: int, tables: int) -> int:
    """Return an upper bound of the bytes billed for a query that reads a number of bytes from a number of tables.

    The distribution of the bytes over the tables is unknown: the minimum is billed for all tables but one.
    """
    if not tables:
        return 0
    return -(-(max(read_bytes, LEAST_BYTES) + (tables - 1) * LEAST_BYTES) // UNIT_BYTES) * UNIT_BYTES


def usd(amount: float) -> str:
    """Return an amount in USD; amounts below 0.1 with two significant digits."""
    return f"USD {amount:,.2f}" if amount >= 0.1 or not amount else f"USD {float(f'{amount:.2g}'):.7f}".rstrip("0")
