"""One job of BigQuery from its start to its end, whatever is lost on the way.

Each job has a random name: no name decides whether rows are in a table. An insert whose answer was lost is repeated
under the same name, which BigQuery refuses (409) where the job exists: then that job is asked for, in the dataset's
location. A job that failed for now is followed by one of another name.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from uploader import refusals
from uploader.errors import Contended, RowsRefused, Unreachable, WarehouseFailure
from uploader.retry import Deadline, Patience

if TYPE_CHECKING:
    from google.cloud import bigquery

REQUEST_S = 60.0
UPLOAD_S = 300.0
JOB_S = 1800.0  # of one job where the push has no deadline
FIRST_POLL_S = 0.1
MOST_POLL_S = 2.0

T = TypeVar("T")


@dataclass(slots=True)
class Jobs:
    """Asks a client, with one patience and one deadline for everything that is asked."""

    client: bigquery.Client
    patience: Patience
    deadline: Deadline
    check: Callable[[], None] | None = None

    def call(self) -> dict[str, Any]:
        """Return what every call has: our own patience in place of the client's, and a time limit."""
        return {"retry": None, "timeout": self.deadline.left_s(REQUEST_S)}

    def ask(self, doing: str, ask: Callable[[], T]) -> T:
        """Ask BigQuery, again where it fails for now. Raises `WarehouseFailure`."""
        if self.check is not None:
            self.check()
            self.check = None

        def once() -> T:
            try:
                return ask()
            except WarehouseFailure:
                raise
            except refusals.kinds() as error:
                raise refusals.explained(doing, error) from None  # the client's own traceback shows requests whole

        return self.patience.insist(once, self.deadline)

    def run(self, name: str, start: Callable[[str], Any], location: str | None) -> Any:
        """Start a job and return it when it has ended well. Raises `WarehouseFailure` with the job's own reason."""
        for left, wait_s in zip(reversed(range(self.patience.tries)), self.patience.waits_s(), strict=False):
            failure = self._failure(name, start, location)
            if not isinstance(failure, WarehouseFailure):
                return failure
            if not left or not isinstance(failure, Unreachable) or isinstance(failure, Contended):
                raise failure
            self.patience.pause(wait_s, self.deadline)
        raise AssertionError("the last try returns or raises")

    def _failure(self, name: str, start: Callable[[str], Any], location: str | None) -> Any:
        """Return a job that ended well, or why it did not. Raises `WarehouseFailure` where BigQuery does not answer."""
        job_id = f"bench-{name}-{uuid.uuid4().hex}"
        job = self.ask(name, lambda: self._started(job_id, start, location))
        if job is None:
            return Unreachable(f"{name}: job {job_id} was accepted, but its owner may not read it; push again later")
        job = self._ended(name, job, location)
        return _failure(name, job) if job.error_result else job

    def _started(self, job_id: str, start: Callable[[str], Any], location: str | None) -> Any:
        """Return a job that was started, now or by a request whose answer was lost; None where it may not be read."""
        from google.api_core.exceptions import Conflict, Forbidden, NotFound

        try:
            return start(job_id)
        except Conflict:
            try:
                return self.client.get_job(job_id, location=location, **self.call())
            except Forbidden:
                return None
            except NotFound:  # for a moment, a job that was accepted may not be found
                raise Unreachable(f"job {job_id}: was accepted, but is not found yet; push again later") from None

    def _ended(self, name: str, job: Any, location: str | None) -> Any:
        """Return a job when it is done."""
        deadline = Deadline(JOB_S) if self.deadline.limit_s is None else self.deadline
        wait_s = FIRST_POLL_S
        while job.state != "DONE":
            self.patience.pause(wait_s, deadline)
            wait_s = min(MOST_POLL_S, 2 * wait_s)
            job = self.ask(name, partial(self._read, job.job_id, job.location or location))
        return job

    def _read(self, job_id: str, location: str | None) -> Any:
        return self.client.get_job(job_id, location=location, **self.call())


def _failure(name: str, job: Any) -> WarehouseFailure:
    """Return our error for a job that failed: its reason is reported on the job, not when it is inserted."""
    result = job.error_result
    failure = refusals.by_reason(name, [result], None, str(result.get("message", "")))
    if type(failure) is not RowsRefused:
        return failure
    told = [str(one.get("message", "")) for one in (job.errors or []) if isinstance(one, Mapping)]
    text = "; ".join(dict.fromkeys(" ".join(one.split()) for one in told[:3] if one))
    return RowsRefused(text or str(failure))
