"""How a process started: what of it was tracing and compiling, as far as the backend reports it.

The backends' events are seconds of the wall clock over the whole process: building a model compiles the programs of
its initialisers, often for longer than the first step takes, and batches, counts of weights and the search for the
steps per epoch compile others. So tracing and compiling are parts of the process, not of the first step. Guarantee:
pure; parts that exceed their whole, as sums over threads that compile at the same time may, are not stated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from keras_matrix.records.schema import Record, Times

MEANING = "trace and compile are of the whole process, building included; they are not parts of the first step"


@dataclass(frozen=True, slots=True)
class Start:
    """The median over the processes of how they started, in seconds; None for what was not reported or measured."""

    trace_time_s: float | None
    compile_time_s: float | None
    first_step_time_s: float | None


def start_of(records: Sequence[Record]) -> Start:
    """Return how these processes started, with those of tracing and compiling that fit into their whole."""
    times = [record.times for record in records]
    stated = [record.times for record in records if fits(record)]
    return Start(
        _median([each.trace_time_s for each in stated]),
        _median([each.compile_time_s for each in stated]),
        _median([each.first_step_time_s for each in times]),
    )


def reported(times: Times) -> bool:
    """Return whether the backend reported tracing or compiling."""
    return times.trace_time_s is not None or times.compile_time_s is not None


def fits(record: Record) -> bool:
    """Return whether tracing and compiling together took no longer than the process, if its time was measured."""
    whole_s, times = record.harness.wall_time_s, record.times
    return whole_s is None or (times.trace_time_s or 0.0) + (times.compile_time_s or 0.0) <= whole_s


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
