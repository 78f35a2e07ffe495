"""A trace's own page."""

from __future__ import annotations

from pathlib import Path

from keras_matrix.analysis.traces import read_table
from keras_matrix.dashboards.charts.trace_timeline import step_of
from keras_matrix.dashboards.report import trace_page
from keras_matrix.records.traces import neutral
from keras_matrix.records.traces.neutral import Head, Span, TrackKind
from tests.records.traces.synthetic import span

HOSTILE = "<script>alert(1)</script>"


def page_of(tmp_path: Path, spans: list[Span], title: str = "mine") -> str:
    path = tmp_path / "trace.json.gz"
    neutral.write(path, Head("torch", 1, "gpu", 1, notes=["ProfilerStep#2 is left out"]), spans)
    return trace_page.render(title, read_table(path), step_of(path))


def test_page_shows_the_timeline_its_largest_operations_and_the_tables(tmp_path: Path) -> None:
    spans = [span("step 1", 0, 100, TrackKind.STEPS, step=1), span("gemm", 10, 80, step=1, phase="forward")]
    page = page_of(tmp_path, spans)
    assert page.count('<svg class="roofline timeline') == 2  # a wide one and a narrow one
    assert '<rect class="bar forward"' in page
    for text in ("Step 1", "Largest operations of this step", "By operation", "caveat: ProfilerStep#2 is left out"):
        assert text in page


def test_page_runs_nothing_loads_nothing_and_shows_names_as_text(tmp_path: Path) -> None:
    spans = [span("step 1", 0, 100, TrackKind.STEPS, step=1), span(HOSTILE, 10, 80, step=1)]
    page = page_of(tmp_path, spans, HOSTILE)
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert "default-src &#39;none&#39;" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;: 80.0" in page


def test_page_of_a_trace_in_which_nothing_ran_says_so(tmp_path: Path) -> None:
    assert "No operation ran in a step of this trace." in page_of(tmp_path, [])
