"""The summary of a trace: how the time of its steps was spent. Stored next to it as `table.json`."""

from __future__ import annotations

from dataclasses import dataclass, field

from keras_matrix.records.traces.kineto import OF_HOST


@dataclass(frozen=True, slots=True)
class TimeShare:
    """The share of an operation, a layer or a phase in the device's time; `name` is None for the unknown rest.

    `time_s` is its own time without nested operations, over all steps and workers; `share` is relative to all.
    """

    name: str | None
    count: int
    time_s: float
    share: float


@dataclass(frozen=True, slots=True)
class IdleGap:
    """A time without any operation on a worker's device; `begin_s` counts from the first step.

    `before` and `after` are the neighbouring operations, `meanwhile` is the program's mark for most of this time.
    """

    worker: int
    begin_s: float
    duration_s: float
    before: str | None
    after: str | None
    meanwhile: str | None = None


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """The summary of a trace.

    `window_s` is the time from the beginning of the first step until the device finished the last, over the traced
    epochs, the mean over workers; on a device's clock, if its work is known by steps, and of the whole file without
    steps; `busy_share` is the share of it in which an operation ran, the mean over workers.
    `computed_s` is the operations' time, which exceeds the busy time if several run concurrently; `by_kind` divides it
    into compute, communication and copies. `overlap_share` is the share of the time with communication in which the
    same worker also computed; None without communication, and where it is not known. `warnings` are the profiler's own,
    `notes` say what is left out or not known, and why.
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
    gaps: list[IdleGap] = field(default_factory=list)
    gap_count: int = 0
    gap_time_s: float = 0.0
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def place(self) -> str:
        """Return where the operations ran: the host, if the work of its accelerator is not read."""
        is_host = self.device == "cpu" and any(text.endswith(OF_HOST) for text in self.notes)
        return "host" if is_host else f"device ({self.device})"

    @property
    def step_time_s(self) -> float | None:
        """Return the time of a step, with the profiler on."""
        return self.window_s / self.steps if self.steps else None
