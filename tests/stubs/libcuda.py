"""A stand-in for the CUDA driver, compiled here, and what its log says of processes that initialise CUDA and fork."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("libcuda.c")


def build(folder: Path, log: str) -> Path:
    """Compile `libcuda.so.1` in a folder, to write to that log; skip the test where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler (cc or gcc) to build the stand-in for libcuda.so.1 with")
    library = folder / "libcuda.so.1"
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", f'-DLOG="{log}"', "-o", str(library), str(SOURCE)]
    subprocess.run([*command, "-Wl,-soname,libcuda.so.1", "-pthread"], check=True, capture_output=True, text=True)
    return library


def processes_that(what: str, lines: list[str]) -> set[int]:
    """Return the processes that did this: `cuInit` or `fork`."""
    return {int(process) for process, done in map(str.split, lines) if done == what}


def forks_after_cuda(lines: list[str]) -> set[int]:
    """Return the processes that forked after they had initialised CUDA, in the order of the log."""
    initialised: set[int] = set()
    found: set[int] = set()
    for process, done in map(str.split, lines):
        if done == "cuInit":
            initialised.add(int(process))
        elif int(process) in initialised:
            found.add(int(process))
    return found
