"""A record is converted to the same lines on every machine, without values that were not measured."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_matrix.records.findings import Findings
from keras_matrix.records.instruments.usage import MemoryUse, Usage
from keras_matrix.records.schema import Learning, Memory, Record, Surroundings, Times
from keras_matrix.records.task import Metric, TaskRun
from keras_matrix.uploader import rows
from keras_matrix.uploader.schema import CELLS, MEASUREMENTS, RUNS
from tests.conftest import make_record, make_settings
from tests.uploader.stored import found


def measurements(record: Record) -> list[dict[str, object]]:
    return [json.loads(line) for line in rows.measurement_lines(record)]


def cell(record: Record) -> dict[str, object]:
    values: dict[str, object] = json.loads(next(iter(rows.of_record(record))).line)
    return values


def test_attempt_has_one_cell_row_and_a_row_per_measured_value() -> None:
    record = make_record(0.01, learning=Learning([1.5, None]), memory=Memory(1 << 20))
    values = {(row["metric"], row.get("step")): row["value"] for row in measurements(record)}
    assert values == {
        ("times.epoch_times_s", 0): 0.01,
        ("times.epoch_times_s", 1): 0.01,
        ("times.epoch_times_s", 2): 0.01,
        ("times.step_time_s", None): 0.01,
        ("learning.loss", 0): 1.5,
        ("memory.peak_host_memory_bytes", None): 1048576.0,
    }


def test_values_not_measured_have_no_row_and_no_member() -> None:
    record = replace(make_record(None), resolved=None, device=None, times=Times())
    assert measurements(record) == []
    assert {name for name in cell(record) if name.startswith(("resolved_", "device_"))} == set()
    assert "null" not in next(iter(rows.of_record(record))).line


def test_each_metric_of_an_external_command_is_a_measurement_in_its_own_unit() -> None:
    metrics = [Metric("speed", 3.5, "samples/s"), Metric("loss", 0.5), Metric("lost", None, problem="no_match")]
    record = make_record(None, task=TaskRun("t", ["true"], "speed", metrics))
    values = {row["metric"]: (row["value"], row["unit"]) for row in measurements(record)}
    assert values == {
        "task.metrics.speed": (3.5, "samples/s"),
        "task.metrics.loss": (0.5, "1"),
        "task.outlived": (0.0, "1"),
    }


def test_memory_in_a_version_1_command_record_becomes_measurements() -> None:
    old = TaskRun("t", ["true"], "speed", [], host_memory=MemoryUse(2.0, 0.0, 3, 1))
    values = {row["metric"]: (row["value"], row["unit"]) for row in measurements(make_record(None, task=old))}
    assert values == {
        "task.outlived": (0.0, "1"),
        "task.host_memory.mean_bytes": (2.0, "B"),
        "task.host_memory.std_bytes": (0.0, "B"),
        "task.host_memory.max_bytes": (3.0, "B"),
        "task.host_memory.samples": (1.0, "1"),
    }


def test_usage_becomes_measurements_and_its_path_a_column() -> None:
    usage = Usage(
        2.5, 0.1, "processes", "usage/a.json", MemoryUse(2.0, 0.0, 3, 1, 4), None, [5, None], samples_per_j=7.0
    )
    record = make_record(None, usage=usage)
    values = {(row["metric"], row.get("step")): (row["value"], row["unit"]) for row in measurements(record)}
    assert values == {
        ("usage.span_s", None): (2.5, "s"),
        ("usage.interval_s", None): (0.1, "s"),
        ("usage.host_anonymous.mean_bytes", None): (2.0, "B"),
        ("usage.host_anonymous.std_bytes", None): (0.0, "B"),
        ("usage.host_anonymous.max_bytes", None): (3.0, "B"),
        ("usage.host_anonymous.samples", None): (1.0, "1"),
        ("usage.host_anonymous.peak_bytes", None): (4.0, "B"),
        ("usage.host_proportional_bytes", 0): (5.0, "B"),
        ("usage.samples_per_j", None): (7.0, "samples/J"),
    }
    assert (cell(record)["usage_host_source"], cell(record)["usage_course"]) == ("processes", "usage/a.json")


def test_setting_with_several_types_is_stored_as_text() -> None:
    values = cell(make_record(settings=make_settings(jit=True, threads=2, steps_per_epoch="auto")))
    assert (values["jit"], values["threads"], values["steps_per_epoch"]) == ("true", "2", "auto")


def test_equal_records_give_equal_lines_and_different_values_different_hashes() -> None:
    one, same, other = make_record(0.01), make_record(0.01), make_record(0.02)
    lines = [list(rows.of_record(record)) for record in (one, same, other)]
    assert lines[0] == lines[1]
    hashes = [[json.loads(row.line)["row_hash"] for row in part] for part in lines]
    assert len(set(hashes[0])) == len(hashes[0])
    assert set(hashes[0]) & set(hashes[2]) == {hashes[0][0]}


@given(st.text(alphabet=st.characters(exclude_categories=[]), max_size=30))
def test_any_text_becomes_one_storable_line(text: str) -> None:
    record = make_record(settings=make_settings(workload=text, params={"a": text}), reason=text, warnings=[text])
    for row in rows.of_record(record):
        row.line.encode()
        assert "\n" not in row.line
        assert "\x00" not in json.dumps(json.loads(row.line), ensure_ascii=False)


def test_metric_names_of_the_model_are_unchanged() -> None:
    hostile = "accuracy'; DROP TABLE cells; --"
    record = make_record(learning=Learning(metrics={hostile: [0.5]}))
    assert f"learning.metrics.{hostile}" in {row["metric"] for row in measurements(record)}


def test_integer_value_becomes_a_float() -> None:
    [row] = measurements(make_record(None, surroundings=Surroundings(throttle_events=3)))
    assert (row["value"], row["unit"]) == (3.0, "1")


def test_run_row_has_the_matrix_but_neither_command_nor_folder() -> None:
    about = {
        "matrix_path": "/home/someone/secret/matrix.yaml",
        "matrix_text": "version: 1",
        "command": ["runner", "--token", "canary"],
        "arm": "slower",
        "arms": {"slower": {"fault": "slower:0.2"}},
        "planned": "many",
    }
    row = rows.of_run("20260101T000000Z-abcdef", about)
    values = json.loads(row.line)
    assert (row.table, values["day"], values["matrix_path"]) == (RUNS, "2026-01-01", "matrix.yaml")
    assert (values["arm"], values["fault"]) == ("slower", "slower:0.2")
    assert "planned" not in values
    assert "canary" not in row.line
    assert "someone" not in row.line


def test_findings_have_their_revision_and_an_identifier() -> None:
    values = Findings(1, "20260101T000000Z-abcdef", 3, [found("0" * 16), found("1" * 16)])
    lines = [json.loads(row.line) for row in rows.of_findings(values)]
    assert [line["revision"] for line in lines] == [3, 3]
    assert len({line["finding_id"] for line in lines}) == 2
    assert {row.item for row in rows.of_findings(values)} == {"20260101T000000Z-abcdef/3"}


@pytest.mark.parametrize("table", [CELLS, MEASUREMENTS])
def test_item_of_a_stored_line_equals_that_of_its_row(table: object) -> None:
    for row in rows.of_record(make_record()):
        assert rows.item_of(row.table, json.loads(row.line)) == row.item
