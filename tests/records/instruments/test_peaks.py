"""Peaks and counted work as files: named by machine and versions, replaced atomically, rejected if damaged."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.records.instruments import peaks as peak_files
from keras_matrix.records.instruments import work as work_files
from keras_matrix.records.instruments.peaks import Timed, fingerprint
from keras_matrix.records.instruments.work import Work, work_key
from keras_matrix.records.store_failure import StoreFailure
from tests.conftest import MACHINE
from tests.synthetic_peaks import VERSIONS, make_peaks


def test_stored_peaks_are_read_back_and_replaced_by_newer_ones(tmp_path: Path) -> None:
    first, second = make_peaks(), make_peaks(rounds=5)
    path = peak_files.keep(tmp_path, first)
    assert path == tmp_path / "peaks" / f"{first.fingerprint}.json"
    assert peak_files.read(tmp_path, first.fingerprint) == first
    peak_files.keep(tmp_path, second)
    assert peak_files.read(tmp_path, first.fingerprint) == second
    assert list(path.parent.iterdir()) == [path]


def test_the_folder_is_synced_after_a_file_was_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    sync, replace_file = os.fsync, Path.replace

    def synced(handle: int) -> None:
        steps.append("sync folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "sync file")
        sync(handle)

    def replaced(path: Path, target: Path) -> Path:
        steps.append("replace")
        return replace_file(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    peak_files.put(tmp_path / "a.json", "{}\n")
    assert steps == ["sync file", "replace", "sync folder"]


def test_missing_peaks_read_as_none_and_damaged_ones_are_reported(tmp_path: Path) -> None:
    assert peak_files.read(tmp_path, "0" * 16) is None
    path = peak_files.keep(tmp_path, make_peaks())
    path.write_text(path.read_text()[:100])
    with pytest.raises(StoreFailure, match="measure again with --measure"):
        peak_files.read(tmp_path, make_peaks().fingerprint)


@pytest.mark.parametrize("rates", [[], [0.0], [1e9, -1.0]])
def test_peaks_without_a_positive_rate_are_damaged(tmp_path: Path, rates: list[float]) -> None:
    """Mutation: `in_file` does not check the rates; the report then ends with a traceback."""
    whole = make_peaks()
    gemm = replace(whole.gemms[0], flop_per_s=Timed(rates, 1))
    peak_files.keep(tmp_path, replace(whole, gemms=[gemm]))
    with pytest.raises(StoreFailure, match="rates must be positive numbers, at least one"):
        peak_files.read(tmp_path, whole.fingerprint)


def test_unwritable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "peaks").write_text("a file")
    with pytest.raises(StoreFailure, match="cannot be written"):
        peak_files.keep(tmp_path, make_peaks())


@pytest.mark.parametrize(
    ("machine", "versions", "same"),
    [
        ({}, {}, True),
        ({"kernel": "another", "memory_bytes": 1}, {"keras": "4"}, True),
        ({"host_id": "1" * 16}, {}, False),
        ({"cpu_model": "another CPU"}, {}, False),
        ({"logical_cpus": 1}, {}, False),
        ({"gpus": ["NVIDIA L4"]}, {}, False),
        ({}, {"jax": "0.11.0"}, False),
    ],
)
def test_the_fingerprint_follows_from_the_machine_and_the_libraries(
    machine: dict[str, object], versions: dict[str, str], same: bool
) -> None:
    other = fingerprint(replace(MACHINE, **machine), VERSIONS | versions)  # type: ignore[arg-type]
    assert (other == fingerprint(MACHINE, VERSIONS)) == same


def test_best_and_median_are_over_every_call() -> None:
    timed = Timed([3.0, 9.0, 4.0], 2)
    assert (timed.best, timed.median) == (9.0, 4.0)


def test_count_is_stored_by_parameters_and_source(tmp_path: Path) -> None:
    work = Work("lstm", {"units": 8}, 100, 1, 1, 0, 1, 1, 1, "torch")
    key = work_key("lstm", {"units": 8})
    work_files.keep(tmp_path, key, "source", work)
    assert work_files.read(tmp_path, key, "source") == work
    assert work_files.read(tmp_path, key, "another source") is None
    assert work_files.read(tmp_path, work_key("lstm", {"units": 9}), "source") is None
