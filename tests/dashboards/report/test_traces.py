"""Traces on the page of a run."""

from __future__ import annotations

from dataclasses import replace

from keras_matrix.analysis.comparison.context import ShownTrace
from keras_matrix.analysis.comparison.table import table
from keras_matrix.dashboards.report import traces
from keras_matrix.records.identity import cell_id
from keras_matrix.records.text import NOTHING
from keras_matrix.records.traces.table import IdleGap, TimeShare, TraceSummary
from tests.conftest import make_record, make_settings
from tests.records.traces.synthetic import TABLE

SHOWN = replace(
    TABLE,
    by_operation=[TimeShare("dot", 8, 0.004, 0.8), TimeShare(None, 4, 0.001, 0.2)],
    gaps=[IdleGap(0, 0.0, 0.003, "dot", None, "input")],
)


def sheet(shown: TraceSummary) -> traces.TraceSheet:
    """The sheet of the traced one of two cells."""
    records = [make_record(settings=make_settings(backend=backend)) for backend in ("torch", "jax")]
    rows, traced = table(records), cell_id(make_settings(backend="jax"))
    (found,) = traces.sheets(rows, {traced: ShownTrace("traces/a/trace.json.gz", shown)})
    assert (found.backend, found.link) == ("jax", "traces/a/trace.json.gz")
    return found


def test_times_and_counts_are_per_step() -> None:
    found = sheet(SHOWN)
    assert found.summary == (
        "4 steps, 5.00 ms each with the profiler on; an operation ran 25.0 % of the time; 1 gap, 3.00 ms in all"
    )
    operations, gaps = found.grids
    assert (operations.title, operations.columns) == ("By operation", ["share", "time a step", "count a step"])
    assert [(row.name, row.values) for row in operations.rows] == [
        ("dot", ["80.0 %", "1.00 ms", "2.00"]),
        ("not reported", ["20.0 %", "250 us", "1.00"]),
    ]
    assert (gaps.title, gaps.columns) == ("The longest gaps", ["after", "before", "meanwhile"])
    assert [(row.name, row.values) for row in gaps.rows] == [("3.00 ms", ["dot", NOTHING, "input"])]


def test_times_and_counts_are_totals_without_steps() -> None:
    found = sheet(replace(SHOWN, steps=None, busy_share=None))
    assert found.summary == f"no step marked; an operation ran {NOTHING} of the time; 1 gap, 3.00 ms in all"
    assert found.grids[0].columns == ["share", "time", "count"]
    assert found.grids[0].rows[0].values == ["80.0 %", "4.00 ms", "8.00"]


def test_workers_are_counted_and_a_long_table_is_truncated() -> None:
    found = sheet(replace(SHOWN, workers=2, by_layer=[TimeShare(f"layer_{k}", 1, 0.1, 0.05) for k in range(20)]))
    assert found.summary.startswith("4 steps, 2 workers, ")
    assert [grid.title for grid in found.grids] == ["By operation", "By layer", "The longest gaps"]
    assert [row.name for row in found.grids[1].rows] == [f"layer_{k}" for k in range(10)]


def test_trace_of_a_gpu_names_its_device_and_divides_its_work_into_kinds() -> None:
    kinds = [TimeShare("compute", 8, 0.004, 0.8), TimeShare("copy", 4, 0.001, 0.2)]
    found = sheet(replace(SHOWN, device="gpu", by_kind=kinds, overlap_share=0.5))
    assert found.summary == (
        "4 steps, 5.00 ms each with the profiler on; an operation ran 25.0 % of the time on the GPU; "
        "50.0 % of the communication was overlapped by compute; 1 gap, 3.00 ms in all"
    )
    assert [grid.title for grid in found.grids] == ["By operation", "By kind", "The longest gaps"]
    assert [grid.title for grid in sheet(replace(SHOWN, by_kind=kinds[:1])).grids] == [
        "By operation",
        "The longest gaps",
    ]


def test_summary_ends_with_the_warnings_of_the_profiler() -> None:
    found = sheet(replace(SHOWN, warnings=["Dropped 7 events"]))
    assert found.summary.endswith("3.00 ms in all; the profiler reports: Dropped 7 events")
