"""Synthetic traced steps, and the cells that they are of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from keras_matrix.analysis.explanation import Side
from keras_matrix.analysis.step_parts import StepParts, parts_of
from keras_matrix.records.traces.neutral import Head, Span, TrackKind
from tests.conftest import make_record, make_settings
from tests.records.traces.synthetic import span

COUNT = 5
Operation = tuple[str, float, dict[str, Any]]  # name, microseconds, phase and layer


def steps(count: int, step_us: float, operations: Sequence[Operation], jitter_us: float = 1.0) -> list[Span]:
    """Steps in which the operations run one after the other, then a gap; every second gap is longer by `jitter_us`."""
    spans: list[Span] = []
    begin_us = 0.0
    for number in range(1, count + 1):
        length_us = step_us + jitter_us * (number % 2)
        spans.append(span(f"step {number}", begin_us, length_us, TrackKind.STEPS, step=number))
        at_us = begin_us
        for name, duration_us, fields in operations:
            spans.append(span(name, at_us, duration_us, **fields))
            at_us += duration_us
        begin_us += length_us
    return spans


def parts(step_us: float, *operations: Operation, **changes: Any) -> StepParts:
    """The parts of five such steps; `backend`, `device` and `jitter_us` if they matter."""
    head = Head(changes.get("backend", "jax"), 1, changes.get("device", "cpu"), COUNT)
    return parts_of(head, steps(COUNT, step_us, operations, changes.get("jitter_us", 1.0)))


def side(found: StepParts, step_time_s: float | None = None, jit: bool = True) -> Side:
    """A side whose only process took as long without the profiler as with it, unless it is given."""
    record = make_record(step_time_s or found.step_time_s, settings=make_settings(backend=found.backend))
    assert record.resolved is not None
    record = replace(record, resolved=replace(record.resolved, jit_compile=jit, eager=False))
    return Side([record], record, found)
