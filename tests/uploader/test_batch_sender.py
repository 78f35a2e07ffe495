"""Refused rows are set aside individually, unless every row tried is refused."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from keras_matrix.records.store import Results
from keras_matrix.uploader.batch_sender import SAMPLES
from keras_matrix.uploader.errors import AllRowsRefused, FileDamaged, OutboxFailure
from keras_matrix.uploader.outbox import Outbox
from keras_matrix.uploader.push import push
from keras_matrix.uploader.schema import LONGEST_ROW_BYTES, RUNS
from tests.fakes.warehouse import FakeWarehouse
from tests.uploader.stored import FAILED_OPERATIONS, Killed, dying_at, results_with, store_run

ALL = {"runs": 2, "cells": 6, "measurements": 96, "findings": 2}


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return results_with(tmp_path / "results")


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return Outbox(tmp_path / "outbox")


def counts(warehouse: FakeWarehouse) -> dict[str, int]:
    return {name: warehouse.count(name) for name in warehouse.rows}


def measurements_refused(row: dict[str, object]) -> str | None:
    return "Unable to parse" if "metric" in row and "value" in row else None


@pytest.mark.fault("F39", mutation="rows are set aside although all of them are refused")
def test_push_fails_without_dead_letters_if_every_tried_row_is_refused(results: Results, outbox: Outbox) -> None:
    warehouse = FakeWarehouse(refuses=measurements_refused)
    with pytest.raises(
        AllRowsRefused, match=r"refuses every row of measurements that was tried \(5\): Unable to parse"
    ):
        push(results, warehouse, outbox)
    assert outbox.dead() == []
    assert sum(batch.contents().rows for batch in outbox.pending()) == 96
    assert sum(name.startswith("measurements") for name in warehouse.batches) == 1 + SAMPLES
    assert counts(warehouse) == ALL | {"measurements": 0}


def test_next_push_after_a_refusal_sends_each_row_once(results: Results, outbox: Outbox) -> None:
    warehouse = FakeWarehouse(refuses=measurements_refused)
    with pytest.raises(AllRowsRefused):
        push(results, warehouse, outbox)
    warehouse.refuses = lambda row: None
    assert push(results, warehouse, outbox).new == 96
    assert (counts(warehouse), outbox.pending()) == (ALL, [])


def test_rows_of_one_run_that_are_all_refused_are_set_aside_once_another_run_arrives(
    results: Results, outbox: Outbox
) -> None:
    _, second = (run.run_id for run in results.runs())
    warehouse = FakeWarehouse(refuses=lambda row: "no" if "value" in row and row["run_id"] == second else None)
    only_second = Results(results.root.parent / "later")
    only_second.root.mkdir()
    (results.root / second).rename(only_second.root / second)
    with pytest.raises(AllRowsRefused):
        push(only_second, warehouse, outbox)
    done = push(results, warehouse, outbox)
    assert (done.dead, len(outbox.dead()), warehouse.count("measurements")) == (48, 48, 48)
    assert {json.loads(letter.row)["run_id"] for letter in outbox.dead()} == {second}


def test_few_rows_are_set_aside_even_if_no_other_arrives(tmp_path: Path, outbox: Outbox) -> None:
    store_run(tmp_path / "results", 0, count=SAMPLES - 1)
    warehouse = FakeWarehouse(refuses=lambda row: "no" if "attempt" in row and "metric" not in row else None)
    assert push(Results(tmp_path / "results"), warehouse, outbox).dead == SAMPLES - 1


def test_batches_of_one_row_that_are_all_refused_stay_pending(tmp_path: Path, outbox: Outbox) -> None:
    warehouse = FakeWarehouse(refuses=lambda row: "no" if "planned" in row else None)
    with outbox.locked():
        for run in results_with(tmp_path / "results", runs=SAMPLES, count=1).runs():
            line = json.dumps({"day": "2026-01-01", "run_id": run.run_id, "planned": 1, "row_hash": 1})
            outbox.seal(RUNS, [line])
    with pytest.raises(AllRowsRefused, match="refuses every row of runs"):
        push(Results(tmp_path / "none"), warehouse, outbox)
    assert (len(outbox.pending()), outbox.dead()) == (SAMPLES, [])


def test_a_damaged_file_stops_the_batches_of_its_table_only(results: Results, outbox: Outbox) -> None:
    warehouse = FakeWarehouse(failures=[(FileDamaged("runs/a.parquet: cannot be read"), False)])
    with pytest.raises(FileDamaged, match=r"runs/a\.parquet"):
        push(results, warehouse, outbox)
    assert counts(warehouse) == ALL | {"runs": 0}
    assert [batch.table.name for batch in outbox.pending()] == ["runs"]
    assert push(results, warehouse, outbox).arrived == {"runs": 2}


@pytest.mark.fault("F39", mutation="a batch is removed before its halves are sealed")
def test_nothing_is_lost_when_a_push_with_refused_rows_is_killed_at_any_file_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = results_with(tmp_path / "results", runs=1, count=1)
    for count in FAILED_OPERATIONS:
        warehouse = FakeWarehouse(refuses=lambda row: "no" if row.get("step") == 2 else None)
        outbox = Outbox(tmp_path / f"outbox-{count}")
        with dying_at(monkeypatch, count) as dead:
            with contextlib.suppress(Killed, OutboxFailure):
                push(results, warehouse, outbox)
            was_killed = dead()
        push(results, warehouse, outbox)
        refused = {letter.row for letter in outbox.dead()}
        assert (warehouse.count("measurements") + len(refused), outbox.pending()) == (16, [])
        assert len(refused) > 0
        if not was_killed:
            break
    assert count > 20


def test_row_that_is_too_long_stays_set_aside_when_the_others_are_retried(tmp_path: Path, outbox: Outbox) -> None:
    store_run(tmp_path / "results", 0, count=1, reason="x" * LONGEST_ROW_BYTES)
    warehouse = FakeWarehouse(refuses=lambda row: "no" if row.get("unit") == "B" else None)
    results = Results(tmp_path / "results")
    push(results, warehouse, outbox)
    warehouse.refuses = lambda row: None
    with outbox.locked():
        outbox.requeue_dead_letters()
    push(results, warehouse, outbox)
    assert [letter.table for letter in outbox.dead()] == ["cells"]
    assert warehouse.count("measurements") == 16
