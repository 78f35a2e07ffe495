"""BigQuery's errors are classified by reason, and messages contain no credentials."""

from __future__ import annotations

import importlib

import pytest

from keras_matrix.uploader.bigquery.error_mapping import by_reason, client_errors, to_upload_error
from keras_matrix.uploader.errors import (
    Contended,
    NotAllowed,
    QuotaExceeded,
    RowsRefused,
    SchemaMismatch,
    Unreachable,
    WarehouseFailure,
)
from tests.golden import Golden
from tests.messages import check_messages


@pytest.mark.fault("F36", mutation="errors are classified by their HTTP status alone")
@pytest.mark.parametrize(
    ("reason", "code", "kind"),
    [
        ("backendError", 503, Unreachable),
        ("rateLimitExceeded", 403, Unreachable),
        ("jobRateLimitExceeded", 400, Unreachable),
        ("resourcesExceeded", 400, Unreachable),
        ("quotaExceeded", 403, QuotaExceeded),
        ("accessDenied", 403, NotAllowed),
        ("billingNotEnabled", 403, NotAllowed),
        ("accessNotConfigured", 403, NotAllowed),
        ("authError", 401, NotAllowed),
        ("notFound", 404, SchemaMismatch),
        ("invalid", 400, RowsRefused),
        ("", 429, Unreachable),
        ("", 502, Unreachable),
        ("", 403, NotAllowed),
        ("somethingNew", 418, WarehouseFailure),
    ],
)
def test_error_is_classified_by_its_reason_or_else_by_its_status(
    reason: str, code: int, kind: type[WarehouseFailure]
) -> None:
    errors = [{"reason": reason}] if reason else []
    assert type(by_reason("load runs", errors, code, "a message")) is kind


def test_every_kind_of_error_has_its_advice(golden: Golden) -> None:
    reasons = ["backendError", "quotaExceeded", "accessDenied", "notFound", "invalid", "somethingNew"]
    check_messages(
        golden,
        "errors.txt",
        {one: [str(by_reason("load runs", [{"reason": one}], 400, "a message"))] for one in reasons},
    )


def refused(code: int, reason: str) -> Exception:
    from google.api_core import exceptions

    return exceptions.from_http_status(code, "a message", errors=[{"reason": reason}])


def raised(module: str, name: str) -> Exception:
    found: Exception = getattr(importlib.import_module(module), name)("canary")
    return found


@pytest.mark.fault("F36", mutation="a reset connection is raised as it is")
@pytest.mark.parametrize(
    ("module", "name", "kind"),
    [
        ("requests.exceptions", "ConnectTimeout", Unreachable),
        ("requests.exceptions", "ReadTimeout", Unreachable),
        ("requests.exceptions", "ConnectionError", Unreachable),
        ("requests.exceptions", "ChunkedEncodingError", Unreachable),
        ("requests.exceptions", "SSLError", Unreachable),
        ("google.auth.exceptions", "TransportError", Unreachable),
        ("google.auth.exceptions", "DefaultCredentialsError", NotAllowed),
        ("google.auth.exceptions", "RefreshError", NotAllowed),
        ("google.auth.exceptions", "MalformedError", NotAllowed),
        ("google.auth.exceptions", "MutualTLSChannelError", NotAllowed),
        ("google.api_core.exceptions", "TooManyRequests", Unreachable),
        ("google.api_core.exceptions", "ServiceUnavailable", Unreachable),
        ("google.api_core.exceptions", "Forbidden", NotAllowed),
        ("builtins", "ConnectionResetError", Unreachable),
        ("builtins", "TimeoutError", Unreachable),
        ("builtins", "ValueError", Unreachable),
    ],
)
def test_client_exceptions_are_converted_to_upload_errors(module: str, name: str, kind: type[WarehouseFailure]) -> None:
    pytest.importorskip("google.cloud.bigquery", reason="google-cloud-bigquery is not installed: extra `bigquery`")
    error = raised(module, name)
    assert isinstance(error, client_errors())
    assert type(to_upload_error("push", error)) is kind


def test_retryable_token_error_is_retried() -> None:
    auth = pytest.importorskip("google.auth.exceptions", reason="google-cloud-bigquery is not installed")
    error = auth.RefreshError("503 from the token's server", retryable=True)
    assert type(to_upload_error("push", error)) is Unreachable


@pytest.mark.parametrize(
    ("code", "reason", "kind"), [(403, "quotaExceeded", QuotaExceeded), (400, "invalid", RowsRefused)]
)
def test_api_error_is_classified_by_its_reason(code: int, reason: str, kind: type[WarehouseFailure]) -> None:
    pytest.importorskip("google.cloud.bigquery", reason="google-cloud-bigquery is not installed: extra `bigquery`")
    assert type(to_upload_error("push", refused(code, reason))) is kind


def test_unrelated_exception_is_raised_again() -> None:
    pytest.importorskip("google.cloud.bigquery", reason="google-cloud-bigquery is not installed: extra `bigquery`")
    with pytest.raises(FileNotFoundError):
        to_upload_error("push", FileNotFoundError("the batch"))


@pytest.mark.parametrize(
    "message",
    [
        "Transaction is aborted due to concurrent update against table p:d.lease. Transaction ID: 61e30eea",
        "Could not serialize access to table p:d.cells due to concurrent update",
        "Failed to commit DuckLake transaction: conflict",
    ],
)
def test_conflicting_changes_are_retried(message: str) -> None:
    assert type(by_reason("merge", [{"reason": "invalidQuery"}], 400, message)) is Contended


def test_long_message_is_truncated() -> None:
    assert len(str(by_reason("x", [], 500, "y" * 10_000))) < 600
