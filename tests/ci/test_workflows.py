"""GitHub workflows: a change of image contents rebuilds the images, and every change runs `.ci/run`."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.scripts import script

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


def image_job() -> dict[str, Any]:
    found: dict[str, Any] = read(".github/workflows/images.yml")["jobs"]["image"]
    return found


def test_every_services_image_is_pushed() -> None:
    pushed = image_job()["strategy"]["matrix"]["image"]
    services = [*read("compose.yaml")["services"].values(), *read("docker/ray-dashboard.yaml")["services"].values()]
    images = {service["image"].rpartition(":")[2] for service in services if "build" in service}
    assert {*pushed} | NOT_PUSHED == images
    assert {*pushed} & NOT_PUSHED == set()


def test_an_image_is_built_for_each_processor_of_its_lock() -> None:
    """Mutation: the matrix of the workflow excludes one more image from arm64."""
    matrix = image_job()["strategy"]["matrix"]
    excluded = {(one["image"], one["architecture"]) for one in matrix["exclude"]}
    machines = {lock.name: lock.machines for lock in script("check_locks").LOCKS}
    architectures = {"x86_64": "amd64", "aarch64": "arm64"}
    built = {(image, one) for image in matrix["image"] for one in matrix["architecture"]} - excluded
    assert built == {
        (image, architectures[machine]) for image in matrix["image"] for machine in machines[image.removesuffix("-ray")]
    }
    refusal = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    [patterns] = re.findall(r"^ *(arm64.*)\) built=amd64 ;;", refusal, re.MULTILINE)
    refused = {pattern.strip().partition(" ")[2] for pattern in patterns.split("|")}
    assert refused == {"*-gpu*", "*-tpu", "bigquery"}
    one_processor = {name for name, names in machines.items() if len(names) == 1} - {"keras2"}  # of no image
    assert one_processor == {name for name in machines if any(fnmatch(name, pattern) for pattern in refused)}


def test_an_image_of_the_workflow_is_based_on_what_compose_builds_it_on() -> None:
    """Mutation: the expression of BASE tests for `-cpu`."""
    expression = image_job()["env"]["BASE"]
    assert expression == (
        "${{ (matrix.image == 'torch-cpu' || contains(matrix.image, 'ray')) && "
        "needs.bases.outputs.bookworm || needs.bases.outputs.trixie }}"
    )
    services = [*read("compose.yaml")["services"].values(), *read("docker/ray-dashboard.yaml")["services"].values()]
    for service in (service for service in services if "BASE" in service.get("build", {}).get("args", {})):
        image = service["image"].rpartition(":")[2]
        suite = "bookworm" if image == "torch-cpu" or "ray" in image else "trixie"
        assert f"debian:{suite}-slim" in service["build"]["args"]["BASE"], image


def test_image_name_is_in_lower_case_in_every_job() -> None:
    """A registry refuses another, and a repository's owner may be called otherwise."""
    workflow = read(".github/workflows/images.yml")
    assert "IMAGE" not in workflow.get("env", {})
    for name in ("image", "tag"):
        steps = [str(step.get("run")) for step in workflow["jobs"][name]["steps"]]
        assert 'echo "IMAGE=ghcr.io/${GITHUB_REPOSITORY,,}" >>"$GITHUB_ENV"' in steps, name


def test_every_change_passes_the_required_checks() -> None:
    required = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    stages = {line.removeprefix("stage ") for line in required if line.startswith("stage ")}
    assert stages <= commands(read(".github/workflows/ci.yml"))
