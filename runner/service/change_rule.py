"""Measures false alarms and delays of the rule for change points, by replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keras_matrix.analysis.history.change_points import THRESHOLDS
from keras_matrix.analysis.history.replay import (
    LEAST_STORED,
    Delay,
    Replays,
    RunLength,
    correlated,
    delay,
    heavy_tailed,
    normal,
    run_lengths,
    shuffled,
)

if TYPE_CHECKING:
    from keras_matrix.analysis.history.replay import Draw

SCATTERS = (0.01, 0.02, 0.05)
SHIFTS = (0.03, 0.05, 0.10)
MIDDLE_SCATTER = 0.02
CORRELATION = 0.3


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
