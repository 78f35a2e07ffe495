"""Sessions of one cell on one machine: one value a session, and the spread between sessions.

The hierarchy is epoch < process < session < host. A session is one run on one host; its value is the geometric mean
over its processes of the step time, or of the primary metric of an external command. Only processes that ended ok are
averaged; failed and unstable ones are counted separately. Histories of different hosts or devices are never joined.

Results of two sessions differ by boot, driver and hour, so the interval of their ratio includes the variance between
sessions, estimated from the sessions since the last change; without that estimate there is no interval.

Sources: one-way random effects and the estimate of their variance from the mean squares: Searle, Casella and McCulloch,
"Variance Components" (1992), ch. 3. Degrees of freedom of a sum of variances: Satterthwaite, "An approximate
distribution of estimates of variance components", Biometrics Bulletin 2 (1946).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keras_matrix.analysis.comparison.primary_metric import STEP_TIME, Figure
from keras_matrix.analysis.stats.blocks import CONFIDENCE, Estimate, geometric, t_quantile
from keras_matrix.records.history_reader import Attempt, Past
from keras_matrix.records.schema import MEASURED, Status

LEAST_SESSIONS = 5
LEAST_PROCESSES = 3


@dataclass(frozen=True, slots=True)
class CellSession:
    """One cell in one session. `step_time`, for a command its primary metric, is None if no process ended ok.

    `left_out` counts the others by status. `se_log` is the standard error of the logarithm of the value, from its
    processes; None below two of them.
    """

    run_id: str
    step_time: Estimate | None
    se_log: float | None
    left_out: Mapping[str, int]
    facts: Mapping[str, str]


def device_name(device: str) -> str:
    """Return a platform and model as text that says nothing twice: the model of a CPU is `cpu`, or `cpu:0`."""
    platform, _, model = device.partition(" ")
    return (model or platform) if model.partition(":")[0] in ("", platform) else device


@dataclass(frozen=True, slots=True)
class History:
    """One cell on one host and device: its sessions, oldest first, and their figure. `settings` are as stored."""

    cell_id: str
    host_id: str
    device: tuple[str, str] | None
    settings: Mapping[str, Any]
    sessions: tuple[CellSession, ...]
    figure: Figure = STEP_TIME

    @property
    def device_name(self) -> str | None:
        """The platform and model of its device, as `cpu` or `gpu NVIDIA H100`; None if it was not proved."""
        return device_name(" ".join(self.device)) if self.device else None

    @property
    def valued(self) -> tuple[CellSession, ...]:
        """The sessions that have a value."""
        return tuple(session for session in self.sessions if session.step_time is not None)

    @property
    def logs(self) -> list[float]:
        """The logarithms of the sessions' values."""
        return [math.log(session.step_time.centre) for session in self.sessions if session.step_time is not None]


@dataclass(frozen=True, slots=True)
class SessionSpread:
    """The standard deviation of the log step time between sessions, and the number of sessions it is estimated from.

    `between_log` is the sessions' own share; `total_log` is that of their values, which includes the scatter of their
    processes.
    """

    between_log: float
    total_log: float
    sessions: int


@dataclass(frozen=True, slots=True)
class SessionRatio:
    """New / base of two sessions: its estimate, and the standard errors of its logarithm with their degrees of freedom.

    The largest error determines the interval and the p-value; empty if there is no interval.
    """

    estimate: Estimate
    errors: tuple[tuple[float, float], ...] = ()

    def p_above(self, ratio: float) -> float | None:
        """Return the one-sided p-value of Student's test that the ratio is above this one; None without an error."""
        distance = math.log(self.estimate.centre / ratio)
        return max((_tail(distance, error, degrees) for error, degrees in self.errors), default=None)

    def p_value(self) -> float | None:
        """Return the two-sided p-value of Student's test that the ratio is 1; None without an error."""
        distance = abs(math.log(self.estimate.centre))
        tails = [_tail(distance, error, degrees) for error, degrees in self.errors]
        return min(1.0, 2 * max(tails)) if tails else None


def histories(past: Past) -> list[History]:
    """Return the history of every cell, host and device, sorted by workload, backend, cell, host and device."""
    groups: dict[tuple[str, str], dict[str, list[Attempt]]] = {}
    for run in past.runs:
        for attempt in run.attempts:
            cell = groups.setdefault((attempt.cell_id, attempt.host_id), {})
            cell.setdefault(run.run_id, []).append(attempt)
    all_histories = [
        _history(past, cell_id, host_id, device, runs)
        for (cell_id, host_id), runs in groups.items()
        for device in sorted({attempt.device for attempts in runs.values() for attempt in attempts if attempt.device})
        or (None,)
    ]
    names = ("workload", "backend")
    return sorted(
        all_histories,
        key=lambda h: (*(str(h.settings.get(n, "")) for n in names), h.cell_id, h.host_id, *(h.device or ())),
    )


def session_spread(sessions: Sequence[CellSession]) -> SessionSpread | None:
    """Return the spread of the values of these sessions; None with fewer than `LEAST_SESSIONS` of them.

    Pass the sessions since the last change, found or annotated. The variance between sessions is that of their values
    less the mean of their squared standard errors, and not below 0.
    """
    valued = [session for session in sessions if session.step_time is not None]
    if len(valued) < LEAST_SESSIONS:
        return None
    total = statistics.variance(math.log(s.step_time.centre) for s in valued if s.step_time)
    variance_within = statistics.fmean((session.se_log or 0.0) ** 2 for session in valued)
    return SessionSpread(math.sqrt(max(0.0, total - variance_within)), math.sqrt(total), len(valued))


def across_sessions(
    base_s: Sequence[float], new_s: Sequence[float], spread: SessionSpread | None
) -> SessionRatio | None:
    """Return the ratio new / base of step times measured in different sessions, with its interval.

    Each argument has one step time a process, all of one session. Both sessions are drawn from the same spread. No
    interval if the spread is unknown or a session has fewer than `LEAST_PROCESSES`; None without any value. Over 5 to
    20 sessions of 3 to 5 processes the 95 % interval covers 94.7 to 99.1 % (docs/history.md).
    """
    base, new = log_mean(base_s), log_mean(new_s)
    if base is None or new is None:
        return None
    ratio, count = math.exp(new[0] - base[0]), min(len(base_s), len(new_s))
    if spread is None or base[1] is None or new[1] is None or count < LEAST_PROCESSES:
        return SessionRatio(Estimate(ratio, None, None, count))
    parts_within = [(base[1] ** 2, len(base_s) - 1), (new[1] ** 2, len(new_s) - 1)]
    freedom = spread.sessions - 1
    # Few sessions often underestimate the variance between them, and then the sum covers 92.5 %. The difference of two
    # values like those of the history is exact for equal numbers of processes: the interval is never narrower.
    variances = [*parts_within, (2 * spread.between_log**2, freedom)], [(2 * spread.total_log**2, freedom)]
    return with_interval(ratio, count, variances)


Part = tuple[float, int]
"""An estimated part of a variance, and its degrees of freedom."""


def with_interval(
    ratio: float, count: int, variances: Sequence[Sequence[Part]], confidence: float = CONFIDENCE
) -> SessionRatio:
    """Return the ratio with the interval of the widest of these variances of its logarithm.

    Each variance is given as its independent parts, whose sum has Satterthwaite's degrees of freedom.
    """
    errors = tuple(
        summed(variance_parts)
        for variance_parts in variances
        if any(part_variance for part_variance, _ in variance_parts)
    ) or ((0.0, 1.0),)
    half = max(t_quantile(degrees, confidence) * error for error, degrees in errors)
    return SessionRatio(Estimate(ratio, ratio * math.exp(-half), ratio * math.exp(half), count), errors)


def summed(variance_parts: Sequence[Part]) -> tuple[float, float]:
    """Return the standard error of a sum of variances, not all of them 0, and Satterthwaite's degrees of freedom."""
    variance = sum(part_variance for part_variance, _ in variance_parts)
    return math.sqrt(variance), variance**2 / sum(
        part_variance**2 / freedom for part_variance, freedom in variance_parts
    )


def _tail(distance: float, error: float, degrees: float) -> float:
    from keras_matrix.analysis.stats.special import stdtr

    if error == 0:
        return 0.0 if distance > 0 else 1.0
    return float(stdtr(degrees, -distance / error))


def log_mean(values: Sequence[float]) -> tuple[float, float | None] | None:
    """Return the mean of the logarithms and its standard error; None for no values."""
    if not values:
        return None
    logs = [math.log(value) for value in values]
    error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else None
    return statistics.fmean(logs), error


def _history(
    past: Past, cell_id: str, host_id: str, device: tuple[str, str] | None, runs: Mapping[str, Sequence[Attempt]]
) -> History:
    sessions = []
    for run_id, attempts in sorted(runs.items()):
        # A failed attempt may have proved no device: it counts for every device of its host.
        device_attempts = [attempt for attempt in attempts if attempt.device in (device, None)]
        if device_attempts:
            sessions.append(_session(run_id, device_attempts))
    metric = past.primaries.get(cell_id)
    figure = STEP_TIME if metric is None else Figure(metric.name, metric.unit or "", metric.goal)
    return History(cell_id, host_id, device, past.settings.get(cell_id, {}), tuple(sessions), figure)


def _session(run_id: str, attempts: Iterable[Attempt]) -> CellSession:
    latest: dict[int, Attempt] = {}
    for attempt in sorted(
        attempts, key=lambda attempt: (attempt.status in MEASURED, attempt.attempt)
    ):  # as `latest_attempts`
        latest[attempt.repeat] = attempt
    ok = [a for a in latest.values() if a.status is Status.OK and a.value is not None]
    values = [a.value for a in ok if a.value is not None]
    mean = log_mean(values)
    why = {Status.OK: "ok without a value"}
    left_out = Counter(why.get(a.status, str(a.status)) for a in latest.values() if a not in ok)
    facts = dict((ok or list(latest.values()))[0].facts)
    return CellSession(run_id, geometric(values), mean[1] if mean else None, dict(sorted(left_out.items())), facts)
