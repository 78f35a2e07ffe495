"""The lines under the table of a run."""

from __future__ import annotations

import json

import pytest

from keras_matrix.analysis.comparison.context import NO_CONTEXT
from keras_matrix.analysis.comparison.table import table
from keras_matrix.records.schema import Memory, Record
from keras_matrix.runner.cli.look.stored import Findings
from keras_matrix.runner.cli.render.findings import as_document, cell_lines, warning_lines
from tests.conftest import make_record
from tests.synthetic_devices import device_records


def warned(repeat: int, *warnings: str) -> Record:
    return make_record(0.01, repeat, warnings=list(warnings))


def test_a_warning_that_fires_several_times_in_a_record_counts_that_record_once() -> None:
    record = warned(0, "metric_missing: a: no_match", "metric_missing: b: no_match", "metric_missing: c: no_match")
    assert warning_lines([record]) == ["in 1 of 1 record, such as: metric_missing: c: no_match"]


def test_warnings_are_counted_by_rule_and_the_most_frequent_comes_first() -> None:
    records = [warned(0, "busy: stop them"), warned(1, "steal: so", "steal: too"), warned(2, "steal: so"), warned(3)]
    assert warning_lines(records) == [
        "in 2 of 4 records, such as: steal: so",
        "in 1 of 4 records, such as: busy: stop them",
    ]


def test_records_without_warnings_give_no_line() -> None:
    assert warning_lines([warned(0)]) == []


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        (["measured_epochs", "process"], "3.00 GiB of the whole process"),
        (["measured_epochs"] * 2, "3.00 GiB"),
        ([None, None], "3.00 GiB"),
    ],
)
def test_peak_device_memory_is_labelled_if_it_is_that_of_the_process(spans: list[str | None], expected: str) -> None:
    records = [
        make_record(0.01, repeat, memory=Memory(1 << 30, 3 << 30, peak_device_memory_span=span))
        for repeat, span in enumerate(spans)
    ]
    (row,) = table(records)
    (cell,) = row.cells.values()
    (line,) = [line for line in cell_lines(cell, row, NO_CONTEXT) if "peak device memory" in line]
    assert line.endswith(f" {expected}")


def test_document_has_the_scaling_of_cells_on_several_devices() -> None:
    records = device_records(1, [0.4] * 5) + device_records(2, [0.25] * 5)
    document = json.loads(as_document({}, Findings(table(records), records, NO_CONTEXT, [])))
    found = {cell["settings"]["devices"]: cell["scaling"] for row in document["rows"] for cell in row["cells"].values()}
    assert found[1] is None
    assert found[2]["speed_up"]["centre"] == pytest.approx(1.6)
    assert found[2]["efficiency"]["centre"] == pytest.approx(0.8)
    assert found[2]["communication_share"] == pytest.approx(0.25)
    assert found[2]["communication_method"] == "profiled"
    assert (
        found[2]["text"] == "jax 1.60x [1.60 1.60] on 2 devices, efficiency 80 %, communication 25 % (by the profiler)"
    )
