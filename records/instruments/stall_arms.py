"""The arms of a stall analysis: cells that are equal but for their feed, page cache and input timers.

The settings of the warm arm, `base_of`, identify the analysis. All arms of one analysis must be measured interleaved.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from keras_matrix.records.settings import HOST_FED, OWN_OPTIONS, PIPELINE, RESIDENT, Scalar, Settings

KEYS = ("feed", "page_cache", "input_timers")
WARM, COLD = "warm", "cold"


class ArmName(StrEnum):
    """An arm of an analysis; `timed` has the page cache of the coldest other arm."""

    SYNTHETIC = "synthetic"
    HOST = "host"
    WARM = "warm"
    COLD = "cold"
    TIMED = "timed"


def arm_settings(*, cold: bool, users: bool = False) -> list[dict[str, Scalar]]:
    """Return the values of `KEYS` in the cell of each arm; without `cold` there is no cold arm.

    A user's own source may not state its files, and then has no cold arm: it is timed with a warm page cache too.
    """
    coldest = COLD if cold else WARM
    values = [(RESIDENT, WARM, False), (HOST_FED, WARM, False), (PIPELINE, WARM, False)]
    values += [(PIPELINE, COLD, False)] if cold else []
    values += [(PIPELINE, coldest, True)]
    values += [(PIPELINE, WARM, True)] if cold and users else []
    return [dict(zip(KEYS, arm_values, strict=True)) for arm_values in values]


def base_of(settings: Settings) -> Settings:
    """Return the settings of the warm arm of a cell's analysis."""
    decided = decided_by_matrix(settings.set_by_matrix) if ":" in settings.workload else settings.set_by_matrix
    return replace(settings, feed=PIPELINE, page_cache=WARM, input_timers=False, set_by_matrix=decided)


def decided_by_matrix(set_by_matrix: str) -> str:
    """Return which options of a user's workload the matrix decides in an arm: in addition, those of `KEYS`."""
    options = {*set_by_matrix.split(","), *KEYS}
    return ",".join(option for option in OWN_OPTIONS if option in options)


def arms_of(base: Settings, *, cold: bool) -> list[Settings]:
    """Return the settings of every cell of an analysis."""
    is_users = ":" in base.workload
    return [_with(base, changes) for changes in arm_settings(cold=cold, users=is_users)]


def _with(base: Settings, changes: dict[str, Scalar]) -> Settings:
    feed, page_cache, is_timed = str(changes["feed"]), str(changes["page_cache"]), changes["input_timers"] is True
    return replace(base, feed=feed, page_cache=page_cache, input_timers=is_timed)


def arm_of(settings: Settings) -> ArmName:
    """Return the arm that a cell is in its analysis."""
    if settings.feed != PIPELINE:
        return ArmName.HOST if settings.feed == HOST_FED else ArmName.SYNTHETIC
    if settings.input_timers:
        return ArmName.TIMED
    return ArmName.COLD if settings.page_cache == COLD else ArmName.WARM
