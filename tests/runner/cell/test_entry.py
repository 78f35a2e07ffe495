"""A fresh interpreter that cannot begin its job says why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("job", "told"),
    [
        ('{"of": "another version"}', "it is from another version of the runner; build the image again"),
        (None, "FileNotFoundError"),
    ],
)
def test_a_job_that_cannot_be_read_is_told(tmp_path: Path, job: str | None, told: str) -> None:
    path = tmp_path / "job.json"
    if job is not None:
        path.write_text(job)
    command = [sys.executable, "-P", "-m", "keras_matrix.runner.cell.entry", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert told in done.stderr
