"""What kind of change of a history a change is, for every list, page and notification of changes. Pure."""

from __future__ import annotations

from enum import StrEnum

from keras_matrix.analysis.history.change_points import Change
from keras_matrix.records.task import Goal


class ChangeKind(StrEnum):
    """Intended: annotated. The other kinds of a change for the worse: slower (open), acknowledged, repaired."""

    INTENDED = "intended"
    FASTER = "faster"
    SLOWER = "slower"
    ACKNOWLEDGED = "acknowledged"
    REPAIRED = "repaired"


def kind_of(change: Change, goal: Goal) -> ChangeKind:
    """Return the kind of a change; the goal decides whether a higher value is better."""
    if change.note is not None:
        return ChangeKind.INTENDED
    if slowdown(change, goal) <= 1:
        return ChangeKind.FASTER
    if change.repaired is not None:
        return ChangeKind.REPAIRED
    return ChangeKind.SLOWER if change.acknowledged is None else ChangeKind.ACKNOWLEDGED


def slowdown(change: Change, goal: Goal) -> float:
    """Return the factor by which a change made the figure worse, below 1 for a better one; 1 if it is not known."""
    ratio = change.ratio or 1.0
    return ratio if goal is Goal.LOWER else 1 / ratio
