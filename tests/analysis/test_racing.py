"""A race drops what is not the best, names what is tied, and depends on nothing but who was faster in which block."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence

import pytest

from keras_matrix.analysis.racing import (
    Race,
    RaceRule,
    evidence,
    fewest_blocks,
    main_effects,
    race,
)

Blocks = list[dict[str, float]]


def drawn(truths: Mapping[str, float], count: int, noise: float, seed: int = 1) -> Blocks:
    """Return blocks of these true times, with normal noise of the logarithms and a factor of each block."""
    generator = random.Random(seed)
    blocks = []
    for _ in range(count):
        block_log = generator.gauss(0, 0.3)
        blocks.append(
            {name: time_s * math.exp(block_log + generator.gauss(0, noise)) for name, time_s in truths.items()}
        )
    return blocks


def ladder(size: int, gap: float) -> dict[str, float]:
    return {f"c{index}": (1 + gap) ** index for index in range(size)}


def state(blocks: Sequence[Mapping[str, float]], rule: RaceRule) -> Race:
    found = race(blocks, rule)
    assert found is not None
    return found


@pytest.mark.parametrize("blocks", [0, 1, 5, 30])
def test_evidence_of_fair_coins_is_a_martingale_that_rises_with_the_blocks_against(blocks: int) -> None:
    """So it exceeds 1 / delta with probability delta at most, at any look (Ville)."""
    for against in range(blocks + 1):
        expected = evidence(blocks, against)
        assert expected == pytest.approx((evidence(blocks + 1, against) + evidence(blocks + 1, against + 1)) / 2)
    values = [evidence(blocks, against) for against in range(blocks + 1)]
    assert values == sorted(values)
    assert evidence(0, 0) == pytest.approx(1.0)


@pytest.mark.parametrize("chance", [0.5, 0.4])
def test_evidence_against_a_faster_candidate_seldom_reaches_its_threshold(chance: float) -> None:
    """By adding up all paths of 200 blocks: at most 5 % ever reach 20, at a look after every block."""
    paths, reached = {0: 1.0}, 0.0
    for blocks in range(1, 201):
        following = dict[int, float]()
        for against, share in paths.items():
            for more, step in ((1, chance), (0, 1 - chance)):
                following[against + more] = following.get(against + more, 0.0) + share * step
        reached += sum(share for against, share in following.items() if evidence(blocks, against) >= 20)
        paths = {against: share for against, share in following.items() if evidence(blocks, against) < 20}
    assert reached + sum(paths.values()) == pytest.approx(1.0)
    assert 0.0 < reached <= 0.05
    assert (reached > 0.02) == (chance == 0.5)


@pytest.mark.parametrize(("candidates", "fewest"), [(2, (6, 6)), (24, (6, 11)), (200, (6, 14))])
def test_fewest_blocks_rise_slowly_with_the_candidates(candidates: int, fewest: tuple[int, int]) -> None:
    assert fewest == fewest_blocks(RaceRule(candidates))


@pytest.mark.parametrize("seed", range(5))
def test_order_of_candidates_and_unit_of_time_change_nothing(seed: int) -> None:
    blocks, rule = drawn(ladder(8, 0.01), 20, 0.02, seed), RaceRule(8)
    generator = random.Random(seed)
    shuffled = [dict(generator.sample(list(block.items()), len(block))) for block in blocks]
    scaled = [{name: time_s * 1024 for name, time_s in block.items()} for block in blocks]
    expected, found = state(blocks, rule), state(scaled, rule)
    assert expected == state(shuffled, rule)
    assert (expected.tied, expected.decided) == (found.tied, found.decided)
    assert [(drop.candidate, drop.block) for drop in expected.dropped] == [
        (drop.candidate, drop.block) for drop in found.dropped
    ]
    assert expected.leader_excess == pytest.approx(found.leader_excess)


@pytest.mark.parametrize("seed", range(5))
def test_names_change_nothing_but_the_names(seed: int) -> None:
    blocks, rule = drawn(ladder(8, 0.01), 20, 0.02, seed), RaceRule(8)
    names = dict(zip(sorted(blocks[0]), random.Random(seed).sample("stuvwxyz", 8), strict=True))
    renamed = [{names[name]: time_s for name, time_s in block.items()} for block in blocks]
    expected, found = state(blocks, rule), state(renamed, rule)
    assert names[expected.leader] == found.leader
    assert [names[name] for name in expected.tied] == list(found.tied)
    assert {(names[drop.candidate], drop.block) for drop in expected.dropped} == {
        (drop.candidate, drop.block) for drop in found.dropped
    }
    assert (expected.decided, expected.leader_excess) == (found.decided, found.leader_excess)


def test_speed_of_the_machine_in_a_block_changes_nothing() -> None:
    blocks, rule = drawn(ladder(6, 0.02), 15, 0.02), RaceRule(6)
    faster = [{name: time_s * 2.0**number for name, time_s in block.items()} for number, block in enumerate(blocks)]
    expected, found = state(blocks, rule), state(faster, rule)
    assert expected.tied == found.tied
    assert [(drop.candidate, drop.block) for drop in expected.dropped] == [
        (drop.candidate, drop.block) for drop in found.dropped
    ]


@pytest.mark.parametrize("seed", range(5))
def test_dropped_candidate_never_returns_and_every_candidate_is_in_one_place(seed: int) -> None:
    blocks, rule = drawn(ladder(12, 0.01), 30, 0.02, seed), RaceRule(12)
    states = [state(blocks[:count], rule) for count in range(1, 31)]
    for earlier, later in itertools.pairwise(states):
        assert later.dropped[: len(earlier.dropped)] == earlier.dropped
    for found in states:
        assert found.leader == found.tied[0]
        assert sorted(blocks[0]) == sorted([*found.tied, *(drop.candidate for drop in found.dropped)])
    assert states[-1].dropped


def test_times_after_a_drop_change_nothing() -> None:
    blocks, rule = drawn(ladder(3, 0.5), 6, 0.01), RaceRule(3)
    dropped = {drop.candidate for drop in state(blocks, rule).dropped}
    assert dropped
    later = drawn(dict.fromkeys(ladder(3, 0.5), 1.0), 10, 0.01, seed=2)
    without = [{name: time_s for name, time_s in block.items() if name not in dropped} for block in later]
    assert state([*blocks, *later], rule) == state([*blocks, *without], rule)


def test_candidate_slower_than_all_others_is_dropped_after_six_blocks_with_the_interval_that_did_it() -> None:
    blocks = drawn({"a": 1.0, "b": 1.001, "c": 0.999, "slow": 1.5}, 6, 0.01)
    (drop,) = state(blocks, RaceRule(4)).dropped
    assert (drop.candidate, drop.block) == ("slow", 6)
    assert state(blocks[:5], RaceRule(4)).dropped == ()
    assert drop.ratio.excludes(1.0)
    assert drop.ratio.centre == pytest.approx(1.5, rel=0.05)
    assert drop.evidence >= 20


@pytest.mark.parametrize("size", [2, 5, 24])
def test_identical_candidates_are_tied_and_none_is_dropped(size: int) -> None:
    names = ladder(size, 0.0)
    found = state([names] * 20, RaceRule(size))
    assert (found.decided, found.dropped, found.leader_excess) == (True, (), 0.0)
    assert sorted(found.tied) == sorted(names)


def test_few_of_equal_candidates_are_dropped_by_chance() -> None:
    """5 % at most of those that are the best, which all are; the tie of the others is decided."""
    found = [state(drawn(ladder(12, 0.0), 30, 0.01, seed), RaceRule(12)) for seed in range(20)]
    assert all(one.decided for one in found)
    assert sum(len(one.dropped) for one in found) <= 0.05 * 12 * 20
    assert all(len(one.tied) >= 10 for one in found)


def test_race_within_less_than_the_noise_is_undecided_with_its_tied_set_and_bound() -> None:
    found = state(drawn({"a": 1.0, "b": 1.01, "c": 2.0}, 12, 0.1), RaceRule(3))
    assert not found.decided
    assert sorted(found.tied) == ["a", "b"]
    assert found.leader_excess is not None
    assert found.leader_excess > 0.02
    assert found.standings[0].leader_excess == found.leader_excess


def test_race_is_decided_exactly_if_each_bound_is_below_the_tolerance() -> None:
    for seed, count in itertools.product(range(4), range(5, 30, 3)):
        blocks = drawn(ladder(5, 0.005), count, 0.015, seed)
        found = state(blocks, RaceRule(5))
        assert found.decided == (found.leader_excess is not None and found.leader_excess < 0.02)


def test_a_wider_tolerance_decides_no_later() -> None:
    blocks = drawn(ladder(5, 0.01), 40, 0.02)
    decided = [
        next(count for count in range(5, 41) if state(blocks[:count], RaceRule(5, within)).decided)
        for within in (0.02, 0.05, 0.2)
    ]
    assert decided == sorted(decided, reverse=True)
    assert decided[0] > decided[-1]


def test_candidate_that_joins_later_is_compared_over_the_blocks_of_both() -> None:
    first = drawn({"a": 1.0, "b": 1.5}, 8, 0.01)
    second = drawn({"a": 1.0, "new": 0.8}, 8, 0.01, seed=2)
    rule = RaceRule(3)
    assert state(first, rule).tied == ("a",)
    found = state([*first, *second], rule)
    assert (found.leader, found.decided) == ("new", True)
    assert [(drop.candidate, drop.rival, drop.ratio.count) for drop in found.dropped] == [
        ("b", "a", 7),
        ("a", "new", 7),
    ]


def test_candidates_without_a_common_block_are_not_ranked() -> None:
    found = state([{"a": 1.0}, {"b": 0.5}] * 10, RaceRule(2))
    assert not found.decided
    assert found.leader_excess is None
    assert found.standings[0].ratio is None


def test_single_candidate_is_decided_and_no_candidate_is_no_race() -> None:
    assert state([{"a": 1.0}], RaceRule(1)).decided
    assert race([], RaceRule(2)) is None
    assert race([{}], RaceRule(2)) is None


def test_more_candidates_than_the_rule_counts_are_refused() -> None:
    """Their number is part of the promise: it cannot grow while the race runs."""
    with pytest.raises(ValueError, match="at most the rule's 2 candidates, got 3"):
        race([ladder(3, 0.1)], RaceRule(2))


def test_leader_that_is_sometimes_slow_is_contradicted_by_the_mean() -> None:
    """The median ranks typical processes: the candidate that is 5 % slower, but never at half speed, is named."""
    blocks = drawn({"fast": 1.0, "steady": 1.05}, 60, 0.01)
    for block in blocks[::4]:
        block["fast"] *= 2
    found = state(blocks, RaceRule(2))
    assert found.leader == "fast"
    assert found.better_on_average == ("steady",)
    assert state(drawn({"fast": 1.0, "steady": 1.05}, 60, 0.01), RaceRule(2)).better_on_average == ()


def grid(effects: Mapping[str, Mapping[str, float]]) -> tuple[dict[str, dict[str, str]], dict[str, float]]:
    """Return the settings and true times of all combinations of settings with these factors."""
    settings, truths = {}, {}
    for values in itertools.product(*(factors.items() for factors in effects.values())):
        chosen = dict(zip(effects, (value for value, _ in values), strict=True))
        name = " ".join(chosen.values())
        settings[name], truths[name] = chosen, math.prod(factor for _, factor in values)
    return settings, truths


JIT_AND_BATCH = {"jit": {"off": 1.0, "on": 0.7}, "batch_size": {"32": 1.0, "64": 0.8, "128": 0.75}}


def test_main_effects_are_those_of_the_factors() -> None:
    settings, truths = grid(JIT_AND_BATCH)
    effects = main_effects(settings, drawn(truths, 8, 0.01))
    assert [(effect.setting, effect.value, effect.reference, effect.pairs) for effect in effects] == [
        ("jit", "on", "off", 3),
        ("batch_size", "64", "32", 2),
        ("batch_size", "128", "32", 2),
    ]
    for effect in effects:
        assert effect.ratio.centre == pytest.approx(JIT_AND_BATCH[effect.setting][effect.value], rel=0.02)
        assert effect.ratio.bounds is not None
        assert effect.ratio.excludes(1.0)
        assert effect.least <= effect.ratio.centre <= effect.most


def test_main_effects_come_from_the_blocks_of_all_candidates_only() -> None:
    settings, truths = grid(JIT_AND_BATCH)
    first = drawn(truths, 6, 0.01)
    survivors = [{"on 128": 1.0, "off 128": 0.1}] * 10
    assert main_effects(settings, first) == main_effects(settings, [*first, *survivors])
    assert main_effects(settings, survivors) == ()


def test_main_effects_without_a_failed_candidate_compare_those_that_differ_in_one_setting() -> None:
    settings, truths = grid(JIT_AND_BATCH)
    del settings["on 128"], truths["on 128"]
    jit, _, largest = main_effects(settings, drawn(truths, 8, 0.001))
    assert (jit.pairs, largest.pairs) == (2, 1)
    assert jit.ratio.centre == pytest.approx(0.7, rel=0.01)
    assert largest.ratio.centre == pytest.approx(0.75, rel=0.01)


def test_effect_that_depends_on_another_setting_shows_its_extremes() -> None:
    settings, truths = grid(JIT_AND_BATCH)
    truths["on 32"] *= 2
    jit = main_effects(settings, drawn(truths, 8, 0.001))[0]
    assert (jit.least, jit.most) == (pytest.approx(0.7, rel=0.01), pytest.approx(1.4, rel=0.01))
