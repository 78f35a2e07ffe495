"""The locks: for which Pythons and processors, within the bounds of the project.

The image `uploader` contains everything that `uploader` imports.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement

from keras_matrix.records.backends import TABLE
from tests.scripts import script

ROOT = Path(__file__).parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
GROUP: list[str] = PYPROJECT["dependency-groups"]["uploader"]
OURS = {"keras_matrix"}
CLASSIFIERS = [f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)]
# What the client libraries bring: they need it themselves, whatever their versions.
WITH_GOOGLE = {"google", "requests"}
# Readers of profiles, which no command of `uploader` imports.
UNUSED = ROOT / "records" / "traces"


@pytest.fixture(scope="module")
def locks() -> ModuleType:
    return script("check_locks")


@pytest.mark.parametrize(
    ("line", "named"),
    [("# Pythons: 3.12 3.13\n", "('3.12', '3.13')"), ("# Pythons: 3.11 3.13\n", "('3.11', '3.13')"), ("", "()")],
)
def test_lock_names_the_pythons_of_the_project_from_the_oldest_on(locks: ModuleType, line: str, named: str) -> None:
    """Mutation: a lock without the line is checked under no Python."""
    project = {**PYPROJECT, "project": PYPROJECT["project"] | {"classifiers": CLASSIFIERS}}
    pin = "hatchling==1.27.0 --hash=sha256:0\n"
    lock = locks.Lock("build", builds=True)
    assert locks.problems_of(lock, project, {"build": f"# Pythons: 3.11 3.12\n{pin}"}) == []
    expected = f"must name Pythons from 3.11 on, up to one of 3.11, 3.12, 3.13, got {named}"
    assert locks.problems_of(lock, project, {"build": line + pin})[0] == f"locks/build.txt: {expected}"


def test_versions_of_a_lock_are_those_for_a_python(locks: ModuleType) -> None:
    """Mutation: markers are ignored."""
    lock = "jax==0.10.2 ; python_full_version < '3.12' \\\n    --hash=sha256:0\n"
    lock += "jax==0.12.0.1 ; python_full_version >= '3.12' \\\n    --hash=sha256:1\n    # via keras-matrix\n"
    lock += "torch==2.13.0+cpu\n"
    assert locks.versions(lock, "3.11") == {"jax": "0.10.2", "torch": "2.13.0+cpu"}
    assert locks.versions(lock, "3.13") == {"jax": "0.12.0.1", "torch": "2.13.0+cpu"}


PYTHONS, MACHINES = ("3.11", "3.12", "3.13"), ("x86_64", "aarch64")
LINUX = "sys_platform == 'linux'"


@pytest.mark.parametrize(
    ("marker", "expected"),
    [
        (None, ""),
        (f"python_full_version < '3.15' and {LINUX}", ""),
        (f"python_full_version < '3.12' and {LINUX}", "python_full_version < '3.12'"),
        (f"python_full_version >= '3.12' and {LINUX}", "python_full_version >= '3.12'"),
        ("python_version == '3.12'", "python_full_version >= '3.12' and python_full_version < '3.13'"),
        (f"platform_machine == 'aarch64' and {LINUX}", "platform_machine == 'aarch64'"),
        (
            f"python_full_version >= '3.13' and platform_machine != 'aarch64' and {LINUX}",
            "python_full_version >= '3.13' and platform_machine == 'x86_64'",
        ),
        ("platform_python_implementation != 'PyPy'", ""),
        ("sys_platform == 'win32'", None),
        ("python_version != '3.12'", "python_version != '3.12'"),
    ],
)
def test_marker_of_a_pin_names_only_what_the_lock_leaves_open(marker: str | None, expected: str | None) -> None:
    """Mutation: the processors are taken from any Python, or the Pythons from any processor."""
    assert script("lock_markers").brief(marker, PYTHONS, MACHINES) == expected


def test_lock_keeps_what_applies_with_its_hashes() -> None:
    lock = f"# made by uv\n# Pythons: 3.9\na==1 ; {LINUX} \\\n    --hash=sha256:0\n    # via\n    #   -c cpu.txt\n"
    lock += "    #   b\nb==2 ; sys_platform == 'win32' \\\n    --hash=sha256:1\nc==3\n"
    lock += "\n# The following packages were excluded\n# torch\n"
    rewritten = script("lock_markers").rewritten(lock, PYTHONS, MACHINES)
    kept = "a==1 \\\n    --hash=sha256:0\n    # via\n    #   b\nc==3\n"
    assert rewritten == f"# made by uv\n# Pythons: 3.11 3.12 3.13\n{kept}"
    assert script("lock_markers").rewritten(rewritten, PYTHONS, MACHINES) == rewritten


def test_newest_python_of_a_backend_is_that_of_its_lock(locks: ModuleType) -> None:
    """The product names it where a backend is missing; `ci/lock` finds it by the wheels."""
    newest_of_project = locks.supported_pythons(PYPROJECT)[-1]
    for backend in TABLE.values():
        newest = locks.pythons_of((ROOT / "locks" / f"{backend.service}-cpu.txt").read_text(encoding="utf-8"))[-1]
        named = backend.newest_python
        assert (newest_of_project if named is None else "{}.{}".format(*named)) == newest, backend.name


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
        for python in locks.pythons_of(text)
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


CLIENT = "google-cloud-bigquery"


@pytest.mark.parametrize("image", ["uploader", "dashboard"])
def test_image_that_sends_to_bigquery_is_without_grpc(locks: ModuleType, image: str) -> None:
    """tests/uploader/bigquery/test_warehouse.py shows that Google's client does without."""
    pins, problems = locks.pins((ROOT / "locks" / f"{image}.txt").read_text(encoding="utf-8"))
    assert problems == []
    assert {pin.name for pin in pins} & {CLIENT, "grpcio", "grpcio-status"} == {CLIENT}


FAKE_UV = """\
#!/bin/sh
# Resolves everything to x==2, without --upgrade to what the output file has; TensorFlow has no wheel for Python 3.14.
while [ $# -gt 0 ]; do
    case $1 in
    --output-file) output=$2 ;;
    --python-version) python=$2 ;;
    --upgrade) upgrade=yes ;;
    tf-*) tensorflow=yes ;;
    esac
    shift
done
[ "$python$tensorflow" != 3.14yes ] || { echo "tensorflow has no wheels" >&2; exit 1; }
[ -z "$upgrade" ] || [ -z "$output" ] || rm -f "$output"
[ -z "$output" ] || [ -s "$output" ] || printf '# by uv\\n#    ci/lock\\nx==2 \\\\\\n    --hash=sha256:0\\n' >"$output"
"""


@pytest.mark.process
def test_lock_keeps_its_versions_unless_it_is_new_for_a_python(tmp_path: Path) -> None:
    """Mutation: the versions that a lock has for older Pythons are kept for one that is added."""
    for name in ("ci/lock", "ci/lock_markers.py", "pyproject.toml", "docker", "locks/torch-build-cpu.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    uv = tmp_path / "uv"
    uv.write_text(FAKE_UV)
    uv.chmod(0o755)
    to_313, to_314 = ("# Pythons: 3.11 3.12 3.13", "# Pythons: 3.11 3.12 3.13 3.14")
    older = {"tf-cpu": to_313, "jax-cpu": to_313, "torch-cpu": to_314, "host": "# Pythons: 3.11"}
    for name, line in older.items():
        (tmp_path / f"locks/{name}.txt").write_text(f"# by uv\n{line}\nx==1 \\\n    --hash=sha256:0\n")

    environment = os.environ | {"UV": str(uv), "PYTHON": sys.executable}
    subprocess.run([tmp_path / "ci/lock"], env=environment, check=True, stdout=subprocess.DEVNULL)

    expected = {"tf-cpu": (to_313, "x==1"), "jax-cpu": (to_314, "x==2"), "torch-cpu": (to_314, "x==1")}
    expected |= {"host": (to_314, "x==2"), "cpu": (to_313, "x==2"), "jax-gpu-cuda13": (to_314, "x==2")}
    texts = {name: (tmp_path / f"locks/{name}.txt").read_text() for name in expected}
    found = {name: re.findall(r"^# Pythons: .*|^x==\d", text, re.MULTILINE) for name, text in texts.items()}
    assert found == {name: [*lines] for name, lines in expected.items()}
