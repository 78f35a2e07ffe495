"""Comparison of cells measured in separate sessions, using the spread between sessions from the history.

Two cells of one session are paired by block, since they were measured alternately. Two cells of separate sessions also
differ by changes between the sessions (boot, driver, hour), which no number of processes reveals. So the ratio of two
such cells has an interval only if the stored history provides the spread between sessions of *both* cells.

The formula: the log ratio is the difference of the two means of log figures, and its variance is

    v = s1**2 / n1 + s2**2 / n2 + b1**2 + b2**2

with s the standard deviation between a session's n processes and b that between the cell's sessions. All four are
estimated independently, with n - 1 processes or k - 1 sessions as degrees of freedom, and their sum has

    v**2 / sum(part**2 / degrees of that part)

degrees of freedom: Welch, "The generalization of Student's problem when several different population variances are
involved", Biometrika 34 (1947); Satterthwaite, Biometrics Bulletin 2 (1946). Student's t with these gives the interval.
Few sessions often underestimate b; so the interval is never narrower than that of t1**2 + t2**2, where t is
the standard deviation of the session *values* of a cell, processes included. Simulated coverage of the 95 % interval:
94 to 99 % (5 to 20 sessions of 3 and 5 processes, equal and unequal spreads; tests/analysis/stats/test_sessions.py).

A geometric mean over several works has no such formula: the works of one session share the session's effect, to an
unknown degree. Its half-width is the mean of the works' half-widths: exact if they share it fully, too wide if they
share less (the standard deviation of a mean is at most the mean of the standard deviations).

Guarantee: pure. No interval below `LEAST_SESSIONS` other sessions or `LEAST_PROCESSES` processes of either cell.
Limit: sessions that differ in other ways than the history's sessions did are not covered.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.comparison.primary_metric import cost
from keras_matrix.analysis.history.sessions import (
    LEAST_PROCESSES,
    Part,
    SessionRatio,
    SessionSpread,
    log_mean,
    with_interval,
)
from keras_matrix.analysis.stats.blocks import CONFIDENCE, Estimate
from keras_matrix.analysis.stats.sequential import Looks
from keras_matrix.records.schema import Record, Status

NO_INTERVAL = "separate sessions, not alternating: no interval"
BY_SPREAD = "separate sessions, compared by the spread between sessions"

SpreadOf = Callable[[Sequence[Record]], SessionSpread | None]
"""From the records of one cell to the spread between the cell's other sessions, None if unknown."""


@dataclass(frozen=True, slots=True)
class SessionValue:
    """A cell's figure in one session, as a logarithm of its cost, and estimates of its variance.

    `se_log` is its standard error from `count` processes, None below two; `spread` is that between sessions.
    """

    session: str
    log: float
    count: int
    se_log: float | None = None
    spread: SessionSpread | None = None


@dataclass(frozen=True, slots=True)
class SeparateSessions:
    """The session of each backend's cells, the looks of that session, and a function to a cell's spread."""

    sessions: Mapping[str, str]
    looks: Mapping[str, Looks]
    spread_of: SpreadOf

    def apart(self, backends: Sequence[str]) -> bool:
        """Return whether these backends were measured in more than one session."""
        return len({self.sessions[backend] for backend in backends}) > 1

    def value(self, backend: str, records: Sequence[Record]) -> SessionValue | None:
        """Return the value of a cell in the session of its backend; None without a process that ended ok."""
        return session_value(self.sessions[backend], records, self.spread_of)


def session_value(session: str, records: Sequence[Record], spread_of: SpreadOf) -> SessionValue | None:
    """Return the value of a cell in a session, from its processes that ended ok, as in a history; else None.

    `records` are the valid attempts of one cell.
    """
    ok = [record for record in records if record.status is Status.OK]
    costs = [session_cost for record in ok if (session_cost := cost(record))]
    mean = log_mean(costs)
    return None if mean is None else SessionValue(session, mean[0], len(costs), mean[1], spread_of(ok))


def separate_ratio(value: SessionValue, other: SessionValue, confidence: float = CONFIDENCE) -> SessionRatio:
    """Return the ratio one / other of two sessions, with an interval if both spreads are known."""
    ratio, count = math.exp(value.log - other.log), min(value.count, other.count)
    variances = [_variances(side) for side in (value, other)]
    if variances[0] is None or variances[1] is None:
        return SessionRatio(Estimate(ratio, None, None, count))
    joined_variances = [*variances[0][0], *variances[1][0]], [*variances[0][1], *variances[1][1]]
    return with_interval(ratio, count, joined_variances, confidence)


def geometric_mean(ratios: Sequence[Estimate]) -> Estimate | None:
    """Return the geometric mean of ratios between the same two sessions; without an interval if a ratio lacks one."""
    if not ratios:
        return None
    log = statistics.fmean(math.log(ratio.centre) for ratio in ratios)
    widths = [ratio.half_width for ratio in ratios]
    known_widths = [width for width in widths if width is not None]
    if len(known_widths) < len(widths):
        return Estimate(math.exp(log), None, None, len(ratios))
    half = statistics.fmean(known_widths)
    return Estimate(math.exp(log), math.exp(log - half), math.exp(log + half), len(ratios))


def _variances(value: SessionValue) -> tuple[list[Part], list[Part]] | None:
    """Return a value's share of both variances, each as its parts; None if one of them is unknown."""
    if value.se_log is None or value.spread is None or value.count < LEAST_PROCESSES:
        return None
    freedom = value.spread.sessions - 1
    summed = [(value.se_log**2, value.count - 1), (value.spread.between_log**2, freedom)]
    return summed, [(value.spread.total_log**2, freedom)]
