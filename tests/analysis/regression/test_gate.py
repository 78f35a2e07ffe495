"""The gate: regressed, no worse or undecided; unmeasured comparisons never pass."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence

import pytest

from keras_matrix.analysis.regression.gate import (
    EARLY_LEVEL,
    GateOutcome,
    Rule,
    early_p,
    early_spending,
    judge,
    overall,
    spending,
)
from keras_matrix.analysis.stats.sequential import FIXED, LOOKS


def blocks(count: int, ratio: float, scatter: float = 0.005, seed: int = 1) -> list[float]:
    generator = random.Random(seed)
    return [math.log(ratio) + generator.gauss(0, scatter) for _ in range(count)]


def run_outcome(comparisons: Mapping[str, Sequence[float]], rule: Rule | None = None) -> GateOutcome:
    return overall([verdict.outcome for verdict in judge(comparisons, rule or Rule()).values()])


def test_slowdown_beyond_the_threshold_is_regressed() -> None:
    found = judge({"a": blocks(12, 1.2)})
    assert found["a"].outcome is GateOutcome.REGRESSED
    assert found["a"].more_blocks is None


@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.03])
def test_interval_within_the_threshold_is_no_worse(ratio: float) -> None:
    assert run_outcome({"a": blocks(5, ratio)}) is GateOutcome.NO_WORSE


def test_interval_on_both_sides_of_the_threshold_is_undecided() -> None:
    found = judge({"a": blocks(5, 1.01, scatter=0.05)})["a"]
    assert found.outcome is GateOutcome.UNDECIDED
    assert found.more_blocks is not None
    assert found.more_blocks > 1


def test_number_of_more_blocks_decides_it() -> None:
    few = judge({"a": blocks(8, 1.03, scatter=0.03)})["a"]
    assert few.outcome is GateOutcome.UNDECIDED
    assert few.estimate is not None
    assert few.more_blocks is not None
    scatter = few.estimate.half_width
    assert scatter is not None
    more = [*blocks(8, 1.03, scatter=0.03)] * ((8 + few.more_blocks) // 8 + 1)
    assert run_outcome({"a": more}) is GateOutcome.NO_WORSE


def test_five_blocks_never_prove_a_regression() -> None:
    """All of five on one side happen too often by slow processes alone; the verdict asks for enough blocks."""
    found = judge({"a": blocks(5, 2.0)})["a"]
    assert (found.outcome, found.more_blocks) == (GateOutcome.UNDECIDED, 3)


def test_single_regression_among_many_needs_more_blocks() -> None:
    equal = {f"w{i}": blocks(8, 1.0, seed=i) for i in range(299)}
    lone = judge({**equal, "slow": blocks(8, 1.5)})["slow"]
    assert (lone.outcome, lone.more_blocks) == (GateOutcome.UNDECIDED, 10)
    assert judge({**equal, "slow": blocks(18, 1.5)})["slow"].outcome is GateOutcome.REGRESSED
    everywhere = judge({f"w{i}": blocks(8, 1.5, seed=i) for i in range(300)})
    assert {verdict.outcome for verdict in everywhere.values()} == {GateOutcome.REGRESSED}


@pytest.mark.parametrize("logs", [[], blocks(4, 1.0)])
def test_unmeasured_comparison_fails_the_gate(logs: list[float]) -> None:
    found = judge({"a": blocks(5, 1.0), "b": logs})
    assert overall([one.outcome for one in found.values()]) is GateOutcome.NOT_MEASURED
    assert (found["b"].adjusted_p, found["b"].more_blocks) == (None, 5 - len(logs))


def test_empty_run_fails_the_gate() -> None:
    assert run_outcome({}) is GateOutcome.NOT_MEASURED


def test_worst_verdict_is_the_runs() -> None:
    equal, open_, slow = blocks(12, 1.0), blocks(12, 1.05, 0.1), blocks(12, 2.0)
    assert run_outcome({"equal": equal, "open": open_}) is GateOutcome.UNDECIDED
    assert run_outcome({"equal": equal, "open": open_, "none": []}) is GateOutcome.NOT_MEASURED
    assert run_outcome({"equal": equal, "open": open_, "none": [], "slow": slow}) is GateOutcome.REGRESSED


def test_looks_never_spend_more_than_the_level() -> None:
    for level in (0.001, 0.01, 0.05):
        rule = Rule(level=level)
        spent = [spending(at, rule) for at in LOOKS.blocks]
        assert sum(spent) <= 1
        assert all(not share or 2.0**-at <= level * share for at, share in zip(LOOKS.blocks, spent, strict=True))


def test_last_look_spends_the_remaining_level() -> None:
    """At the last look, and between two looks if the budget is spent."""
    spent = [spending(count, Rule()) for count in (5, 7, 8, 10, 12, 13, 18, 40, 41)]
    assert spent == [0, 1, 1 / 2, 1 / 2, 1 / 4, 1 / 4, 1 / 8, 1 / 16, 1 / 16]


def test_fixed_number_of_blocks_spends_all_at_once() -> None:
    rule = Rule(looks=FIXED)
    assert [spending(count, rule) for count in (5, 6, 7, 8, 100)] == [0, 0, 1, 1, 1]
    assert run_outcome({"a": blocks(7, 1.2)}, rule) is GateOutcome.REGRESSED


def test_no_threshold_is_needed_to_call_a_speed_up_no_worse() -> None:
    assert run_outcome({"a": blocks(5, 0.9)}, Rule(threshold=0.0)) is GateOutcome.NO_WORSE


def test_interval_that_includes_the_threshold_is_not_a_regression() -> None:
    found = judge({"a": [0.06, 0.07, 0.06, 0.08, 0.06, 0.07, 0.06, 1.5]})["a"]
    assert found.adjusted_p is not None
    assert found.adjusted_p <= 0.01
    assert found.outcome is GateOutcome.UNDECIDED


def test_signs_are_counted_beyond_the_threshold_and_not_beyond_1() -> None:
    """The interval and six of the eight blocks are beyond 5 %; all eight are beyond 0."""
    logs = [0.19, 0.2, 0.21, 0.2, 0.19, 0.21, 0.04, 0.041]
    found = judge({"a": logs})["a"]
    assert found.estimate is not None
    assert found.estimate.low is not None
    assert (found.estimate.low > 1.05, found.outcome) == (True, GateOutcome.UNDECIDED)
    assert run_outcome({"a": logs}, Rule(threshold=0.0)) is GateOutcome.REGRESSED


# Six times the layers on a busy machine: +302 % [+175 % +487 %] after five blocks.
SIX_TIMES = [1.391 + 0.188 * z for z in (-1.2, -0.6, 0.1, 0.5, 1.2)]


def test_slowdown_far_beyond_the_threshold_is_called_early_at_five_blocks() -> None:
    found = judge({"a": SIX_TIMES}, Rule(threshold=0.25))["a"]
    assert found.estimate is not None
    assert found.estimate.low is not None
    assert (found.outcome, found.early, found.more_blocks) == (GateOutcome.REGRESSED, True, None)
    assert found.estimate.low > 2 * 1.25
    assert found.adjusted_p is not None
    assert found.adjusted_p <= EARLY_LEVEL


def test_early_call_ends_where_a_slow_process_in_every_block_would_explain_it() -> None:
    """Twice as long in all five blocks, which half-speed processes alone give once in 2,400 comparisons."""
    assert run_outcome({"a": blocks(5, 2.0)}, Rule(threshold=0.0)) is GateOutcome.UNDECIDED
    assert run_outcome({"a": blocks(5, 2.05)}, Rule(threshold=0.0)) is GateOutcome.REGRESSED
    assert run_outcome({"a": blocks(5, 2.05)}, Rule(threshold=0.05)) is GateOutcome.UNDECIDED


def test_early_call_needs_an_interval_that_lies_beyond_the_threshold() -> None:
    scattered = [0.2, 1.9, 1.0, 2.6, 0.4]  # 3.4 times in the mean
    assert judge({"a": scattered}, Rule(threshold=0.25))["a"].outcome is GateOutcome.UNDECIDED


def test_early_calls_of_a_run_share_their_level() -> None:
    """One of 300 comparisons needs a p-value 300 times smaller than a single one."""
    equal = {f"w{i}": blocks(5, 1.0, seed=i) for i in range(299)}
    assert judge({**equal, "slow": SIX_TIMES}, Rule(threshold=0.25))["slow"].outcome is GateOutcome.UNDECIDED
    clear = [1.391 + 0.01 * z for z in (-1.2, -0.6, 0.1, 0.5, 1.2)]
    assert judge({**equal, "slow": clear}, Rule(threshold=0.25))["slow"].early


def test_looks_never_spend_more_than_the_early_level() -> None:
    shares = [early_spending(count, Rule()) for count in LOOKS.blocks]
    assert shares == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 32]
    assert early_spending(5, Rule(looks=FIXED)) == 1


def test_p_value_of_an_early_call_is_one_sided_and_divided_by_the_share_of_its_look() -> None:
    """Student's distribution with four degrees of freedom has a closed form. Of 5 blocks the share is a half."""
    mean, deviation = statistics.fmean(SIX_TIMES), statistics.stdev(SIX_TIMES)
    t = (mean - math.log(1.25)) / (deviation / math.sqrt(5))
    w = 1 + t * t / 4
    one_sided = 1 / 2 - 3 / 8 * t / math.sqrt(w) * (1 - t * t / (12 * w))
    assert early_p(SIX_TIMES, Rule(threshold=0.25)) == pytest.approx(2 * one_sided, rel=1e-6)


def test_rule_without_an_early_level_calls_nothing_early() -> None:
    assert run_outcome({"a": SIX_TIMES}, Rule(threshold=0.25, early_level=0.0)) is GateOutcome.UNDECIDED


def test_regression_by_its_signs_is_not_called_early() -> None:
    found = judge({"a": blocks(8, 4.0)}, Rule(threshold=0.25))["a"]
    assert (found.outcome, found.early) == (GateOutcome.REGRESSED, False)
