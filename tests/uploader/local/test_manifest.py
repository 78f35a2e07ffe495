"""The manifest of the local warehouse: an error if it is missing or damaged, and rebuilt from the Parquet files."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.records.store import Results
from keras_matrix.uploader.errors import ManifestDamaged, WarehouseFailure
from keras_matrix.uploader.local import manifest, warehouse
from keras_matrix.uploader.local.manifest import NAME
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from keras_matrix.uploader.verify import verify
from tests.golden import Golden
from tests.messages import check_messages, refusal
from tests.uploader.stored import import_two_rows, pushed_results, store_run, uploader

COUNT = "SELECT COUNT(*) AS n FROM measurements"


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Two runs, pushed: a file of each table."""
    return pushed_results(tmp_path / "results")


@pytest.fixture
def folder(results: Results) -> Path:
    return results.root / "warehouse"


MANIFESTS = [
    "{",
    "[]",
    "{}",
    '{"version": "1"}',
    '{"version": true, "tables": {}}',
    '{"version": 1}',
    '{"version": 1, "tables": ["runs"]}',
    '{"version": 1, "tables": {"runs": "a.parquet"}}',
    '{"version": 1, "tables": {"runs": [1]}}',
    '{"version": 1, "tables": {"runs": ["../cells/a.parquet"]}}',
    '{"version": 1, "tables": {"runs": ["/etc/a.parquet"]}}',
    "\udcff",
]


def test_every_damaged_manifest_has_its_message_with_the_command_that_rebuilds_it(
    tmp_path: Path, golden: Golden
) -> None:
    messages = {}
    for text in MANIFESTS:
        (tmp_path / NAME).write_text(text, errors="surrogateescape")
        lines = refusal(ManifestDamaged, lambda: manifest.read(tmp_path))
        messages[ascii(text)[1:-1]] = [line.replace(f"{tmp_path}/", "") for line in lines]
    check_messages(golden, "manifests.txt", messages)


@pytest.mark.parametrize("text", [MANIFESTS[0], MANIFESTS[-1]])
def test_damaged_manifest_is_refused_by_every_command_and_rebuilt_by_a_repair(
    text: str, results: Results, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / NAME).write_text(text, errors="surrogateescape")
    for command in (["query", COUNT], ["push"], ["verify"]):
        assert uploader(results, *command) == 3
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert uploader(results, "push", "--repair") == 0
    assert (folder / "damaged" / NAME).read_bytes() == text.encode(errors="surrogateescape")
    assert uploader(results, "verify", "--values") == 0


def test_missing_manifest_is_reported_and_rows_without_a_record_are_preserved(
    results: Results, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import_two_rows(results, tmp_path)
    files = sorted(folder.rglob("*.parquet"))
    (folder / NAME).unlink()
    store_run(results.root, 2, count=1)
    capsys.readouterr()
    assert uploader(results, "push") == 3
    assert f"{folder / NAME}: is missing, but the folder has {len(files)} Parquet files" in capsys.readouterr().err
    assert sorted(folder.rglob("*.parquet")) == files
    assert uploader(results, "push", "--repair") == 0
    assert LocalWarehouse(folder).query("SELECT COUNT(*) AS n FROM cells WHERE source = 'lab'").rows == [(2,)]
    assert uploader(results, "verify", "--values") == 0


def test_rebuilt_manifest_has_each_row_once_after_a_killed_compaction(
    results: Results, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warehouse, "MOST_FILES", 1)
    monkeypatch.setattr(LocalWarehouse, "_sweep", lambda self, files: None)
    store_run(results.root, 2, count=1)
    assert uploader(results, "push") == 0
    assert len(list((folder / "cells").iterdir())) == 3
    (folder / NAME).unlink()
    assert uploader(results, "push", "--repair") == 0
    assert LocalWarehouse(folder).query("SELECT COUNT(*) AS n FROM cells").rows == [(3,)]
    assert verify(results, LocalWarehouse(folder), values=True).problems == ()


def test_temporary_manifest_of_a_killed_process_is_removed(results: Results, folder: Path) -> None:
    (folder / f".{NAME}.123.tmp").write_text("{")
    store_run(results.root, 2, count=1)
    assert uploader(results, "push") == 0
    assert list(folder.glob(".manifest*")) == []


def test_manifest_without_read_permission_does_not_count_as_damaged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(manifest, "read_json", refused)
    with pytest.raises(WarehouseFailure, match="grant this user read access") as raised:
        LocalWarehouse(folder).repair()
    assert not isinstance(raised.value, ManifestDamaged)
