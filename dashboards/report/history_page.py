"""Histories as one self-contained page: each a time series with its baselines and changes.

`render` is pure. Changes are found by `analysis.history`.
"""

from __future__ import annotations

from collections.abc import Sequence

from keras_matrix.analysis.history.sessions import CellSession, History
from keras_matrix.analysis.views.history_view import Baseline, ChangeView, HistoryView, left_out_text
from keras_matrix.dashboards.charts import time_series
from keras_matrix.dashboards.charts.picture import document, slot_of
from keras_matrix.dashboards.charts.time_series import Series, SeriesPicture, SeriesPoint, date
from keras_matrix.dashboards.report import page
from keras_matrix.records.text import Unit, percentage, plural, quantity


def render(views: Sequence[HistoryView], remarks: Sequence[str]) -> str:
    """Return the page of these histories. Histories without a value are listed, not drawn."""
    return page.rendered(
        "history.html",
        page.stylesheet("history"),
        heading="History of " + (views[0].title if len(views) == 1 else f"{len(views)} cells and machines"),
        pictures=[picture(view) for view in views if view.baseline],
        unmeasured=[view.title for view in views if not view.baseline],
        remarks=list(remarks),
    )


def svg(view: HistoryView) -> str:
    """Return a history, which must have a value, as an SVG document that needs no other file."""
    return document(time_series.as_file(picture(view)), page.stylesheet("history"))


def picture(view: HistoryView) -> SeriesPicture:
    """Return a history, which must have a value, as a time series."""
    history = view.history
    series = Series(
        view.title,
        _details(history),
        slot_of(str(history.settings.get("backend"))),
        (history.figure.name, history.figure.unit),
        [point for session in history.valued if (point := _point(session))],
        [
            time_series.ChangePlace(
                shown_change.change.index,
                shown_change.change.ratio,
                shown_change.kind,
                _words(shown_change),
                shown_change.change.run_id,
            )
            for shown_change in view.changes
        ],
        view.assessed.levels,
        [session.run_id for session in history.sessions if session.step_time is None],
    )
    assert view.baseline is not None
    return time_series.picture(series, _baseline(view.baseline, series.unit()))


def _point(session: CellSession) -> SeriesPoint | None:
    step_time = session.step_time
    if step_time is None:
        return None
    left_out = left_out_text(session)
    tip = plural(step_time.count, "process", "processes") + (f"; left out: {left_out}" if left_out else "")
    return SeriesPoint(session.run_id, step_time.centre, step_time.low, step_time.high, tip)


def _details(history: History) -> str:
    device, sessions = history.device_name or "device not confirmed", plural(len(history.valued), "session")
    return f"cell {history.cell_id} · host {history.host_id} · {device} · {sessions}"


def _baseline(baseline: Baseline, unit: Unit) -> str:
    spread_text = "spread between sessions not known yet"
    if baseline.spread:
        spread_text = f"{percentage(baseline.spread.between_log)} between sessions"
    since, sessions = date(baseline.since), plural(baseline.sessions, "session")
    return f"{quantity(baseline.value.centre, unit)} since {since}, {sessions}; {spread_text}"


def _words(view: ChangeView) -> str:
    note = view.change.note
    return "; ".join([*([f"intended: {note}"] if note is not None else []), *view.remarks, view.facts("→")])
