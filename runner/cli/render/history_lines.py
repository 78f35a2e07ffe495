"""Histories as text for the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from keras_matrix.analysis.comparison.primary_metric import STEP_TIME, Figure
from keras_matrix.analysis.history.change_kinds import ChangeKind, kind_of
from keras_matrix.analysis.history.change_points import LEAST_FOR_CHANGES, Assessment, Change, VersionChange
from keras_matrix.analysis.history.searches import searches
from keras_matrix.analysis.history.sessions import LEAST_SESSIONS, CellSession, SessionSpread
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.records.codec import to_json
from keras_matrix.records.store import Problem
from keras_matrix.records.text import NOTHING, amount, interval_text, percent_change, percentage, printable
from keras_matrix.runner.cli.render.format import columns, document
from keras_matrix.runner.service.histories import titles

REMARKS_SHOWN = 5


def overview(assessed: Sequence[Assessment]) -> list[str]:
    """Return a table with a line per cell and machine."""
    head = ["cell", "host", "sessions", "newest", "spread", "last change", "what"]
    rows, named = [head], titles(assessed)
    for one in assessed:
        valued = one.history.valued
        rows.append(
            [
                one.history.cell_id,
                one.history.host_id[:8],
                str(len(valued)),
                amount(
                    valued[-1].step_time.centre if valued and valued[-1].step_time else None, one.history.figure.unit
                ),
                _spread(one.spread),
                _short(one.changes[-1]) if one.changes else "none",
                named[one.history.cell_id],
            ]
        )
    return columns(rows, right=frozenset({2, 3, 4}))


def listing(assessed: Sequence[Assessment], last: int) -> list[str]:
    """Return every history with its newest sessions and its changes."""
    found, named = list[str](), titles(assessed)
    for one in assessed:
        lines = _one(one, last, named[one.history.cell_id])
        found += ["", *lines] if found else lines
    return [printable(line) for line in found]


def remarks(assessed: Sequence[Assessment], caveats: Iterable[str], problems: Sequence[Problem]) -> list[str]:
    """Return caveats: several machines, a clock that stepped, files that were skipped."""
    cells: dict[str, set[str]] = {}
    for one in assessed:
        device = one.history.device_name or "device not known"
        cells.setdefault(one.history.cell_id, set()).add(f"{one.history.host_id[:8]} {device}")
    mixed = [
        f"cell {cell}: measured on {len(places)} machines or devices ({', '.join(sorted(places))}): each has its own "
        "history"
        for cell, places in cells.items()
        if len(places) > 1
    ]
    passed = [f"skipped: {problem.path}: {problem.reason}" for problem in problems]
    return [printable(line) for lines in (mixed, list(caveats), passed) for line in _first(lines)]


def _first(lines: list[str]) -> list[str]:
    rest = len(lines) - REMARKS_SHOWN
    return [*lines[:REMARKS_SHOWN], f"and {rest} more of these; --json lists them"] if rest > 0 else lines


def change_words(change: Change) -> str:
    """Return the size of a change, whether it is intended, acknowledged or repaired, and what changed with it."""
    kind = "change" if change.note is None else "intended change"
    parts = [kind if change.ratio is None else f"{kind} of {percent_change(change.ratio)}"]
    parts += [change.note] if change.note is not None else []
    parts += [f"acknowledged: {change.acknowledged}"] if change.acknowledged is not None else []
    parts += [f"no longer worse since {change.repaired}"] if change.repaired is not None else []
    facts = ", ".join(map(_version_words, change.versions)) or "no version or setting on record changed there"
    return "; ".join([*parts, facts])


def as_json(assessed: Sequence[Assessment], caveats: Iterable[str], problems: Sequence[Problem]) -> str:
    """Return everything as one JSON document."""
    named = titles(assessed)
    fields = {
        "histories": [_json(one, named[one.history.cell_id]) for one in assessed],
        "caveats": list(caveats),
        "skipped": [{"path": str(problem.path), "reason": problem.reason} for problem in problems],
    }
    return document(fields)


def _one(one: Assessment, last: int, name: str) -> list[str]:
    history, changes = one.history, {change.run_id: change for change in one.changes}
    device = history.device_name or "device not known"
    lines = [name, f"cell {history.cell_id}, host {history.host_id}, {device}", ""]
    shown = history.sessions[-last:]
    if len(shown) < len(history.sessions):
        lines.append(f"  {len(history.sessions) - len(shown)} earlier sessions: --last {len(history.sessions)}")
    what = "step time" if history.figure == STEP_TIME else history.figure.name
    head = ["session", what, "95 % interval", "processes", "left out"]
    rows = columns([head, *(_row(session, history.figure) for session in shown)])
    lines.append(f"  {rows[0]}")
    for session, row in zip(shown, rows[1:], strict=True):
        if change := changes.get(session.run_id):
            lines.append(f"  -- {change_words(change)}")
            if kind_of(change, history.figure.goal) is ChangeKind.SLOWER:
                lines += [f"     to find the version: {command}" for command in searches(one, change)]
        lines.append(f"  {row}")
    return [*lines, "", *_baseline(one)]


def _row(session: CellSession, figure: Figure) -> list[str]:
    left_out = ", ".join(f"{count} {status}" for status, count in session.left_out.items())
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


def _baseline(one: Assessment) -> list[str]:
    if not one.levels:
        return ["no session has a value: no process ended ok"]
    level, figure = one.levels[-1], one.history.figure
    count = level.last - level.first + 1
    begun = one.history.valued[level.first].run_id
    interval = f", 95 % interval {_interval(level.step_time, figure)}" if level.step_time.low is not None else ""
    sessions = f"{count} session{'s' if count > 1 else ''}"
    lines = [f"baseline: {sessions} since {begun}, {amount(level.step_time.centre, figure.unit)}{interval}"]
    if one.spread is None:
        lines.append(f"spread between sessions: needs {LEAST_SESSIONS} sessions, {count} so far")
    else:
        lines.append(f"spread between sessions: {_spread(one.spread)}")
    if len(one.history.valued) < LEAST_FOR_CHANGES:
        lines.append(f"changes: need at least {LEAST_FOR_CHANGES} sessions")
    elif not one.changes:
        lines.append("changes: none found")
    return lines


def _spread(spread: SessionSpread | None) -> str:
    return NOTHING if spread is None else percentage(spread.between_log)


def _short(change: Change) -> str:
    size = "" if change.ratio is None else f"{percent_change(change.ratio)} "
    words = {"intended": change.note, "repaired": change.repaired, "acknowledged": change.acknowledged}
    word = next((f" ({word})" for word, known in words.items() if known), "")
    return f"{size}{change.run_id}{word}"


def _version_words(one: VersionChange) -> str:
    place = ""
    if one.sessions_off:
        count = abs(one.sessions_off)
        place = f" ({count} session{'s' if count > 1 else ''} {'later' if one.sessions_off > 0 else 'before'})"
    return f"{one.name} {one.before or 'absent'} -> {one.after or 'absent'}{place}"


def _json(one: Assessment, name: str) -> dict[str, Any]:
    history = one.history
    return {
        "title": name,
        "cell_id": history.cell_id,
        "host_id": history.host_id,
        "device": list(history.device) if history.device else None,
        "figure": to_json(history.figure),
        "sessions": [to_json(session) for session in history.sessions],
        "changes": [to_json(change) for change in one.changes],
        "levels": [to_json(level) for level in one.levels],
        "spread": to_json(one.spread) if one.spread else None,
    }
