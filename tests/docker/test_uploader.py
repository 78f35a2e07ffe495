"""The service `uploader` of compose.yaml: from a results folder to Parquet files and to the emulator."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.docker.containers import IMAGES, compose, docker, need, project_name
from tests.docker.test_dashboard import answered
from tests.docker.test_emulator import free_port
from tests.sessions import FIRST
from tests.uploader.stored import results_with

pytestmark = pytest.mark.docker
OTHER = 12345  # no user of this machine's
LIMIT_BYTES = 178e6  # as in ci/images
ROWS = 53  # of one run of `results_with`
TO = "bigquery://emulated-project.benchmarks"
KEY = {"type": "authorized_user", "client_id": "id", "client_secret": "secret", "refresh_token": "token"}


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A folder as a clone of this project is, with one run in its results."""
    need("uploader")
    (tmp_path / "matrices").mkdir()
    (tmp_path / "matrix.yaml").write_text("version: 1\ncells: []\n")
    today = (datetime.now(UTC) - FIRST).days  # the dashboard shows the last 90 days
    results_with(tmp_path / "results", runs=1, first=today)
    yield tmp_path
    compose(tmp_path, "--profile", "bigquery", "down", "--volumes", "--timeout", "5")


def uploader(
    project: Path, *arguments: str, options: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the service, with no more in its environment than is given."""
    unset = dict.fromkeys(("GOOGLE_APPLICATION_CREDENTIALS", "BIGQUERY_EMULATOR_HOST"), "")
    given = {**unset, "NO_GCE_CHECK": "true", **environment}
    return compose(project, "run", "--rm", "-T", *options, "uploader", *arguments, **given)


def output_of(project: Path, *arguments: str, **environment: str) -> str:
    """What the service prints; it must end well."""
    done = uploader(project, *arguments, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def failure(project: Path, *arguments: str, options: tuple[str, ...] = (), **environment: str) -> str:
    """The one message with which the service ends with 3."""
    done = uploader(project, *arguments, options=options, **environment)
    assert done.returncode == 3, done.stdout + done.stderr
    [message] = [line for line in done.stderr.splitlines() if line.startswith("uploader: ")]
    assert "Traceback" not in done.stderr
    return message


def test_every_row_arrives_once_in_the_local_warehouse_and_files_are_the_owners(project: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("giving a folder to another user needs root")
    for path in [project / "matrix.yaml", project / "results", *(project / "results").rglob("*")]:
        os.chown(path, OTHER, OTHER, follow_symlinks=False)
    assert f"{ROWS} new rows, 0 already present" in output_of(project, "push")
    assert "0 new rows" in output_of(project, "push")
    assert "0 lost, 0 duplicated" in output_of(project, "verify")
    assert "0 batches pending, 4 arrived, 0 rows set aside" in output_of(project, "status")
    counted = output_of(project, "query", "--json", "SELECT COUNT(*) AS attempts FROM cells")
    assert json.loads(counted) == {"attempts": 3}
    assert output_of(project, "schema").startswith("CREATE TABLE IF NOT EXISTS")
    assert "the tables have the schema of this version" in output_of(project, "migrate")
    owners = {path.lstat().st_uid for path in (project / "results").rglob("*")}
    assert owners == {OTHER}
    assert (project / "results" / "warehouse" / "manifest.json").is_file()


def test_image_is_small_and_the_service_is_confined(project: Path) -> None:
    [image] = json.loads(docker("image", "inspect", f"{IMAGES}:uploader").stdout)
    base_name = image["Config"]["Labels"]["org.opencontainers.image.base.name"]
    [base] = json.loads(docker("image", "inspect", base_name).stdout)
    assert image["Size"] - base["Size"] <= LIMIT_BYTES
    assert image["Config"]["User"] == "10001:10001"
    probe = "touch /probe; touch /opt/probe; grep CapEff /proc/self/status; python -c 'import keras'"
    # Through the entry point, so that the shell is what `uploader` would be.
    entry = ("--entrypoint", "entrypoint")
    done = compose(project, "run", "--rm", "-T", *entry, "uploader", "sh", "-c", probe)
    assert done.stderr.count("Read-only file system") == 2
    assert "CapEff:\t0000000000000000" in done.stdout
    assert "No module named 'keras'" in done.stderr


def test_missing_credentials_a_missing_network_and_a_missing_emulator_are_one_message_each(project: Path) -> None:
    push = ("push", "--to", "bigquery://some-project.benchmarks")
    assert "on the host, set GOOGLE_APPLICATION_CREDENTIALS" in failure(project, *push)
    offline = project / "offline.yaml"
    offline.write_text("services: {uploader: {networks: !reset null, network_mode: none}}\n")
    key = project / "key.json"
    key.write_text(json.dumps(KEY))
    names = {"GOOGLE_APPLICATION_CREDENTIALS": str(key)}
    done = compose(project, "--file", str(offline), "run", "--rm", "-T", "uploader", *push, **names)
    assert done.returncode == 3, done.stderr
    assert "no connection to bigquery.googleapis.com, port 443: " in done.stderr
    assert "check the container's network" in done.stderr
    absent = failure(project, *push, BIGQUERY_EMULATOR_HOST="http://127.0.0.1:9050")
    assert "in a container 127.0.0.1 is the container itself: set BIGQUERY_EMULATOR_HOST=http://bigquery:9050" in absent
    absent = failure(project, *push, BIGQUERY_EMULATOR_HOST="http://bigquery:9050")
    assert "no emulator responds at http://bigquery:9050" in absent
    assert "start it with: docker compose --profile bigquery up --wait bigquery" in absent


def test_credentials_that_the_owner_of_the_results_cannot_read_name_both_users(project: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("giving a folder to another user needs root")
    key = project / "key.json"
    key.write_text(json.dumps(KEY))
    key.chmod(0o600)
    os.chown(project / "results", OTHER, OTHER)
    message = failure(project, "push", "--to", TO, GOOGLE_APPLICATION_CREDENTIALS=str(key))
    assert f"this process runs as user {OTHER}, /credentials.json belongs to user {os.geteuid()} (mode 0600)" in message
    assert "the file that GOOGLE_APPLICATION_CREDENTIALS names on the host" in message


def test_missing_credentials_file_is_refused_and_not_created(project: Path) -> None:
    key = project / "missing.json"
    done = uploader(project, "push", "--to", TO, GOOGLE_APPLICATION_CREDENTIALS=str(key))
    assert done.returncode != 0
    assert str(key) in done.stderr
    assert not key.exists()


@pytest.fixture
def emulated(project: Path) -> dict[str, str]:
    """The service `bigquery` of the same project; returns what the uploader in a container needs to know of it."""
    need("bigquery")
    ports = {"BIGQUERY_PORT": free_port()}
    started = compose(project, "--profile", "bigquery", "up", "--detach", "--wait", "bigquery", **ports)
    assert started.returncode == 0, started.stderr
    return {"BIGQUERY_EMULATOR_HOST": "http://bigquery:9050"}


def test_every_row_arrives_once_in_the_emulator_service_and_the_dashboard_reads_it(
    project: Path, emulated: dict[str, str]
) -> None:
    assert "dataset emulated-project.benchmarks" in output_of(project, "init", "--to", TO, **emulated)
    assert f"{ROWS} new rows, 0 already present" in output_of(project, "push", "--to", TO, **emulated)
    assert "0 new rows" in output_of(project, "push", "--to", TO, **emulated)
    assert "0 lost, 0 duplicated" in output_of(project, "verify", "--to", TO, **emulated)
    assert "0 batches pending" in output_of(project, "status", "--to", TO)
    counted = output_of(project, "query", "--to", TO, "--json", "SELECT COUNT(*) AS attempts FROM cells", **emulated)
    assert json.loads(counted) == {"attempts": 3}
    need("dashboard")
    up = compose(project, "up", "--detach", "dashboard", DASHBOARD_PORT="0", WAREHOUSE=TO, **emulated)
    assert up.returncode == 0, up.stderr
    host, _, port = compose(project, "port", "dashboard", "8080").stdout.strip().partition(":")
    status, page = answered(host, int(port))
    assert status == 200, docker("logs", f"{project_name(project)}-dashboard-1").stderr
    assert "mnist_mlp" in page


def test_append_only_dataset_of_the_emulator_service_shows_each_row_once(
    project: Path, emulated: dict[str, str]
) -> None:
    output_of(project, "init", "--to", TO, "--append-only", **emulated)
    output_of(project, "push", "--to", TO, "--append-only", **emulated)
    assert "0 lost, 0 duplicated" in output_of(project, "verify", "--to", TO, "--append-only", **emulated)
