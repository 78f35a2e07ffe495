"""Simulated races keep the promise of a race on every noise, and agree with the race that the product reports."""

from __future__ import annotations

import math

import numpy as np
import pytest

from keras_matrix.analysis.racing import RaceRule, race
from lab.statistics.races import (
    FIELDS,
    LIMIT,
    NOISES,
    TOLERATED,
    Field,
    RaceNoise,
    blocks,
    plain_t_share,
    races,
    shares,
    simulated,
)

EACH_NOISE = pytest.mark.parametrize("kind", NOISES, ids=lambda kind: kind.name)
SMALL = [number for number, field in enumerate(FIELDS) if field.size <= 24]


@EACH_NOISE
def test_few_races_return_a_candidate_that_is_not_within_the_tolerance(kind: RaceNoise) -> None:
    """5 % of races at most are promised, for decided ones and for the bound of each leader; 200 races of up to 24."""
    outcomes = [
        simulated(FIELDS[number], kind, 0.01, np.random.default_rng((5, number, repeat)))
        for repeat in range(200 // len(SMALL) + 1)
        for number in SMALL
    ]
    found = shares(outcomes)
    assert found.decided.count > 50
    assert (found.returned_within.share or 0) >= 0.95
    assert (found.bound_held.share or 0) >= 0.95
    assert (found.best_dropped.share or 0) <= 0.05


def test_plain_t_tests_fail_the_same_simulation() -> None:
    """They drop the best of 24 in a third of races with slow modes: the simulation can fail."""
    slow_modes = next(kind for kind in NOISES if kind.name == "slow modes")
    best_of_24 = [
        simulated(Field(24, 0.05, "pack"), slow_modes, 0.01, np.random.default_rng((3, number))) for number in range(30)
    ]
    assert sum(outcome.best_dropped for outcome in best_of_24) <= 1
    assert plain_t_share(slow_modes, 0.01, 60, seed=3) > 0.2


@pytest.mark.parametrize("kind", [*NOISES, LIMIT], ids=lambda kind: kind.name)
@pytest.mark.parametrize("field", [Field(4, 0.02, "ladder"), Field(8, 0.05, "pack")])
def test_simulated_race_is_the_race_of_the_same_blocks(kind: RaceNoise, field: Field) -> None:
    outcome = simulated(field, kind, 0.02, np.random.default_rng(4), most_blocks=25)
    drawn = list(blocks(field, kind, 0.02, np.random.default_rng(4), most_blocks=25))[: outcome.blocks]
    found = race(
        [{f"{index:03d}": math.exp(log) for index, log in enumerate(block)} for block in drawn], RaceRule(field.size)
    )
    assert found is not None
    assert (outcome.decided, outcome.blocks) == (found.decided, found.blocks)
    assert outcome.excess == pytest.approx(math.expm1(field.truth[int(found.leader)]))
    assert outcome.best_dropped == any(drop.candidate == "000" for drop in found.dropped)
    assert outcome.processes == sum(drop.block for drop in found.dropped) + found.blocks * len(found.tied)
    assert (outcome.bound is None) == (found.leader_excess is None)
    assert outcome.bound is None or outcome.bound == pytest.approx(found.leader_excess)


def test_parts_of_a_study_are_its_races() -> None:
    halves = [races(NOISES[0], 0.01, 8, seed=1, part=(part, 2)) for part in range(2)]
    whole = races(NOISES[0], 0.01, 8, seed=1)
    assert [whole[0::2], whole[1::2]] == halves


def test_fields_have_one_best_candidate_and_their_gap() -> None:
    assert len(FIELDS) == 40
    for field in FIELDS:
        assert len(field.truth) == field.size
        assert field.truth[0] == 0.0
        assert math.expm1(field.truth[1]) == pytest.approx(field.gap)
        assert (math.expm1(field.truth[1]) <= TOLERATED) == (field.gap <= 0.02)
