"""What is published: one import name, three commands, and a source archive that builds the same wheel."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from configparser import ConfigParser
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
RUNNER, UPLOADER = "keras_matrix.runner.cli.main:main", "keras_matrix.uploader.cli.main:main"


def build(source: Path, target: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    [found] = folder.iterdir()
    return found


def members(wheel: Path) -> dict[str, bytes]:
    with ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return members(build(ROOT, "wheel", tmp_path_factory.mktemp("wheel")))


def metadata(wheel: dict[str, bytes], name: str) -> str:
    [found] = [content for path, content in wheel.items() if path.endswith(f".dist-info/{name}")]
    return found.decode()


@pytest.mark.process
def test_the_wheel_has_one_import_name(wheel: dict[str, bytes]) -> None:
    names = {path.partition("/")[0] for path in wheel}
    assert {name for name in names if not name.endswith(".dist-info")} == {"keras_matrix"}
    assert "keras_matrix/py.typed" in wheel
    assert [path for path in wheel if "/tests/" in path] == []


@pytest.mark.process
def test_the_wheel_has_the_files_that_init_writes(wheel: dict[str, bytes]) -> None:
    starter = "keras_matrix/runner/service/starter_files"
    assert wheel[f"{starter}/my_workload.py.txt"] == (ROOT / "docs" / "examples" / "my_workload.py").read_bytes()
    assert b"backends: [@BACKENDS@]" in wheel[f"{starter}/matrix.yaml"]


@pytest.mark.process
def test_the_wheel_may_be_published_as_keras_matrix(wheel: dict[str, bytes]) -> None:
    lines = metadata(wheel, "METADATA").splitlines()
    assert "Name: keras-matrix" in lines
    assert [line for line in lines if "Private" in line] == []


@pytest.mark.process
def test_the_wheel_has_the_commands(wheel: dict[str, bytes]) -> None:
    parser = ConfigParser()
    parser.read_string(metadata(wheel, "entry_points.txt"))
    expected = {"runner": RUNNER, "keras-matrix": RUNNER, "uploader": UPLOADER}
    assert dict(parser["console_scripts"]) == expected
    assert parser.sections() == ["console_scripts"]  # none of pytest: docs/python.md says why


@pytest.mark.process
def test_the_source_archive_builds_the_same_wheel(wheel: dict[str, bytes], tmp_path: Path) -> None:
    with tarfile.open(build(ROOT, "sdist", tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path, filter="data")
    [source] = tmp_path.glob("keras_matrix-*")
    assert members(build(source, "wheel", tmp_path / "again")) == wheel
