"""A fresh interpreter that cannot begin its job reports why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


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
