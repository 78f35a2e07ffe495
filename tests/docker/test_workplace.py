"""The stage `dev` as `.devcontainer/` opens it, which does not change the machine's own environment."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.docker.containers import ROOT, docker, need, project_name

pytestmark = pytest.mark.docker
USER = "1000:1000"  # of a developer's machine; the image's own is another

Work = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    """Run a shell command in the dev container, with an empty copy of the project."""
    need("dev")
    place = tmp_path / ".devcontainer"
    place.mkdir()
    (place / "compose.yaml").write_text((ROOT / ".devcontainer" / "compose.yaml").read_text(encoding="utf-8"))
    (tmp_path / ".venv").mkdir()  # as devcontainer.json has it made before anything starts
    tmp_path.chmod(0o755)  # pytest makes its folders for one user alone
    compose = ["compose", "--project-name", project_name(tmp_path), "--file", str(place / "compose.yaml")]
    yield lambda script: docker(*compose, "run", "--rm", "-T", "--user", USER, "dev", "sh", "-c", script)
    docker(*compose, "down", "--volumes")


def test_dev_container_has_its_own_environment_that_its_user_may_create(tmp_path: Path, work: Work) -> None:
    (tmp_path / ".venv" / "the machine's own").touch()
    done = work("python3 -m venv --clear .venv && .venv/bin/python --version && ls -A .venv")
    assert done.returncode == 0, done.stderr
    assert "pyvenv.cfg" in done.stdout
    assert "the machine's own" not in done.stdout
    assert [path.name for path in (tmp_path / ".venv").iterdir()] == ["the machine's own"]


def test_dev_container_has_the_projects_tools(work: Work) -> None:
    done = work("git --version && make --version && g++ --version")
    assert done.returncode == 0, done.stderr
