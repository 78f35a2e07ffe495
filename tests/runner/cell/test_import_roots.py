"""A cell finds a user's workload in the working folder and in that of the matrix file."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.records.host.import_path import search_path
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.machine.mounts import import_roots
from keras_matrix.runner.measure.experiment import moved_roots
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.plan.session import ArmRequest
from tests.fakes.executor import FakeExecutor

MATRIX = """\
version: 1
defaults: {repeats: 1}
backends: [jax]
cells:
  - workload: mine:build
"""


def test_workload_is_found_in_the_working_folder_and_the_matrix_files_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "matrices"):
        (tmp_path / name).mkdir()
    (tmp_path / "matrices" / "own.yaml").write_text(MATRIX)
    monkeypatch.chdir(tmp_path / "here")
    executor = FakeExecutor()
    assert main(["--matrix", "../matrices/own.yaml"], Seams(executor=executor)) == 0
    assert [job.import_roots for job in executor.jobs] == [[str(tmp_path / "here"), str(tmp_path / "matrices")]]


def test_a_folder_src_is_searched_too_and_the_matrix_files_folder_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, matrices = tmp_path / "here", tmp_path / "matrices"
    for folder in (here, matrices):
        (folder / "src").mkdir(parents=True)
    monkeypatch.chdir(here)
    assert import_roots(matrices) == [here, here / "src", matrices / "src", matrices]


def test_the_users_folders_come_after_the_standard_library_and_before_installed_packages() -> None:
    path = ["/lib/python3.11", "/venv/lib/site-packages", "/venv/lib/dist-packages"]
    assert search_path(["/user"], path) == [path[0], "/user", *path[1:]]
    assert search_path(["/user"], path[:1]) == [path[0], "/user"]


def test_an_arm_with_a_worktree_finds_the_modules_of_the_checkout_there() -> None:
    roots = [Path("/mine"), Path("/mine/src"), Path("/other"), Path("/mineral")]
    assert moved_roots(roots, ArmRequest(worktree=("/mine", "/cache/1"))) == [
        "/cache/1",
        "/cache/1/src",
        "/other",
        "/mineral",
    ]
    assert moved_roots(roots, ArmRequest()) == []
