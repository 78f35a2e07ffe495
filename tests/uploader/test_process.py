"""Messages about file permissions name the user of the process, the owner of the path, and what to do."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.host import system
from keras_matrix.uploader import errors
from keras_matrix.uploader.bigquery import error_mapping
from keras_matrix.uploader.cli.main import main
from keras_matrix.uploader.errors import NotAllowed, access_text, in_container, not_writable
from tests.uploader.stored import results_with

USER = os.geteuid()


@pytest.fixture(autouse=True)
def outside_of_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine that runs these tests may be a container itself."""
    monkeypatch.setattr(errors, "in_container", lambda: False)


def denied(path: Path) -> PermissionError:
    return PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def test_access_text_names_the_user_the_owner_and_the_mode(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    file.chmod(0o600)
    owner = file.stat().st_uid
    assert access_text(file) == f"this process runs as user {USER}, {file} belongs to user {owner} (mode 0600)"


def test_access_text_of_a_missing_path_names_the_nearest_folder_above(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    assert f"{tmp_path} belongs to user" in access_text(tmp_path / "a" / "b")


def test_owner_is_named_only_for_missing_permissions(tmp_path: Path) -> None:
    assert not_writable(tmp_path, OSError(errno.ENOSPC, "No space left on device")) == "No space left on device"
    assert not_writable(tmp_path, denied(tmp_path)).endswith(
        f"run uploader as that user, or run: sudo chown -R {USER} {tmp_path}"
    )


@pytest.mark.parametrize(("folder", "to"), [("warehouse", "local"), ("outbox", "local:{}/elsewhere")])
def test_push_into_results_of_another_owner_names_the_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: str, to: str
) -> None:
    results = results_with(tmp_path / "results", runs=1).root
    mkdir = Path.mkdir

    def refusing(self: Path, *given: Any, **named: Any) -> None:
        if (results / folder) in (self, *self.parents):
            raise denied(self)
        mkdir(self, *given, **named)

    monkeypatch.setattr(Path, "mkdir", refusing)
    assert main(["push", "--results", str(results), "--to", to.format(tmp_path)]) == 3
    output = capsys.readouterr().err
    assert re.search(
        f"{folder}.*Permission denied: this process runs as user {USER}, {results} belongs to user", output
    )
    assert f"or run: sudo chown -R {USER} {results}" in output
    assert output.count("\n") == 1


def test_unreadable_file_is_reported_with_its_owner_and_how_to_open_it(tmp_path: Path) -> None:
    pytest.importorskip("google.auth", reason="google-cloud-bigquery is not installed: extra `bigquery`")
    file = tmp_path / "key.json"
    file.touch()
    found = error_mapping.to_upload_error("connect to project some-project", denied(file))
    assert type(found) is NotAllowed
    assert str(found).startswith(f"connect to project some-project: {file}: cannot be read: this process runs as user")
    assert str(found).endswith(f"grant this user read access: setfacl -m u:{USER}:r {file}")


def test_unreadable_credentials_in_a_container_name_the_file_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("google.auth", reason="google-cloud-bigquery is not installed: extra `bigquery`")
    monkeypatch.setattr(errors, "in_container", lambda: True)
    message = str(error_mapping.to_upload_error("connect", denied(Path("/credentials.json"))))
    assert "(the file that GOOGLE_APPLICATION_CREDENTIALS names on the host)" in message
    assert "the container runs as the owner of ./results" in message


@pytest.mark.parametrize(("engine", "expected"), [("docker", True), ("podman", True), ("lxc", False), (None, False)])
def test_only_docker_and_podman_count_as_a_container(
    monkeypatch: pytest.MonkeyPatch, engine: str | None, expected: bool
) -> None:
    monkeypatch.setattr(system, "container_engine", lambda: engine)
    assert in_container() == expected


def test_a_relative_path_that_is_missing_is_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"{tmp_path} belongs to user" in access_text(Path("results/warehouse"))


def test_a_folder_named_as_credentials_is_reported_with_the_variable() -> None:
    pytest.importorskip("google.auth", reason="google-cloud-bigquery is not installed: extra `bigquery`")
    error = IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), "/credentials.json")
    assert str(error_mapping.to_upload_error("asking for the dataset", error)) == (
        "asking for the dataset: /credentials.json: is a folder; GOOGLE_APPLICATION_CREDENTIALS must name a file"
    )


def test_unwritable_folder_in_a_container_is_named_as_on_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "in_container", lambda: True)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results"
    folder.mkdir()
    said = errors.not_writable(folder, denied(folder))
    assert said.endswith(
        f"the container runs as the owner of ./results; on the host, run: sudo chown -R {os.geteuid()} results"
    )
