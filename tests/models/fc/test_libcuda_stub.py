"""The stand-in for the CUDA driver itself, and how its log is read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.stubs.libcuda import build, forks_after_cuda, processes_that

# Initialises CUDA as the CUDA runtime does, forks before and after it, and starts a program, which is no fork.
PROGRAM = """
import ctypes, os, subprocess, sys

def fork():
    if os.fork() == 0:
        os._exit(0)
    os.wait()

driver = ctypes.CDLL(sys.argv[1])
count, function, version = ctypes.c_int(9), ctypes.c_void_p(), ctypes.c_int()
early, late = "early" in sys.argv, "late" in sys.argv
if early:
    fork()
subprocess.run([sys.executable, "-c", ""], check=True)
assert driver.cuGetProcAddress_v2(b"cuInit", ctypes.byref(function), 13000, 0, None) == 0
assert ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint)(function.value)(0) == 100
assert (driver.cuDeviceGetCount(ctypes.byref(count)), count.value) == (100, 0)
assert (driver.cuDriverGetVersion(ctypes.byref(version)), version.value > 13000) == (0, True)
subprocess.run([sys.executable, "-c", ""], check=True)
if late:
    fork()
print(os.getpid())
"""


@pytest.mark.process
@pytest.mark.parametrize("forks", [[], ["early"], ["late"], ["early", "late"]])
def test_stub_logs_initialisation_of_cuda_and_later_forks(tmp_path: Path, forks: list[str]) -> None:
    log = tmp_path / "log"
    library = build(tmp_path, str(log))
    command = [sys.executable, "-c", PROGRAM, str(library), *forks]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    process, lines = int(done.stdout), log.read_text().splitlines()
    assert processes_that("cuInit", lines) == {process}
    assert processes_that("fork", lines) == ({process} if forks else set())
    assert forks_after_cuda(lines) == ({process} if "late" in forks else set())


@pytest.mark.parametrize(
    ("lines", "processes"),
    [
        ([], set()),
        (["1 fork", "1 cuInit"], set()),
        (["1 cuInit", "2 fork"], set()),
        (["1 cuInit", "2 cuInit", "2 fork", "2 fork"], {2}),
    ],
)
def test_only_a_process_that_has_initialised_cuda_must_not_fork(lines: list[str], processes: set[int]) -> None:
    assert forks_after_cuda(lines) == processes
