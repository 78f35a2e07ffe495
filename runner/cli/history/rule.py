"""False alarms and delays of the rule for change points, measured by replay, as a table and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras_matrix.analysis.history.change_points import THRESHOLDS
from keras_matrix.analysis.history.replay import (
    LEAST_STORED,
    Delay,
    RunLength,
)
from keras_matrix.records.codec import to_json
from keras_matrix.records.text import interval, number, percentage
from keras_matrix.runner.cli.render.format import columns, document
from keras_matrix.runner.service import change_rule
from keras_matrix.runner.service.change_rule import Figures

if TYPE_CHECKING:
    pass


def lines(figures: Figures) -> list[str]:
    """Return the tables for the terminal."""
    replays = figures.replays
    head = ["false alarms: steady history", *(f"{length} (threshold {h})" for length, h in THRESHOLDS.items())]
    alarms = [head, *([name, *map(_run_length, found)] for name, found in figures.false_alarms.items())]
    head = [
        "delay: shift after " + f"{replays.baseline} sessions",
        *(percentage(shift) for shift in change_rule.SHIFTS),
    ]
    # The document names them without a space.
    delays = [head, *([name.replace("%", " %"), *map(_delay, found)] for name, found in figures.delays.items())]
    stored = figures.stored_sessions
    missing = f"stored history: {stored} sessions in levels long enough, {LEAST_STORED} needed"
    return [
        f"{replays.count} replays of {replays.sessions} sessions, seed {replays.seed}",
        "",
        *columns(alarms),
        "sessions to a false alarm on average, 95 % interval",
        "",
        *columns(delays),
        f"sessions until it is found: median, 90th percentile; share found within {replays.watched_after}; "
        f"threshold {THRESHOLDS[figures.run_length]}",
        *([missing] if stored < LEAST_STORED else []),
    ]


def as_json(figures: Figures) -> str:
    """Return the figures as a JSON document."""
    fields = {
        "replays": to_json(figures.replays),
        "thresholds": {str(length): threshold for length, threshold in THRESHOLDS.items()},
        "delays_at_run_length": figures.run_length,
        "shifts": list(change_rule.SHIFTS),
        "stored_sessions": figures.stored_sessions,
        "false_alarms": {name: [to_json(one) for one in found] for name, found in figures.false_alarms.items()},
        "delays": {name: [to_json(one) for one in found] for name, found in figures.delays.items()},
    }
    return document(fields)


def _run_length(one: RunLength) -> str:
    if one.mean is None or one.high is None:
        return f"above {number(one.low)}"
    return f"{number(one.mean)} {interval(one.low, one.high, one.mean)}"


def _delay(one: Delay) -> str:
    median, p90 = ("later" if sessions is None else str(sessions) for sessions in (one.median, one.p90))
    return f"{median}, {p90}; {percentage(one.share_found)}"
