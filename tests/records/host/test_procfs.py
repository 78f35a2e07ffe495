"""Reading small files with any content."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from keras_matrix.records.host.procfs import LIMIT_BYTES, ProcTree, Unread, integer
from tests.fakes.machine import write


def test_a_file_is_read_below_the_root(tmp_path: Path) -> None:
    write(tmp_path, "/proc/loadavg", " 1.5 \n")
    assert ProcTree(tmp_path).text("/proc/loadavg") == "1.5"


def test_missing_file_is_absent(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert ProcTree(tmp_path).text("/sys/none") == Unread("/sys/none does not exist", absent=True)
    assert ProcTree(tmp_path).number("/file/none") == Unread("/file/none does not exist", absent=True)


def test_unreadable_file_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    assert ProcTree(tmp_path).text("/proc/1/io") == Unread("/proc/1/io is not readable for this user")


def test_a_folder_and_a_pipe_are_unread_and_do_not_block(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    assert isinstance(ProcTree(tmp_path).text("/folder"), Unread)
    assert ProcTree(tmp_path).text("/pipe") == ""


def test_a_reading_is_capped(tmp_path: Path) -> None:
    write(tmp_path, "/huge", b"x" * (2 * LIMIT_BYTES))
    assert len(str(ProcTree(tmp_path).text("/huge"))) == LIMIT_BYTES


@pytest.mark.parametrize("text", ["", "x", "1.5", "--1", "٣", "9" * 21, "1 2", "0x10", "-"])
def test_text_that_is_not_an_integer_is_rejected(tmp_path: Path, text: str) -> None:
    write(tmp_path, "/number", text)
    assert isinstance(ProcTree(tmp_path).number("/number"), Unread)
    assert integer(text) is None
