"""Waits between attempts, and their common deadline."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from keras_matrix.uploader.bigquery.jobs import Deadline, RetryPolicy
from keras_matrix.uploader.errors import Contended, NotAllowed, QuotaExceeded, Unreachable


def failing(*errors: Exception) -> Callable[[], str]:
    """Return a function that raises the errors one after the other, then returns."""
    left = list(errors)

    def call() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return call


@pytest.mark.fault("F36", mutation="the waits have no cap")
def test_waits_grow_up_to_a_cap_and_stay_below_their_bounds() -> None:
    bounds = list(itertools.islice(RetryPolicy(first_s=1, most_s=8, draw=lambda: 1.0).waits_s(), 6))
    assert bounds == [1, 2, 4, 8, 8, 8]
    assert all(wait < bound for wait, bound in zip(RetryPolicy(most_s=8).waits_s(), bounds, strict=False))


@pytest.mark.fault("F36", mutation="an exceeded quota is tried again")
@pytest.mark.parametrize(("error", "tries"), [(Unreachable("no"), 4), (QuotaExceeded("no"), 1), (NotAllowed("no"), 1)])
def test_only_retryable_errors_are_retried(error: Exception, tries: int) -> None:
    slept: list[float] = []
    calls: list[None] = []
    policy = RetryPolicy(tries=4, sleep=slept.append, draw=lambda: 0.5)

    def fail() -> None:
        calls.append(None)
        raise error

    with pytest.raises(type(error)):
        policy.retry(fail)
    assert len(calls) == tries
    assert slept == [0.5, 1.0, 2.0][: tries - 1]


def test_only_conflicts_are_retried_beyond_the_number_of_tries() -> None:
    policy = RetryPolicy(tries=2, sleep=lambda seconds: None)
    assert policy.retry_contended(failing(*[Contended("aborted")] * 50), Deadline()) == "done"
    with pytest.raises(NotAllowed):
        policy.retry_contended(failing(Contended("aborted"), NotAllowed("no")), Deadline())
    with pytest.raises(Unreachable) as raised:
        policy.retry_contended(failing(Unreachable("down")), Deadline())
    assert str(raised.value) == "down"


def test_conflict_is_raised_unchanged_after_the_deadline() -> None:
    now_s = itertools.count(0.0, 4.0)
    deadline = Deadline(10.0, clock=lambda: next(now_s))
    with pytest.raises(Contended, match="aborted"):
        RetryPolicy(sleep=lambda seconds: None).retry_contended(failing(*[Contended("aborted")] * 50), deadline)


@pytest.mark.fault("F36", mutation="waits are not shortened to the deadline")
def test_deadline_starts_with_the_first_call_and_shortens_waits() -> None:
    now_s, slept = [100.0], []
    deadline = Deadline(10.0, clock=lambda: now_s[0])
    assert deadline.left_s(60.0) == 10.0
    now_s[0] = 107.0
    assert (deadline.left_s(60.0), deadline.left_s(2.0)) == (3.0, 2.0)
    policy = RetryPolicy(tries=3, first_s=60.0, sleep=slept.append, draw=lambda: 1.0)
    assert policy.retry(failing(Unreachable("down")), deadline) == "done"
    assert slept == [3.0]
    now_s[0] = 110.0
    with pytest.raises(Unreachable, match=r"not finished after 0\.167 minutes"):
        deadline.left_s(1.0)
    assert Deadline().left_s(60.0) == 60.0
