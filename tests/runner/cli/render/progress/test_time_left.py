"""The time left, as repeats of comparisons end one after another on a pretended clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.runner.cli.render.progress.time_left import TimeLeft
from keras_matrix.runner.matrix.reader import Cell, expand, parse
from keras_matrix.runner.plan.plan import PlannedRepeat, comparisons

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

    def end(self, comparison: int, repeat: int, taken_s: float) -> None:
        """End a repeat of both backends, at the same time, `taken_s` after what ended before."""
        self.now_s += taken_s
        assert [self.left.done(PlannedRepeat(cell, repeat)) for cell in self.cells[comparison]] == [True, True]


def test_before_anything_has_ended_the_estimates_count_and_the_clock_runs() -> None:
    measured = Measurement(repeats=3)
    assert measured.left.seconds() == 3 * 2 * 2 * ESTIMATE_S
    assert measured.left.seconds(machines=2) == 60.0
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
