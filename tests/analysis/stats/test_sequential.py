"""A comparison stops only at its looks, with the reason."""

from __future__ import annotations

import math
import random

import pytest

from keras_matrix.analysis.stats.blocks import of_logs
from keras_matrix.analysis.stats.sequential import FIXED, LOOKS, SequentialState, Why, allocate, decide


def blocks(count: int, scatter: float, centre: float = 0.0) -> tuple[float, ...]:
    """Return blocks with exactly this mean and scatter, alternating around the mean."""
    logs = [1.0, -1.0] * (count // 2) + [0.0] * (count % 2)
    own = math.sqrt(sum(log * log for log in logs) / (count - 1))
    return tuple(centre + log * scatter / own for log in logs)


@pytest.mark.parametrize(
    ("count", "scatter", "stop", "why"),
    [
        (0, 0.0, False, Why.FEW),
        (4, 0.001, False, Why.FEW),
        (5, 0.001, True, Why.PRECISE),
        (5, 0.1, False, Why.WIDE),
        (6, 0.001, False, Why.BETWEEN),
        (8, 0.02, True, Why.PRECISE),
        (40, 0.5, True, Why.LAST),
        (41, 0.5, True, Why.LAST),
    ],
)
def test_stops_at_a_precise_look_or_at_the_last_one(count: int, scatter: float, stop: bool, why: Why) -> None:
    found = decide(blocks(count, scatter) if count > 1 else (), 0.03)
    assert (found.stop, found.why) == (stop, why)


@pytest.mark.parametrize("count", [0, 3, 6, 12])
def test_spent_budget_stops_anywhere(count: int) -> None:
    found = decide(blocks(count, 0.5) if count else (), 0.03, budget_spent=True)
    assert (found.stop, found.why) == (True, Why.BUDGET)
    assert (found.estimate is not None and found.estimate.low is not None) == (count >= 5)


def test_interval_has_the_confidence_of_its_look() -> None:
    logs = blocks(12, 0.05)
    assert decide(logs, 0.03).estimate == of_logs(logs, LOOKS.confidence(12))
    assert LOOKS.confidence(17) == LOOKS.confidence(40) == LOOKS.confidences[-1]
    assert decide(logs, 0.03, budget_spent=True).estimate == of_logs(logs, LOOKS.confidences[-1])
    assert {FIXED.confidence(count) for count in (5, 8, 100)} == {0.95}


def test_there_are_at_most_six_looks_in_rising_order() -> None:
    assert len(LOOKS.blocks) == len(LOOKS.confidences) <= 6
    assert list(LOOKS.blocks) == sorted(set(LOOKS.blocks))


def test_stopping_is_blind_to_the_side() -> None:
    generator = random.Random(7)
    for _ in range(100):
        logs = [generator.gauss(0.02, 0.03) for _ in range(generator.choice(LOOKS.blocks))]
        assert decide(logs, 0.03).why is decide([-log for log in logs], 0.03).why


def test_all_comparisons_first_reach_their_first_look_interleaved() -> None:
    states = {
        "done": SequentialState(blocks(5, 0.5), 1.0),
        "young": SequentialState(blocks(3, 0.1), 9.0),
        "new": SequentialState((), 2.0),
    }
    assert allocate(states, 100.0) == "new"


def test_budget_too_small_for_all_takes_one_after_the_other_to_its_first_look() -> None:
    states = {
        "begun": SequentialState(blocks(3, 0.1), 9.0),
        "new": SequentialState((), 2.0),
        "dear": SequentialState((), 50.0),
    }
    assert allocate(states, 100.0) == "begun"
    assert allocate(states, 17.0) == "new"
    assert allocate(states, 9.0) is None


def test_noisiest_comparison_gets_the_next_block() -> None:
    states = {"quiet": SequentialState(blocks(8, 0.04), 1.0), "noisy": SequentialState(blocks(8, 0.4), 1.0)}
    assert allocate(states, 100.0) == "noisy"


def test_cheaper_block_comes_first() -> None:
    states = {"dear": SequentialState(blocks(8, 0.1), 10.0), "cheap": SequentialState(blocks(8, 0.1), 1.0)}
    assert allocate(states, 100.0) == "cheap"


def test_ratio_at_stake_outweighs_slightly_more_noise() -> None:
    clear, open_ = SequentialState(blocks(8, 0.11, centre=2.0), 1.0), SequentialState(blocks(8, 0.1), 1.0)
    assert allocate({"clear": clear, "open": open_}, 100.0) == "open"
    gated = SequentialState(clear.logs, 1.0, stakes=(1.0, math.exp(2.0)))
    assert allocate({"clear": gated, "open": open_}, 100.0) == "clear"


def test_complete_or_unaffordable_comparison_gets_no_block() -> None:
    precise, dear = SequentialState(blocks(5, 0.001), 1.0), SequentialState(blocks(8, 0.5), 60.0)
    assert allocate({"precise": precise}, 1e6) is None
    assert allocate({"precise": precise, "dear": dear}, 239.0) is None
    assert allocate({"dear": dear}, 240.0) == "dear"
    assert allocate({}, 60.0) is None


def test_choice_does_not_change_between_two_looks() -> None:
    """A started comparison continues to its next look, however noisy the others are."""
    calm, wild = SequentialState((*blocks(8, 0.05), 0.0), 1.0), SequentialState(blocks(8, 5.0), 1.0)
    assert allocate({"wild": wild, "calm": calm}, 100.0) == "calm"


def test_budget_ends_at_looks() -> None:
    generator = random.Random(4)
    logs: dict[str, list[float]] = {"a": [], "b": [], "c": []}
    left_s = 64.0
    while name := allocate({name: SequentialState(tuple(found), 1.0) for name, found in logs.items()}, left_s):
        logs[name].append(generator.gauss(0.0, 0.3))
        left_s -= 1.0
    assert {len(found) for found in logs.values()} <= set(LOOKS.blocks)
    assert left_s < 15


def test_campaign_ends_with_every_comparison_precise() -> None:
    generator = random.Random(2)
    logs: dict[str, list[float]] = {"a": [], "b": [], "c": []}
    for _ in range(200):
        name = allocate({name: SequentialState(tuple(found), 1.0) for name, found in logs.items()}, 100.0)
        if name is None:
            break
        logs[name].append(generator.gauss(0.0, {"a": 0.005, "b": 0.04, "c": 0.2}[name]))
    assert all(decide(found, 0.03).stop for found in logs.values())
    assert len(logs["a"]) == 5 < len(logs["b"]) <= len(logs["c"])


def test_blocks_of_several_machines_stop_by_the_interval_within_them() -> None:
    """Machines that differ by 20 % do not make the interval wide; each costs a degree of freedom."""
    machines = ["a", "b"] * 4
    logs = [0.2 * (name == "b") + 0.001 * (n % 4 < 2) for n, name in enumerate(machines)]
    assert decide(logs, 0.03).why is Why.WIDE
    assert decide(logs, 0.03, machines=machines).why is Why.PRECISE
    assert decide(logs, 0.03, machines=["a"] * 8).estimate == decide(logs, 0.03).estimate


def test_blocks_that_leave_too_few_degrees_of_freedom_are_not_precise() -> None:
    logs, machines = [0.0, 0.001, 0.0, 0.001, 0.0], ("a", "b", "c", "a", "b")
    assert decide(logs, 0.03).stop
    assert not decide(logs, 0.03, machines=machines).stop
    precise = SequentialState(tuple(logs * 2)[:8], 1.0, machines=("a",) * 8)
    lacking = SequentialState(tuple(logs), 1.0, machines=machines)
    assert allocate({"lacking": lacking, "precise": precise}, 100.0) == "lacking"


def test_gain_over_several_machines_is_that_of_the_scatter_within_them() -> None:
    apart = [0.5 * (n % 2) + 0.05 * log for n, log in enumerate(blocks(8, 1.0))]
    shifted = SequentialState(tuple(apart), 1.0, machines=("a", "b") * 4)
    assert allocate({"machines": shifted, "noisy": SequentialState(blocks(8, 0.15), 1.0)}, 100.0) == "noisy"
