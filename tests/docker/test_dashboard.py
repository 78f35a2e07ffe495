"""The service `dashboard` of compose.yaml: its image is built, and it serves the runs in ./results."""

from __future__ import annotations

import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from tests.docker.containers import compose, docker, need, project_name
from tests.sessions import processes, store_session

pytestmark = pytest.mark.docker
LIMIT_S = 60
RUN = "20260101T020000Z-000000"


def test_the_dashboard_serves_the_runs_of_the_results_folder_to_this_machine(tmp_path: Path) -> None:
    need("dashboard")
    (tmp_path / "matrices").mkdir()
    (tmp_path / "matrix.yaml").write_text("version: 1\ncells: []\n")
    store_session(tmp_path / "results", RUN, processes(0.01))
    try:
        up = compose(tmp_path, "up", "--detach", "dashboard", DASHBOARD_PORT="0")  # one that is free
        assert up.returncode == 0, up.stderr
        host, _, port = compose(tmp_path, "port", "dashboard", "8080").stdout.strip().partition(":")
        assert host == "127.0.0.1"
        status, page = answered(host, int(port))
        logs = docker("logs", f"{project_name(tmp_path)}-dashboard-1")
        assert status == 200, logs.stdout + logs.stderr
        assert "mnist_mlp" in page
    finally:
        compose(tmp_path, "down", "--timeout", "5")


def answered(host: str, port: int) -> tuple[int, str]:
    """What the first page is, once there is one."""
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        connection = HTTPConnection(host, port, timeout=LIMIT_S)
        try:
            connection.request("GET", "/")
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, HTTPException):
            assert time.monotonic() < deadline_s, "no answer"
            time.sleep(0.1)
        finally:
            connection.close()
