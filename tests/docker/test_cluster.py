"""`docker compose --profile ray`: a cluster of our images, and a runner outside that measures on it."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from keras_matrix.records.schema import MEASURED, Status
from tests.docker.containers import BACKENDS, IMAGES, SERVICES, compose, containers_of, docker, need
from tests.sessions import newest_records

pytestmark = pytest.mark.docker
RUNNER = str(Path(sys.executable).parent / "runner")
MATRIX = """\
version: 1
defaults: {repeats: 2, epochs: 2, steps_per_epoch: 2}
backends: [NAMES]
cells:
  - workload: mnist_mlp
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder as a clone of this project is, whose cluster runs; and the variables of its runner."""
    services = [service for service in SERVICES if service.endswith("-cpu")]
    head = "jax-cpu-ray"
    for image in (*(f"{service}-ray" for service in services), head):
        need(image)
    python = docker("run", "--rm", "--network=none", "--entrypoint=python3", f"{IMAGES}:{head}", "--version").stdout
    if python.split()[1].rpartition(".")[0] != f"{sys.version_info.major}.{sys.version_info.minor}":
        pytest.skip(f"Ray needs one Python: the nodes have {python.strip()}, this is {sys.version.split()[0]}")
    (tmp_path / "matrices").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "matrix.yaml").write_text(MATRIX.replace("NAMES", ", ".join(BACKENDS[one] for one in services)))
    token = tmp_path / "auth_token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    monkeypatch.setenv("RAY_PORT", port)
    nodes = ["ray-head", *(f"ray-{service.removesuffix('-cpu')}" for service in services)]
    try:
        started = compose(tmp_path, "up", "--detach", *nodes)
        assert started.returncode == 0, started.stderr
        yield tmp_path, {**os.environ, "RAY_ADDRESS": f"ray://127.0.0.1:{port}"}
    finally:
        docker("rm", "--force", *containers_of(tmp_path))


@pytest.mark.nightly(why="the cluster's containers take a minute")
def test_a_runner_outside_measures_on_the_containers(project: tuple[Path, dict[str, str]]) -> None:
    folder, variables = project
    done = subprocess.run(
        [RUNNER, "--matrix", "matrix.yaml", "--executor", "ray"],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    records = newest_records(folder)
    assert all(record.status in MEASURED for record in records), [record.reason for record in records]
    assert not any(record.status is Status.INFRA for record in records)
    assert {record.machine.container for record in records} == {"docker"}
    # The containers share one machine, so that one of them measures at a time.
    assert len({record.machine.host_id for record in records}) == 1
    without = subprocess.run(
        [RUNNER, "--matrix", "matrix.yaml", "--executor", "ray"],
        cwd=folder,
        env={**variables, "RAY_AUTH_TOKEN_PATH": "/none", "RAY_AUTH_TOKEN": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert without.returncode == 3
    assert "RAY_AUTH_TOKEN: no token of the cluster" in without.stderr
