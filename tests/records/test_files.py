"""Files are replaced atomically, and a failure leaves the old content and no temporary file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from keras_matrix.records import files


def test_replaced_file_has_the_new_text_with_escaped_lone_surrogates(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    files.replace(path, "new \ud800")
    assert path.read_text(encoding="utf-8") == "new \\ud800"
    assert list(tmp_path.iterdir()) == [path]


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def interrupted() -> None:
        with files.replacing(path) as temporary:
            temporary.write_text("ne")
            raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_failed_sync_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError("disk full")

    path = tmp_path / "a.txt"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        files.replace(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_replaced_if_nothing_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with files.replacing(path):
        pass
    assert path.read_text() == "old"


def test_published_file_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    files.publish(path, "first")
    with pytest.raises(FileExistsError):
        files.publish(path, "second")
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]
