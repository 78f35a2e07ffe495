"""One reader for what is in a results folder: regular files only, no link, and a limit."""

from __future__ import annotations

import os
import socket
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from keras_matrix.records import files
from keras_matrix.records.codec import CodecError
from keras_matrix.records.files import UnfitFile

TEBIBYTE = 1 << 40


def link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def endless_link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def listening_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(TEBIBYTE)


UNFIT: list[tuple[Callable[[Path], object], str]] = [
    (link, "a link, which is not followed"),
    (endless_link, "a link, which is not followed"),
    (os.mkfifo, "not a regular file"),
    (Path.mkdir, "not a regular file"),
    (listening_socket, "not a regular file"),
    (sparse, f"larger than {files.DOCUMENT_LIMIT_BYTES} bytes"),
]


@pytest.mark.parametrize(("make", "reason"), UNFIT)
def test_what_is_no_small_regular_file_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], object], reason: str
) -> None:
    """Mutation: `open_plain` opens without O_NONBLOCK or O_NOFOLLOW, or `read_plain` ignores the size."""
    make(tmp_path / "file")
    tracemalloc.start()
    try:
        with pytest.raises(UnfitFile) as raised:
            files.read_plain(tmp_path / "file")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert str(raised.value) == reason
    assert peak_bytes < 1 << 20


@pytest.mark.parametrize("make", [link, endless_link, os.mkfifo, Path.mkdir, listening_socket])
def test_lock_file_is_neither_followed_nor_waited_for(tmp_path: Path, make: Callable[[Path], object]) -> None:
    """Mutation: `open_lock` opens without O_NOFOLLOW."""
    make(tmp_path / ".lock")
    with pytest.raises(UnfitFile):
        files.open_lock(tmp_path / ".lock")


def test_lock_file_is_created_and_opened_again(tmp_path: Path) -> None:
    for _ in range(2):
        os.close(files.open_lock(tmp_path / ".lock"))
    assert (tmp_path / ".lock").read_bytes() == b""


def test_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.read_plain(tmp_path / "file")


@pytest.mark.parametrize(
    ("start", "count", "expected"),
    [(0, 4, b"0123"), (3, 2, b"34"), (8, 4, b"89"), (10, 4, b""), (-4, 4, b"6789"), (-20, 2, b"01")],
)
def test_range_of_a_file(tmp_path: Path, start: int, count: int, expected: bytes) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    assert files.read_range(tmp_path / "file", start, count) == expected


def test_range_of_a_sparse_file_is_read_without_the_rest(tmp_path: Path) -> None:
    sparse(tmp_path / "file")
    assert files.read_range(tmp_path / "file", -2, 2) == b"\0\0"


def test_no_part_of_a_path_below_the_folder_may_be_a_link(tmp_path: Path) -> None:
    """Mutation: `refuse_links` looks at the last part only. A link above the folder is the user's own choice."""
    (tmp_path / "real" / "usage").mkdir(parents=True)
    (tmp_path / "real" / "usage" / "a.json").write_text("1")
    (tmp_path / "named").symlink_to("real")
    assert files.read_json(tmp_path / "named" / "usage" / "a.json", root=tmp_path / "named") == 1
    (tmp_path / "named" / "linked").symlink_to("usage")
    with pytest.raises(UnfitFile, match=r"^linked is a link, which is not followed$"):
        files.read_json(tmp_path / "named" / "linked" / "a.json", root=tmp_path / "named")


@pytest.mark.parametrize("name", ["../secret.json", "/etc/hostname", "a/../../secret.json"])
def test_path_that_leads_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.json").write_text("1")
    (tmp_path / "run").mkdir()
    with pytest.raises(UnfitFile, match=r"^outside of "):
        files.read_json(tmp_path / "run" / name, root=tmp_path / "run")


@pytest.mark.parametrize(
    "data",
    [b'"\xff"', '"\ud800"'.encode("utf-8", "surrogatepass"), '"a"'.encode("utf-16"), b"\xef\xbb\xbf1", b"NaN", b"{"],
)
def test_json_is_decoded_strictly(tmp_path: Path, data: bytes) -> None:
    """Mutation: `loads` leaves the encoding to `json`, which accepts UTF-16 and surrogates."""
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(CodecError):
        files.read_json(tmp_path / "file")


def test_half_of_a_surrogate_pair_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b'{"a\\ud800": ["\\uDfff", "\\ud83d\\ude00", 1, null]}')
    assert files.read_json(tmp_path / "file") == {"a\ufffd": ["\ufffd", "\U0001f600", 1, None]}


def test_keys_that_are_equal_after_the_replacement_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b'{"\\ud800": 1, "\\ud801": 2}')
    with pytest.raises(CodecError, match="appears twice"):
        files.read_json(tmp_path / "file")
