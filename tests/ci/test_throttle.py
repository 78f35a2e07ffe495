"""`ci/throttle`: limits of reads from storage, and their removal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "ci" / "throttle")
GROUPS = Path("/sys/fs/cgroup/blkio") if Path("/sys/fs/cgroup/blkio").is_dir() else Path("/sys/fs/cgroup")
READ_COLD = """
import os, sys, time
file = os.open(sys.argv[1], os.O_RDONLY)
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
begun_s = time.monotonic()
for place in range(int(sys.argv[2])):
    os.pread(file, 4096, place * 65536)
print(time.monotonic() - begun_s)
"""


def throttle(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script, and see that the group it made is gone."""
    with subprocess.Popen([SCRIPT, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        out, err = process.communicate(timeout=120)
    assert not (GROUPS / f"keras-matrix-throttle-{process.pid}").exists()
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


@cache
def why_not(folder: Path) -> str | None:
    """Return why reads cannot be limited here, None where they can."""
    if os.geteuid() != 0:
        return "limiting reads needs root"
    done = throttle("--iops", "1000", "--folder", str(folder), "--", "true")
    return None if done.returncode == 0 else f"reads cannot be limited here: {done.stderr.strip()}"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--iops", "many", "--", "true"], "--iops: must be a whole number, got 'many'"),
        (["--bandwidth", "20Mbit", "--", "true"], "--bandwidth: must be such as 20MB, got '20Mbit'"),
        (["--folder", "/nowhere", "--", "true"], "--folder: there is no folder '/nowhere'"),
        (["--iops", "10"], "COMMAND is missing"),
        (["--", "true"], "--iops or --bandwidth is missing"),
    ],
)
@pytest.mark.process
def test_wrong_arguments_are_refused_by_name(arguments: list[str], expected: str) -> None:
    done = throttle(*arguments)
    assert (done.returncode, expected in done.stderr) == (2, True)


@pytest.mark.alone
@pytest.mark.process
def test_reads_that_miss_the_page_cache_are_limited_and_the_group_is_removed(tmp_path: Path) -> None:
    if reason := why_not(tmp_path):
        pytest.skip(reason)
    file = tmp_path / "file"
    with file.open("wb") as out:
        out.write(os.urandom(100 * 65536))
        os.fsync(out.fileno())
    done = throttle("--iops", "50", "--folder", str(tmp_path), "--", sys.executable, "-c", READ_COLD, str(file), "100")
    assert done.stderr == ""
    assert float(done.stdout) > 1.5  # 100 reads at 50 a second, less a first burst


@pytest.mark.process
def test_the_exit_code_is_the_commands_and_what_it_started_does_not_outlive_it(tmp_path: Path) -> None:
    if reason := why_not(tmp_path):
        pytest.skip(reason)
    begun_s = time.monotonic()
    done = throttle("--iops", "50", "--folder", str(tmp_path), "--", "bash", "-c", "sleep 60 >/dev/null 2>&1 & exit 7")
    assert done.returncode == 7
    assert time.monotonic() - begun_s < 30


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_process_and_no_group(tmp_path: Path, number: signal.Signals) -> None:
    if reason := why_not(tmp_path):
        pytest.skip(reason)
    arguments = ["--iops", "50", "--folder", str(tmp_path), "--", "sleep", "60"]
    with subprocess.Popen([SCRIPT, *arguments], start_new_session=True) as process:
        group = GROUPS / f"keras-matrix-throttle-{process.pid}"
        while not (group.exists() and (group / "cgroup.procs").read_text()):
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, number)
        assert process.wait(60) != 0
    assert not group.exists()
