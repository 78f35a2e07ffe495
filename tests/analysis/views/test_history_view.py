"""Every output shows the values of a history: terminal, JSON document, page, issue and the document of a webhook."""

from __future__ import annotations

import html
import json

import pytest

from keras_matrix.analysis.history.change_points import Assessment, ChangeKind, Notes, assess
from keras_matrix.analysis.history.sessions import CellSession, History
from keras_matrix.analysis.stats.blocks import geometric
from keras_matrix.analysis.views.history_view import HistoryView, history_views
from keras_matrix.dashboards.charts.time_series import date
from keras_matrix.dashboards.report import history_page
from keras_matrix.records.text import amount, percent_change, percentage, plural, quantity
from keras_matrix.runner.cli.render.history_lines import as_json, listing, overview
from keras_matrix.runner.notify.github_issues import issue_body
from keras_matrix.runner.notify.notice import About, Notice, due
from keras_matrix.runner.notify.webhook import document
from tests.sessions import noisy, run_name

OLD, NEW = {"keras": "3.15.0"}, {"keras": "3.16.0"}


def assessed(cell: str, levels: list[tuple[float, int]], notes: Notes | None = None) -> Assessment:
    """Return the history of a cell with these values in so many sessions each; every level has other versions."""
    values = [
        (value, (OLD, NEW)[number % 2])
        for number, (level, count) in enumerate(levels)
        for value in noisy(level, count, seed=number)
    ]
    sessions = [
        CellSession(run_name(night), geometric([value * (1 + 0.001 * i) for i in range(3)]), 0.001, {}, versions)
        for night, (value, versions) in enumerate(values)
    ]
    sessions.insert(1, CellSession(f"{run_name(0)}x", None, None, {"crash": 2}, OLD))
    settings = {"workload": cell, "backend": "jax"}
    return assess(History(cell * 16, "0" * 16, ("cpu", "cpu:0"), settings, tuple(sessions)), notes or Notes())


@pytest.fixture(scope="module")
def views() -> list[HistoryView]:
    steps = [(0.010, 20), (0.012, 15)]
    histories = [
        assessed("a", steps),
        assessed("b", [(0.010, 20), (0.008, 15)]),
        assessed("c", [*steps, (0.010, 15)]),
        assessed("d", steps, Notes(intended={run_name(20): "another model"})),
        assessed("e", steps, Notes(acknowledged={run_name(20): "wait for jax"})),
        assessed("f", [(0.01, 2)]),
        assessed("9", []),
    ]
    found = history_views(histories, {one.history.cell_id: f"{one.history.cell_id} on jax" for one in histories})
    assert {change.kind for view in found for change in view.changes} == set(ChangeKind)
    assert {view.baseline is None for view in found} == {True, False}
    assert {bool(view.baseline and view.baseline.spread) for view in found} == {True, False}
    assert {bool(change.searches) for view in found for change in view.changes} == {True, False}
    return found


def test_terminal_has_the_values_of_the_view(views: list[HistoryView]) -> None:
    for view, line in zip(views, overview(views)[1:], strict=True):
        newest = amount(view.newest.centre if view.newest else None, "s")
        assert line.startswith(view.history.cell_id)
        assert line.endswith(view.title)
        assert f" {newest}  " in line
        assert (percent_change(view.changes[-1].change.ratio or 1) in line) if view.changes else ("  none  " in line)
    for view in views:
        lines = listing([view], 1000)
        said = [line for line in lines if line.startswith("  -- ")]
        assert len(said) == len(view.changes)
        for change, words in zip(view.changes, said, strict=True):
            assert percent_change(change.change.ratio or 1) in words
            assert words.startswith("  -- intended change") == (change.kind is ChangeKind.INTENDED)
            assert words.endswith("; ".join([*change.remarks, change.facts("->")]))
            proposed = any(command in line for command in change.searches for line in lines)
            assert proposed == (change.kind is ChangeKind.SLOWER and bool(change.searches))
        [baseline] = [line for line in lines if line.startswith(("baseline: ", "no session has a value"))]
        if view.baseline:
            since = f"{view.baseline.sessions} sessions since {view.baseline.since}"
            assert baseline.startswith(f"baseline: {since}, {amount(view.baseline.value.centre, 's')}")


def test_json_has_the_values_of_the_view(views: list[HistoryView]) -> None:
    for view, shown in zip(views, json.loads(as_json(views, (), ()))["histories"], strict=True):
        assert shown["title"] == view.title
        assert [change["ratio"] for change in shown["changes"]] == [one.change.ratio for one in view.changes]
        levels = [level["step_time"]["centre"] for level in shown["levels"]]
        for number, change in enumerate(view.changes):
            assert levels[number : number + 2] == [change.before.centre, change.after.centre]
        if view.baseline:
            assert levels[-1] == view.baseline.value.centre
            assert (shown["spread"] is None) == (view.baseline.spread is None)


def test_page_has_the_values_of_the_view(views: list[HistoryView]) -> None:
    everything = html.unescape(history_page.render(views, [])).replace("\u00a0", " ")
    for view in views:
        assert view.title in everything
        if view.baseline is None:
            continue
        drawn = history_page.picture(view)
        page = html.unescape(history_page.svg(view)).replace("\u00a0", " ")
        for shown in (page, everything):
            assert f"since {date(view.baseline.since)}, {plural(view.baseline.sessions, 'session')}" in shown
            assert quantity(view.baseline.value.centre, drawn.axis.unit) in shown
            if view.baseline.spread:
                assert f"{percentage(view.baseline.spread.between_log)} between sessions" in shown
            for change in view.changes:
                assert percent_change(change.change.ratio or 1) in shown
                assert "; ".join([*change.remarks, change.facts("→")]) in shown


def test_notifications_have_the_values_of_the_view(views: list[HistoryView]) -> None:
    notified = 0
    for view in views:
        for event in due(view.assessed, []):
            notice = Notice(event, view, About())
            [change] = [one for one in view.changes if one.change is event.change]
            sent, issue = document(notice), issue_body(notice)
            assert change.kind is ChangeKind.SLOWER
            assert (sent["cell"]["title"], sent["change"]["ratio"]) == (view.title, change.change.ratio)
            assert sent["change"]["before"]["value"] == change.before.centre
            assert sent["change"]["after"]["value"] == change.after.centre
            assert sent["reproduce"][-len(change.searches) :] == list(change.searches)
            assert sent["picture_svg"] == history_page.svg(view)
            assert all(command in issue for command in change.searches)
            assert quantity(change.before.centre, notice.unit) in issue
            assert quantity(change.after.centre, notice.unit) in issue
            notified += 1
    assert notified == 1
