"""A cell finds a user's workload in the working folder and in that of the matrix file."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.runner.cli.main import Seams, main
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
