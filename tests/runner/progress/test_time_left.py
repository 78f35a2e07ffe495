"""The time left, as repeats of comparisons end one after another on a pretended clock."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_matrix.records.schema import Status
from keras_matrix.runner.matrix.reader import Cell, expand, parse
from keras_matrix.runner.plan.plan import PlannedRepeat, comparisons
from keras_matrix.runner.progress.time_left import TimeLeft

MATRIX = """\
version: 1
backends: [jax, torch]
cells: [{workload: gru, batch_size: [16, 32]}]
"""
ESTIMATE_S = 10.0  # of a cell


class Measurement:
    """Two comparisons of two backends, block by block, on a pretended clock."""

    def __init__(self, repeats: int) -> None:
        self.cells: list[list[Cell]] = comparisons(expand(parse(Path("m.yaml"), MATRIX.encode())))
        self.now_s = 100.0
        estimates_s = {cell.cell_id: ESTIMATE_S for pair in self.cells for cell in pair}
        planned = [PlannedRepeat(cell, n) for n in range(repeats) for pair in self.cells for cell in pair]
        self.left = TimeLeft(estimates_s, planned, clock=lambda: self.now_s)

    def begin(self, comparison: int, repeat: int) -> None:
        """Begin a repeat of both backends."""
        for cell in self.cells[comparison]:
            self.left.begun(PlannedRepeat(cell, repeat))

    def end(self, comparison: int, repeat: int, taken_s: float) -> None:
        """End a repeat of both backends, at the same time, `taken_s` after what ended before."""
        self.now_s += taken_s
        assert [self.left.done(PlannedRepeat(cell, repeat)) for cell in self.cells[comparison]] == [True, True]


def test_before_anything_has_ended_the_estimates_count_and_the_clock_runs() -> None:
    measured = Measurement(repeats=3)
    assert measured.left.seconds() == 3 * 2 * 2 * ESTIMATE_S
    assert measured.left.seconds(machine_count=2) == 60.0
    measured.now_s += 15
    assert measured.left.seconds() == 105.0


def test_first_repeats_scale_the_estimates_of_comparisons_that_were_not_measured() -> None:
    measured = Measurement(repeats=3)
    measured.end(0, 0, taken_s=30.0)  # estimated: 20 s
    assert measured.left.seconds() == pytest.approx(2 * 30.0 + 3 * 30.0)


def test_later_repeats_are_expected_to_take_what_later_ones_took() -> None:
    """Scaled by how far the estimates were off so far, 280 s would be left, not 100."""
    measured = Measurement(repeats=6)
    measured.end(0, 0, taken_s=40.0)
    measured.end(1, 0, taken_s=40.0)
    measured.end(0, 1, taken_s=10.0)
    assert measured.left.seconds() == pytest.approx(4 * 10.0 + 5 * 40.0 / 4)
    measured.end(1, 1, taken_s=20.0)
    assert measured.left.seconds() == pytest.approx(4 * 10.0 + 4 * 20.0)


def test_nothing_is_left_at_the_end_and_never_less() -> None:
    measured = Measurement(repeats=1)
    measured.end(0, 0, taken_s=5.0)
    measured.end(1, 0, taken_s=5.0)
    assert measured.left.seconds() == 0.0
    measured.now_s += 60
    assert measured.left.seconds() == 0.0


def test_repeat_that_is_measured_again_costs_time_and_is_not_counted_twice() -> None:
    measured = Measurement(repeats=2)
    measured.end(0, 0, taken_s=10.0)
    measured.now_s += 30.0
    assert measured.left.done(PlannedRepeat(measured.cells[0][0], 0)) is False
    assert measured.left.seconds() == pytest.approx(40.0 + 2 * 40.0)


def test_backend_that_is_missing_costs_no_time() -> None:
    """Of two backends one fails at once in each block; the other one takes 10 s."""
    measured = Measurement(repeats=3)
    left = []
    for repeat in range(3):
        for jax, torch in measured.cells:
            measured.left.failed(PlannedRepeat(torch, repeat))
            measured.now_s += 10.0
            assert measured.left.done(PlannedRepeat(jax, repeat)) is True
            left.append(measured.left.seconds())
    assert left == pytest.approx([50.0, 40.0, 30.0, 20.0, 10.0, 0.0])


def test_repeat_that_failed_and_was_tried_again_is_measured_once() -> None:
    measured = Measurement(repeats=1)
    (jax, torch), _ = measured.cells
    measured.left.failed(PlannedRepeat(jax, 0))
    measured.now_s += 10.0
    assert [measured.left.done(PlannedRepeat(cell, 0)) for cell in (jax, torch)] == [True, True]
    assert measured.left.seconds() == pytest.approx(10.0)


def test_repeat_beyond_the_plan_adds_nothing_to_the_time_left() -> None:
    measured = Measurement(repeats=1)
    measured.end(0, 0, taken_s=10.0)
    measured.end(1, 0, taken_s=10.0)
    measured.end(0, 7, taken_s=10.0)
    assert measured.left.seconds() == 0.0


def test_what_takes_longer_than_expected_makes_all_that_is_left_longer() -> None:
    """Of 20 s expected, 15 s are 5 s before the end, and 40 s ask for 50 s: 2.5 times as long, as the other one."""
    measured = Measurement(repeats=1)
    measured.begin(0, 0)
    measured.now_s += 15
    assert measured.left.seconds() == pytest.approx(5.0 + 20.0)
    measured.now_s += 25
    assert measured.left.seconds() == pytest.approx(10.0 + 50.0)


def test_import_of_the_backends_that_takes_longer_than_the_whole_estimate_leaves_time() -> None:
    measured = Measurement(repeats=1)
    measured.now_s += 80
    assert measured.left.seconds() == pytest.approx(20.0)


def test_cells_of_a_repeat_that_are_published_together_leave_no_time_between() -> None:
    """The first of two cells is published after 60 s: the time left is that of the other comparison, 3 x 20 s."""
    measured = Measurement(repeats=1)
    measured.begin(0, 0)
    measured.now_s += 60
    measured.left.done(PlannedRepeat(measured.cells[0][0], 0))
    assert measured.left.seconds() == pytest.approx(60.0)
    measured.left.done(PlannedRepeat(measured.cells[0][1], 0))
    assert measured.left.seconds() == pytest.approx(60.0)


def test_repeat_that_is_measured_again_is_expected_to_take_what_it_took() -> None:
    measured = Measurement(repeats=1)
    measured.end(0, 0, taken_s=20.0)
    measured.end(1, 0, taken_s=30.0)
    assert measured.left.seconds() == 0.0
    measured.begin(1, 0)
    measured.now_s += 10
    assert measured.left.seconds() == pytest.approx(20.0)
    for cell in measured.cells[1]:
        assert measured.left.done(PlannedRepeat(cell, 0)) is False
    assert measured.left.seconds() == 0.0


def test_backend_that_is_missing_ends_nothing_of_the_others() -> None:
    """The missing one fails at once; the other backend of the comparison goes on, and its time counts."""
    measured = Measurement(repeats=1)
    measured.begin(0, 0)
    measured.left.failed(PlannedRepeat(measured.cells[0][0], 0))
    measured.now_s += 40
    assert measured.left.seconds() == pytest.approx(30.0 * 2.5 - 40.0)


EVENTS = st.lists(st.tuples(st.sampled_from(["wait", "begin", "end", "fail"]), st.floats(0.01, 500.0)), max_size=30)


@given(EVENTS, st.integers(1, 3))
def test_nothing_is_left_only_when_nothing_runs_and_all_has_ended(
    events: list[tuple[str, float]], repeats: int
) -> None:
    measured = Measurement(repeats)
    steps = [(comparison, repeat) for repeat in range(repeats) for comparison in (0, 1)]
    for kind, seconds in events:
        measured.now_s += seconds
        before = measured.left.seconds()
        assert (before >= 1.0) == bool(steps)
        measured.now_s += 1e-3
        if kind == "wait" or not steps:
            continue
        comparison, repeat = steps[0]
        if kind == "begin":
            measured.begin(comparison, repeat)
        else:
            steps.pop(0)
            for cell in measured.cells[comparison]:
                planned = PlannedRepeat(cell, repeat)
                measured.left.ended(planned, Status.OK if kind == "end" else Status.INFRA)


@given(st.floats(1.0, 100.0), st.floats(1.01, 10.0))
def test_the_estimate_grows_once_it_is_exceeded(exceeded_s: float, factor: float) -> None:
    measured = Measurement(repeats=2)
    measured.begin(0, 0)
    measured.now_s += 2 * ESTIMATE_S + exceeded_s
    earlier = measured.left.seconds()
    measured.now_s += (2 * ESTIMATE_S + exceeded_s) * (factor - 1)
    assert measured.left.seconds() > earlier
