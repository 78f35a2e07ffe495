"""Repairs restore rows in BigQuery from the records, with the real client, the fake service and an emulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.uploader.bigquery.client import connect
from keras_matrix.uploader.cli.main import main
from keras_matrix.uploader.warehouse import BIGQUERY, Options
from tests.uploader.stored import results_with

pytestmark = pytest.mark.google_client


def changed(address: str, sql: str) -> None:
    found = BIGQUERY.fullmatch(address)
    assert found is not None
    warehouse = connect(found["project"], found["dataset"], Options())
    warehouse._client.query(sql.format(f"{found['project']}.{found['dataset']}")).result()
    warehouse.close()


@pytest.mark.emulated_at_night
def test_deleted_rows_are_restored_and_duplicates_reported(
    emulated: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = results_with(tmp_path / "results", runs=2, count=1)
    flags = ["--to", emulated, "--results", str(results.root)]
    run_id = results.runs()[0].run_id
    assert main(["init", *flags]) == 0
    assert main(["push", *flags]) == 0
    changed(emulated, f"DELETE FROM `{{0}}.measurements` WHERE run_id = '{run_id}'")
    changed(emulated, "INSERT INTO `{0}.runs` SELECT * FROM `{0}.runs` WHERE run_id = '" + run_id + "'")
    assert main(["push", *flags]) == 0
    capsys.readouterr()
    assert main(["verify", *flags]) == 1
    assert f"with: uploader push --repair --to {emulated}" in capsys.readouterr().out
    assert main(["push", "--repair", *flags]) == 1
    printed = capsys.readouterr().out
    assert f"measurements, run {run_id}: 16 rows were missing, 16 are restored" in printed
    assert f"runs, run {run_id}: 1 duplicate keys" in printed
    assert "delete the rows of their run from the table (by day and run_id) and run the same command again" in printed
    changed(emulated, f"DELETE FROM `{{0}}.runs` WHERE run_id = '{run_id}'")
    assert main(["push", "--repair", *flags]) == 0
    assert main(["verify", "--values", *flags]) == 0


@pytest.mark.emulated_at_night
def test_next_push_fills_tables_that_were_deleted_and_created_again(
    emulated: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = results_with(tmp_path / "results", runs=1, count=1)
    flags = ["--to", emulated, "--results", str(results.root)]
    assert main(["init", *flags]) == 0
    assert main(["push", *flags]) == 0
    for table in ("runs", "cells", "measurements", "findings"):
        changed(emulated, f"DROP TABLE `{{0}}.{table}`")
    assert main(["init", *flags]) == 0
    capsys.readouterr()
    assert main(["push", *flags]) == 0
    printed = capsys.readouterr().out
    assert "has no rows, but 1 attempt had been sent to it before: sending all again" in printed
    assert "19 new rows, 0 already present" in printed
    assert main(["verify", *flags]) == 0
