"""What a trace comes to: where the time of its steps went. Kept beside it as `table.json`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TimeShare:
    """A part of the device's time: of an operation, a layer or a phase; `name` is None for what was not told.

    `time_s` is the time of itself alone, without what is nested in it, of all steps and workers; `share` that of all.
    """

    name: str | None
    count: int
    time_s: float
    share: float


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which no operation ran on a worker's device; `begin_s` counts from the first step.

    `before` and `after` are the operations round it, `meanwhile` what the program was marked to do for most of it.
    """

    worker: int
    begin_s: float
    duration_s: float
    before: str | None
    after: str | None
    meanwhile: str | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """What a trace comes to.

    `window_s` is the time from the first step's beginning until the device had done the last, over the traced epochs,
    the mean over workers; `busy_share` the share of it in which an operation ran, the mean over workers. `computed_s`
    is the operations' time, which is more than the busy time where several run at once; `by_kind` divides it into
    compute, communication and copies. `overlap_share` is the share of the time with communication in which the same
    worker computed, too; None without communication. `warnings` are the profiler's own.
    """

    backend: str
    device: str
    workers: int
    steps: int | None
    window_s: float
    busy_share: float | None
    computed_s: float
    by_operation: list[TimeShare] = field(default_factory=list)
    by_layer: list[TimeShare] = field(default_factory=list)
    by_phase: list[TimeShare] = field(default_factory=list)
    by_kind: list[TimeShare] = field(default_factory=list)
    overlap_share: float | None = None
    gaps: list[Gap] = field(default_factory=list)
    gap_count: int = 0
    gap_time_s: float = 0.0
    warnings: list[str] = field(default_factory=list)

    @property
    def step_time_s(self) -> float | None:
        """Return the time of a step, with the profiler on."""
        return self.window_s / self.steps if self.steps else None
