"""Histories as they are shown: the baseline of each, its changes with their kinds, and what searches their cause. Pure.

Terminal, page, JSON document and notification render it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.history.change_points import Assessment, Change, ChangeKind, VersionChange, kind_of, searches
from keras_matrix.analysis.history.sessions import CellSession, History, SessionSpread
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.records.text import plural


@dataclass(frozen=True, slots=True)
class ChangeView:
    """A change of a history, its kind, the levels on both sides, and commands that search the version behind it."""

    change: Change
    kind: ChangeKind
    before: Estimate
    after: Estimate
    searches: tuple[str, ...]

    @property
    def remarks(self) -> list[str]:
        """Whether it is acknowledged or repaired."""
        texts = {"acknowledged: ": self.change.acknowledged, "no longer worse since ": self.change.repaired}
        return [f"{label}{text}" for label, text in texts.items() if text is not None]

    def facts(self, arrow: str) -> str:
        """Return what changed with it, each as `before`, this arrow, and `after`."""
        texts = [_version(version, arrow) for version in self.change.versions]
        return ", ".join(texts) or "no version or setting on record changed there"


@dataclass(frozen=True, slots=True)
class Baseline:
    """The level since the last change: its value over this many sessions, since a run, and the spread between them."""

    value: Estimate
    sessions: int
    since: str
    spread: SessionSpread | None


@dataclass(frozen=True, slots=True)
class HistoryView:
    """One history under its title. Without a session that has a value there is no `newest` one and no baseline."""

    title: str
    assessed: Assessment
    newest: Estimate | None
    changes: tuple[ChangeView, ...]
    baseline: Baseline | None

    @property
    def history(self) -> History:
        """The sessions."""
        return self.assessed.history

    def change_at(self, run_id: str) -> ChangeView | None:
        """Return the change at a run; None without one."""
        return next((view for view in self.changes if view.change.run_id == run_id), None)


def history_views(assessed: Sequence[Assessment], titles: Mapping[str, str]) -> list[HistoryView]:
    """Return what is shown of these histories; `titles` are by cell_id."""
    return [_view(assessment, titles[assessment.history.cell_id]) for assessment in assessed]


def left_out_text(session: CellSession) -> str:
    """Return the processes of a session that do not count, as in `2 crash`; empty for none."""
    return ", ".join(f"{count} {status}" for status, count in session.left_out.items())


def _view(assessed: Assessment, title: str) -> HistoryView:
    valued = assessed.history.valued
    return HistoryView(
        title,
        assessed,
        valued[-1].step_time if valued else None,
        tuple(_change(assessed, change) for change in assessed.changes),
        _baseline(assessed),
    )


def _change(assessed: Assessment, change: Change) -> ChangeView:
    numbers = [level.first for level in assessed.levels]
    place = numbers.index(change.index)
    kind = kind_of(change, assessed.history.figure.goal)
    return ChangeView(
        change,
        kind,
        assessed.levels[max(place - 1, 0)].step_time,
        assessed.levels[place].step_time,
        tuple(searches(assessed, change)) if kind is ChangeKind.SLOWER else (),
    )


def _baseline(assessed: Assessment) -> Baseline | None:
    if not assessed.levels:
        return None
    level = assessed.levels[-1]
    since_run_id = assessed.history.valued[level.first].run_id
    return Baseline(level.step_time, level.last - level.first + 1, since_run_id, assessed.spread)


def _version(version: VersionChange, arrow: str) -> str:
    distance = abs(version.sessions_off)
    place = f" ({plural(distance, 'session')} {'later' if version.sessions_off > 0 else 'before'})" if distance else ""
    return f"{version.name} {version.before or 'absent'} {arrow} {version.after or 'absent'}{place}"
