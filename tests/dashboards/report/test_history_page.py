"""The page of histories: its drawings, and that it is self-contained."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from keras_matrix.analysis.history.change_points import Assessment, Notes, assess
from keras_matrix.analysis.history.sessions import CellSession, History
from keras_matrix.analysis.stats.blocks import geometric
from keras_matrix.analysis.views.history_view import HistoryView, history_views
from keras_matrix.dashboards.charts import time_series
from keras_matrix.dashboards.charts.picture import Dot, Picture, Segment, Word
from keras_matrix.dashboards.charts.time_series import SeriesPicture
from keras_matrix.dashboards.report import history_page
from tests.dashboards.charts.drawn import drawn
from tests.sessions import noisy, run_name

HOSTILE = "<img src=x onerror=alert(1)></script>"


def session(number: int, value: float | None, count: int = 5) -> CellSession:
    step_time = geometric([value * (1 + 0.001 * i) for i in range(count)]) if value else None
    return CellSession(run_name(number), step_time, 0.001, {} if value else {"unstable": 3}, {})


def assessed(values: list[float | None], notes: dict[str, str] | None = None) -> Assessment:
    sessions = tuple(session(number, value) for number, value in enumerate(values))
    return assess(History("a" * 16, "0" * 16, ("cpu", "cpu:0"), {"backend": "jax"}, sessions), Notes(notes or {}))


def view(assessed: Assessment, title: str = "x") -> HistoryView:
    [found] = history_views([assessed], {assessed.history.cell_id: title})
    return found


def dots(shown: SeriesPicture) -> list[Dot]:
    return drawn(shown.values, Dot)


def lines(shown: SeriesPicture, role: str) -> list[Segment]:
    return drawn(shown.values, Segment, role)


def words(picture: Picture) -> list[str]:
    return [word.text for word in drawn(picture, Word)]


@pytest.fixture(scope="module")
def changed() -> Assessment:
    values = [*noisy(0.01, 20), *noisy(0.011, 15, seed=5), *noisy(0.009, 10, seed=6)]
    return assessed(list(values), {run_name(35): HOSTILE})


def test_every_session_is_a_dot_and_every_level_a_line(changed: Assessment) -> None:
    shown = history_page.picture(view(changed, "mnist_mlp on jax"))
    assert [len(dots(shown)), *(len(lines(shown, role)) for role in ("within", "level"))] == [45, 45, 3]
    assert shown.series.slot == 1
    assert "36 sessions" not in shown.baseline
    assert "10 sessions" in shown.baseline


def test_change_is_drawn_between_its_sessions_with_its_kind(changed: Assessment) -> None:
    shown = history_page.picture(view(changed))
    assert [(event.kind, event.when) for event in shown.changes] == [
        ("repaired", "2026-01-21"),
        ("intended", "2026-02-05"),
    ]
    places = [float(str(mark.x).rstrip("%")) for mark in dots(shown)]
    at = float(str(lines(shown, "change repaired")[0].x1).rstrip("%"))
    assert places[19] < at < places[20]


def test_slower_session_is_drawn_higher(changed: Assessment) -> None:
    shown = history_page.picture(view(changed))
    assert float(dots(shown)[25].y) < float(dots(shown)[5].y)
    assert all(0 <= float(mark.y) <= time_series.HEIGHT for mark in dots(shown))


def test_only_the_newest_sessions_are_drawn_and_the_others_are_counted() -> None:
    shown = history_page.picture(view(assessed(list(noisy(0.01, time_series.MOST_DRAWN + 7)))))
    assert (len(dots(shown)), shown.earlier) == (time_series.MOST_DRAWN, 7)


def test_a_session_without_a_value_is_a_cross() -> None:
    shown = history_page.picture(view(assessed([0.01, 0.01, None, 0.01])))
    assert (words(shown.values), len(dots(shown))) == (["×"], 3)


def test_sessions_of_one_day_are_labelled_with_hours() -> None:
    days = assessed([0.01, 0.01])
    sessions = [replace(one, run_id=f"20260101T0{5 + at}1500Z-abc") for at, one in enumerate(days.history.sessions)]
    day = assess(replace(days.history, sessions=tuple(sessions)))
    assert words(history_page.picture(view(day)).dates) == ["2026-01-01 05:15", "2026-01-01 06:15"]
    assert words(history_page.picture(view(days)).dates) == ["2026-01-01", "2026-01-02"]


def test_one_session_alone_is_drawn() -> None:
    shown = history_page.picture(view(assessed([0.01])))
    assert [mark.x for mark in dots(shown)] == ["50.00%"]
    assert "spread between sessions not known yet" in shown.baseline


def test_sessions_of_few_processes_have_no_whisker() -> None:
    sessions = tuple(session(number, 0.01, count=2) for number in range(3))
    one = assess(replace(assessed([0.01]).history, sessions=sessions))
    assert lines(history_page.picture(view(one)), "within") == []


def test_page_loads_nothing_and_has_no_script(changed: Assessment) -> None:
    page = history_page.render([view(changed, "mnist_mlp on jax")], [])
    assert re.findall(r'(?:src|href)="(?!#|data:)', page) == []
    assert "<script" not in page
    assert "default-src &#39;none&#39;" in page


def test_hostile_names_and_notes_are_shown_as_text(changed: Assessment) -> None:
    page = history_page.render([view(changed, HOSTILE)], [HOSTILE])
    assert HOSTILE not in page
    assert page.count("&lt;img src=x") >= 3


def test_history_without_values_is_listed_and_not_drawn(changed: Assessment) -> None:
    page = history_page.render([view(changed, "one"), view(assessed([None]), "two")], [])
    assert "two: no process ended ok in any session" in page
    assert page.count("<figure") == 1


def test_page_without_values_says_so() -> None:
    assert "No session has a value" in history_page.render([view(assessed([None]), "two")], [])


def test_page_has_both_colour_schemes_and_is_reproducible(changed: Assessment) -> None:
    page = history_page.render([view(changed, "one")], ["a remark"])
    assert "prefers-color-scheme: dark" in page
    assert page == history_page.render([view(changed, "one")], ["a remark"])


def test_history_as_a_picture_is_one_svg_document_without_markup_of_its_title(changed: Assessment) -> None:
    root = ElementTree.fromstring(history_page.svg(view(changed, HOSTILE)))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert next(text.text for text in root.iter("{http://www.w3.org/2000/svg}text")) == HOSTILE
    assert {element.tag.partition("}")[2] for element in root.iter()} & {"img", "script", "image"} == set()
