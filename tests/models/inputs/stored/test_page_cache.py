"""The page cache of a data set's files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from keras_matrix.models.inputs.stored import page_cache

SIZE = 10 * page_cache.PAGE_BYTES


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    found = [tmp_path / f"{number}.bin" for number in range(4)]
    for path in found:
        path.write_bytes(os.urandom(SIZE))
    return found


@pytest.mark.process  # the files of the unit tier are in memory, if there is room
def test_dirty_and_clean_files_are_evicted_and_others_stay(files: list[Path]) -> None:
    if page_cache.evict(files[:1]) and page_cache.resident_share(files[:1]):
        pytest.skip("the folder for temporary files is in memory")
    assert page_cache.warm(files) == 4 * SIZE
    assert page_cache.resident_share(files) == 1.0
    assert page_cache.evict(files[:2]) == 2
    assert page_cache.resident_share(files[:2]) == 0.0
    assert page_cache.resident_share(files[2:]) == 1.0
    assert page_cache.resident_share(files) == 0.5
    assert [path.stat().st_size for path in files] == [SIZE] * 4


def test_files_that_cannot_be_opened_are_not_counted(files: list[Path]) -> None:
    files[1].unlink()
    assert page_cache.evict(files) == 3
    assert page_cache.resident_share(files) is None


def test_files_that_cannot_be_opened_are_not_warmed(files: list[Path]) -> None:
    files[1].unlink()
    assert page_cache.warm(files) == 3 * SIZE


def test_share_of_nothing_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert page_cache.resident_share([]) is None
    assert page_cache.resident_share([tmp_path / "empty"]) is None


def test_share_of_files_of_another_user_is_unknown(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert page_cache.resident_share(files) is None


def test_refused_eviction_is_not_counted(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "posix_fadvise", refuse)
    assert page_cache.evict(files) == 0


@pytest.mark.parametrize(
    ("evicted", "resident", "expected"),
    [
        (4, 0.0, page_cache.COLD_MEANING),
        (4, 0.2, f"{page_cache.COLD_MEANING}; 20.0 % of the pages stayed in memory"),
        (4, 1.0, "not cold: 100.0 % of the pages stayed in memory, as on tmpfs or if another process maps the files"),
        (4, None, f"{page_cache.COLD_MEANING}; whether pages were left is not known"),
        (3, 0.0, f"{page_cache.COLD_MEANING}; refused for 1 of 4 files, which may be warm"),
    ],
)
def test_meaning_of_cold_is_stated(evicted: int, resident: float | None, expected: str) -> None:
    assert page_cache.cold_meaning([Path("a")] * 4, evicted, resident) == expected
