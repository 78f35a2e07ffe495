"""Shared by the tests of the docker tier: the tested services, and whether their images are available."""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVICES = os.environ.get("KERAS_BENCHMARK_SERVICES", "tf-cpu jax-cpu torch-cpu").split()
BACKENDS = {"tf-cpu": "tensorflow", "jax-cpu": "jax", "torch-cpu": "torch"}
IMAGES = "keras-benchmark-matrix"


def docker(*arguments: str, timeout_s: float = 300, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the engine's client."""
    return subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, timeout=timeout_s, check=False, **options
    )


def compose(project: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Compose on this project's file with another folder's matrix and results, as a project of that folder's."""
    return docker(*composing(project), *arguments, timeout_s=600, env={**os.environ, **environment})


def composing(project: Path) -> list[str]:
    """Return the arguments of `docker` before Compose's own command."""
    places = ["--file", str(ROOT / "compose.yaml"), "--project-directory", str(project)]
    return ["compose", "--project-name", project_name(project), *places]


def project_name(project: Path) -> str:
    """Return the name by which Compose knows a folder here: no user's containers are those of a test."""
    return "kbm-" + re.sub(r"[^a-z0-9]+", "-", project.name.lower())


@cache
def why_not(service: str) -> str | None:
    """Return why a service cannot be tried here, None where it can."""
    try:
        answer = docker("image", "inspect", f"{IMAGES}:{service}", timeout_s=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no container engine: {error}"
    if answer.returncode == 0:
        return None
    return f"{answer.stderr.strip() or 'no image'}; ci/docker starts an engine and builds the images"


def need(service: str) -> None:
    """Skip the test where the service cannot be tried."""
    if reason := why_not(service):
        pytest.skip(reason)


def containers_of(project: Path) -> list[str]:
    """Return the containers that there are of a folder's services."""
    return docker("ps", "--all", "--quiet", "--filter", f"label={project_label(project)}").stdout.split()


def project_label(project: Path) -> str:
    """Return the label by which Compose marks the containers of a folder's services."""
    return f"com.docker.compose.project={project_name(project)}"


def left(results: Path, *filters: str) -> list[str]:
    """Return the containers that there are of a results folder; further filters are those of `docker ps`."""
    every = [f"--filter={one}" for one in (f"label=keras-benchmark.results={results.resolve()}", *filters)]
    return docker("ps", "--all", "--quiet", *every).stdout.split()
