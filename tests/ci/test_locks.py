"""Contents of the image `uploader`: everything that `uploader` imports, within the bounds of the project."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.scripts import script

ROOT = Path(__file__).parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
GROUP: list[str] = PYPROJECT["dependency-groups"]["uploader"]
OURS = {"keras_matrix"}
# What the client libraries bring: they need it themselves, whatever their versions.
WITH_GOOGLE = {"google", "requests"}
# Readers of profiles, which no command of `uploader` imports.
UNUSED = ROOT / "records" / "traces"


@pytest.fixture(scope="module")
def locks() -> ModuleType:
    return script("check_locks")


def imported() -> Iterator[str]:
    """Yield the top-level names that the modules of `uploader` and what they use of `records` import, lazily or not."""
    paths = [*(ROOT / "uploader").rglob("*.py"), *(ROOT / "records").rglob("*.py")]
    for path in (path for path in paths if UNUSED not in path.parents):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module.partition(".")[0]


def test_everything_that_the_uploader_imports_is_in_its_image() -> None:
    foreign = set(imported()) - OURS - WITH_GOOGLE - set(sys.stdlib_module_names)
    named = {Requirement(text).name for text in GROUP}
    assert foreign == named - {"google-cloud-bigquery", "pytz"}  # pytz: DuckDB's times


def test_bounds_of_the_uploaders_packages_are_the_projects() -> None:
    project = PYPROJECT["project"]
    assert set(GROUP) <= {*project["dependencies"], *project["optional-dependencies"]["bigquery"]}


def test_lock_of_the_uploader_contains_only_its_packages(locks: ModuleType) -> None:
    [lock] = [lock for lock in locks.LOCKS if lock.name == "uploader"]
    assert [str(one) for one in locks.required(PYPROJECT, lock)] == [str(Requirement(text)) for text in GROUP]
    pins, problems = locks.pins((ROOT / "locks" / "uploader.txt").read_text(encoding="utf-8"))
    assert problems == []
    assert {"keras", "numpy", "scipy", "docker", "jinja2"} & {pin.name for pin in pins} == set()


def test_a_lock_fits_on_each_processor_that_it_is_for(locks: ModuleType) -> None:
    """Mutation: `environments` has the first processor only."""
    [lock] = [lock for lock in locks.LOCKS if lock.name == "tf-cpu"]
    text = (ROOT / "locks" / "tf-cpu.txt").read_text(encoding="utf-8")
    assert locks.problems_of(lock, PYPROJECT, {"tf-cpu": text}) == []

    amd64_alone = re.sub(r"(?m)^tensorflow==.*\n(    .*\n)*", "", text)
    bounds = next(text for text in PYPROJECT["project"]["optional-dependencies"]["tf-cpu"] if "machine !=" in text)
    assert amd64_alone != text
    assert locks.problems_of(lock, PYPROJECT, {"tf-cpu": amd64_alone}) == [
        f"locks/tf-cpu.txt: {Requirement(bounds)} needs one pin under Python {python} on aarch64, got []"
        for python in locks.PYTHONS
    ]


def test_only_nodes_of_a_cluster_have_ray_and_only_images_that_ask_for_it_opencv() -> None:
    names = {"ray": "ray", "opencv-python-headless": "opencv"}
    contained = {
        (name, path.stem)
        for path in (ROOT / "locks").glob("*.txt")
        for name in re.findall(r"^([a-z0-9-]+)(?:\[[a-z,]+\])?==", path.read_text(encoding="utf-8"), re.MULTILINE)
        if name in names
    }
    assert contained == {*((name, "cpu") for name in names), *names.items(), ("ray", "ray-head")}
