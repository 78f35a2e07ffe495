"""Without credentials, or with expired ones, a push ends with 3, says what to do and shows no part of any."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.uploader.stored import results_with
from uploader.cli.main import main

CANARY = "ya29.canary-token"
google = pytest.importorskip("google.auth", reason="google-cloud-bigquery is not installed: extra `bigquery`")


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("BIGQUERY_EMULATOR_HOST", raising=False)
    return str(results_with(tmp_path / "results", runs=1).root)


def test_without_credentials_the_message_says_how_to_log_in(
    results: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from google.auth.exceptions import DefaultCredentialsError

    def none(**kwargs: object) -> object:
        raise DefaultCredentialsError("Your default credentials were not found.")

    monkeypatch.setattr(google, "default", none)
    assert main(["push", "--to", "bigquery://some-project.benchmarks", "--results", results]) == 3
    told = capsys.readouterr().err
    assert "no usable credentials (Your default credentials were not found.)" in told
    assert "gcloud auth application-default login" in told


def test_expired_credentials_are_told_and_no_part_of_them(
    results: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from google.auth.exceptions import RefreshError
    from google.oauth2.credentials import Credentials

    def expired(self: object, request: object) -> None:
        raise RefreshError("invalid_grant: Token has been expired or revoked.")

    made = Credentials(None, refresh_token=CANARY, client_id="c", client_secret=CANARY, token_uri="https://localhost")
    monkeypatch.setattr(google, "default", lambda **kwargs: (made, "some-project"))
    monkeypatch.setattr(Credentials, "refresh", expired)
    assert main(["push", "--to", "bigquery://some-project.benchmarks", "--results", results]) == 3
    seen = capsys.readouterr()
    assert "Token has been expired or revoked" in seen.err
    assert CANARY not in seen.err + seen.out
    assert not [path for path in Path(results).rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
