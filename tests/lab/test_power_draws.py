"""Power from synthetic recordings whose power is known."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from keras_matrix.analysis.stats.blocks import minimum_detectable_effect
from lab.power.draws import (
    BASE,
    SAME,
    SLOWER,
    Draws,
    Process,
    Recording,
    affordable,
    by_gate,
    by_interval,
    false_alarms,
    one_process_each,
    ours,
    power,
    recordings,
    stretches,
)

NOISE = 0.02


def generator() -> np.random.Generator:
    return np.random.default_rng(7)


def recording(blocks: int = 200, drift: float = 0.0, slowdown: float = 0.05) -> Recording:
    """Return blocks whose processes scatter by NOISE, on a machine that slows down by `drift` in total."""
    draw = generator()

    def process(at: int, factor: float) -> Process:
        step_time_s = factor * math.exp(drift * at / blocks + NOISE * draw.standard_normal())
        return Process(step_time_s, (step_time_s, step_time_s * 1.001), 2.0)

    arms = {BASE: 1.0, SAME: 1.0, SLOWER: 1 + slowdown}
    return Recording(
        "jax", "quiet", tuple({arm: process(at, factor) for arm, factor in arms.items()} for at in range(blocks))
    )


def test_budget_gives_complete_blocks_of_two() -> None:
    assert affordable(recording(), SAME, 41.0) == 10


def test_smallest_slowdown_found_is_that_of_the_t_test() -> None:
    logs = recording().logs(SAME)
    expected = minimum_detectable_effect(float(logs.std(ddof=1)), 20)
    assert ours(logs, 20, generator()) == pytest.approx(expected, rel=0.1)


def test_power_grows_with_the_slowdown_and_is_within_its_interval() -> None:
    draws, logs = Draws(generator(), inner=100), recording().logs(SAME)
    found = [power(logs, 12, by_interval, draws, slowdown) for slowdown in (0.01, 0.03, 0.05)]
    shares = [one.share for one in found if one is not None]
    assert len(shares) == 3
    assert sorted(shares) == shares
    assert all(one is not None and one.low <= one.share <= one.high for one in found)


def test_recording_with_a_chance_difference_gives_no_power() -> None:
    logs = recording().logs(SAME)
    shares = [power(luck, 12, by_interval, Draws(generator(), inner=50), 0.03) for luck in (logs, logs + 0.02)]
    still, lucky = (one.share for one in shares if one is not None)
    assert lucky < still


def test_equal_arms_are_called_slower_in_one_of_forty() -> None:
    assert false_alarms(recording().logs(SAME), 12, by_interval, generator()) == pytest.approx(0.025, abs=0.012)


def test_chance_difference_of_a_recording_is_not_a_false_alarm() -> None:
    lucky = recording().logs(SAME) + 0.02
    assert (false_alarms(lucky, 12, by_interval, generator()) or 0.0) < 0.05


def test_gate_finds_a_clear_slowdown_and_not_an_equal_arm() -> None:
    one = recording()
    drawn = stretches(one.logs(SLOWER), 50, 12, generator())
    assert by_gate(drawn).mean() > 0.9
    assert (false_alarms(one.logs(SAME)[:60], 12, by_gate, generator()) or 0.0) < 0.03


def test_fewer_than_five_blocks_give_no_result() -> None:
    logs = recording().logs(SAME)
    assert power(logs, 4, by_interval, Draws(generator())) is None
    assert false_alarms(logs[:4], 5, by_interval, generator()) is None
    assert ours(logs, 4, generator()) is None


def test_stretches_keep_neighbours_together() -> None:
    drawn = stretches(np.arange(50.0), 100, 10, generator())
    steps = np.diff(drawn.reshape(-1, 5), axis=1) % 50
    assert (steps == 1).all()


def test_single_process_per_arm_includes_drift_and_its_own_effect() -> None:
    still, drifting = recording(drift=0.0), recording(drift=1.0)
    calm, moved = (one_process_each(one, 600.0, generator()) for one in (still, drifting))
    assert calm is not None
    assert moved is not None
    # Two processes' scatter alone: its 95 % limit and the 80 % beyond it.
    assert math.log1p(calm) == pytest.approx((1.96 + 0.84) * math.sqrt(2) * NOISE, rel=0.2)
    assert moved > 1.5 * calm


def test_single_process_per_arm_is_unknown_for_a_recording_shorter_than_the_budget() -> None:
    assert one_process_each(recording(20), 600.0, generator()) is None


def test_scatter_of_epochs_is_not_scatter_of_processes() -> None:
    one = recording()

    def noisy(process: Process) -> Process:
        return replace(process, epoch_times_s=(process.step_time_s * 0.97, process.step_time_s * 1.03))

    blocks = tuple({arm: noisy(process) for arm, process in block.items()} for block in one.blocks)
    smaller = one_process_each(Recording("jax", "quiet", blocks), 600.0, generator())
    assert (smaller or 1.0) < 0.5 * (one_process_each(one, 600.0, generator()) or 0.0)


def test_replaced_attempts_count_in_the_cost_of_a_recording() -> None:
    def row(arm: str, block: int, attempt: int, step_time_s: float) -> dict[str, Any]:
        return {
            "session": "s",
            "condition": "quiet",
            "backend": "jax",
            "arm": arm,
            "block": block,
            "attempt": attempt,
            "step_time_s": step_time_s,
            "epoch_times_s": [step_time_s],
            "wall_time_s": 3.0,
            "import_time_s": 1.0,
        }

    (one,) = recordings([row(SAME, 1, 0, 4.0), row(BASE, 0, 1, 2.0), row(BASE, 0, 0, 9.0), row(SAME, 0, 0, 4.0)])
    assert [dict(block) for block in one.blocks] == [
        {BASE: Process(2.0, (2.0,), 6.0, 1.0), SAME: Process(4.0, (4.0,), 3.0, 1.0)},
        {SAME: Process(4.0, (4.0,), 3.0, 1.0)},
    ]
    assert one.block_cost_s(SAME) == 6.0 + 3.0 + 1.0, "servers start side by side"
    assert one.logs(SAME) == pytest.approx([math.log(2)])
