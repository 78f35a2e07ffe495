"""Costs, leagues and failures of candidates, from synthetic records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keras_matrix.analysis.racing import RaceRule
from keras_matrix.analysis.tuning import HOW, Aim, Candidates, Objective, gain, pair_ratio, races, starts
from keras_matrix.records.identity import SETTINGS, cell_id
from keras_matrix.records.schema import Memory, Record, Resolved, Status, Times
from keras_matrix.records.settings import Settings
from tests.conftest import make_record, make_settings


def record(settings: Settings, repeat: int, step_s: float, **changes: Any) -> Record:
    resolved = Resolved(steps_per_epoch=10, seed_steps_per_epoch=10, start="fork", precision="float32")
    times = Times(import_time_s=2.0, build_time_s=1.0, first_step_time_s=3.0, step_time_s=step_s, samples_per_s=1.0)
    made = make_record(cell_id=cell_id(settings), repeat=repeat, settings=settings, resolved=resolved, times=times)
    return replace(made, **changes)


def candidates(*settings: Settings, objective: Objective | None = None) -> Candidates:
    by_id = {cell_id(one): one for one in settings}
    names = {key: f"{one.backend} {one.batch_size}" for key, one in by_id.items()}
    return Candidates(by_id, names, cell_id(settings[0]), objective or Objective(), RaceRule(len(by_id)))


DEFAULT = make_settings(backend="jax", batch_size=32)
OTHER = make_settings(backend="torch", batch_size=32)
LARGE = make_settings(backend="jax", batch_size=64)


def test_every_setting_that_changes_how_a_step_is_computed_is_a_setting() -> None:
    assert set(SETTINGS) >= HOW
    assert not HOW & {"batch_size", "precision", "matmul_precision", "seed", "gradient_accumulation_steps", "workload"}


@pytest.mark.parametrize(
    ("objective", "expected_s"),
    [
        (Objective(), 0.064 / 64),
        (Objective(Aim.LATENCY), 0.064),
        (Objective(Aim.JOB, 6400), 6.0 + 6.4),
    ],
)
def test_cost_is_of_what_is_asked(objective: Objective, expected_s: float) -> None:
    assert objective.cost(record(LARGE, 0, 0.064)) == pytest.approx(expected_s)


def test_numbers_differ_by_settings_that_change_the_work() -> None:
    raced = candidates(DEFAULT, OTHER, LARGE)
    assert raced.equal == [cell_id(DEFAULT), cell_id(OTHER)]
    assert raced.other_numbers(cell_id(LARGE)) == ("batch_size=64",)


def test_race_over_all_is_missing_if_all_numbers_are_equal() -> None:
    equal = [record(one, 0, 0.01) for one in (DEFAULT, OTHER)]
    assert races(equal, candidates(DEFAULT, OTHER)).overall is None
    assert races([*equal, record(LARGE, 0, 0.01)], candidates(DEFAULT, OTHER, LARGE)).overall is not None


def test_two_races_share_the_probability_of_an_error() -> None:
    equal, both = candidates(DEFAULT, OTHER), candidates(DEFAULT, OTHER, LARGE)
    assert (equal.race_rule.delta, both.race_rule.delta) == (equal.rule.delta, both.rule.delta / 2)
    # The same blocks in both: they drop the slower of two, unless each race may err half as often.
    records = [record(one, repeat, 0.01 * (1 + (one is OTHER))) for repeat in range(6) for one in (DEFAULT, OTHER)]
    sparing = races([*records, *(record(LARGE, repeat, 0.02) for repeat in range(6))], both)
    assert races(records, equal).undecided == []
    assert sparing.equal in sparing.undecided


def test_candidates_left_in_either_race_are_measured_until_both_are_decided() -> None:
    records = [
        record(one, repeat, step_s * (1 + 0.001 * (repeat % 3)))
        for repeat in range(40)
        for one, step_s in ((DEFAULT, 0.010), (OTHER, 0.020), (LARGE, 0.010))
    ]
    raced = candidates(DEFAULT, OTHER, LARGE)
    first, last = races(records, raced, before=2), races(records, raced)
    assert first.to_measure == frozenset(raced.settings)
    assert (last.undecided, last.to_measure) == ([], frozenset())
    assert last.equal is not None
    assert last.overall is not None
    assert (last.equal.leader, last.overall.leader) == (cell_id(DEFAULT), cell_id(LARGE))


def test_candidate_with_a_failed_process_leaves_and_its_costs_do_not_count() -> None:
    failed = record(OTHER, 1, 0.005, status=Status.OOM_HOST, reason="killed")
    records = [record(DEFAULT, 0, 0.01), record(OTHER, 0, 0.005), record(DEFAULT, 1, 0.01), failed]
    state = races(records, candidates(DEFAULT, OTHER))
    (failure,) = state.failed.values()
    assert (failure.block, failure.reason) == (2, "oom_host: killed")
    assert state.equal is not None
    assert state.equal.tied == (cell_id(DEFAULT),)
    assert races(records, candidates(DEFAULT, OTHER), before=1).failed == {}


def test_memory_above_the_limit_is_a_failure() -> None:
    memory = Memory(peak_host_memory_bytes=3 << 30)
    state = races(
        [record(DEFAULT, 0, 0.01), record(OTHER, 0, 0.005, memory=memory)],
        candidates(DEFAULT, OTHER, objective=Objective(most_memory_bytes=2 << 30)),
    )
    assert [failure.reason for failure in state.failed.values()] == [
        "too much memory: a peak of 3.00 GiB, at most 2.00 GiB"
    ]


def test_step_at_which_a_slow_start_pays_off() -> None:
    late = replace(record(OTHER, 0, 0.006).times, first_step_time_s=5.0)
    records = [record(DEFAULT, 0, 0.010), record(OTHER, 0, 0.006, times=late), record(LARGE, 0, 0.030)]
    found = starts(records, candidates(DEFAULT, OTHER, LARGE))
    # two seconds later, and 4 ms a step earned
    assert found[cell_id(OTHER)].break_even_step == pytest.approx(500, abs=1)
    # with twice the batch, half of its step counts: 15 ms against 10 ms
    assert found[cell_id(LARGE)].break_even_step is None
    assert found[cell_id(DEFAULT)].start_s == pytest.approx(6.0)


def test_gain_is_over_fresh_blocks_only() -> None:
    records = [
        record(one, repeat, step_s if repeat >= 5 else 1.0)
        for repeat in range(10)
        for one, step_s in ((DEFAULT, 0.010), (OTHER, 0.008 + 0.00001 * repeat))
    ]
    estimate = gain(records, candidates(DEFAULT, OTHER), cell_id(OTHER), 5)
    assert estimate is not None
    assert estimate.count == 5
    assert estimate.centre == pytest.approx(0.807, abs=0.001)


def test_ratio_of_a_pair_is_that_of_the_reversed_pair_inverted() -> None:
    blocks = [{"a": 1.0 + 0.01 * (n % 3), "b": 1.3} for n in range(12)]
    one, other = (pair_ratio(blocks, *names, RaceRule(2)) for names in (("a", "b"), ("b", "a")))
    assert one is not None
    assert other is not None
    assert one.bounds
    assert other.bounds
    assert one.centre == pytest.approx(1 / other.centre)
    assert one.bounds == pytest.approx((1 / other.bounds[1], 1 / other.bounds[0]))
