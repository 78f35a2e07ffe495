"""Histories as one self-contained page: each a time series with its baselines and changes.

`render` is pure. Changes are found by `analysis.history`.
"""

from __future__ import annotations

from collections.abc import Sequence

from keras_matrix.analysis.history.change_kinds import kind_of
from keras_matrix.analysis.history.change_points import Assessment, Change, VersionChange
from keras_matrix.analysis.history.sessions import CellSession
from keras_matrix.dashboards.charts import time_series
from keras_matrix.dashboards.charts.dot_plots import slot_of
from keras_matrix.dashboards.charts.time_series import Series, SeriesPicture, SeriesPoint, date
from keras_matrix.dashboards.report import page
from keras_matrix.records.text import Unit, percentage, plural, quantity


def render(assessed: Sequence[Assessment], titles: Sequence[str], remarks: Sequence[str]) -> str:
    """Return the page of these histories; `titles` names each. Histories without a value are listed, not drawn."""
    named = list(zip(assessed, titles, strict=True))
    return page.rendered(
        "history.html",
        page.stylesheet("history"),
        heading="History of " + (titles[0] if len(titles) == 1 else f"{len(titles)} cells and machines"),
        pictures=[picture(one, title) for one, title in named if one.levels],
        unmeasured=[title for one, title in named if not one.levels],
        remarks=list(remarks),
    )


def svg(one: Assessment, title: str) -> str:
    """Return a history, which must have a value, as an SVG document that needs no other file."""
    from markupsafe import Markup  # with Jinja: imported only by commands that draw

    style = Markup(page.stylesheet("history"))  # noqa: S704 - a file of this project
    return page.templates().get_template("history.svg").render(one=picture(one, title), style=style).strip()


def picture(one: Assessment, title: str) -> SeriesPicture:
    """Return a history, which must have a value, as a time series."""
    figure = one.history.figure
    series = Series(
        title,
        _details(one),
        slot_of(str(one.history.settings.get("backend"))),
        (figure.name, figure.unit),
        [point for session in one.history.valued if (point := _point(session))],
        [
            time_series.ChangePlace(
                change.index, change.ratio, kind_of(change, figure.goal), _words(change), change.run_id
            )
            for change in one.changes
        ],
        one.levels,
        [session.run_id for session in one.history.sessions if session.step_time is None],
    )
    return time_series.picture(series, _baseline(one, series.unit()))


def _point(session: CellSession) -> SeriesPoint | None:
    estimate = session.step_time
    if estimate is None:
        return None
    left_out = ", ".join(f"{count} {status}" for status, count in session.left_out.items())
    tip = plural(estimate.count, "process", "processes") + (f"; left out: {left_out}" if left_out else "")
    return SeriesPoint(session.run_id, estimate.centre, estimate.low, estimate.high, tip)


def _details(one: Assessment) -> str:
    device = one.history.device_name or "device not confirmed"
    sessions = plural(len(one.history.valued), "session")
    return f"cell {one.history.cell_id} · host {one.history.host_id} · {device} · {sessions}"


def _baseline(one: Assessment, unit: Unit) -> str:
    level = one.levels[-1]
    spread = (
        f"{percentage(one.spread.between_log)} between sessions"
        if one.spread
        else "spread between sessions not known yet"
    )
    since = f"since {date(one.history.valued[level.first].run_id)}"
    return (
        f"{quantity(level.step_time.centre, unit)} {since}, {plural(level.last - level.first + 1, 'session')}; {spread}"
    )


def _words(change: Change) -> str:
    parts = [f"intended: {change.note}"] if change.note is not None else []
    parts += [f"acknowledged: {change.acknowledged}"] if change.acknowledged is not None else []
    parts += [f"no longer worse since {change.repaired}"] if change.repaired is not None else []
    facts = ", ".join(map(_version, change.versions)) or "no version or setting on record changed there"
    return "; ".join([*parts, facts])


def _version(one: VersionChange) -> str:
    off = abs(one.sessions_off)
    place = f" ({plural(off, 'session')} {'later' if one.sessions_off > 0 else 'before'})" if off else ""
    return f"{one.name} {one.before or 'absent'} → {one.after or 'absent'}{place}"
