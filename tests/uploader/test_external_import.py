"""External results are imported once through a mapping, with their source, in separate runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.uploader import external_import, push
from keras_matrix.uploader.cli.main import main
from keras_matrix.uploader.external_import import ImportSpec
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from keras_matrix.uploader.outbox import Outbox, seal_all
from keras_matrix.uploader.push import PushSummary, send
from tests.golden import Golden
from tests.messages import check_messages

MAPPING = {
    "workload": "test_name",
    "backend": "keras_backend.type",
    "value": "metrics.totaltime",
    "started_at": "recorded_time",
    "batch_size": "metrics.batch_size",
}
THEIRS = {
    "test_name": "resnet50",
    "keras_backend": {"type": "theano", "version": "1.0"},
    "metrics": {"totaltime": 12.5, "batch_size": 32},
    "recorded_time": "2017-10-02 10:00:00 UTC",
}
SPEC = ImportSpec(MAPPING, "times.suite_total_time_s", "lab 2017")


def test_external_row_becomes_a_run_a_cell_and_a_measurement_with_their_source() -> None:
    found = external_import.rows_of([THEIRS], SPEC)
    assert [row.table.name for row in found.rows] == ["runs", "cells", "measurements"]
    run, cell, figure = (json.loads(row.line) for row in found.rows)
    assert (run["day"], run["arm"]) == ("2017-10-02", "lab 2017")
    assert (cell["source"], cell["workload"], cell["backend"], cell["batch_size"]) == (
        "lab 2017",
        "resnet50",
        "theano",
        32,
    )
    assert (figure["metric"], figure["value"], figure["unit"]) == ("times.suite_total_time_s", 12.5, "s")


def test_metric_may_have_the_name_that_it_had_before() -> None:
    former = external_import.rows_of([THEIRS], ImportSpec(MAPPING, "times.seed_total_time_s", "lab 2017"))
    assert former.rows == external_import.rows_of([THEIRS], SPEC).rows


def test_equal_rows_are_repeats_of_one_cell_and_importing_again_gives_the_same_lines() -> None:
    rows = [THEIRS, THEIRS, {**THEIRS, "test_name": "lstm"}]
    once, again = (external_import.rows_of(rows, SPEC) for _ in range(2))
    cells = [json.loads(row.line) for row in once.rows if row.table.name == "cells"]
    assert len({cell["cell_id"] for cell in cells}) == 2
    assert len({(cell["cell_id"], cell["repeat"]) for cell in cells}) == 3
    assert once.rows == again.rows


def test_only_new_rows_of_a_grown_or_reordered_table_are_imported(tmp_path: Path) -> None:
    old = [{**THEIRS, "metrics": {"totaltime": value, "batch_size": 32}} for value in (1.0, 2.0, 2.0)]
    grown = [{**THEIRS, "metrics": {"totaltime": 3.0, "batch_size": 32}}, *reversed(old)]
    filled, outbox = LocalWarehouse(tmp_path / "warehouse"), Outbox(tmp_path / "outbox")
    for rows, new in ((old, 7), (grown, 2), (old[1:], 0)):
        done = PushSummary()
        with outbox.locked():
            seal_all(external_import.rows_of(rows, SPEC).rows, outbox)
            send(filled, outbox, done, lambda text: None)
        assert done.new == new
    assert filled.query("SELECT value FROM measurements ORDER BY value").rows == [(1.0,), (2.0,), (2.0,), (3.0,)]


WRONG_ROWS: Mapping[str, dict[Any, Any]] = {
    "a value that is no number": {"metrics": {"totaltime": "fast", "batch_size": 1}},
    "a value that is not finite": {"metrics": {"totaltime": float("nan"), "batch_size": 1}},
    "a part of a batch": {"metrics": {"totaltime": 1.0, "batch_size": 1.5}},
    "no value": {"metrics": {"totaltime": None, "batch_size": 1}},
    "a time that is none": {"recorded_time": "yesterday"},
    "a time after the last year": {"recorded_time": "9999-12-31T23:00:00-10:00"},
    "a struct instead of a value": {"metrics": {"totaltime": {"s": 1}, "batch_size": 1}},
    "an infinite batch": {"metrics": {"totaltime": 1.0, "batch_size": "inf"}},
    "a list instead of a batch": {"metrics": {"totaltime": 1.0, "batch_size": []}},
    "a batch of more than 64 bits": {"metrics": {"totaltime": 1.0, "batch_size": "9" * 30}},
    "a value after an unquoted comma": {None: ["after an unquoted comma"]},
    "no struct where one is mapped": {"keras_backend": "theano"},
}
WRONG_TYPES: Mapping[str, tuple[str, object]] = {
    "neither true nor false": ("eager", "maybe"),
    "a rate that is not finite": ("resolved_learning_rate", "nan"),
    "versions that are a list": ("versions", "[]"),
    "a version that JSON does not have": ("versions", '{"keras": NaN}'),
}


def test_every_wrong_row_is_skipped_with_its_message(golden: Golden) -> None:
    def messages_of(spec: ImportSpec, change: dict[Any, Any]) -> list[str]:
        found = external_import.rows_of([THEIRS | {"more": None}, {**THEIRS, **change}], spec)
        assert len(found.rows) == 3
        return found.problems

    messages = {title: messages_of(SPEC, change) for title, change in WRONG_ROWS.items()}
    for title, (ours, value) in WRONG_TYPES.items():
        messages[title] = messages_of(ImportSpec({**MAPPING, ours: "more"}, SPEC.metric, SPEC.source), {"more": value})
    check_messages(golden, "import_rows.txt", messages)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ("eager", "False", False),
        ("eager", 1, True),
        ("samples", "9007199254740993", 9007199254740993),
        ("samples", 32.0, 32),
        ("resolved_learning_rate", "0.1", 0.1),
        ("warnings", ["a", "b"], ["a", "b"]),
        ("versions", '{"keras": "1.0"}', {"keras": "1.0"}),
    ],
)
def test_value_is_converted_to_its_columns_type(ours: str, theirs: object, expected: object) -> None:
    spec = ImportSpec({**MAPPING, ours: "more"}, SPEC.metric, SPEC.source)
    [_, cell, _] = external_import.rows_of([{**THEIRS, "more": theirs}], spec).rows
    assert json.loads(cell.line)[ours] == expected


def test_the_first_years_have_four_digits_too() -> None:
    run, *_ = external_import.rows_of([{**THEIRS, "recorded_time": "0817-10-02"}], SPEC).rows
    assert json.loads(run.line)["day"] == "0817-10-02"


def test_csv_file_is_imported_once_and_creates_no_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "old.csv"
    path.write_text("name,lib,seconds,when\nmlp,theano,1.5,2017-10-02\nmlp,cntk,x,2017-10-02\n")
    command = ["import", str(path), "--results", str(tmp_path / "results"), "--metric", "times.suite_total_time_s"]
    command += ["--source", "lab", *(f"--map={one}" for one in ("workload=name", "backend=lib", "value=seconds"))]
    for new in (3, 0):
        assert main([*command, "--map", "started_at=when"]) == 1
        output = capsys.readouterr().out
        assert f"{new} new rows, {3 - new} already present" in output
        assert "skipped: row 2: seconds: must be a number, got 'x'" in output
    filled = LocalWarehouse(tmp_path / "results" / "warehouse")
    assert filled.query("SELECT source, workload, backend FROM cells").rows == [("lab", "mlp", "theano")]
    assert filled.query("SELECT COUNT(*) AS n FROM newest_cells").rows == [(0,)]
    assert main(["verify", "--results", str(tmp_path / "results")]) == 0
    assert capsys.readouterr().out == f"no run to compare in {tmp_path / 'results'}\n"


def test_a_row_above_the_limit_is_set_aside_before_it_is_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "LONGEST_ROW_BYTES", 500)
    path = tmp_path / "old.csv"
    path.write_text(f"name,lib,seconds,when\n{'m' * 300},theano,1,2017-10-02\nmlp,theano,2,2017-10-02\n")
    maps = [f"--map={one}" for one in ("workload=name", "backend=lib", "value=seconds", "started_at=when")]
    command = ["import", str(path), "--metric", "times.step_time_s", "--source", "lab", *maps]
    results = str(tmp_path / "results")
    assert main([*command, "--results", results]) == 1
    assert "rows set aside: uploader status lists the reasons" in capsys.readouterr().out
    assert main(["status", "--results", results]) == 1
    assert "bytes, more than 500" in capsys.readouterr().out
    filled = LocalWarehouse(tmp_path / "results" / "warehouse")
    assert filled.query("SELECT workload FROM cells").rows == [("mlp",)]
