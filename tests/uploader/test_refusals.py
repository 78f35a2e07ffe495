"""What BigQuery's refusals mean, by reason; and that a message holds no credential."""

from __future__ import annotations

import pytest

from uploader.errors import NotAllowed, QuotaSpent, RowsRefused, SchemaDiffers, Unreachable, WarehouseFailure
from uploader.refusals import by_reason
from uploader.retry import Patience


@pytest.mark.parametrize(
    ("reason", "code", "kind"),
    [
        ("backendError", 503, Unreachable),
        ("rateLimitExceeded", 403, Unreachable),
        ("jobRateLimitExceeded", 400, Unreachable),
        ("quotaExceeded", 403, QuotaSpent),
        ("accessDenied", 403, NotAllowed),
        ("billingNotEnabled", 403, NotAllowed),
        ("accessNotConfigured", 403, NotAllowed),
        ("authError", 401, NotAllowed),
        ("notFound", 404, SchemaDiffers),
        ("invalid", 400, RowsRefused),
        ("", 429, Unreachable),
        ("", 502, Unreachable),
        ("", 403, NotAllowed),
        ("somethingNew", 418, WarehouseFailure),
    ],
)
def test_a_refusal_is_told_by_its_reason_and_else_by_its_status(
    reason: str, code: int, kind: type[WarehouseFailure]
) -> None:
    errors = [{"reason": reason}] if reason else []
    found = by_reason("load runs", errors, code, "a message")
    assert type(found) is kind
    assert str(found).startswith("load runs: a message (")


@pytest.mark.parametrize(
    "message",
    [
        "Could not serialize access to table p:d.cells due to concurrent update",
        "Failed to commit DuckLake transaction: conflict",
    ],
)
def test_changes_that_meet_are_tried_again(message: str) -> None:
    assert type(by_reason("merge", [{"reason": "invalidQuery"}], 400, message)) is Unreachable


def test_a_long_message_is_cut() -> None:
    assert len(str(by_reason("x", [], 500, "y" * 10_000))) < 600


def test_waits_grow_are_capped_and_lie_below_their_bounds() -> None:
    bounds = Patience(tries=7, first_s=1, most_s=8, draw=lambda: 1.0).waits_s()
    assert bounds == [1, 2, 4, 8, 8, 8]
    assert all(wait < bound for wait, bound in zip(Patience(tries=7, most_s=8).waits_s(), bounds, strict=True))


def test_what_fails_for_now_is_tried_so_often_and_what_was_refused_once() -> None:
    slept: list[float] = []
    asked: list[type[Exception]] = []
    patience = Patience(tries=4, sleep=slept.append, draw=lambda: 0.5)

    def fail(kind: type[Exception]) -> None:
        asked.append(kind)
        raise kind("no")

    for kind, times in ((Unreachable, 4), (QuotaSpent, 1), (NotAllowed, 1)):
        asked.clear()
        with pytest.raises(kind):
            patience.insist(lambda kind=kind: fail(kind))  # type: ignore[misc]
        assert len(asked) == times
    assert slept == [0.5, 1.0, 2.0]
