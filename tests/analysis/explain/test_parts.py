"""The parts of a traced step add up to its time."""

from __future__ import annotations

import random

import pytest

from keras_matrix.analysis.step_parts import PartKey, TrackPlace, parts_of
from keras_matrix.records.traces.neutral import Head, Span, TrackKind
from tests.analysis.explain.traced import steps
from tests.records.traces.synthetic import span

HEAD = Head("jax", 1, "cpu", 1)
GAP, INPUT, BETWEEN = (PartKey(place) for place in (TrackPlace.GAP, TrackPlace.INPUT, TrackPlace.BETWEEN))


def us(spans: list[Span], head: Head = HEAD) -> dict[str, float]:
    """The mean time of each part in microseconds, by its operation or its place."""
    return {key.op or str(key.place): part.mean_s * 1e6 for key, part in parts_of(head, spans).parts.items()}


def test_time_of_a_moment_belongs_to_the_innermost_operation() -> None:
    found = us([span("step 1", 0, 100, TrackKind.STEPS, step=1), span("linear", 0, 100), span("mm", 20, 50)])
    assert found == pytest.approx({"linear": 50, "mm": 50})


def test_operations_that_run_at_the_same_time_share_it_equally() -> None:
    found = us([span("step 1", 0, 100, TrackKind.STEPS, step=1), span("a", 0, 100), span("b", 50, 50, lane=1)])
    assert found == pytest.approx({"a": 75, "b": 25})


def test_moment_without_an_operation_is_a_fetch_or_a_gap_or_between_steps() -> None:
    found = us(
        [
            span("step 1", 0, 100, TrackKind.STEPS, step=1),
            span("a", 10, 60, step=1),
            span("input", 120, 30, TrackKind.INPUT),
            span("step 2", 200, 100, TrackKind.STEPS, step=2),
            span("a", 200, 100, step=2),
        ]
    )
    assert found == pytest.approx(
        {str(TrackPlace.GAP): 20, "a": 80, str(TrackPlace.BETWEEN): 35, str(TrackPlace.INPUT): 15}
    )


def test_work_that_begins_within_a_later_step_is_counted_once() -> None:
    spans = [*(span(f"step {n}", 100 * n, 100, TrackKind.STEPS, step=n) for n in range(3))]
    spans += [span("a", 100 * n + 60, 80, lane=n % 2, step=n) for n in range(3)]
    found = parts_of(HEAD, spans)
    assert {key.op: part.count for key, part in found.parts.items() if key.op} == {"a": 1}
    assert found.step_time_s == pytest.approx(340e-6 / 3)


def test_operation_counts_for_its_step_even_if_the_program_has_begun_others() -> None:
    """Mutation: `_Slots.of` ignores the number."""
    spans = [span(f"step {n}", 10 * n, 10, TrackKind.STEPS, step=n) for n in (1, 2)]
    spans += [span("a", 100 * n, 100, step=n) for n in (1, 2)]
    found = parts_of(HEAD, spans)
    assert found.parts[PartKey(TrackPlace.COMPUTE, op="a")].times_s == pytest.approx((100e-6, 100e-6))


def test_operation_that_only_calls_others_is_not_counted() -> None:
    """Mutation: `_working` yields every span."""
    spans = [
        span("step 1", 0, 100, TrackKind.STEPS, step=1),
        span("linear", 0, 50),
        span("mm", 1, 48),
        span("mm", 50, 50),
    ]
    found = parts_of(HEAD, spans)
    assert {key.op: part.count for key, part in found.parts.items()} == {"linear": 0, "mm": 2}
    assert found.operations == 2


def test_workers_are_averaged() -> None:
    spans = [
        *(span("step 1", 0, 100, TrackKind.STEPS, step=1, worker=worker) for worker in (0, 1)),
        span("a", 0, 100),
        span("a", 0, 50, worker=1),
    ]
    assert us(spans, Head("jax", 2, "cpu", 1)) == pytest.approx({"a": 75, str(TrackPlace.GAP): 25})


def test_call_of_several_steps_is_divided_by_them() -> None:
    found = parts_of(HEAD, steps(2, 100, [("a", 60, {})], 0), steps_a_call=4)
    assert found.step_time_s == pytest.approx(25e-6)
    assert found.operations == pytest.approx(0.25)


@pytest.mark.parametrize("seed", range(20))
def test_parts_of_any_trace_add_up_to_the_time_of_its_steps(seed: int) -> None:
    """Mutation: `_divided` gives each of several operations the full moment."""
    draw = random.Random(seed)
    spans = [span(f"step {n}", 100 * n, draw.randint(20, 100), TrackKind.STEPS, step=n) for n in range(4)]
    for lane in range(3):
        at = 0
        while at < 380:
            length = draw.randint(1, 60)
            spans.append(span(draw.choice("abc"), at, length, lane=lane))
            if length > 4:
                spans.append(span("nested", at + 1, draw.randint(1, length - 2), lane=lane))
            at += length + draw.randint(0, 40)
    spans += [span("input", draw.randint(0, 380), 20, TrackKind.INPUT) for _ in range(5)]
    found = parts_of(HEAD, spans)
    last = next(one for one in spans if one.name == "step 3")
    assert found.step_time_s == pytest.approx(last.end_ns / 4 / 1e9)
