"""Every output shows the same figures of a trace: terminal, report, page of the trace and JSON document."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.analysis.comparison.context import RunContext, ShownTrace
from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.traces import read_table
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.analysis.views.trace_view import StepPart, part_tables
from keras_matrix.dashboards.report import page as report
from keras_matrix.records.text import number, percentage, seconds
from keras_matrix.records.traces import neutral
from keras_matrix.records.traces.neutral import Head, Span, TrackKind
from keras_matrix.records.traces.table import TimeShare
from keras_matrix.runner.cli.main import main
from tests.conftest import make_record
from tests.records.traces.synthetic import TABLE, span

PARTS = [TimeShare("dot", 8, 0.004, 0.8), TimeShare("add", 4, 0.0006, 0.12), TimeShare(None, 4, 0.0004, 0.08)]


def spans(steps: int) -> list[Span]:
    """Return steps of 100 us, each with operations of several layers, phases and kinds, and gaps between them."""
    found = []
    for step in range(1, steps + 1):
        begin = 100 * step
        found += [
            span(f"step {step}", begin, 100, TrackKind.STEPS, step=step),
            span("gemm", begin + 10, 40, step=step, layer="dense", phase="forward"),
            span("add", begin + 60, 5 * step, step=step, layer="bias", phase="backward"),
            span("all_reduce", begin + 85, 10, TrackKind.COMMUNICATION, step=step, phase="communication"),
        ]
    return found


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json.gz"
    neutral.write(path, Head("torch", 1, "cpu", 3), spans(3))
    return path


def texts(part: StepPart) -> list[str]:
    return [percentage(part.share), seconds(part.time_s), number(part.count)]


def rows_of(page: str) -> list[list[str]]:
    """Return the cells of every row of the tables of a page."""
    rows = re.findall(r"<tr>(.*?)</tr>", page, flags=re.DOTALL)
    return [
        [re.sub(r"<[^>]*>", "", cell).strip() for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)]
        for row in rows
    ]


def test_every_output_has_the_values_of_the_view(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Mutation: a renderer shows the time over all steps."""
    summary = read_table(trace)
    tables = part_tables(summary, 10)
    assert [(found.by, len(found.parts)) for found in tables] == [
        ("operation", 3),
        ("layer", 3),
        ("phase", 3),
        ("kind", 2),
    ]
    own = trace.parent / "own.html"
    assert main(["trace", str(trace), "--html", str(own)]) == 0
    printed = capsys.readouterr().out
    terminal = [re.split(r" {2,}", line.strip()) for line in printed.splitlines()]
    record = make_record()
    context = RunContext(traces={record.cell_id: ShownTrace("trace.json.gz", summary)})
    of_run = report.render([record], result_table(table([record]), context), {})
    assert main(["trace", str(trace), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)["table"]
    pages = [html.unescape(page).replace("\u00a0", " ") for page in (own.read_text(encoding="utf-8"), of_run)]
    for found in tables:
        for part, stored in zip(found.parts, document[f"by_{found.by}"], strict=True):
            assert [part.name or "(not reported)", *texts(part)] in terminal
            for rows in map(rows_of, pages):
                assert [part.name or "not reported", *texts(part)] in rows
            shown = (stored["name"], stored["share"], stored["time_s"] / 3, stored["count"] / 3)
            assert shown == (part.name, part.share, part.time_s, part.count)
    assert (summary.gap_count, summary.step_time_s, summary.busy_share) == (10, pytest.approx(1e-4), pytest.approx(0.6))
    for output in (printed, *pages):
        assert f"10 gaps, {seconds(summary.gap_time_s)} in all" in output
        assert "100 us each with the profiler on" in output
        assert percentage(summary.busy_share) in output


@pytest.mark.parametrize("steps", [4, None])
def test_parts_are_of_a_step_and_the_rest_is_summed(steps: int | None) -> None:
    """Mutation: the rest has the time over all steps."""
    found = part_tables(replace(TABLE, steps=steps, by_operation=PARTS), 1)[0]
    each = steps or 1
    assert found.unit == (" a step" if steps else "")
    assert found.parts == (StepPart("dot", 0.8, 0.004 / each, 8 / each),)
    assert found.rest is not None
    assert (found.rest.others, found.rest.count) == (2, 8 / each)
    assert found.rest.time_s == pytest.approx(0.001 / each)
    assert part_tables(replace(TABLE, by_operation=PARTS), 3)[0].rest is None
