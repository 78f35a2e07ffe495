"""A fresh interpreter that cannot begin its job reports why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.process
@pytest.mark.parametrize(
    ("job", "message"),
    [
        ('{"of": "another version"}', "it is from another version of the runner; build the image again"),
        (None, "FileNotFoundError"),
    ],
)
def test_unreadable_job_is_reported(tmp_path: Path, job: str | None, message: str) -> None:
    path = tmp_path / "job.json"
    if job is not None:
        path.write_text(job)
    command = [sys.executable, "-P", "-m", "keras_matrix.runner.cell.entry", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert message in done.stderr


LISTENS = """
import sys
from multiprocessing.connection import Listener
from keras_matrix.runner.cell.entry import _shorten_socket_paths
if sys.argv[2] == "shortened":
    _shorten_socket_paths(sys.argv[1])
with Listener(family="AF_UNIX") as listener:
    print(listener.address)
"""


@pytest.mark.process
@pytest.mark.parametrize("how", ["as it is", "shortened"])
def test_processes_of_a_cell_can_connect_although_the_path_of_its_folder_is_long(tmp_path: Path, how: str) -> None:
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", LISTENS, str(folder), how],
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    if how == "shortened":
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("/proc/")
    else:
        assert "AF_UNIX path too long" in done.stderr
