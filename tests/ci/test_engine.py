"""`ci/engine`: without the right to install, it names what is missing and changes no home."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DENIED = "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock"
SILENT = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"

pytestmark = pytest.mark.process


def engine(folder: Path, docker: str) -> subprocess.CompletedProcess[str]:
    """Run it as a user who is not root, where the command `docker` is a script such as this."""
    programs = folder / "bin"
    programs.mkdir()
    for name, text in {"docker": docker, "id": "echo 1000"}.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DOCKER_")}
    return subprocess.run(
        [ROOT / "ci" / "engine"],
        env={**environment, "PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (DENIED, "this user may not use the engine's socket: add the user to the group docker and log in again"),
        (SILENT, "no container engine answers: start one (systemctl start docker), or let root install docker.io"),
    ],
)
def test_missing_engine_is_reported_with_the_reason(tmp_path: Path, output: str, expected: str) -> None:
    done = engine(tmp_path, f'echo "{output}" >&2; exit 1')
    assert (done.returncode, done.stderr) == (3, f"error: {expected}\n")


def test_missing_compose_names_its_package_without_a_download(tmp_path: Path) -> None:
    done = engine(tmp_path, '[ "$1" = info ]')
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        "error: no Compose: install docker-compose-v2 (Ubuntu) or docker-compose-plugin (Docker's packages)\n"
    )
    assert not (tmp_path / "home").exists()
