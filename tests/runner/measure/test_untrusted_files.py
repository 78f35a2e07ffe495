"""The file in the place of a cell's result is untrusted input: it neither blocks the runner nor fills its memory."""

from __future__ import annotations

import os
import socket
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from keras_matrix.runner.cell.job import RESULT_LIMIT_BYTES, Job
from keras_matrix.runner.measure.record_builder import read_result
from tests.conftest import make_settings

TWO_GIB = 2 << 30


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job("nonce", "c" * 16, 0, 0, make_settings(), 1, str(tmp_path), [], None, None)


@pytest.mark.fault("F3", mutation="read_plain() reads a file of any size")
def test_result_of_two_gibibytes_is_refused_without_being_read(job: Job) -> None:
    with job.result_path.open("wb") as file:
        file.truncate(TWO_GIB)
    tracemalloc.start()
    try:
        found = read_result(job)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == (None, f"bad_result: larger than {RESULT_LIMIT_BYTES} bytes")
    assert peak_bytes < 4 * RESULT_LIMIT_BYTES


@pytest.mark.fault("F3", mutation="a missing file counts as an empty one")
def test_missing_result_is_named_as_such(job: Job) -> None:
    assert read_result(job) == (None, "no_result: the process did not write one")


def link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def endless_link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero, which has no end
    except PermissionError:
        pytest.skip("only root may make the node of a device")


def listening_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.fault("F35", mutation="open_plain() opens the file without O_NOFOLLOW and O_NONBLOCK, and of any kind")
@pytest.mark.fault("F35", mutation="open_plain() opens the file without O_NOFOLLOW and O_NONBLOCK, and of any kind")
@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (link, "a link, which is not followed"),
        (endless_link, "a link, which is not followed"),
        (os.mkfifo, "not a regular file"),
        (device, "not a regular file"),
        (Path.mkdir, "not a regular file"),
        (listening_socket, "not a regular file"),
    ],
)
def test_anything_but_a_regular_file_is_refused_at_once(job: Job, make: Callable[[Path], None], problem: str) -> None:
    make(job.result_path)
    assert read_result(job) == (None, f"bad_result: {problem}")
