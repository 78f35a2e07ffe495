"""Folders travel as archives: regular files only, a user's modules without environments and results."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from keras_matrix.runner.executors.ray import machines


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_files_arrive_and_pipes_and_links_do_not(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "traced").mkdir(parents=True)
    (source / "result.json").write_text("{}")
    (source / "traced" / "trace.json").write_bytes(bytes(range(256)))
    os.mkfifo(source / "orders")
    (source / "link").symlink_to("/etc/passwd")
    machines.unpacked(machines.packed(source), target)
    assert names(target) == ["result.json", "traced/trace.json"]
    assert (target / "traced" / "trace.json").read_bytes() == bytes(range(256))


@pytest.fixture
def old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module tarfile before Python 3.11.4: without filters."""
    extract = tarfile.TarFile.extractall
    monkeypatch.delattr(tarfile, "data_filter")

    def extractall(self: tarfile.TarFile, path: Path, members: list[tarfile.TarInfo]) -> None:
        extract(self, path, members, filter="fully_trusted")

    monkeypatch.setattr(tarfile.TarFile, "extractall", extractall)


@pytest.mark.usefixtures("old_python")
def test_files_arrive_under_a_python_without_filters_of_archives(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "traced").mkdir(parents=True)
    (source / "traced" / "trace.json").write_text("{}")
    machines.unpacked(machines.packed(source), target)
    assert names(target) == ["traced/trace.json"]


@pytest.mark.usefixtures("old_python")
@pytest.mark.parametrize(
    ("name", "kind"), [("../outside", tarfile.REGTYPE), ("/tmp/outside", tarfile.REGTYPE), ("link", tarfile.SYMTYPE)]
)
def test_what_would_leave_the_folder_is_refused_under_such_a_python(tmp_path: Path, name: str, kind: bytes) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc/passwd" if kind == tarfile.SYMTYPE else ""
        archive.addfile(member)
    with pytest.raises(tarfile.TarError, match="no file or folder"):
        machines.unpacked(buffer.getvalue(), tmp_path / "target")
    assert names(tmp_path) == []


def test_modules_leave_out_environments_caches_and_results(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    wanted = ["data/labels.csv", "mine.py"]
    for name in (
        *wanted,
        ".env",
        "out/1/run.json",
        ".venv/lib/a.py",
        "results/1/run.json",
        "__pycache__/mine.pyc",
        ".git/x",
    ):
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    machines.unpacked(machines.modules(source, source / "out"), target)
    assert names(target) == wanted


def test_too_large_a_folder_is_refused_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "MOST_BYTES", 1 << 20)
    (tmp_path / "large.bin").write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(machines.TooLarge, match=rf"^{tmp_path}: has more than 1.00 MiB"):
        machines.modules(tmp_path)


def test_an_archive_cannot_write_outside_of_its_folder(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        entry = tarfile.TarInfo("../outside")
        entry.size = 1
        archive.addfile(entry, io.BytesIO(b"x"))
    with pytest.raises(tarfile.TarError):
        machines.unpacked(buffer.getvalue(), tmp_path / "inside")
    assert not (tmp_path / "outside").exists()
