"""Every row arrives once after kills, refusals, lost responses and repeated pushes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_matrix.records.findings import keep
from keras_matrix.records.schema import SCHEMA_VERSION, Learning
from keras_matrix.records.store import Results, Run
from keras_matrix.uploader import outbox as outbox_module
from keras_matrix.uploader.errors import OutboxFailure, QuotaExceeded, Unreachable
from keras_matrix.uploader.outbox import Contents, Outbox
from keras_matrix.uploader.push import PushSummary, push
from keras_matrix.uploader.schema import LONGEST_ROW_BYTES
from keras_matrix.uploader.warehouse import outbox_folder
from tests.conftest import make_record, make_settings
from tests.fakes.warehouse import FakeWarehouse
from tests.sessions import run_name, store_session
from tests.uploader.stored import FAILED_OPERATIONS, Killed, dying_at, found, full_at, results_with, store_run


def counts(warehouse: FakeWarehouse) -> dict[str, int]:
    return {name: warehouse.count(name) for name in warehouse.rows}


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return results_with(tmp_path / "results")


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return Outbox(tmp_path / "outbox")


def test_push_sends_everything_and_the_next_one_nothing(results: Results, outbox: Outbox) -> None:
    warehouse = FakeWarehouse()
    first = push(results, warehouse, outbox)
    assert counts(warehouse) == {"runs": 2, "cells": 6, "measurements": 96, "findings": 2}
    assert (first.new, first.known, first.dead, first.left_out) == (106, 0, 0, [])
    assert push(results, warehouse, outbox) == PushSummary()
    assert outbox.pending() == []


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(3)), st.lists(st.booleans(), min_size=3, max_size=3))
def test_rows_do_not_depend_on_how_runs_are_divided_among_pushes(order: list[int], pushed_after: list[bool]) -> None:
    """Mutation: only the runs after the newest one that was sent are read."""
    warehouse, expected = FakeWarehouse(), FakeWarehouse()
    with TemporaryDirectory() as name:
        folder = Path(name)
        for number, pushed in zip(order, pushed_after, strict=True):
            store_run(folder / "results", number, count=1)
            if pushed:
                push(Results(folder / "results"), warehouse, Outbox(folder / "several"))
        push(Results(folder / "results"), warehouse, Outbox(folder / "several"))
        push(Results(folder / "results"), expected, Outbox(folder / "one"))
    assert warehouse.rows == expected.rows


def test_only_what_is_new_is_sealed(results: Results, outbox: Outbox) -> None:
    warehouse = FakeWarehouse()
    push(results, warehouse, outbox)
    run = store_run(results.root, 5, count=1)
    done = push(results, warehouse, outbox)
    assert done.arrived == {"runs": 1, "cells": 1, "measurements": 16, "findings": 1}
    keep(run, [found("0" * 16, 0.5)])
    assert push(results, warehouse, outbox).arrived == {"findings": 1}


@pytest.mark.fault("F37", mutation="a batch counts as done before the warehouse has answered")
def test_nothing_is_lost_or_duplicated_when_a_push_is_killed_at_any_file_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = results_with(tmp_path / "results", runs=1, count=2)
    for count in FAILED_OPERATIONS:
        outbox, warehouse = Outbox(tmp_path / f"outbox-{count}"), FakeWarehouse()
        with dying_at(monkeypatch, count) as dead:
            with contextlib.suppress(Killed, OutboxFailure):
                push(results, warehouse, outbox)
            was_killed = dead()
        push(results, warehouse, outbox)
        assert counts(warehouse) == {"runs": 1, "cells": 2, "measurements": 32, "findings": 1}
        assert outbox.pending() == []
        assert list(outbox.folder.rglob("*.tmp")) == []
        if not was_killed:
            break
    assert count > 20


@pytest.mark.fault("F37", mutation="a batch counts as done before the warehouse has answered")
def test_lost_response_does_not_duplicate_rows(results: Results, outbox: Outbox) -> None:
    warehouse = FakeWarehouse(failures=[(Unreachable("reset"), True)])
    with pytest.raises(Unreachable):
        push(results, warehouse, outbox)
    assert len(outbox.pending()) == 4
    done = push(results, warehouse, outbox)
    assert counts(warehouse) == {"runs": 2, "cells": 6, "measurements": 96, "findings": 2}
    assert done.known == 2


@pytest.mark.fault("F36", mutation="the push goes on with the next batch after an exceeded quota")
def test_exceeded_quota_leaves_batches_pending_without_sending_others(results: Results, outbox: Outbox) -> None:
    warehouse = FakeWarehouse(failures=[None, (QuotaExceeded("for today"), False)])
    with pytest.raises(QuotaExceeded):
        push(results, warehouse, outbox)
    assert (len(warehouse.batches), len(outbox.pending())) == (2, 3)


def test_replaying_everything_three_times_adds_nothing(results: Results, tmp_path: Path) -> None:
    warehouse = FakeWarehouse()
    for number in range(3):
        push(results, warehouse, Outbox(tmp_path / f"machine-{number}"))
    assert counts(warehouse) == {"runs": 2, "cells": 6, "measurements": 96, "findings": 2}


@pytest.mark.fault("F39", mutation="a refused batch is set aside instead of split")
def test_one_invalid_row_is_set_aside_with_its_reason_and_the_others_are_sent(results: Results, outbox: Outbox) -> None:
    def refuses(row: dict[str, object]) -> str | None:
        bad = row.get("metric") == "learning.loss" and row.get("step") == 2 and row.get("repeat") == 1
        return "value: out of range" if bad else None

    warehouse = FakeWarehouse(refuses=refuses)
    done = push(results, warehouse, outbox)
    assert counts(warehouse) == {"runs": 2, "cells": 6, "measurements": 94, "findings": 2}
    letters = outbox.dead()
    assert done.dead == len(letters) == 2
    assert {letter.reason for letter in letters} == {"value: out of range"}
    assert {json.loads(letter.row)["metric"] for letter in letters} == {"learning.loss"}
    assert push(results, warehouse, outbox).new == 0


@pytest.mark.fault("F39", mutation="requeue_dead_letters() removes the rows without sealing them")
def test_dead_letters_can_be_retried(results: Results, outbox: Outbox) -> None:
    warehouse = FakeWarehouse(refuses=lambda row: "no" if row.get("unit") == "B" else None)
    push(results, warehouse, outbox)
    warehouse.refuses = lambda row: None
    with outbox.locked():
        assert outbox.requeue_dead_letters() == 6
    assert push(results, warehouse, outbox).new == 6
    assert counts(warehouse)["measurements"] == 96
    assert outbox.dead() == []


@pytest.mark.fault("F39", mutation="rows of any length are sealed")
def test_a_row_above_the_limit_is_set_aside(tmp_path: Path, outbox: Outbox) -> None:
    long = "x" * LONGEST_ROW_BYTES
    store_run(tmp_path / "results", 0, count=1, reason=long)
    warehouse = FakeWarehouse()
    done = push(Results(tmp_path / "results"), warehouse, outbox)
    assert counts(warehouse) == {"runs": 1, "cells": 0, "measurements": 16, "findings": 1}
    assert done.dead == 1
    assert "bytes, more than 1,048,576" in outbox.dead()[0].reason


@pytest.mark.fault("F24", mutation="a run with a newer record ends the push")
def test_run_with_a_newer_record_is_skipped_and_the_others_are_sent(results: Results, outbox: Outbox) -> None:
    path = next((results.runs()[0].folder / "records").glob("*.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": SCHEMA_VERSION + 1}))
    warehouse = FakeWarehouse()
    done = push(results, warehouse, outbox)
    assert counts(warehouse)["cells"] == 3
    assert len(done.left_out) == 1
    assert "is newer than" in done.left_out[0]


@pytest.mark.fault("F23", mutation="problems of records are not reported by a push")
def test_truncated_record_is_reported_and_the_others_of_its_run_are_sent(results: Results, outbox: Outbox) -> None:
    next((results.runs()[0].folder / "records").glob("*.json")).write_text("{")
    warehouse = FakeWarehouse()
    done = push(results, warehouse, outbox)
    assert counts(warehouse)["cells"] == 5
    assert "not strict JSON" in done.left_out[0]


@pytest.mark.fault("F21", mutation="an error of the disk while a batch is sealed is ignored")
def test_a_full_disk_seals_nothing_and_loses_nothing(
    results: Results, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    warehouse = FakeWarehouse()
    with monkeypatch.context() as patched:
        patched.setattr(outbox_module, "publish", full)
        with pytest.raises(OutboxFailure, match=r"cannot be sealed: No space left.*no sealed batch is lost"):
            push(results, warehouse, outbox)
    assert push(results, warehouse, outbox).new == 106


@pytest.mark.fault("F21", mutation="a batch counts as done before the warehouse has answered")
def test_disk_full_at_any_moment_is_reported_and_the_next_push_sends_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = results_with(tmp_path / "results", runs=1, count=2)
    for count in FAILED_OPERATIONS:
        outbox, warehouse = Outbox(tmp_path / f"outbox-{count}"), FakeWarehouse()
        with full_at(monkeypatch, count) as full:
            with contextlib.suppress(OutboxFailure):
                push(results, warehouse, outbox)
            was_full = full()
        push(results, warehouse, outbox)
        assert counts(warehouse) == {"runs": 1, "cells": 2, "measurements": 32, "findings": 1}
        assert outbox.pending() == []
        if not was_full:
            break
    assert count > 15


def test_damaged_batch_is_reported_and_sent_again_after_it_is_removed(results: Results, outbox: Outbox) -> None:
    with pytest.raises(Unreachable):
        push(results, FakeWarehouse(failures=[(Unreachable("down"), False)]), outbox)
    path = outbox.pending()[0].path
    path.write_bytes(path.read_bytes()[:-40])
    warehouse = FakeWarehouse()
    with pytest.raises(OutboxFailure, match=r"was changed after it was sealed; remove it: its rows are sent again"):
        push(results, warehouse, outbox)
    path.unlink()
    push(results, warehouse, outbox)
    assert counts(warehouse) == {"runs": 2, "cells": 6, "measurements": 96, "findings": 2}


def test_batch_that_a_disk_does_not_return_is_named(
    results: Results, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutation: `content` is not explained; a failed read of a file, unlike a failed open, names no file."""
    with pytest.raises(Unreachable):
        push(results, FakeWarehouse(failures=[(Unreachable("down"), False)]), outbox)
    batch = outbox.pending()[0]

    def failing(descriptor: int, count: int, offset: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", failing)
        with pytest.raises(OutboxFailure) as raised:
            batch.content()
    assert str(raised.value).startswith(f"{batch.path}: cannot be read: Input/output error")


@pytest.mark.parametrize("folder", ["done", "dead"])
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "must be an object, got list"),
        ("{}", "table: must be a str, got NoneType"),
        ('{"table": "steps", "items": [], "item": "a", "reason": "b", "row": "{}"}', "table: must be one of runs, "),
        ("[" * 100_000, "not strict JSON: maximum recursion depth"),
    ],
)
def test_invalid_marker_or_dead_letter_is_reported_with_its_problem(
    results: Results, outbox: Outbox, folder: str, text: str, problem: str
) -> None:
    push(results, FakeWarehouse(), outbox)
    (outbox.folder / folder / "cells-1.json").write_text(text)
    with pytest.raises(OutboxFailure, match=rf"cells-1\.json: is damaged \({problem}.*; remove it: its rows are sent"):
        push(results, FakeWarehouse(), outbox)


def test_unknown_file_in_the_outbox_is_reported_with_its_path(results: Results, outbox: Outbox) -> None:
    push(results, FakeWarehouse(), outbox)
    mark = next((outbox.folder / "done").glob("*.json"))
    content = mark.read_text()
    mark.write_text(content[:20])
    with pytest.raises(OutboxFailure, match=f"{mark.name}: is damaged .*: its rows are sent again"):
        push(results, FakeWarehouse(), outbox)
    mark.write_text(content)
    (outbox.folder / "pending" / "notes-1.ndjson").write_text("{}\n")
    with pytest.raises(
        OutboxFailure, match=r"notes-1.ndjson: must be a batch of this outbox .*; move the file elsewhere"
    ):
        push(results, FakeWarehouse(), outbox)


@pytest.mark.parametrize("name", ["plain", 'a,"metric":b', "}", '{"day":1}', "x}"])
def test_contents_of_a_batch_match_its_rows(tmp_path: Path, outbox: Outbox, name: str) -> None:
    settings = make_settings(workload=name, params={name: name, "metric": 1})
    for number in range(2):
        store_run(tmp_path / "results", number, settings=settings)
    with pytest.raises(Unreachable):
        push(Results(tmp_path / "results"), FakeWarehouse(failures=[(Unreachable("down"), False)]), outbox)
    assert len(outbox.pending()) == 4
    for batch in outbox.pending():
        rows = list(batch.values())
        days = sorted(row["day"] for row in rows)
        items = frozenset(outbox_module.item_of(batch.table, row) for row in rows)
        assert batch.contents() == Contents(len(rows), (days[0], days[-1]), items)


LINE_ENDS = "a\x0b\x0c\x1c\x85\u2028\u2029b"


def test_names_with_line_separators_stay_in_one_row(tmp_path: Path, outbox: Outbox) -> None:
    learning = Learning([1.0], {LINE_ENDS: [0.5]})
    settings = make_settings(workload=LINE_ENDS, params={LINE_ENDS: LINE_ENDS})
    store_session(tmp_path / "results", run_name(0), [make_record(0.01, settings=settings, learning=learning)])
    warehouse = FakeWarehouse()
    done = push(Results(tmp_path / "results"), warehouse, outbox)
    assert (done.dead, done.left_out) == (0, [])
    [cell] = warehouse.rows["cells"].values()
    assert (cell["workload"], cell["params"]) == (LINE_ENDS, {LINE_ENDS: LINE_ENDS})
    assert f"learning.metrics.{LINE_ENDS}" in {row["metric"] for row in warehouse.rows["measurements"].values()}


@pytest.mark.fault("F33", mutation="the outbox's folder has the name of the address unchanged")
@pytest.mark.parametrize("address", ["local:../../etc", "local:/a/../b", "local:..", "bigquery://some-project.d"])
def test_each_address_has_a_separate_outbox_in_the_results_folder(address: str, tmp_path: Path) -> None:
    found = outbox_folder(address, tmp_path)
    assert found.resolve().parent == (tmp_path / "outbox").resolve()


def test_rows_sent_to_one_folder_do_not_count_as_sent_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = [outbox_folder(f"local:{name}", tmp_path) for name in ("a/b", "a-b", "/a/b", f"{tmp_path}/a/b", "./a/b")]
    assert len({path.name[-8:] for path in found}) == 3
    assert found[0].name[-8:] == found[3].name[-8:] == found[4].name[-8:]
    assert outbox_folder("local", tmp_path) == tmp_path / "outbox" / "local"


def test_item_is_never_split_between_batches(results: Results, outbox: Outbox) -> None:
    with outbox.locked():
        rows = [row for run in results.runs() for record in run.load()[0] for row in _rows(record)]
        assert outbox_module.seal_all(rows, outbox, most_rows=20) == 3 + 1
    for batch in outbox.pending():
        items = [outbox_module.item_of(batch.table, row) for row in batch.values()]
        assert all(items.count(item) == (16 if batch.table.name == "measurements" else 1) for item in items)


def _rows(record: object) -> list[outbox_module.WarehouseRow]:
    from keras_matrix.records.schema import Record
    from keras_matrix.uploader.rows import of_record

    assert isinstance(record, Record)
    return list(of_record(record))


def test_a_run_without_findings_is_listed(results: Results, outbox: Outbox) -> None:
    (Run(results.runs()[0].folder).folder / "findings.json").unlink()
    assert push(results, FakeWarehouse(), outbox).without_findings == [results.runs()[0].run_id]


def test_the_cost_of_sealing_a_row_does_not_grow_with_the_rows_before(results: Results, tmp_path: Path) -> None:
    """Four times the rows take about four times the CPU time; docs/lab/figures.md has the rows a second."""
    records = [record for run in results.runs() for record in run.load()[0]] * 25

    def cpu_per_row_s(copies: int, number: int) -> float:
        outbox = Outbox(tmp_path / f"{copies}-{number}")
        with outbox.locked():
            began_s = time.process_time()
            outbox_module.seal_all((row for record in records * copies for row in _rows(record)), outbox)
            spent_s = time.process_time() - began_s
        return spent_s / sum(len(batch.lines()) for batch in outbox.pending())

    few, many = zip(*((cpu_per_row_s(1, number), cpu_per_row_s(4, number)) for number in range(4)), strict=True)
    assert min(many) < 2 * min(few)
