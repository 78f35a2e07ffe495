"""False alarm rate and detection delay of the rule for change points, measured by replaying histories.

A replay gives the rule a history session by session, as nightly runs would, and checks after each whether it finds a
change. Steady histories give the average run length to a false alarm; histories with an injected shift give the delay.
The values are drawn from a model of the scatter between sessions, or are those of stored histories in shuffled order,
each less its level.

Guarantee: the same seed gives the same figures. Replays end after a fixed number of sessions, so the average run length
is watched sessions / false alarms, with the exact interval of a Poisson rate (Garwood, "Fiducial limits for the Poisson
distribution", Biometrika 28, 1936).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keras_matrix.analysis.history.change_points import LEAST_FOR_CHANGES, THRESHOLDS, Assessment, evidence
from keras_matrix.analysis.history.sessions import LEAST_SESSIONS
from keras_matrix.analysis.stats.blocks import CONFIDENCE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]

LEAST_STORED = 20
SCATTERS = (0.01, 0.02, 0.05)
SHIFTS = (0.03, 0.05, 0.10)
MIDDLE_SCATTER = 0.02
CORRELATION = 0.3
HEAVY_DEGREES = 4


@dataclass(frozen=True, slots=True)
class Replays:
    """The number of replayed histories and of their sessions; `baseline` sessions precede an injected shift."""

    count: int = 200
    sessions: int = 250
    baseline: int = 20
    watched_after: int = 30
    seed: int = 0


@dataclass(frozen=True, slots=True)
class RunLength:
    """The average run length to a false alarm in sessions; `mean` and `high` are None without an alarm."""

    mean: float | None
    low: float
    high: float | None
    alarms: int
    watched: int


@dataclass(frozen=True, slots=True)
class Delay:
    """Sessions from a shift until it is found, the first at the new level being 1; None: later than watched."""

    median: int | None
    p90: int | None
    share_found: float
    replays: int


def normal(scatter_log: float) -> Draw:
    """Return draws of independent normal values with this standard deviation."""
    return lambda random, count: random.normal(0.0, scatter_log, count)


def heavy_tailed(scatter_log: float) -> Draw:
    """Return draws of Student's t with four degrees of freedom, scaled to this standard deviation."""
    scale = scatter_log / math.sqrt(HEAVY_DEGREES / (HEAVY_DEGREES - 2))
    return lambda random, count: scale * random.standard_t(HEAVY_DEGREES, count)


def correlated(scatter_log: float, correlation: float) -> Draw:
    """Return draws of a first-order autoregression, in which each value correlates with the one before."""

    def draw(random: np.random.Generator, count: int) -> NDArray[np.float64]:
        noise_logs = random.normal(0.0, scatter_log, count)
        for i in range(1, count):
            noise_logs[i] = correlation * noise_logs[i - 1] + math.sqrt(1 - correlation**2) * noise_logs[i]
        return noise_logs

    return draw


def shuffled(residuals_log: Sequence[float]) -> Draw:
    """Return draws of these values in random order, with replacement, for histories of any length."""

    def draw(random: np.random.Generator, count: int) -> NDArray[np.float64]:
        import numpy as np

        return random.choice(np.asarray(residuals_log), count)

    return draw


def residuals(assessments: Sequence[Assessment]) -> list[float]:
    """Return the values of all sessions on the log scale, each less its level, scaled up for the level's own fit.

    Levels of fewer than `LEAST_SESSIONS` sessions are left out.
    """
    scaled = []
    for assessment in assessments:
        logs = assessment.history.logs
        for level in assessment.levels:
            count = level.last - level.first + 1
            if count >= LEAST_SESSIONS:
                centre, scale = math.log(level.step_time.centre), math.sqrt(count / (count - 1))
                scaled += [(value - centre) * scale for value in logs[level.first : level.last + 1]]
    return scaled


def run_lengths(draw: Draw, thresholds: Sequence[float], replays: Replays) -> list[RunLength]:
    """Return the average run length to a false alarm at each threshold, from the same replays."""
    import numpy as np

    watched_counts, alarms = [0] * len(thresholds), [0] * len(thresholds)
    for random in _randoms(replays):
        peaks = _peaks(draw(random, replays.sessions))
        for i, threshold in enumerate(thresholds):
            alarm_indices = np.flatnonzero(peaks > threshold)
            alarms[i] += bool(alarm_indices.size)
            watched_counts[i] += int(alarm_indices[0]) + LEAST_FOR_CHANGES if alarm_indices.size else replays.sessions
    return [_run_length(*pair) for pair in zip(alarms, watched_counts, strict=True)]


def delay(draw: Draw, shift: float, threshold: float, replays: Replays) -> Delay:
    """Return how many sessions after a shift (0.05: 5 % slower) the rule finds it.

    Histories with a false alarm before the shift are excluded.
    """
    delays: list[int] = []
    delay_count = 0
    for random in _randoms(replays):
        values = draw(random, replays.baseline + replays.watched_after)
        values[replays.baseline :] += math.log1p(shift)
        if any(peak > threshold for peak in _peaks(values[: replays.baseline])):
            continue
        delay_count += 1
        lengths = range(replays.baseline + 1, len(values) + 1)
        alarm_length = next((length for length in lengths if evidence(values[:length]) > threshold), None)
        if alarm_length is not None:
            delays.append(alarm_length - replays.baseline)
    ordered = sorted(delays)
    return Delay(
        _at(ordered, delay_count, 0.5), _at(ordered, delay_count, 0.9), len(delays) / max(delay_count, 1), delay_count
    )


@dataclass(frozen=True, slots=True)
class Figures:
    """False alarms and delays by the name of the kind of history."""

    replays: Replays
    run_length: int
    stored_sessions: int
    false_alarms: dict[str, list[RunLength]]
    delays: dict[str, list[Delay]]


def measure(residuals_log: Sequence[float], replays: Replays, run_length: int) -> Figures:
    """Replay modelled histories, and the stored one shuffled where it has `LEAST_STORED` sessions."""
    steady: dict[str, Draw] = {
        "normal": normal(MIDDLE_SCATTER),
        "heavy tails (t, 4 degrees)": heavy_tailed(MIDDLE_SCATTER),
        f"neighbours alike (r {CORRELATION})": correlated(MIDDLE_SCATTER, CORRELATION),
    }
    moved = {f"scatter {100 * scatter:.0f}%": normal(scatter) for scatter in SCATTERS}
    if len(residuals_log) >= LEAST_STORED:
        steady["stored, shuffled"] = moved["stored, shuffled"] = shuffled(residuals_log)
    return Figures(
        replays,
        run_length,
        len(residuals_log),
        {name: run_lengths(draw, list(THRESHOLDS.values()), replays) for name, draw in steady.items()},
        {name: [delay(draw, s, THRESHOLDS[run_length], replays) for s in SHIFTS] for name, draw in moved.items()},
    )


def _randoms(replays: Replays) -> list[np.random.Generator]:
    import numpy as np

    return [np.random.default_rng([replays.seed, number]) for number in range(replays.count)]


def _peaks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the evidence for a change after each session, from `LEAST_FOR_CHANGES` sessions on."""
    import numpy as np

    return np.array([evidence(values[:length]) for length in range(LEAST_FOR_CHANGES, len(values) + 1)])


def _run_length(alarms: int, watched_count: int) -> RunLength:
    from keras_matrix.analysis.stats.special import gammaincinv

    tail = (1 - CONFIDENCE) / 2
    low = watched_count / float(gammaincinv(alarms + 1, 1 - tail))
    if not alarms:
        return RunLength(None, low, None, 0, watched_count)
    return RunLength(
        watched_count / alarms, low, watched_count / float(gammaincinv(alarms, tail)), alarms, watched_count
    )


def _at(ordered: Sequence[int], delay_count: int, share: float) -> int | None:
    """Return the smallest delay within which this share was found; None if fewer were."""
    rank = math.ceil(share * delay_count)
    return ordered[rank - 1] if 0 < rank <= len(ordered) else None
