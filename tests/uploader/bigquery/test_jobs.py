"""BigQuery jobs: which errors start a new job, and that the deadline limits waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from keras_matrix.uploader.bigquery import jobs
from keras_matrix.uploader.bigquery.jobs import Deadline, Jobs, RetryPolicy
from keras_matrix.uploader.errors import Contended, Unreachable

pytest.importorskip("google.cloud.bigquery", reason="google-cloud-bigquery is not installed: extra `bigquery`")


@dataclass
class Client:
    """A client whose jobs end with a reason, or never, and a clock that its waits advance."""

    reason: str = "backendError"
    message: str = "as if by the server"
    state: str = "DONE"
    now_s: float = 0.0
    started: list[str] = field(default_factory=list)

    def start(self, job_id: str) -> Any:
        """Start a job."""
        self.started.append(job_id)
        return self.get_job(job_id)

    def get_job(self, job_id: str, **given: Any) -> Any:
        """Return a job as it is."""
        error = {"reason": self.reason, "message": self.message}
        return SimpleNamespace(job_id=job_id, location="EU", state=self.state, error_result=error, errors=None)

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds


def jobs_of(client: Client, limit_s: float | None) -> Jobs:
    fake: Any = client
    policy = RetryPolicy(tries=3, first_s=50.0, most_s=50.0, sleep=client.sleep, draw=lambda: 1.0)
    return Jobs(fake, policy, Deadline(limit_s, clock=lambda: client.now_s))


def test_deadline_limits_the_wait_before_the_next_job() -> None:
    client = Client()
    with pytest.raises(Unreachable):
        jobs_of(client, 60.0).run("load", client.start, "EU")
    assert client.now_s == 60.0
    assert len(client.started) == 3


def test_job_aborted_by_another_uploader_is_not_retried_here() -> None:
    client = Client(reason="invalidQuery", message="Transaction is aborted due to concurrent update against table t")
    with pytest.raises(Contended):
        jobs_of(client, 60.0).run("insert", client.start, "EU")
    assert (client.now_s, len(client.started)) == (0.0, 1)


def test_job_that_never_ends_is_waited_for_until_the_deadline() -> None:
    client = Client(state="RUNNING")
    with pytest.raises(Unreachable, match="not finished after 1 minutes"):
        jobs_of(client, 60.0).run("load", client.start, "EU")
    assert client.now_s == pytest.approx(60.0)


def test_job_has_a_default_limit_without_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "JOB_S", 0.0)
    client = Client(state="RUNNING")
    with pytest.raises(Unreachable, match="not finished after 0 minutes"):
        jobs_of(client, None).run("load", client.start, "EU")
