"""External results are imported once through a mapping, with their source, in separate runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keras_matrix.uploader import external_import, push
from keras_matrix.uploader.cli.main import main
from keras_matrix.uploader.errors import BadInput
from keras_matrix.uploader.external_import import ImportSpec
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from keras_matrix.uploader.outbox import Outbox, seal_all
from keras_matrix.uploader.push import PushSummary, send
from tests.fakes.warehouse import FakeWarehouse

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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metrics": {"totaltime": "fast", "batch_size": 1}}, "metrics.totaltime: must be a number, got 'fast'"),
        ({"metrics": {"totaltime": float("nan"), "batch_size": 1}}, "metrics.totaltime is not finite"),
        ({"metrics": {"totaltime": 1.0, "batch_size": 1.5}}, "batch_size: must be an integer, got 1.5"),
        ({"metrics": {"totaltime": None, "batch_size": 1}}, "metrics.totaltime is empty"),
        ({"recorded_time": "yesterday"}, "recorded_time: must be a time such as 2017-06-01T12:00:00Z, got 'yesterday'"),
        ({"recorded_time": "9999-12-31T23:00:00-10:00"}, "date value out of range"),
        ({"metrics": {"totaltime": {"s": 1}, "batch_size": 1}}, "must be a number, got {"),
        ({"metrics": {"totaltime": 1.0, "batch_size": "inf"}}, "batch_size is not finite"),
        ({"metrics": {"totaltime": 1.0, "batch_size": []}}, "must be a number, got ["),
        (
            {"metrics": {"totaltime": 1.0, "batch_size": "9" * 30}},
            "batch_size: must be an integer of 64 bits, got 100 bits",
        ),
        ({None: ["after an unquoted comma"]}, "has more fields than there are columns"),
        ({"keras_backend": "theano"}, "has no column 'keras_backend.type'"),
    ],
)
def test_invalid_row_is_reported_and_skipped(change: dict[str, object], message: str) -> None:
    found = external_import.rows_of([THEIRS, {**THEIRS, **change}], SPEC)
    assert len(found.rows) == 3
    assert len(found.problems) == 1
    assert found.problems[0].startswith("row 2: ")
    assert message in found.problems[0]


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["workload"], "COLUMN=NAME"),
        (["row_hash=x"], "COLUMN=NAME"),
        (["workload=a", "backend=b"], "value, started_at must be mapped too"),
        (["workload=a", "workload=b"], "workload must be mapped once, got 'a' and 'b'"),
    ],
)
def test_invalid_mapping_is_rejected(assignments: list[str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        external_import.mapping(assignments)


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


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        ("eager", "maybe", "eager: must be true or false, got 'maybe'"),
        ("resolved_learning_rate", "nan", "resolved_learning_rate is not finite"),
        ("versions", "[]", "versions: must be a JSON object"),
        ("versions", '{"keras": NaN}', "not JSON compliant"),
    ],
)
def test_value_of_the_wrong_type_is_reported(ours: str, theirs: object, message: str) -> None:
    spec = ImportSpec({**MAPPING, ours: "more"}, SPEC.metric, SPEC.source)
    found = external_import.rows_of([{**THEIRS, "more": theirs}], spec)
    assert found.rows == []
    [problem] = found.problems
    assert message in problem


def test_the_first_years_have_four_digits_too() -> None:
    run, *_ = external_import.rows_of([{**THEIRS, "recorded_time": "0817-10-02"}], SPEC).rows
    assert json.loads(run.line)["day"] == "0817-10-02"


def test_unknown_metric_is_rejected() -> None:
    with pytest.raises(BadInput, match="must be a metric of measurements"):
        external_import.rows_of([THEIRS], ImportSpec(MAPPING, "speed", "lab"))


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


def test_import_into_bigquery_names_the_command_that_makes_views_read_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeWarehouse()
    fake.create()
    monkeypatch.setattr("keras_matrix.uploader.opening.open_warehouse", lambda address, results, options: fake)
    path = tmp_path / "old.csv"
    path.write_text("name,lib,seconds,when\nmlp,theano,1.5,2017-06-02\nmlp,theano,1.5,2017-06-01\n")
    maps = [f"--map={one}" for one in ("workload=name", "backend=lib", "value=seconds", "started_at=when")]
    command = ["import", str(path), "--metric", "times.step_time_s", "--source", "lab", *maps]
    assert main([*command, "--to", "bigquery://some-project.data", "--results", str(tmp_path / "results")]) == 0
    assert "uploader migrate --to bigquery://some-project.data --since 2017-06-01\n" in capsys.readouterr().out


def test_first_invalid_rows_are_listed_and_the_others_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "old.csv"
    path.write_text("name,lib,seconds,when\n" + "mlp,theano,fast,2017-10-02\n" * 23)
    maps = [f"--map={one}" for one in ("workload=name", "backend=lib", "value=seconds", "started_at=when")]
    command = ["import", str(path), "--metric", "times.step_time_s", "--source", "lab", *maps]
    assert main([*command, "--results", str(tmp_path / "results")]) == 1
    output = [line for line in capsys.readouterr().out.splitlines() if line.startswith("skipped: ")]
    assert (len(output), output[-1]) == (21, "skipped: 3 more")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"\xff\xfe,x\n1,2\n", "cannot be read as CSV in UTF-8"),
        (b'a,"b\n', "cannot be read as CSV"),
        (b"", "must begin with a line of column names, got an empty file"),
        (b"x,y,x\n1,2,3\n", "columns must have different names, got more than one 'x'"),
    ],
)
def test_file_that_is_not_csv_is_rejected(
    tmp_path: Path, content: bytes | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "old.csv"
    if content is not None:
        path.write_bytes(content)
    maps = [f"--map={ours}=x" for ours in ("workload", "backend", "value", "started_at")]
    command = ["import", str(path), "--metric", "times.step_time_s", "--source", "lab", *maps]
    assert main([*command, "--results", str(tmp_path / "results")]) == 2
    assert message in capsys.readouterr().err


def test_import_rejects_mismatched_tables_and_sets_refused_rows_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = FakeWarehouse(refuses=lambda row: "no" if row.get("value") == 2.0 else None)
    monkeypatch.setattr("keras_matrix.uploader.opening.open_warehouse", lambda address, results, options: made)
    path = tmp_path / "old.csv"
    path.write_text("name,lib,seconds,when\nmlp,theano,1,2017-10-02\nmlp,cntk,2,2017-10-02\n")
    maps = [f"--map={one}" for one in ("workload=name", "backend=lib", "value=seconds", "started_at=when")]
    command = ["import", str(path), "--metric", "times.step_time_s", "--source", "lab", *maps]
    command += ["--to", "bigquery://some-project.data", "--results", str(tmp_path / "results")]
    assert main(command) == 3
    assert "create them with: uploader init" in capsys.readouterr().err
    assert made.batches == []
    made.create()
    assert main(command) == 1
    assert "1 row set aside" in capsys.readouterr().out
    assert {name: made.count(name) for name in made.rows} == {"runs": 1, "cells": 2, "measurements": 1, "findings": 0}


def test_a_dry_run_shows_rows_and_sends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "old.csv"
    path.write_text("name,lib,seconds,when\nmlp,theano,1.5,2017-10-02\n")
    maps = [f"--map={one}" for one in ("workload=name", "backend=lib", "value=seconds", "started_at=when")]
    command = ["import", str(path), "--metric", "times.step_time_s", "--source", "lab", "--dry-run", *maps]
    assert main([*command, "--results", str(tmp_path / "results")]) == 0
    assert '"workload":"mlp"' in capsys.readouterr().out
    assert not (tmp_path / "results").exists()


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
