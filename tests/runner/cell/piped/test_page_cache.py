"""What a cell records about the page cache of its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.models.inputs.stored import page_cache
from keras_matrix.runner.cell.piped.process_tree import PageCache

FILES = [Path("a"), Path("b")]


def epochs(monkeypatch: pytest.MonkeyPatch, evicted: list[int], shares: list[float | None]) -> PageCache:
    """Return the cache of a cold cell after epochs with these answers of the system."""
    cache, counts, found = PageCache(FILES, cold=True), iter(evicted), iter(shares)
    monkeypatch.setattr(page_cache, "evict", lambda _: next(counts))
    monkeypatch.setattr(page_cache, "resident_share", lambda _: next(found))
    for _ in evicted:
        cache.prepare()
    return cache


def test_cold_means_what_happened_in_the_worst_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = epochs(monkeypatch, [1, 2], [0.0, 0.0])
    assert cache.evicted == 1
    assert (cache.cold_meaning or "").endswith("refused for 1 of 2 files, which may be warm")
    cache = epochs(monkeypatch, [2, 2], [0.9, 0.0])
    assert (cache.cold_meaning or "").startswith("not cold: 90.0 % of the pages stayed in memory")


def test_residency_that_is_unknown_in_an_epoch_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = epochs(monkeypatch, [2, 2], [0.0, None])
    assert cache.resident_share is None
    assert (cache.cold_meaning or "").endswith("whether pages were left is not known")


def test_warm_cell_does_not_say_what_cold_means() -> None:
    assert PageCache(FILES).cold_meaning is None


def test_warm_cell_reads_its_files_before_each_epoch_if_they_fit_into_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A cold cell that is measured in turn with it evicts them in between."""
    (tmp_path / "a").write_bytes(b"0" * 100)
    read: list[Path] = []
    monkeypatch.setattr(page_cache, "warm", read.extend)
    monkeypatch.setattr(page_cache, "resident_share", lambda _: 1.0)
    for free_bytes, times in ((200, 3), (199, 0)):
        read.clear()
        monkeypatch.setattr(
            "keras_matrix.runner.cell.piped.process_tree.free_memory_bytes", lambda free=free_bytes: free
        )
        cache = PageCache([tmp_path / "a"])
        for _ in range(3):
            cache.prepare()
        assert read == [tmp_path / "a"] * times
        assert cache.resident_shares == [1.0]
