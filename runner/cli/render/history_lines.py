"""Histories as text for the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from keras_matrix.analysis.comparison.primary_metric import STEP_TIME, Figure
from keras_matrix.analysis.history.change_points import LEAST_FOR_CHANGES, Change, ChangeKind
from keras_matrix.analysis.history.sessions import LEAST_SESSIONS, CellSession, SessionSpread
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.views.history_view import ChangeView, HistoryView, left_out_text
from keras_matrix.records.codec import to_json
from keras_matrix.records.store import Problem
from keras_matrix.records.text import NOTHING, amount, interval_text, percent_change, percentage, plural, printable
from keras_matrix.runner.cli.render.format import columns, document

REMARKS_SHOWN = 5


def overview(views: Sequence[HistoryView]) -> list[str]:
    """Return a table with a line per cell and machine."""
    rows = [["cell", "host", "sessions", "newest", "spread", "last change", "what"]]
    for view in views:
        history = view.history
        rows.append(
            [
                history.cell_id,
                history.host_id[:8],
                str(len(history.valued)),
                amount(view.newest.centre if view.newest else None, history.figure.unit),
                _spread(view.assessed.spread),
                _short(view.changes[-1].change) if view.changes else "none",
                view.title,
            ]
        )
    return columns(rows, right=frozenset({2, 3, 4}))


def listing(views: Sequence[HistoryView], last_count: int) -> list[str]:
    """Return every history with its newest sessions and its changes."""
    texts = list[str]()
    for view in views:
        lines = _history_lines(view, last_count)
        texts += ["", *lines] if texts else lines
    return [printable(line) for line in texts]


def remarks(views: Sequence[HistoryView], caveats: Iterable[str], problems: Sequence[Problem]) -> list[str]:
    """Return caveats: several machines, a clock that stepped, files that were skipped."""
    places_by_cell: dict[str, set[str]] = {}
    for view in views:
        device = view.history.device_name or "device not known"
        places_by_cell.setdefault(view.history.cell_id, set()).add(f"{view.history.host_id[:8]} {device}")
    mixed_texts = [
        f"cell {cell_id}: measured on {len(places)} machines or devices ({', '.join(sorted(places))}): each has its "
        "own history"
        for cell_id, places in places_by_cell.items()
        if len(places) > 1
    ]
    skipped_texts = [f"skipped: {problem.path}: {problem.reason}" for problem in problems]
    return [printable(line) for lines in (mixed_texts, list(caveats), skipped_texts) for line in _first(lines)]


def _first(lines: list[str]) -> list[str]:
    unlisted_count = len(lines) - REMARKS_SHOWN
    return (
        [*lines[:REMARKS_SHOWN], f"and {unlisted_count} more of these; --json lists them"]
        if unlisted_count > 0
        else lines
    )


def _change_words(view: ChangeView) -> str:
    """Return the size of a change, whether it is intended, acknowledged or repaired, and what changed with it."""
    change = view.change
    kind = "change" if change.note is None else "intended change"
    change_texts = [kind if change.ratio is None else f"{kind} of {percent_change(change.ratio)}"]
    change_texts += [change.note] if change.note is not None else []
    return "; ".join([*change_texts, *view.remarks, view.facts("->")])


def as_json(views: Sequence[HistoryView], caveats: Iterable[str], problems: Sequence[Problem]) -> str:
    """Return everything as one JSON document."""
    fields = {
        "histories": [_json(view) for view in views],
        "caveats": list(caveats),
        "skipped": [{"path": str(problem.path), "reason": problem.reason} for problem in problems],
    }
    return document(fields)


def _history_lines(view: HistoryView, last_count: int) -> list[str]:
    history = view.history
    device = history.device_name or "device not known"
    lines = [view.title, f"cell {history.cell_id}, host {history.host_id}, {device}", ""]
    shown_sessions = history.sessions[-last_count:]
    if len(shown_sessions) < len(history.sessions):
        lines.append(
            f"  {len(history.sessions) - len(shown_sessions)} earlier sessions: --last {len(history.sessions)}"
        )
    quantity = "step time" if history.figure == STEP_TIME else history.figure.name
    head = ["session", quantity, "95 % interval", "processes", "left out"]
    rows = columns([head, *(_row(session, history.figure) for session in shown_sessions)])
    lines.append(f"  {rows[0]}")
    for session, row in zip(shown_sessions, rows[1:], strict=True):
        if change := view.change_at(session.run_id):
            lines.append(f"  -- {_change_words(change)}")
            if change.kind is ChangeKind.SLOWER:
                lines += [f"     to find the version: {command}" for command in change.searches]
        lines.append(f"  {row}")
    return [*lines, "", *_baseline(view)]


def _row(session: CellSession, figure: Figure) -> list[str]:
    left_out = left_out_text(session)
    if session.step_time is None:
        return [session.run_id, NOTHING, NOTHING, "0", left_out]
    return [
        session.run_id,
        amount(session.step_time.centre, figure.unit),
        _interval(session.step_time, figure),
        str(session.step_time.count),
        left_out,
    ]


def _interval(estimate: Estimate, figure: Figure) -> str:
    if estimate.low is None or estimate.high is None:
        return NOTHING
    return interval_text(estimate.low, estimate.high, figure.unit)


def _baseline(view: HistoryView) -> list[str]:
    baseline, figure = view.baseline, view.history.figure
    if baseline is None:
        return ["no session has a value: no process ended ok"]
    value, sessions = baseline.value, plural(baseline.sessions, "session")
    interval_note = f", 95 % interval {_interval(value, figure)}" if value.low is not None else ""
    lines = [f"baseline: {sessions} since {baseline.since}, {amount(value.centre, figure.unit)}{interval_note}"]
    if baseline.spread is None:
        lines.append(f"spread between sessions: needs {LEAST_SESSIONS} sessions, {baseline.sessions} so far")
    else:
        lines.append(f"spread between sessions: {_spread(baseline.spread)}")
    if len(view.history.valued) < LEAST_FOR_CHANGES:
        lines.append(f"changes: need at least {LEAST_FOR_CHANGES} sessions")
    elif not view.changes:
        lines.append("changes: none found")
    return lines


def _spread(spread: SessionSpread | None) -> str:
    return NOTHING if spread is None else percentage(spread.between_log)


def _short(change: Change) -> str:
    size_text = "" if change.ratio is None else f"{percent_change(change.ratio)} "
    words = {"intended": change.note, "repaired": change.repaired, "acknowledged": change.acknowledged}
    word = next((f" ({word})" for word, is_known in words.items() if is_known), "")
    return f"{size_text}{change.run_id}{word}"


def _json(view: HistoryView) -> dict[str, Any]:
    history, assessed = view.history, view.assessed
    return {
        "title": view.title,
        "cell_id": history.cell_id,
        "host_id": history.host_id,
        "device": list(history.device) if history.device else None,
        "figure": to_json(history.figure),
        "sessions": [to_json(session) for session in history.sessions],
        "changes": [to_json(change) for change in assessed.changes],
        "levels": [to_json(level) for level in assessed.levels],
        "spread": to_json(assessed.spread) if assessed.spread else None,
    }
