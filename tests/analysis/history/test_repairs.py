"""A change for the worse is repaired once a later level is no worse than the one before it."""

from __future__ import annotations

import pytest

from keras_matrix.analysis.comparison.primary_metric import Figure
from keras_matrix.analysis.history.change_points import Assessment, Change, ChangeKind, Notes, assess, kind_of, slowdown
from keras_matrix.analysis.history.sessions import CellSession, History
from keras_matrix.analysis.stats.blocks import geometric
from keras_matrix.records.task import Goal
from tests.sessions import noisy, run_name


def assessed(
    *levels: tuple[float, int],
    goal: Goal = Goal.LOWER,
    notes: Notes = Notes(),  # noqa: B008
    scatter: float = 0.01,
) -> Assessment:
    """A history of these levels, each given as (value, sessions)."""
    values = [value for seed, (level, count) in enumerate(levels) for value in noisy(level, count, scatter, seed)]
    sessions = tuple(
        CellSession(run_name(number), geometric([value] * 3), 0.001, {}, {}) for number, value in enumerate(values)
    )
    return assess(History("a" * 16, "0" * 16, None, {}, sessions, Figure("x", "", goal)), notes)


def kinds(one: Assessment) -> list[str]:
    return [str(kind_of(change, one.history.figure.goal)) for change in one.changes]


def test_return_to_the_level_before_repairs_a_change_and_names_the_session() -> None:
    one = assessed((1.0, 20), (1.1, 12), (1.0, 12))
    assert kinds(one) == ["repaired", "faster"]
    assert [change.repaired for change in one.changes] == [run_name(32), None]


def test_a_better_level_than_before_repairs_a_change() -> None:
    assert kinds(assessed((1.0, 20), (1.1, 12), (0.9, 12))) == ["repaired", "faster"]


def test_a_change_that_is_undone_in_part_stays_slower() -> None:
    assert kinds(assessed((1.0, 20), (1.3, 12), (1.1, 12))) == ["slower", "faster"]


@pytest.mark.parametrize(("rest", "first"), [(1.008, "slower"), (1.006, "repaired")])
def test_small_change_is_repaired_if_less_than_half_of_it_remains(rest: float, first: str) -> None:
    assert kinds(assessed((1.0, 20), (1.014, 12), (rest, 12), scatter=0.001)) == [first, "faster"]


def test_rest_above_one_per_cent_must_be_lost_in_the_scatter() -> None:
    levels = ((1.0, 20), (1.1, 12), (1.02, 12))
    assert kinds(assessed(*levels, scatter=0.001)) == ["slower", "faster"]
    assert kinds(assessed(*levels, scatter=0.02)) == ["repaired", "faster"]


def test_a_further_slowdown_repairs_nothing() -> None:
    assert kinds(assessed((1.0, 20), (1.1, 12), (1.2, 12))) == ["slower", "slower"]


def test_of_two_slowdowns_only_the_undone_one_is_repaired() -> None:
    assert kinds(assessed((1.0, 20), (1.1, 12), (1.2, 12), (1.1, 12))) == ["slower", "repaired", "faster"]


def test_a_return_in_several_steps_repairs_at_the_last() -> None:
    one = assessed((1.0, 20), (1.3, 12), (1.15, 12), (1.0, 12))
    assert [change.repaired for change in one.changes] == [run_name(44), None, None]


def test_a_slowdown_after_a_repair_is_another_one() -> None:
    assert kinds(assessed((1.0, 20), (1.1, 12), (1.0, 12), (1.1, 12))) == ["repaired", "faster", "slower"]


def test_where_a_higher_value_is_better_a_return_upwards_repairs() -> None:
    one = assessed((100.0, 20), (80.0, 12), (100.0, 12), goal=Goal.HIGHER)
    assert kinds(one) == ["repaired", "faster"]
    assert slowdown(one.changes[0], Goal.HIGHER) == pytest.approx(1.25, rel=0.01)


def test_an_intended_slowdown_in_between_does_not_prevent_a_repair() -> None:
    notes = Notes({run_name(32): "larger images"})
    assert kinds(assessed((1.0, 20), (1.1, 12), (1.65, 12), (1.5, 12), notes=notes)) == [
        "repaired",
        "intended",
        "faster",
    ]


def test_an_intended_improvement_repairs() -> None:
    notes = Notes({run_name(32): "the fix"})
    assert kinds(assessed((1.0, 20), (1.1, 12), (1.0, 12), notes=notes)) == ["repaired", "intended"]


@pytest.mark.parametrize("off", [-2, -1, 0, 1, 2])
def test_acknowledged_change_stays_so_if_its_position_moves_by_two_sessions(off: int) -> None:
    one = assessed((1.0, 20), (1.1, 12), notes=Notes({}, {run_name(20 + off): "known"}))
    assert [(change.acknowledged, kind) for change, kind in zip(one.changes, kinds(one), strict=True)] == [
        ("known", "acknowledged")
    ]


@pytest.mark.parametrize("off", [-3, 3])
def test_acknowledgement_of_another_session_changes_nothing(off: int) -> None:
    assert kinds(assessed((1.0, 20), (1.1, 12), notes=Notes({}, {run_name(20 + off): "known"}))) == ["slower"]


def test_acknowledgement_belongs_to_the_nearest_change_only() -> None:
    one = assessed((1.0, 20), (1.2, 3), (1.5, 12), notes=Notes({}, {run_name(21): "known"}))
    assert kinds(one) == ["acknowledged", "slower"]


def test_intended_and_repaired_count_before_acknowledged() -> None:
    change = Change("r", 1, 1.1, "wanted", (), "known", "later")
    assert kind_of(change, Goal.LOWER) is ChangeKind.INTENDED
    assert kind_of(Change("r", 1, 1.1, None, (), "known", "later"), Goal.LOWER) is ChangeKind.REPAIRED
