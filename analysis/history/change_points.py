"""Finds the sessions of a history at which the level of its values moved, and by how much; and for each change its
kind, the versions that changed near it, and the commands that search its cause. Pure.

For each number of change points the segmentation with the least squared error is taken, exactly, by dynamic programming
(Truong, Oudre and Vayatis, "Selective review of offline change point detection methods", Signal Processing 167, 2020).
How many are accepted follows Bai and Perron, "Estimating and testing linear models with multiple structural changes",
Econometrica 66 (1998): each must be significant by the t statistic of its two adjacent levels with the scatter of all
levels pooled. So the penalty of a change point is the square of that threshold, in units of the variance, and short
histories have a higher one because their variance is less certain.

The threshold follows from the average number of sessions until a steady history is called changed (the average run
length); `analysis.history.replay` measures it. A single outlying session is first clipped to its neighbours (Hampel's
identifier: Davies and Gather, "The identification of multiple outliers", JASA 88, 1993).

Limits: a slow drift, or correlation between sessions, looks like steps; docs/history.md states how often.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from keras_matrix.analysis.history.sessions import CellSession, History, SessionSpread, session_spread
from keras_matrix.analysis.stats.blocks import Estimate, geometric
from keras_matrix.records.backends import DISTRIBUTIONS, STATED_LATER, TABLE
from keras_matrix.records.task import PREFIX, Goal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Values = Sequence[float] | NDArray[np.float64]

SHORTEST_LEVEL = 3
LEAST_FOR_CHANGES = 2 * SHORTEST_LEVEL
LOOK_AHEAD = 2
MOST_CHANGES = 20
ERRORS_AT_ONCE = 1 << 20
NEIGHBOURS = 2
CLIP = 3.0
MOVING_RANGE_TO_SD = 0.9539  # median of |difference| of two normal values, in standard deviations
NEAR = 2
# While more sessions arrive, 95 to 100 % of change points move by at most so many; two are at least three apart.
MOVES = 2
# Facts that a session may fail to determine, or that earlier records do not state: from or to unknown nothing changes.
SOMETIMES_UNKNOWN = frozenset({"machine_type", *STATED_LATER})
# Average run length in sessions under heavy tails -> threshold; measured, see docs/history.md.
THRESHOLDS = {300: 3.6, 1000: 4.2, 3000: 4.7}
USUAL_RUN_LENGTH = 1000
LEAST_SCATTER_LOG = 0.001  # no machine repeats closer; without it, equal values would make any change significant
NEGLIGIBLE = 0.01
# What a process records of its virtual environment, from which another can be made.
PACKAGES = ("python", *DISTRIBUTIONS)
NIGHTLY_KERAS = "keras-nightly"


@dataclass(frozen=True, slots=True)
class VersionChange:
    """A fact that differs between two neighbouring sessions; `sessions_off` is 0 at the change point itself."""

    name: str
    before: str | None
    after: str | None
    sessions_off: int


@dataclass(frozen=True, slots=True)
class Change:
    """The level moves at the session `run_id`: `ratio` is after / before. `note` is set if it was annotated.

    `acknowledged` is the reason for which a person accepted it; `repaired` is the session since which a change for the
    worse is undone.
    """

    run_id: str
    index: int
    ratio: float | None
    note: str | None
    versions: tuple[VersionChange, ...]
    acknowledged: str | None = None
    repaired: str | None = None


@dataclass(frozen=True, slots=True)
class Level:
    """The sessions `first` to `last` (indices into the valued ones, both included) and their geometric mean."""

    first: int
    last: int
    step_time: Estimate


@dataclass(frozen=True, slots=True)
class Assessment:
    """A history with its changes and levels; `spread` is that of the sessions since the last change."""

    history: History
    changes: tuple[Change, ...]
    levels: tuple[Level, ...]
    spread: SessionSpread | None


@dataclass(frozen=True, slots=True)
class Notes:
    """What people wrote about the changes of a history, by run: intended changes, and acknowledged ones."""

    intended: Mapping[str, str] = field(default_factory=dict)
    acknowledged: Mapping[str, str] = field(default_factory=dict)


def assess(history: History, notes: Notes = Notes(), run_length: int = USUAL_RUN_LENGTH) -> Assessment:
    """Return the changes of a history. An intended change is noted at the first run that has it.

    An intended change starts a new baseline: changes are searched on either side of it, never across.
    """
    sessions = history.valued
    if not sessions:
        return Assessment(history, (), (), None)
    noted_changes = _noted(sessions, notes.intended)
    starts = sorted({0, *noted_changes})
    ends = [*starts[1:], len(sessions)]
    logs, threshold = history.logs, THRESHOLDS[run_length]
    shifts = {
        start + index
        for start, end in zip(starts, ends, strict=True)
        for index in change_points(logs[start:end], threshold)
    }
    begins = sorted({0, *noted_changes, *shifts})
    levels = _levels(sessions, begins)
    acknowledged = _acknowledged(sessions, notes.acknowledged, begins[1:])
    repaired = _repaired(history, begins, noted_changes.keys(), threshold)
    changes = tuple(
        Change(
            sessions[after.first].run_id,
            after.first,
            after.step_time.centre / before.step_time.centre,
            noted_changes.get(after.first),
            version_changes(sessions, after.first),
            acknowledged.get(after.first),
            sessions[repaired[after.first]].run_id if after.first in repaired else None,
        )
        for before, after in itertools.pairwise(levels)
    )
    first_changes = (Change(sessions[0].run_id, 0, None, noted_changes[0], ()),) if 0 in noted_changes else ()
    return Assessment(history, first_changes + changes, levels, session_spread(sessions[levels[-1].first :]))


def change_points(logs: Values, threshold: float) -> list[int]:
    """Return the indices at which a new level begins; empty below `LEAST_FOR_CHANGES` values."""
    accepted_breaks: list[int] = []
    # Two opposite changes can hide each other, so that neither is significant alone: look ahead.
    for breaks, score in _segmentations(logs):
        if score > threshold:
            accepted_breaks = breaks
        if len(breaks) >= len(accepted_breaks) + LOOK_AHEAD:
            break
    return accepted_breaks


def evidence(logs: Values) -> float:
    """Return the highest threshold at which `change_points` still finds a change; 0 if it cannot find one."""
    return max((score for _, score in itertools.islice(_segmentations(logs), LOOK_AHEAD)), default=0.0)


def _segmentations(logs: Values) -> Iterator[tuple[list[int], float]]:
    """Yield the best segmentation with one change point, with two and so on, and the score of its weakest one."""
    if len(logs) < LEAST_FOR_CHANGES:
        return
    values = bounded(logs)
    for breaks in itertools.islice(segmentations(values), MOST_CHANGES):
        yield breaks, _weakest(values, breaks)


def segmentations(values: NDArray[np.float64]) -> Iterator[list[int]]:
    """Yield the segmentation of least squared error into two levels, into three and so on: where each level begins.

    Each level has at least `SHORTEST_LEVEL` values. Exact, by dynamic programming: Auger and Lawrence, "Algorithms for
    the optimal identification of segment neighborhoods", Bulletin of Mathematical Biology 51 (1989). Time per
    segmentation grows with the square of the number of values, memory with the number.
    """
    import numpy as np

    centred = np.concatenate([[0.0], values - np.mean(values)])
    sums, squares, positions = np.cumsum(centred), np.cumsum(centred**2), np.arange(len(centred))
    width = max(1, ERRORS_AT_ONCE // len(centred))
    blocks = [positions[first : first + width] for first in range(0, len(centred), width)]

    def errors(ends: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the squared errors of the levels from every position (rows) to these ends (columns)."""
        lengths = ends - positions[:, None]
        level_errors = squares[ends] - squares[:, None] - (sums[ends] - sums[:, None]) ** 2 / np.maximum(lengths, 1)
        return np.where(lengths >= SHORTEST_LEVEL, level_errors, np.inf)

    least = np.concatenate([errors(ends)[0] for ends in blocks])  # of the values before each position, in one level
    last_starts: list[NDArray[np.int64]] = []
    while len(values) >= (len(last_starts) + 2) * SHORTEST_LEVEL:
        best = [
            (total.argmin(axis=0), total.min(axis=0)) for total in (least[:, None] + errors(ends) for ends in blocks)
        ]
        last_starts.append(np.concatenate([start for start, _ in best]))
        least = np.concatenate([error for _, error in best])
        breaks, end = [], len(values)
        for starts in reversed(last_starts):
            end = int(starts[end])
            breaks.append(end)
        yield breaks[::-1]


def bounded(logs: Values) -> NDArray[np.float64]:
    """Return the values, each clipped to `CLIP` scatters of the median of its neighbours and itself."""
    import numpy as np

    values = np.asarray(logs, dtype=float)
    scatter = max(float(np.median(np.abs(np.diff(values)))) / MOVING_RANGE_TO_SD, LEAST_SCATTER_LOG)
    width = 2 * NEIGHBOURS + 1
    inner = np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=1)
    first_medians = [np.median(values[: i + NEIGHBOURS + 1]) for i in range(NEIGHBOURS)]
    last_medians = [np.median(values[i - NEIGHBOURS :]) for i in range(len(values) - NEIGHBOURS, len(values))]
    middles = np.concatenate([first_medians, inner, last_medians])
    clipped: NDArray[np.float64] = np.clip(values, middles - CLIP * scatter, middles + CLIP * scatter)
    return clipped


def version_changes(sessions: Sequence[CellSession], index: int) -> tuple[VersionChange, ...]:
    """Return the facts that changed at the session `index` or within `NEAR` sessions of it, nearest first."""
    changes = []
    for offset in sorted(range(-NEAR, NEAR + 1), key=abs):
        if not 0 < index + offset < len(sessions):
            continue
        before, after = sessions[index + offset - 1].facts, sessions[index + offset].facts
        for name in sorted(before.keys() | after.keys()):
            is_unknown = name in SOMETIMES_UNKNOWN and None in (before.get(name), after.get(name))
            if before.get(name) != after.get(name) and not is_unknown:
                changes.append(VersionChange(name, before.get(name), after.get(name), offset))
    return tuple(changes)


def _noted(sessions: Sequence[CellSession], notes: Mapping[str, str]) -> dict[int, str]:
    """Return the notes by the first session at or after their run; several at one session are joined."""
    note_by_index: dict[int, str] = {}
    for run_id, note in sorted(notes.items()):
        index = next((i for i, session in enumerate(sessions) if session.run_id >= run_id), None)
        if index is not None:
            note_by_index[index] = f"{note_by_index[index]}; {note}" if index in note_by_index else note
    return note_by_index


def _acknowledged(sessions: Sequence[CellSession], reasons: Mapping[str, str], begins: Sequence[int]) -> dict[int, str]:
    """Return the reasons by the change nearest to their run, which may have moved by `MOVES` sessions since."""
    reason_by_index: dict[int, str] = {}
    for index, reason in _noted(sessions, reasons).items():
        distance, nearest = min(((abs(begin - index), begin) for begin in begins), default=(MOVES + 1, 0))
        if distance <= MOVES:
            reason_by_index[nearest] = reason
    return reason_by_index


def _repaired(history: History, begins: Sequence[int], intended: Collection[int], threshold: float) -> dict[int, int]:
    if len(begins) < 3 or len(history.logs) < LEAST_FOR_CHANGES:
        return {}
    values = bounded(history.logs)
    return repairs(values if history.figure.goal is Goal.LOWER else -values, begins, intended, threshold)


def _levels(sessions: Sequence[CellSession], starts: Sequence[int]) -> tuple[Level, ...]:
    levels = []
    for start, end in zip(starts, [*starts[1:], len(sessions)], strict=True):
        mean = geometric([s.step_time.centre for s in sessions[start:end] if s.step_time])
        assert mean is not None
        levels.append(Level(start, end - 1, mean))
    return tuple(levels)


def _weakest(values: NDArray[np.float64], breaks: Sequence[int]) -> float:
    """Return the score of the least significant change point, as a standard normal value of equal probability."""
    import numpy as np

    fit = fitted(values, [0, *breaks])
    return float(np.min(fit.scores(np.diff(fit.means), slice(None, -1), slice(1, None)))) if fit.degrees > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Fit:
    """The means and sizes of the levels, and their pooled scatter with its degrees of freedom."""

    means: NDArray[np.float64]
    sizes: NDArray[np.int64]
    scatter: float
    degrees: int

    def scores(self, shifts: float | Values, first: slice | int, second: slice | int) -> NDArray[np.float64]:
        """Return the significance of shifts between levels, as standard normal values of equal probability."""
        import numpy as np

        from keras_matrix.analysis.stats.special import ndtri, stdtr

        errors = self.scatter * np.sqrt(1 / self.sizes[first] + 1 / self.sizes[second])
        scores: NDArray[np.float64] = -ndtri(stdtr(self.degrees, -np.abs(shifts) / errors))
        return scores


def fitted(values: Sequence[float] | NDArray[np.float64], starts: Sequence[int]) -> Fit:
    """Return the levels of these logarithms that begin at `starts`, of which the first is 0."""
    import numpy as np

    lengths = np.diff([*starts, len(values)])
    means = np.add.reduceat(np.asarray(values, dtype=float), starts) / lengths
    degrees = len(values) - len(starts)
    squares = float(np.sum((values - np.repeat(means, lengths)) ** 2))
    scatter = math.sqrt(squares / degrees) if degrees > 0 else 0.0
    return Fit(means, lengths, max(scatter, LEAST_SCATTER_LOG), degrees)


def repairs(
    costs: Sequence[float] | NDArray[np.float64], begins: Sequence[int], intended: Collection[int], threshold: float
) -> dict[int, int]:
    """Return for each repaired change where the level begins that repaired it; both are indices of sessions.

    `costs` are logarithms of which a higher one is worse, `begins` where each level begins, `intended` which of them
    were annotated.

    A later change may undo one for the worse. That one is repaired from the first later level on that is no worse than
    the level before it: less than half of the shift remains, and the rest is at most `NEGLIGIBLE`, or the rule for
    change points would not report it between two such levels. A level that an intended change made worse counts without
    that worsening, which somebody wanted.
    """
    fit = fitted(costs, begins)
    # An intended worsening is subtracted from all levels since.
    intended_shift, levels = 0.0, [float(fit.means[0])]
    for number in range(1, len(begins)):
        shift = float(fit.means[number] - fit.means[number - 1])
        intended_shift += max(shift, 0.0) if begins[number] in intended else 0.0
        levels.append(float(fit.means[number]) - intended_shift)
    undone_by = {}
    for number in range(1, len(begins)):
        if levels[number] > levels[number - 1] and begins[number] not in intended:
            undoing_number = next(_undoing(fit, levels, number, threshold), None)
            if undoing_number is not None:
                undone_by[begins[number]] = begins[undoing_number]
    return undone_by


def _undoing(fit: Fit, levels: Sequence[float], number: int, threshold: float) -> Iterator[int]:
    """Yield the later levels that are no worse than the one before the change to level `number`."""
    level_before = levels[number - 1]
    for later_number in range(number + 1, len(levels)):
        remaining_shift = levels[later_number] - level_before
        if remaining_shift >= (levels[number] - level_before) / 2:
            continue
        if (
            remaining_shift <= math.log1p(NEGLIGIBLE)
            or float(fit.scores(remaining_shift, number - 1, later_number)) <= threshold
        ):
            yield later_number


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


def packages_around(assessed: Assessment, change: Change) -> tuple[dict[str, str], dict[str, str]]:
    """Return the versions before and after a change and the changes of packages near it, without local versions."""
    offsets = [0, *(version.sessions_off for version in change.versions if version.name in PACKAGES)]
    sides = min(offsets) - 1, max(offsets)  # 0 is the first session after the change
    before, after = (assessed.history.valued[change.index + offset].facts for offset in sides)
    return _versions(before), _versions(after)


def searches(assessed: Assessment, change: Change) -> list[str]:
    """Return a command for each package that became newer; packages that move as one set have one."""
    history = assessed.history
    if str(history.settings.get("workload", "")).startswith(PREFIX):
        return []
    before, after = packages_around(assessed, change)
    moving = {name: backend.name for backend in TABLE.values() for name in (*backend.packages, *backend.plugins)}
    search_by_package: dict[str, str] = {}
    for name in DISTRIBUTIONS:
        good, bad = _version(before.get(name)), _version(after.get(name))
        if good and bad and bad > good and (package := _package(name, good, bad)):
            end_flags = f"--good {shlex.quote(before[name])} --bad {shlex.quote(after[name])}"
            pre_flag = " --pre" if good.is_prerelease or bad.is_prerelease else ""
            search_by_package.setdefault(
                moving.get(name, name), f"runner bisect {history.cell_id} --package {package} {end_flags}{pre_flag}"
            )
    return list(search_by_package.values())


def _package(name: str, good: Version, bad: Version) -> str | None:
    """Return the package that has both versions, or None: Keras's nightly wheels have a name of their own."""
    if name != "keras" or not (good.is_devrelease or bad.is_devrelease):
        return name
    return NIGHTLY_KERAS if good.is_devrelease and bad.is_devrelease else None


def _versions(facts: Mapping[str, str]) -> dict[str, str]:
    return {name: facts[name].partition("+")[0] for name in PACKAGES if name in facts}


def _version(text: str | None) -> Version | None:
    with contextlib.suppress(InvalidVersion):
        return Version(text) if text else None
    return None
