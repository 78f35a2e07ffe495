"""The service of the profile `bigquery`: an emulator of BigQuery that an uploader of the host sends to."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker.containers import ROOT, compose, need
from tests.uploader.stored import results_with

pytestmark = pytest.mark.docker


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The service with an empty volume; yields what an uploader needs to know of it."""
    need("bigquery")
    port = free_port()
    ports = {"BIGQUERY_PORT": port}
    try:
        started = compose(tmp_path, "--profile", "bigquery", "up", "--detach", "--wait", "bigquery", **ports)
        assert started.returncode == 0, started.stderr
        yield {
            "BIGQUERY_EMULATOR_HOST": f"http://127.0.0.1:{port}",
            "NO_GCE_CHECK": "true",
        }
    finally:
        compose(tmp_path, "--profile", "bigquery", "down", "--volumes", **ports)


def uploader(variables: dict[str, str], *arguments: str) -> str:
    """Run the uploader against the emulator; it must end well."""
    command = [sys.executable, "-m", "keras_matrix.uploader", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_emulator_of_the_profile_bigquery_stores_each_row_once(emulator: dict[str, str], tmp_path: Path) -> None:
    results = str(results_with(tmp_path / "measured", runs=1).root)
    for dataset, flags in (("merged", []), ("appended", ["--append-only"])):
        to = ["--to", f"bigquery://emulated-project.{dataset}"]
        assert f"dataset emulated-project.{dataset}" in uploader(emulator, "init", *to, *flags)
        uploader(emulator, "push", *to, "--results", results, *flags)
        assert "0 lost, 0 duplicated" in uploader(emulator, "verify", *to, "--results", results, *flags)
    again = uploader(emulator, "push", "--to", "bigquery://emulated-project.merged", "--results", results)
    assert "0 new rows" in again
