"""Folders of any depth and mode: removed and listed, without following a link."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from keras_matrix.records.store import Results
from keras_matrix.records.trees import remove_tree, temporary_folder, walk
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.measure.seams import Seams
from tests.fakes.executor import FakeExecutor

ROOT = Path(__file__).parents[2]
PACKAGES = ("records", "models", "runner", "analysis", "uploader", "dashboards")
# Within a cell's own process, where an error is the cell's, and of files that only we have written.
IN_A_CELL = ("runner/cell/", "models/")


def nested(folder: Path, depth: int) -> None:
    """Make nested folders, each with a file."""
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.close(os.open("file", os.O_CREAT, dir_fd=descriptor))
        os.mkdir("d", dir_fd=descriptor)
        inner = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: on some disks each folder takes 5 ms to remove."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path) as name:
        yield Path(name)


@pytest.mark.parametrize("depth", [0, 1, 1_100, 20_000])
def test_folder_of_any_depth_is_removed(in_memory: Path, depth: int) -> None:
    folder = in_memory / "scratch"
    folder.mkdir()
    nested(folder, depth)
    before = len(list(Path("/proc/self/fd").iterdir()))
    remove_tree(folder)
    assert not folder.exists()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_cell_that_leaves_nested_folders_ends_no_run(in_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run, and its resumption after it was killed while the cell's scratch folder was there."""
    monkeypatch.chdir(in_memory)
    Path("matrix.yaml").write_text("version: 1\nbackends: [jax]\ncells:\n  - workload: gru\n")

    def nests(job: Job) -> Outcome:
        nested(Path(job.folder), 1_100)
        return FakeExecutor().succeed(job)

    assert main(["--matrix", "matrix.yaml"], Seams(executor=FakeExecutor(behaviours={"gru": nests}))) == 0
    run = Results(in_memory / "results").latest()
    assert run is not None
    assert not list(run.work_folder.glob("*"))
    nested(run.scratch("left"), 1_100)
    next(run.folder.glob("records/*.json")).unlink()
    assert main(["--matrix", "matrix.yaml"], Seams(executor=FakeExecutor())) == 0
    assert not (run.work_folder / "left").exists()


def test_link_is_removed_and_what_it_leads_to_is_not(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "scratch"
    outside.mkdir()
    (outside / "kept").touch()
    (folder / "a" / "b").mkdir(parents=True)
    for place in (folder, folder / "a", folder / "a" / "b"):
        (place / "link").symlink_to(outside)
        (place / "dangling").symlink_to("nowhere")
        os.mkfifo(place / "pipe")
    remove_tree(folder)
    assert not folder.exists()
    assert (outside / "kept").exists()
    (tmp_path / "itself").symlink_to(outside)
    remove_tree(tmp_path / "itself")
    assert (tmp_path / "itself").is_symlink()
    assert (outside / "kept").exists()


def test_missing_folder_and_file_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    remove_tree(tmp_path / "missing")
    remove_tree(tmp_path / "file")
    assert (tmp_path / "file").exists()


@pytest.mark.process
def test_folders_without_permissions_are_removed_by_their_owner(tmp_path: Path) -> None:
    program = """
import os, sys
from keras_matrix.records.trees import remove_tree
if os.getuid() == 0:  # whom no permission stops
    os.chown(".", 65534, 65534)
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
os.makedirs("s/a/b/c")
open("s/a/b/file", "w").close()
for mode, name in ((0, "s/a/b/c"), (0o500, "s/a/b"), (0, "s/a"), (0o100, "s")):
    os.chmod(name, mode)
remove_tree("s")
sys.exit(os.path.lexists("s"))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_walk_yields_what_is_below_a_folder_and_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / "a").touch()
    (tmp_path / "b" / "c" / "file").touch()
    (tmp_path / "b" / "loop").symlink_to(tmp_path)
    found = sorted(str(path.relative_to(tmp_path)) for path in walk(tmp_path))
    assert found == ["a", "b", "b/c", "b/c/file", "b/loop"]
    assert list(walk(tmp_path / "missing")) == []


def test_walk_ends_where_a_path_is_too_long(in_memory: Path) -> None:
    nested(in_memory, 3_000)
    found = list(walk(in_memory))
    assert max(len(str(path)) for path in found) <= 4095
    assert 2 * 1_900 < len(found) < 2 * 2_100
    remove_tree(in_memory / "d")


def test_temporary_folder_is_removed_whatever_is_in_it(in_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(in_memory))
    with temporary_folder("test-") as folder:
        nested(folder, 1_100)
    assert not folder.exists()


RECURSIVE = ("rmtree", "rglob", "copytree", "walk")


def test_no_host_module_removes_or_lists_folders_by_recursion() -> None:
    """All calls of the functions that fail on 1,000 nested folders, in modules that do not run within a cell."""
    read, found = 0, []
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name.startswith(IN_A_CELL) or name == "records/trees.py":
            continue
        read += 1
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if any(call in text for call in RECURSIVE) else ():
            if isinstance(node, ast.Attribute) and node.attr in RECURSIVE:
                found.append(f"{name}: {ast.unparse(node)}")
    assert read > 400
    ours = ("ast.walk", "catalogs.CATALOG_PATH.parent.rglob")
    assert [line for line in found if not line.endswith(ours)] == []
