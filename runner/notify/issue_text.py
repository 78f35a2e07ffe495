"""A notification as the text of a GitHub issue or comment, with the marker by which the issue is found again. Pure.

The marker is an HTML comment, which GitHub does not show. Names, versions and reasons come from records and files, so
they appear as code, in which GitHub interprets no markup, mention or reference.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from keras_matrix.analysis.history.change_points import VersionChange
from keras_matrix.analysis.traces import OperationShift
from keras_matrix.records.codec import CodecError, canonical, decode, loads
from keras_matrix.records.identity import RUN_ID
from keras_matrix.records.text import plural, printable, quantity, seconds
from keras_matrix.runner.notify.events import Event, Thread, history_key
from keras_matrix.runner.notify.notice import Notice, commands, machine_changes, summary

LABEL = "benchmark-regression"
MARKER = re.compile(r"<!-- keras-matrix (\{[^\n]*\}) -->")
TITLE_LIMIT = 200  # GitHub accepts 256 characters
SESSIONS_BEFORE, SESSIONS_DRAWN = 20, 60
FOOT = (
    "Written by `runner history --notify`. It comments here when the change grows, and closes this issue when the cell "
    "recovers. An issue that you close is not opened again for the same change. To keep the reason with the history:"
)


@dataclass(frozen=True, slots=True)
class Marker:
    """The state of an issue: the fields of its `Thread` that GitHub does not know itself."""

    history: str
    run_id: str
    slower_by: float
    last: Event
    events: int


def marker_of(body: str) -> Marker | None:
    """Return the marker in the text of an issue, None without a valid one."""
    found = MARKER.search(body)
    if found is None:
        return None
    try:
        marker = decode(Marker, loads(found[1]), "marker")
    except CodecError:
        return None
    return marker if RUN_ID.fullmatch(marker.run_id) and marker.slower_by > 0 else None


def marker_after(notice: Notice) -> Marker:
    """Return the marker of the issue once this notification is sent."""
    thread: Thread | None = notice.due.thread
    events = thread.events + 1 if thread else 1
    key = history_key(notice.history)
    return Marker(key, notice.run_id, round(notice.due.slower_by, 4), notice.due.event, events)


def with_marker(body: str, marker: Marker) -> str:
    """Return the text of an issue with another marker and no other change."""
    return MARKER.sub(lambda _: _hidden(marker), body, count=1)


def comment_mark(events: int) -> str:
    """Return the hidden mark of the comment that is an issue's event of this number."""
    return f"<!-- keras-matrix event {events} -->"


def title(notice: Notice) -> str:
    """Return the title of an issue."""
    text = printable(f"{notice.view.title}: {notice.size} since {notice.change.run_id}")
    return text if len(text) <= TITLE_LIMIT else text[: TITLE_LIMIT - 1] + "…"


def body(notice: Notice) -> str:
    """Return the text of a new issue."""
    parts = [_hidden(marker_after(notice)), *_facts(notice), *_causes(notice), *_picture(notice), *_how(notice)]
    return printable("\n".join(parts))


def comment(notice: Notice) -> str:
    """Return the text of a comment about a later event; a growth has its picture."""
    lines = [comment_mark(marker_after(notice).events), code(summary(notice))]
    if notice.due.event is Event.DUPLICATE and notice.due.original:
        lines[-1] = f"Duplicate of #{notice.due.original.number}: two runners opened an issue at the same time."
    lines += _picture(notice) if notice.due.event in (Event.GROWN, Event.REOPENED) else []
    return printable("\n".join(lines))


def code(text: str) -> str:
    """Return a text that others wrote as code in a line."""
    return f"`{printable(text).replace('`', chr(39)).replace(chr(10), ' ') or ' '}`"


def _hidden(marker: Marker) -> str:
    return f"<!-- keras-matrix {canonical(marker)} -->"


def _facts(notice: Notice) -> list[str]:
    history, (before, after) = notice.history, notice.sides
    place = f"host {history.host_id}, {' '.join(history.device or ('device not known',))}"
    owner = notice.about.owner or "nobody named: `--owner`"
    return [
        f"**{notice.size}** since session {code(notice.change.run_id)}: {quantity(before.centre, notice.unit)} → "
        f"{quantity(after.centre, notice.unit)}, means of {plural(before.count, 'session')} and {after.count}.",
        "",
        "| | |",
        "|---|---|",
        f"| cell | {_cell(notice.view.title)}, {code(history.cell_id)} |",
        f"| machine | {_cell(place)} |",
        f"| owner | {owner} |",
        f"| who may know | {_cell(notice.likely)} |",
    ]


def _causes(notice: Notice) -> list[str]:
    changed = [f"- {_version(one)}" for one in notice.change.versions] or ["- no version or setting on record"]
    return [
        "",
        "### What changed there",
        *changed,
        "",
        "That they changed together does not prove that one caused the other.",
    ]


def _picture(notice: Notice) -> list[str]:
    """Return a chart that GitHub draws from text: an issue cannot be given a picture through the API."""
    sessions, unit = notice.history.valued, notice.unit
    first = max(0, min(notice.change.index - SESSIONS_BEFORE, len(sessions) - SESSIONS_DRAWN))
    last = min(first + SESSIONS_DRAWN, len(sessions))
    values = [one.step_time.centre / unit.size for one in sessions[first:last] if one.step_time]
    levels = {
        index: level.step_time.centre / unit.size
        for level in notice.view.assessed.levels
        for index in range(level.first, level.last + 1)
    }
    shown = [levels[index] for index in range(first, last)]
    low, high = min(*values, *shown), max(*values, *shown)
    room = (high - low) / 10 or high / 10
    name = f"{notice.history.figure.name}, {unit.name}".removesuffix(", ").replace('"', "'")
    page = [f"[All sessions of this cell]({notice.about.page})", ""] if notice.about.page else []
    return [
        "",
        "```mermaid",
        "xychart-beta",
        f'  x-axis "session" {first + 1} --> {last}',
        f'  y-axis "{printable(name)}" {low - room:.4g} --> {high + room:.4g}',
        f"  line [{', '.join(f'{value:.4g}' for value in values)}]",
        f"  line [{', '.join(f'{value:.4g}' for value in shown)}]",
        "```",
        f"Sessions {first + 1} to {last} of {len(sessions)}, and the levels between changes.",
        "",
        *page,
    ]


def _how(notice: Notice) -> list[str]:
    shown = commands(notice)
    lines = ["### Reproduce", "```sh", *shown, "```"]
    if len(shown) > 1 and (others := machine_changes(notice)):
        names = ", ".join(code(one.name) for one in others)
        lines += [f"Two environments on one machine do not show the share of {names}."]
    cell, run = notice.history.cell_id, notice.change.run_id
    silence = f"`runner history ack {cell} --run {run} --reason TEXT`."
    return [*lines, "", "### Traces", *_traces(notice), "", "---", f"{FOOT} {silence}"]


def _traces(notice: Notice) -> list[str]:
    shifts = notice.about.shifts
    if shifts is None:
        new = code(f"runner trace {notice.history.cell_id} --new")
        return [f"No session on both sides of the change has a trace; record one with {new}."]
    return [f"- {_shift(one)}" for one in shifts] or ["The operations take the same time in both traces."]


def _shift(one: OperationShift) -> str:
    return f"{code(one.name or 'no operation')}: {seconds(one.before_s)} → {seconds(one.after_s)} per step"


def _version(one: VersionChange) -> str:
    off = abs(one.sessions_off)
    place = f" ({plural(off, 'session')} {'later' if one.sessions_off > 0 else 'before'})" if off else ""
    return f"{code(one.name)} {code(one.before or 'absent')} → {code(one.after or 'absent')}{place}"


def _cell(text: str) -> str:
    """Return a text as code in a table, where a bar would end the cell."""
    return code(text.replace("|", "/"))
