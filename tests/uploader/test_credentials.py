"""Without credentials, or with expired ones, a push exits with 3 and advice, and prints no part of a credential."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

from keras_matrix.uploader import errors
from keras_matrix.uploader.bigquery import client as connection_check
from keras_matrix.uploader.bigquery.client import SCOPES, _credentials, client
from keras_matrix.uploader.bigquery.jobs import Deadline
from keras_matrix.uploader.cli.main import main, parser
from keras_matrix.uploader.warehouse import Options
from tests.uploader.stored import results_with

CANARY = "ya29.canary-token"
google = pytest.importorskip("google.auth", reason="google-cloud-bigquery is not installed: extra `bigquery`")


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("BIGQUERY_EMULATOR_HOST", raising=False)
    monkeypatch.setattr(connection_check, "check_google", lambda: None)
    return str(results_with(tmp_path / "results", runs=1).root)


@pytest.mark.fault("F40", mutation="the message about credentials has no advice")
def test_without_credentials_the_message_says_how_to_log_in(
    results: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from google.auth.exceptions import DefaultCredentialsError

    def none(**kwargs: object) -> object:
        raise DefaultCredentialsError("Your default credentials were not found.")

    monkeypatch.setattr(google, "default", none)
    for contained, advice in (
        (False, "; log in with: gcloud auth application-default login"),
        (True, "; on the host, set GOOGLE_APPLICATION_CREDENTIALS to a file"),
    ):
        monkeypatch.setattr(errors, "in_container", lambda contained=contained: contained)
        assert main(["push", "--to", "bigquery://some-project.benchmarks", "--results", results]) == 3
        output = capsys.readouterr().err
        assert "no usable credentials (Your default credentials were not found.)" in output
        assert advice in output
        assert "gcloud auth application-default login" in output


def test_empty_emulator_variable_means_no_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose passes an empty string for an unset variable."""
    from google.oauth2.credentials import Credentials

    monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", "")
    monkeypatch.setattr(google, "default", lambda **kwargs: (Credentials("a token"), "some-project"))
    with closing(client("some-project", Options(), Deadline())) as made:
        assert made._connection.API_BASE_URL == "https://bigquery.googleapis.com"


@pytest.mark.fault("F40", mutation="the message shows the content of the file")
@pytest.mark.parametrize("text", ["[]", "null", '"canary"', '{"type": "impersonated_service_account"}', "{", "{}"])
def test_file_without_credentials_is_reported_without_its_content(
    results: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "given.json").write_text(text)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "given.json"))
    assert main(["push", "--to", "bigquery://some-project.benchmarks", "--results", results]) == 3
    output = capsys.readouterr().err
    assert "connect to project some-project: no usable credentials (" in output
    assert "gcloud auth application-default login" in output
    assert "canary" not in output


def test_impersonation_requests_only_the_bigquery_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    from google.oauth2.credentials import Credentials

    calls: list[object] = []

    def found(**given: object) -> object:
        calls.append(given)
        return Credentials("a token"), "some-project"

    monkeypatch.delenv("BIGQUERY_EMULATOR_HOST", raising=False)
    monkeypatch.setattr(google, "default", found)
    account = "uploader@some-project.iam.gserviceaccount.com"
    made = _credentials(Options(impersonate=account))
    assert made.service_account_email == account
    assert calls == [{"scopes": SCOPES}]
    assert SCOPES == ("https://www.googleapis.com/auth/bigquery",)


@pytest.mark.fault("F40", mutation="push accepts a token")
def test_no_command_accepts_a_key_a_token_or_a_password() -> None:
    [commands] = [action for action in parser()._actions if isinstance(action.choices, dict)]
    flags = [
        flag for command in commands.choices.values() for action in command._actions for flag in action.option_strings
    ]
    assert len(flags) > 30
    assert [flag for flag in flags if re.search("key|token|secret|password|credential", flag)] == []


@pytest.mark.fault("F40", mutation="the message shows the credentials")
def test_expired_credentials_are_reported_without_any_part_of_them(
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
