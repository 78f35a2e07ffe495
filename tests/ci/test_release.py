"""A release has one version, wherever it is stated, and the workflow publishes what `ci/release` has checked."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

from keras_matrix.runner.cli.main import VERSION

ROOT = Path(__file__).parents[2]


def test_the_version_is_the_same_wherever_it_is_stated() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))

    assert re.findall(r'image\.version="(.*?)"', dockerfile) == [project["version"]]
    assert (cited["version"], VERSION) == (project["version"], project["version"])
    assert (cited["license"], sorted(cited["keywords"])) == (project["license"], project["keywords"])


def test_only_what_was_checked_and_tested_is_published() -> None:
    """Mutation: `needs: build` without `test` for the job that publishes to the index."""
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))["jobs"]

    assert any("ci/release" in step.get("run", "") for step in jobs["build"]["steps"])
    assert jobs["test"]["uses"] == "./.github/workflows/ci.yml"
    assert {name for name, job in jobs.items() if {"build", "test"} <= set(job.get("needs", []))} == {"index", "images"}
    assert set(jobs["release"]["needs"]) == {"index", "images"}


def test_notes_of_a_release_list_its_images_by_digest() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))["jobs"]
    tag = yaml.safe_load((ROOT / ".github" / "workflows" / "images.yml").read_text(encoding="utf-8"))["jobs"]["tag"]

    artifacts = [step["with"].get("name") for step in tag["steps"] if "upload-artifact" in step.get("uses", "")]
    fetched = [step["with"].get("name") for step in jobs["release"]["steps"] if "artifact" in step.get("uses", "")]
    steps = [step.get("run", "") for step in jobs["release"]["steps"]]
    assert artifacts == ["images"]
    assert "images" in fetched
    [listed] = [number for number, text in enumerate(steps) if "images.md >>dist/notes.md" in text]
    [created] = [number for number, text in enumerate(steps) if text.startswith("gh release create")]
    assert listed < created


def test_action_tag_of_the_examples_is_that_of_this_version() -> None:
    minor = VERSION.rpartition(".")[0]
    used = [
        name
        for path in sorted((ROOT / "docs" / "examples" / "github").iterdir())
        for name in re.findall(r"uses: (OWNER/\S+)", path.read_text(encoding="utf-8"))
    ]
    assert len(used) == 2
    assert {name.partition("@")[2] for name in used} == {f"v{minor}"}
