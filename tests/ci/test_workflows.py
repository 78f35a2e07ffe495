"""GitHub workflows: a change of image contents rebuilds the images, and every change runs `.ci/run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
NOT_PUSHED = {"jax-tpu", "bigquery"}  # unverified; another project's program
STARTS = True  # what YAML 1.1 reads for the key `on`


def read(path: str) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
    return found


def commands(workflow: dict[Any, Any]) -> set[str]:
    """The commands of the jobs that every change starts."""
    always = [job for job in workflow["jobs"].values() if "if" not in job]
    return {step["run"] for job in always for step in job["steps"] if "run" in step}


def in_the_images() -> list[str]:
    """What goes to the engine when an image is built."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("!") for line in lines if line.startswith("!")]


@pytest.mark.parametrize("name", [*in_the_images(), ".dockerignore", "compose.yaml", ".github/workflows/images.yml"])
def test_change_of_image_contents_builds_the_images(name: str) -> None:
    required = f"{name}/**" if (ROOT / name).is_dir() else name
    assert required in read(".github/workflows/images.yml")[STARTS]["push"]["paths"]


def test_every_services_image_is_pushed() -> None:
    pushed = read(".github/workflows/images.yml")["jobs"]["image"]["strategy"]["matrix"]["service"]
    services = read("compose.yaml")["services"].values()
    images = {service["image"].rpartition(":")[2] for service in services if "build" in service}
    assert {*pushed} | NOT_PUSHED == images
    assert {*pushed} & NOT_PUSHED == set()


def test_image_name_is_in_lower_case_in_every_job() -> None:
    """A registry refuses another, and a repository's owner may be called otherwise."""
    workflow = read(".github/workflows/images.yml")
    assert "IMAGE" not in workflow["env"]
    for name in ("image", "tag"):
        steps = [str(step.get("run")) for step in workflow["jobs"][name]["steps"]]
        assert 'echo "IMAGE=ghcr.io/${GITHUB_REPOSITORY,,}" >>"$GITHUB_ENV"' in steps, name


def test_every_change_passes_the_required_checks() -> None:
    required = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    stages = {line.removeprefix("stage ") for line in required if line.startswith("stage ")}
    assert stages <= commands(read(".github/workflows/ci.yml"))
