"""Histories as pictures: one page, a dot a session, its levels as lines, its changes as upright strokes.

Promise: `render` is pure, and the page needs nothing but itself. Sessions stand side by side in the order of their run
ids, not at distances of time. Knows nothing of how changes are found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from analysis.changes import Assessment, Change, VersionChange
from analysis.history import Session
from dashboards import axes, report
from dashboards.axes import EDGE, Axis
from dashboards.format import Unit, plural, quantity, unit_for
from dashboards.pictures import Mark, Stroke, Word, slot_of
from records.task import Goal

HEIGHT = 230
LABELS_HEIGHT = 34
MOST_DRAWN = 250
MOST_DATES = 6


@dataclass(frozen=True, slots=True)
class Level:
    """A baseline: its line, and the band of the interval over its sessions where there is one (None: no band)."""

    line: Stroke
    width: str
    top: float | None
    height: float | None


@dataclass(frozen=True, slots=True)
class Event:
    """A change: the stroke across the picture, its label, and what it says in words."""

    at: str
    kind: str
    word: Word
    when: str
    size: str
    words: str
    run_id: str


@dataclass(frozen=True, slots=True)
class Picture:
    """One history as it is drawn."""

    title: str
    details: str
    backend: str
    slot: int
    axis: Axis
    heights: list[tuple[float, str]]
    dates: list[Word]
    summary: str
    baseline: str
    earlier: int
    marks: list[Mark] = field(default_factory=list)
    whiskers: list[Stroke] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    empty: list[Word] = field(default_factory=list)


def render(assessed: Sequence[Assessment], titles: Sequence[str], remarks: Sequence[str]) -> str:
    """Return the page of these histories, `titles` naming each; histories without a value are named, not drawn."""
    from markupsafe import Markup  # with Jinja: only a command that writes a page pays for it

    style = report.stylesheet() + (report.TEMPLATES / "history.css").read_text(encoding="utf-8")
    named = list(zip(assessed, titles, strict=True))
    return (
        report.templates()
        .get_template("history.html")
        .render(
            style=Markup(style),
            policy=report.policy(style),
            heading="History of " + (titles[0] if len(titles) == 1 else f"{len(titles)} cells and machines"),
            pictures=[picture(one, title) for one, title in named if one.levels],
            unmeasured=[title for one, title in named if not one.levels],
            remarks=list(remarks),
            height=HEIGHT,
            labels_height=LABELS_HEIGHT,
        )
    )


def picture(one: Assessment, title: str) -> Picture:
    """Return the newest sessions of a history as marks and strokes. It must have a value."""
    valued = one.history.valued
    earlier = max(0, len(valued) - MOST_DRAWN)
    shown = valued[earlier:]
    values = [value for session in shown for value in _ends(session)]
    figure = one.history.figure
    unit = unit_for([sorted(values)[len(values) // 2]]) if figure.unit == "s" else Unit(figure.unit, 1.0)
    axis = axes.fitted(values, f"{figure.name}, {unit.name}".removesuffix(", "), unit)
    slot = slot_of(str(one.history.settings.get("backend")))
    drawn = _Drawing(axis, slot, len(shown), earlier)
    found = Picture(
        title=title,
        details=_details(one),
        backend=str(one.history.settings.get("backend")),
        slot=slot,
        axis=axis,
        heights=[(_up(float(tick.at.rstrip("%"))), tick.label) for tick in axis.ticks()],
        dates=drawn.dates(shown),
        summary=_summary(one, title, unit),
        baseline=_baseline(one, unit),
        earlier=earlier,
    )
    for index, session in enumerate(shown):
        drawn.add_session(found, session, index)
    drawn.add_levels(found, one)
    drawn.add_events(found, one)
    found.empty.extend(drawn.without_value(one, shown))
    return found


@dataclass(frozen=True, slots=True)
class _Drawing:
    """Where things lie: sessions by their number along the width, values up the height."""

    axis: Axis
    slot: int
    count: int
    earlier: int

    def share(self, index: float) -> float:
        share = index / (self.count - 1) if self.count > 1 else 0.5
        return EDGE + min(1.0, max(0.0, share)) * (100 - 2 * EDGE)

    def across(self, index: float) -> str:
        return f"{self.share(index):.2f}%"

    def height(self, value: float) -> float:
        return _up(self.axis.share(value))

    def add_session(self, found: Picture, session: Session, index: int) -> None:
        assert session.step_time is not None
        at, estimate = self.across(index), session.step_time
        left_out = ", ".join(f"{count} {status}" for status, count in session.left_out.items())
        processes = plural(estimate.count, "process", "processes")
        tip = f"{session.run_id}: {quantity(estimate.centre, self.axis.unit)}, {processes}"
        tip += f"; left out: {left_out}" if left_out else ""
        found.marks.append(Mark(at, self.height(estimate.centre), self.slot, tip))
        if estimate.low is not None and estimate.high is not None:
            ends = (self.height(estimate.low), self.height(estimate.high))
            found.whiskers.append(Stroke(at, at, *ends, self.slot))

    def add_levels(self, found: Picture, one: Assessment) -> None:
        for level in one.levels:
            first, last = level.first - self.earlier, level.last - self.earlier
            if last < 0:
                continue
            y = self.height(level.step_time.centre)
            tip = (
                f"{plural(level.last - level.first + 1, 'session')}: {quantity(level.step_time.centre, self.axis.unit)}"
            )
            left, right = self.share(first - 0.4), self.share(last + 0.4)
            line = Stroke(f"{left:.2f}%", f"{right:.2f}%", y, y, self.slot, tip)
            low, high = level.step_time.low, level.step_time.high
            top = self.height(high) if high is not None else None
            height = round(self.height(low) - top, 1) if low is not None and top is not None else None
            found.levels.append(Level(line, f"{right - left:.2f}%", top, height))

    def add_events(self, found: Picture, one: Assessment) -> None:
        for number, change in enumerate(one.changes):
            index = change.index - self.earlier
            if index < 0:
                continue
            at = self.across(index - 0.5)
            size = f"{change.ratio - 1:+.1%}" if change.ratio is not None else "from the start"
            late = self.count > 1 and index > 0.8 * self.count
            label = f"{size}{' intended' if change.note else ''}"
            word = Word(at, 9 + 15 * (number % 2), label, *(("end", -5) if late else ("start", 5)))
            when, kind = _date(change.run_id), _kind(change, one.history.figure.goal)
            found.events.append(Event(at, kind, word, when, size, _words(change), change.run_id))

    def dates(self, shown: Sequence[Session]) -> list[Word]:
        """Return the dates of evenly spaced sessions, of a single day the hours; those at either end go inward."""
        step = max(1, -(-(self.count - 1) // (MOST_DATES - 1)))
        found, days = [], len({_date(session.run_id) for session in shown})
        for index in range(0, self.count, step):
            share = self.share(index)
            anchor = "start" if share < 8 else "end" if share > 92 else "middle"
            found.append(Word(f"{share:.2f}%", 14, _moment(shown[index].run_id, days), anchor))
        return found

    def without_value(self, one: Assessment, shown: Sequence[Session]) -> list[Word]:
        """Return a cross between the sessions where one has no value."""
        names = [session.run_id for session in shown]
        crosses = []
        for session in one.history.sessions:
            if session.step_time is None and session.run_id > names[0]:
                index = sum(name < session.run_id for name in names) - 0.5
                crosses.append(Word(self.across(index), HEIGHT - 6, "×", "middle"))
        return crosses


def _ends(session: Session) -> list[float]:
    estimate = session.step_time
    return [end for end in (estimate.low, estimate.centre, estimate.high) if end] if estimate else []


def _up(share: float) -> float:
    """Return the height of a share of the axis in per cent, below the labels of the changes."""
    return round(LABELS_HEIGHT + (1 - share / 100) * (HEIGHT - LABELS_HEIGHT), 1)


def _date(run_id: str) -> str:
    return f"{run_id[:4]}-{run_id[4:6]}-{run_id[6:8]}"


def _moment(run_id: str, days: int) -> str:
    return _date(run_id) if days > 1 else f"{_date(run_id)} {run_id[9:11]}:{run_id[11:13]}"


def _kind(change: Change, goal: Goal) -> str:
    """Return whether a change was meant, else whether it was for the worse; more is better where the goal says so."""
    if change.note is not None:
        return "intended"
    ratio = change.ratio or 1
    return "slower" if (ratio if goal is Goal.LOWER else 1 / ratio) > 1 else "quicker"


def _details(one: Assessment) -> str:
    device = " ".join(one.history.device or ("no device proved",))
    sessions = plural(len(one.history.valued), "session")
    return f"cell {one.history.cell_id} · host {one.history.host_id} · {device} · {sessions}"


def _baseline(one: Assessment, unit: Unit) -> str:
    level = one.levels[-1]
    spread = f"{one.spread.between_log:.1%} between sessions" if one.spread else "spread between sessions not known yet"
    since = f"since {_date(one.history.valued[level.first].run_id)}"
    return (
        f"{quantity(level.step_time.centre, unit)} {since}, {plural(level.last - level.first + 1, 'session')}; {spread}"
    )


def _summary(one: Assessment, title: str, unit: Unit) -> str:
    return f"{title}: {plural(len(one.changes), 'change')}; {_baseline(one, unit)}"


def _words(change: Change) -> str:
    parts = [f"intended: {change.note}"] if change.note is not None else []
    facts = ", ".join(map(_version, change.versions)) or "no version or setting on record changed there"
    return "; ".join([*parts, facts])


def _version(one: VersionChange) -> str:
    off = abs(one.sessions_off)
    place = f" ({plural(off, 'session')} {'later' if one.sessions_off > 0 else 'before'})" if off else ""
    return f"{one.name} {one.before or 'absent'} → {one.after or 'absent'}{place}"
