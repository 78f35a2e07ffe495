"""`.ci/run` runs every stage, whatever fails before it, and reports each one's duration and outcome."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = ("make", "ci/process", "ci/docs", "ci/docker", "ci/emulator", "ci/browser", "ci/types", "ci/lint")


def run(folder: Path, failing: str) -> subprocess.CompletedProcess[str]:
    """Run the script among commands that only print their name and pytest's options; `failing` ends with 1."""
    (folder / ".ci").mkdir()
    (folder / "ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    for name in COMMANDS:
        path = folder / name
        path.write_text(f'#!/bin/sh\necho "{name} got $PYTEST_ADDOPTS"\nexit {int(name == failing)}\n')
        path.chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin"}
    command = [str(folder / ".ci" / "run")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.process
def test_every_stage_runs_with_its_slowest_tests_listed(tmp_path: Path) -> None:
    done = run(tmp_path, failing="")
    assert done.returncode == 0
    assert re.findall(r"(\S+) got --durations=25", done.stdout) == [*COMMANDS]


@pytest.mark.process
@pytest.mark.parametrize("failing", ["make", "ci/docker"])
def test_failed_stage_fails_the_run_after_the_others_and_is_marked_in_the_table(tmp_path: Path, failing: str) -> None:
    done = run(tmp_path, failing)
    table = re.findall(r"^ +\d+ s  (passed|failed)  (\S+)", done.stdout, flags=re.M)
    assert done.returncode == 1
    assert table == [("failed" if name == failing else "passed", name) for name in COMMANDS]
    assert re.search(r"^ +\d+ s  total$", done.stdout, flags=re.M)
    assert f"failed: {failing}" in done.stderr
