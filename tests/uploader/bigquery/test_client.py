"""The client's session: the deadline limits every request, also if the library sets a longer timeout."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from keras_matrix.uploader.bigquery.client import client
from keras_matrix.uploader.bigquery.jobs import Deadline
from keras_matrix.uploader.errors import Unreachable
from keras_matrix.uploader.warehouse import Options

AnonymousCredentials = pytest.importorskip(
    "google.auth.credentials", reason="google-cloud-bigquery is not installed: extra `bigquery`"
).AnonymousCredentials
adapters = pytest.importorskip("requests.adapters", reason="google-cloud-bigquery is not installed: extra `bigquery`")


@pytest.mark.parametrize(
    ("given", "sent"),
    [(120.0, (30.0, 30.0)), (5.0, (5.0, 5.0)), ((3.0, 120.0), (3.0, 30.0)), (None, (30.0, 30.0))],
)
def test_deadline_limits_each_request_and_no_request_is_sent_after_it(
    monkeypatch: pytest.MonkeyPatch, given: Any, sent: tuple[float, float]
) -> None:
    monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", "http://127.0.0.1:9")
    limits: list[Any] = []

    def send(adapter: Any, request: Any, stream: bool, timeout: Any, *args: Any, **more: Any) -> Any:
        limits.append(timeout)
        raise ConnectionError("no network in a unit test")

    monkeypatch.setattr(adapters.HTTPAdapter, "send", send)
    now_s = [0.0]
    deadline = Deadline(90.0, clock=lambda: now_s[0])
    deadline.left_s(1.0)
    now_s[0] = 60.0
    with closing(client("some-project", Options(), deadline)) as made:
        for scheme in ("http", "https"):
            with pytest.raises(ConnectionError):
                made._http.get(f"{scheme}://127.0.0.1:9/", timeout=given)
        now_s[0] = 90.0
        with pytest.raises(Unreachable, match="not finished after"):
            made._http.get("http://127.0.0.1:9/", timeout=given)
    assert limits == [sent, sent]


def test_deadline_also_limits_token_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", "http://127.0.0.1:9")
    limits: list[Any] = []

    def send(adapter: Any, request: Any, stream: bool, timeout: Any, *args: Any, **more: Any) -> Any:
        limits.append((request.url, timeout))
        raise ConnectionError("no network in a unit test")

    class Expired(AnonymousCredentials):  # type: ignore[misc]
        def before_request(self, request: Any, method: str, url: str, headers: Any) -> None:
            request("https://127.0.0.1:9/token", method="POST")

    monkeypatch.setattr(adapters.HTTPAdapter, "send", send)
    monkeypatch.setattr("google.auth.credentials.AnonymousCredentials", Expired)
    deadline = Deadline(30.0, clock=lambda: 0.0)
    with closing(client("some-project", Options(), deadline)) as made, pytest.raises(ConnectionError):
        made._http.get("https://127.0.0.1:9/", timeout=120.0)
    assert limits == [("https://127.0.0.1:9/token", (30.0, 30.0))]
