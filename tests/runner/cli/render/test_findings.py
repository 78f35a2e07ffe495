"""The lines under the table of a run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from keras_matrix.analysis.comparison import starts
from keras_matrix.analysis.comparison.context import NO_CONTEXT
from keras_matrix.analysis.comparison.table import Row, table
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.analysis.views.warnings_view import warnings_by_rule
from keras_matrix.records.schema import DeviceProof, Memory, Record, Resolved
from keras_matrix.runner.cli.render.exported import as_document
from keras_matrix.runner.cli.render.findings import cell_lines, warning_lines
from keras_matrix.runner.service.stored import Findings
from tests.conftest import make_record
from tests.golden import Golden
from tests.messages import check_messages
from tests.synthetic_devices import device_records


def warned(repeat: int, *warnings: str) -> Record:
    return make_record(0.01, repeat, warnings=list(warnings))


def warning_lines_of(*records: Record) -> list[str]:
    return warning_lines(warnings_by_rule(records, result_table(table(records))), len(records))


def test_what_is_printed_of_warnings(golden: Golden) -> None:
    """They are counted by rule, a record once; the most frequent comes first; of many cells the first are named."""
    calm = warned(0)
    batches = [replace(calm.settings, batch_size=batch) for batch in (1, 2, 4, 8, 16)]
    missing = [f"metric_missing: {name}: no_match" for name in "abc"]
    two_rules = [warned(0, "busy: stop them"), warned(1, "steal: so", "steal: too"), warned(2, "steal: so")]
    runs = {
        "three of one rule": [warned(0, *missing)],
        "two rules": [*two_rules, warned(3)],
        "five cells of six": [calm, *(make_record(0.01, settings=one, warnings=["busy: stop"]) for one in batches)],
    }
    check_messages(golden, "warnings.txt", {title: warning_lines_of(*records) for title, records in runs.items()})
    assert warning_lines_of(calm) == []


def shown(record: Record) -> list[str]:
    return cell_lines_of(table([record]))


def cell_lines_of(rows: list[Row]) -> list[str]:
    """Return the only cell of a table in detail."""
    (work,) = result_table(rows).works
    (view,) = work.cells
    return cell_lines(work, view)


def test_cell_is_shown_with_what_applies_to_it_and_numbers_with_units() -> None:
    resolved = Resolved(50, 32, "fork", "float32", parameters=3_225_610, forward_flops=103_088_128, learning_rate=1e-3)
    resolved = replace(resolved, optimizer_slots=0, optimizer_slot_bytes=0)
    lines = shown(make_record(0.01, resolved=resolved, device=DeviceProof("cpu", "cpu:0", 1)))
    texts = {name: value for line in lines if len(parts := line.split(maxsplit=1)) == 2 for name, value in [parts]}
    assert (texts["forward_flops"], texts["parameters"]) == ("103 MFLOP", "3,225,610")
    assert (texts["learning_rate"], texts["optimizer_slot_bytes"]) == ("0.001", "0 B")
    assert not [line for line in lines if "not measured" in line or line.endswith("[]")]
    assert "tf32" not in texts
    assert not [line for line in lines if "peak device memory" in line]
    between = ("spread between processes", "smallest difference")  # which one process does not have
    assert not [line for line in lines if line.strip().startswith(between)]


def test_tracing_and_compiling_are_shown_if_the_backend_reports_them() -> None:
    plain = make_record(0.01)
    times = replace(plain.times, trace_time_s=0.5, compile_time_s=1.25)
    lines = shown(replace(plain, times=times))
    head = next(line for line in lines if line.startswith("  repeat"))
    values = lines[lines.index(head) + 1]
    for name, value in {"trace": "500 ms", "compile": "1.25 s"}.items():
        assert values[head.index(name) :].startswith(value)
    assert "  " + starts.START_MEANING in lines
    assert not any(line.startswith("  repeat") and " compile " in line for line in shown(plain))


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
    (line,) = [line for line in cell_lines_of(table(records)) if "peak device memory" in line]
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
    assert found[2]["text"].startswith("jax 1.60x [1.60 1.60] ")
