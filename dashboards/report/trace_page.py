"""A trace as a page of its own: the timeline of one step, its largest operations, and the tables.

Pure functions of a stored trace and its table. The page loads nothing and runs no script, and names are shown as text.
"""

from __future__ import annotations

from keras_matrix.dashboards.charts.figure_table import Grid, GridRow
from keras_matrix.dashboards.charts.trace_timeline import StepSpans, timeline
from keras_matrix.dashboards.report import traces
from keras_matrix.dashboards.report.page import rendered, stylesheet
from keras_matrix.records.text import plural, seconds
from keras_matrix.records.traces.table import TraceSummary


def render(title: str, table: TraceSummary, step: StepSpans | None) -> str:
    """Return the page of a trace; `step` is None if nothing ran in any."""
    timeline_picture = timeline(step) if step else None
    left_out = [step.left_out] if step and step.left_out else []
    if timeline_picture and timeline_picture.left_out:
        left_out.append(f"{plural(timeline_picture.left_out, 'bar')}, the narrowest, are left out")
    return rendered(
        "trace.html",
        stylesheet("roofline", "trace"),
        heading=f"trace, {title}",
        title=title,
        device=table.device,
        summary=traces.summary(table),
        step=step,
        picture=timeline_picture.picture if timeline_picture else None,
        left_out=left_out,
        largest=_largest(step) if step else None,
        grids=traces.grids(table),
    )


def _largest(step: StepSpans) -> Grid:
    rows = [GridRow(name, [seconds(time_s), str(count)]) for name, time_s, count in step.largest]
    return Grid("Largest operations of this step", ["time", "count"], rows)
