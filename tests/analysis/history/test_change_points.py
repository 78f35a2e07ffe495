"""Change points: detection, rejection, and annotations."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_matrix.analysis.history import change_points as module
from keras_matrix.analysis.history.change_points import (
    THRESHOLDS,
    USUAL_RUN_LENGTH,
    Assessment,
    Notes,
    assess,
    bounded,
    change_points,
    evidence,
    version_changes,
)
from keras_matrix.analysis.history.sessions import CellSession, History
from keras_matrix.analysis.stats.blocks import geometric
from tests.sessions import noisy, run_name

USUAL = THRESHOLDS[USUAL_RUN_LENGTH]


def logs(*levels: tuple[float, int], scatter: float = 0.01, seed: int = 1) -> list[float]:
    """Return values around successive levels, each given as (level, sessions)."""
    noise = random.Random(seed)
    return [math.log(level) + noise.gauss(0, scatter) for level, count in levels for _ in range(count)]


def session(number: int, value: float | None, **facts: str) -> CellSession:
    step_time = geometric([value] * 3) if value else None
    return CellSession(run_name(number), step_time, 0.001, {}, facts)


def history(values: list[float], **facts: str) -> History:
    sessions = tuple(session(number, value, **facts) for number, value in enumerate(values))
    return History("a" * 16, "0" * 16, ("cpu", "cpu:0"), {}, sessions)


def found(one: Assessment) -> list[tuple[int, str | None]]:
    return [(change.index, change.note) for change in one.changes]


@pytest.mark.parametrize("ratio", [1.05, 0.95, 1.3])
def test_shift_is_found_where_it_is(ratio: float) -> None:
    assert change_points(logs((1.0, 25), (ratio, 15)), USUAL) == [25]


@pytest.mark.parametrize("seed", range(5))
def test_steady_history_has_no_change(seed: int) -> None:
    assert change_points(logs((1.0, 60), seed=seed), USUAL) == []


def test_several_shifts_are_found() -> None:
    assert change_points(logs((1.0, 20), (1.1, 20), (1.05, 20), (1.2, 20)), USUAL) == [20, 40, 60]


def test_reverted_shift_is_two_changes_though_neither_is_significant_alone() -> None:
    assert change_points(logs((1.0, 40), (1.04, 5), (1.0, 40)), USUAL) == [40, 45]


@pytest.mark.parametrize("far", [1.2, 5.0, 0.01])
def test_single_outlying_session_is_not_a_change(far: float) -> None:
    values = logs((1.0, 40))
    values[20] = math.log(far)
    assert change_points(values, USUAL) == []


def test_three_sessions_at_a_new_level_may_be_a_change_and_two_are_not() -> None:
    assert change_points(logs((1.0, 20), (1.2, 3)), USUAL) == [20]
    assert change_points(logs((1.0, 20), (1.2, 2)), USUAL) == []


def test_fewer_than_six_sessions_have_no_change() -> None:
    assert change_points(logs((1.0, 3), (9.0, 2)), USUAL) == []
    assert change_points(logs((1.0, 3), (9.0, 3)), USUAL) == [3]
    assert evidence([0.0, 9.0, 0.0, 9.0, 0.0]) == 0.0


def test_equal_values_have_no_change_and_a_step_between_equal_values_is_one() -> None:
    assert change_points([0.0] * 30, USUAL) == []
    assert change_points([0.0] * 15 + [0.2] * 15, USUAL) == [15]


def test_difference_below_a_thousandth_is_not_a_change() -> None:
    assert change_points([0.0] * 15 + [0.0005] * 15, USUAL) == []


def _squared_error(values: Sequence[float], breaks: Sequence[int]) -> float:
    levels = np.split(np.asarray(values), breaks)
    return float(sum(np.sum((level - np.mean(level)) ** 2) for level in levels))


@given(st.lists(st.floats(-9.0, 9.0, width=32), min_size=6, max_size=13), st.sampled_from([1, 1 << 20]))
def test_every_segmentation_has_the_least_squared_error_of_all(values: list[float], at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ERRORS_AT_ONCE", at_once)
        segmentations = list(module.segmentations(np.asarray(values)))

    assert [len(breaks) for breaks in segmentations] == list(range(1, len(values) // 3))
    for breaks in segmentations:
        tried = [
            every
            for every in itertools.combinations(range(3, len(values) - 2), len(breaks))
            if min(np.diff([0, *every, len(values)])) >= 3
        ]
        assert tuple(breaks) in tried
        least = min(_squared_error(values, every) for every in tried)
        assert _squared_error(values, breaks) == pytest.approx(least, rel=1e-9, abs=1e-9)


def test_longer_run_length_needs_more_evidence() -> None:
    values = logs((1.0, 15), (1.013, 10))
    assert THRESHOLDS[300] < evidence(values) < THRESHOLDS[3000]
    assert (change_points(values, THRESHOLDS[300]), change_points(values, THRESHOLDS[3000])) == ([15], [])
    assert list(THRESHOLDS.values()) == sorted(THRESHOLDS.values())


def test_outlier_is_clipped_to_its_neighbours_and_a_step_is_not_moved() -> None:
    values = [0.0, 0.01, 0.0, 0.01, 5.0, 0.01, 0.0, 0.01, 0.0]
    assert max(bounded(values)) < 0.05
    step = [0.0, 0.01] * 5 + [1.0, 1.01] * 5
    assert list(bounded(step))[11:] == step[11:]


def test_change_has_its_ratio_and_first_session() -> None:
    one = assess(history([*noisy(1.0, 20), *noisy(1.1, 10, seed=5)]))
    (change,) = one.changes
    assert (change.run_id, change.index, change.note) == (run_name(20), 20, None)
    assert change.ratio == pytest.approx(1.1, rel=0.01)
    assert [(level.first, level.last) for level in one.levels] == [(0, 19), (20, 29)]


def test_spread_is_that_of_the_sessions_since_the_last_change() -> None:
    one = assess(history([*noisy(1.0, 20), *noisy(2.0, 4, seed=5)]))
    assert found(one) == [(20, None)]
    assert one.spread is None
    later = assess(history([*noisy(1.0, 20), *noisy(2.0, 8, seed=5)]))
    assert later.spread is not None
    assert later.spread.sessions == 8


def test_annotated_change_has_its_note_and_starts_a_new_baseline() -> None:
    values = [*noisy(1.0, 20), *noisy(1.1, 10, seed=5)]
    one = assess(history(values), Notes({run_name(20): "keras 3.16"}))
    assert found(one) == [(20, "keras 3.16")]
    assert one.spread is not None
    assert one.spread.sessions == 10


def test_annotation_is_a_change_even_if_none_is_detected() -> None:
    one = assess(history(noisy(1.0, 20)), Notes({run_name(10): "a new fan"}))
    assert found(one) == [(10, "a new fan")]
    assert one.levels[-1].first == 10


def test_changes_are_not_searched_across_an_annotated_one() -> None:
    # Annotated one session late: the shift spans the annotation, and is not reported a second time next to it.
    values = [*noisy(1.0, 20), *noisy(1.1, 10, seed=5)]
    assert found(assess(history(values), Notes({run_name(21): "keras 3.16"}))) == [(21, "keras 3.16")]


def test_changes_on_either_side_of_an_annotated_one_are_found() -> None:
    values = [*noisy(1.0, 20), *noisy(1.1, 20, seed=5), *noisy(1.3, 20, seed=6)]
    assert found(assess(history(values), Notes({run_name(20): "meant"}))) == [(20, "meant"), (40, None)]


def test_annotation_applies_from_the_first_valued_session_after_its_run() -> None:
    values = noisy(1.0, 12)
    sessions = [session(number, None if number == 6 else value) for number, value in enumerate(values)]
    one = assess(History("a" * 16, "0" * 16, None, {}, tuple(sessions)), Notes({run_name(6): "x", run_name(7): "y"}))
    assert [(change.run_id, change.note) for change in one.changes] == [(run_name(7), "x; y")]


def test_annotation_of_the_first_session_has_no_ratio() -> None:
    (change,) = assess(history(noisy(1.0, 6)), Notes({run_name(0): "begun"})).changes
    assert (change.index, change.ratio, change.note) == (0, None, "begun")


def test_annotation_after_the_last_session_changes_nothing_yet() -> None:
    assert assess(history(noisy(1.0, 6)), Notes({run_name(50): "to come"})).changes == ()


def test_history_without_a_value_has_no_level() -> None:
    one = assess(History("a" * 16, "0" * 16, None, {}, (session(0, None),)))
    assert (one.changes, one.levels, one.spread) == ((), (), None)


@pytest.mark.parametrize("name", ["machine_type", "keras-hub"])
def test_fact_that_is_temporarily_unknown_is_not_a_change(name: str) -> None:
    types = [None, None, "n1-standard-8", None, "n1-standard-8", "n1-standard-16"]
    facts: list[dict[str, str]] = [{} if one is None else {name: one} for one in types]
    sessions = [session(number, 1.0, **one) for number, one in enumerate(facts)]
    assert [version_changes(sessions, index) for index in (1, 2)] == [(), ()]
    assert [(one.before, one.after, one.sessions_off) for one in version_changes(sessions, 4)] == [
        ("n1-standard-8", "n1-standard-16", 1)
    ]


def test_versions_are_listed_by_distance_from_the_change() -> None:
    keras = ["3.15"] * 5 + ["3.16"] * 5
    kernel = ["6.1"] * 6 + ["6.2"] * 4
    sessions = [session(number, 1.0, keras=keras[number], kernel=kernel[number]) for number in range(10)]
    changes = version_changes(sessions, 5)
    assert [(one.name, one.before, one.after, one.sessions_off) for one in changes] == [
        ("keras", "3.15", "3.16", 0),
        ("kernel", "6.1", "6.2", 1),
    ]
    assert version_changes(sessions, 9) == ()


def test_new_version_has_no_value_before() -> None:
    (change,) = version_changes([session(0, 1.0), session(1, 1.0, gpu_driver="550")], 1)
    assert (change.before, change.after) == (None, "550")
