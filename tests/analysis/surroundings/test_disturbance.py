"""The disturbance rule: independent of the arm, of the epochs' times, and of the run's own use."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_matrix.analysis.surroundings.disturbance import (
    MIN_CPU_S,
    OWN_STORAGE_LIMIT_BYTES_PER_S,
    STEAL_LIMIT,
    Cause,
    CounterChanges,
    MeasuredStretch,
    OwnUse,
    disturbed,
    other_cpu_share,
    steal_share,
    together,
)

# Two CPUs for two seconds, one and a half of them used by the run, and no other activity.
QUIET = CounterChanges(
    wall_s=2.0,
    cpu_total_s=4.0,
    cpu_busy_s=3.0,
    cpu_irq_s=0.0,
    cpu_steal_s=0.0,
    cpu_some_s=0.0,
    memory_some_s=0.0,
    memory_full_s=0.0,
    io_some_s=0.0,
    io_full_s=0.0,
    quota_throttled_s=0.0,
    throttle_events=0,
    swapped_in_bytes=0,
    swapped_out_bytes=0,
    context_switches=100,
)
OWN = OwnUse(cpu_s=3.0, memory_share=0.1, storage_bytes=0)


def watched(own: OwnUse = OWN, **changes: Any) -> MeasuredStretch:
    return MeasuredStretch(replace(QUIET, **changes), own)


def cause(*block: MeasuredStretch) -> Cause | None:
    found = disturbed(block)
    return None if found is None else found.cause


shares = st.floats(0.0, 0.3)
stretches = st.builds(
    lambda steal, others, memory, io, events: watched(
        cpu_steal_s=4 * steal,
        cpu_busy_s=3.0 + 4 * others,
        memory_full_s=2 * memory,
        io_full_s=2 * io,
        throttle_events=events,
    ),
    shares,
    shares,
    shares,
    shares,
    st.integers(0, 2),
)
blocks_twice = st.lists(stretches, min_size=2, max_size=6).flatmap(
    lambda block: st.tuples(st.just(block), st.permutations(block))
)


def test_quiet_block_is_not_disturbed() -> None:
    assert disturbed([watched(), watched()]) is None


def test_block_without_stretches_is_not_disturbed() -> None:
    assert disturbed([]) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"cpu_steal_s": 0.3}, Cause.STEAL),
        ({"cpu_busy_s": 3.5}, Cause.OTHER_CPU),
        ({"memory_full_s": 0.2}, Cause.MEMORY),
        ({"io_full_s": 0.2}, Cause.IO),
    ],
)
def test_each_signal_beyond_its_limit_is_named_wherever_it_occurs(changes: dict[str, float], expected: Cause) -> None:
    assert cause(watched(**changes), watched()) == expected
    assert cause(watched(), watched(**changes)) == expected


@settings(deadline=None)
@given(blocks_twice)
def test_result_does_not_depend_on_the_order_of_stretches(
    blocks: tuple[list[MeasuredStretch], list[MeasuredStretch]],
) -> None:
    block, shuffled = blocks
    assert disturbed(block) == disturbed(shuffled)


@settings(deadline=None)
@given(stretches, stretches, st.sampled_from([0.5, 2.0, 64.0]))
def test_scaling_every_counter_does_not_change_the_result(
    first: MeasuredStretch, second: MeasuredStretch, factor: float
) -> None:
    def longer(one: MeasuredStretch) -> MeasuredStretch:
        scaled = {f.name: getattr(one.stretch, f.name) * factor for f in fields(CounterChanges)}
        return MeasuredStretch(CounterChanges(**scaled), OwnUse(3.0 * factor, 0.1, 0))

    assert disturbed([longer(first), longer(second)]) == disturbed([first, second])


def ratios_of_unequal_arms(judge: Callable[[float, float, float, float], bool]) -> tuple[float, float]:
    """Return the bias of the mean log ratio of the blocks that `judge` accepts, and the share of accepted blocks.

    Arms of 2 and 8 s of work on one CPU, lengthened by bursts of others of 0.1 s on average, one every 2 s.
    """
    drawn, works_s, blocks = np.random.default_rng(3), (2.0, 8.0), 6_000
    off: list[float] = []
    for _ in range(blocks):
        bursts_s = [float(drawn.exponential(0.1, drawn.poisson(0.5 * work_s)).sum()) for work_s in works_s]
        times_s = [work_s + burst_s for work_s, burst_s in zip(works_s, bursts_s, strict=True)]
        if judge(times_s[0], bursts_s[0], times_s[1], bursts_s[1]):
            off.append(math.log(times_s[1] / times_s[0]) - math.log(works_s[1] / works_s[0]))
    return float(np.mean(off)), len(off) / blocks


def one_cpu(wall_s: float, others_s: float) -> MeasuredStretch:
    busy = CounterChanges(wall_s, cpu_total_s=wall_s, cpu_busy_s=wall_s, cpu_irq_s=0.0, cpu_steal_s=0.0)
    return MeasuredStretch(busy, OwnUse(cpu_s=wall_s - others_s))


def test_replacing_disturbed_blocks_does_not_bias_the_ratio_of_unequal_arms() -> None:
    def accepted(short_s: float, on_short_s: float, long_s: float, on_long_s: float) -> bool:
        return disturbed([one_cpu(short_s, on_short_s), one_cpu(long_s, on_long_s)]) is None

    off, share = ratios_of_unequal_arms(accepted)
    assert 0.2 < share < 0.5
    assert abs(off) < 0.003


def test_judging_by_the_worst_arm_would_bias_it() -> None:
    """The reason for pooling all stretches; shows that the test above can fail."""

    def accepted(short_s: float, on_short_s: float, long_s: float, on_long_s: float) -> bool:
        return disturbed([one_cpu(short_s, on_short_s)]) is None and disturbed([one_cpu(long_s, on_long_s)]) is None

    off, _ = ratios_of_unequal_arms(accepted)
    assert off > 0.008


def test_cpu_use_of_the_run_itself_is_not_a_disturbance() -> None:
    own = replace(OWN, cpu_s=4.0)
    crowded = watched(own, cpu_busy_s=4.0, cpu_some_s=2.0, context_switches=10**6, quota_throttled_s=1.0)
    assert disturbed([crowded, watched()]) is None


def test_unknown_own_use_attributes_nothing_to_others() -> None:
    assert disturbed([watched(OwnUse(), cpu_busy_s=4.0, memory_full_s=2.0, io_full_s=2.0)]) is None


def test_own_use_above_busy_time_gives_zero_use_of_others() -> None:
    assert other_cpu_share(watched(replace(OWN, cpu_s=3.2))) == 0.0


def test_memory_pressure_of_a_run_that_fills_memory_is_its_own() -> None:
    assert disturbed([watched(replace(OWN, memory_share=0.6), memory_full_s=1.0), watched()]) is None


def test_io_pressure_of_a_run_that_reads_from_storage_is_its_own() -> None:
    reading = replace(OWN, storage_bytes=3 * OWN_STORAGE_LIMIT_BYTES_PER_S)
    assert disturbed([watched(reading, io_full_s=1.0)]) is None


def test_limit_on_own_storage_traffic_is_a_rate() -> None:
    """One and a half times the limit in two seconds is less than it."""
    reading = replace(OWN, storage_bytes=3 * OWN_STORAGE_LIMIT_BYTES_PER_S // 2)
    assert cause(watched(reading, io_full_s=1.0)) == Cause.IO


def test_pressure_some_is_not_a_disturbance() -> None:
    assert disturbed([watched(memory_some_s=2.0, io_some_s=2.0, cpu_some_s=2.0)]) is None


def test_throttling_counts_only_if_others_used_most_of_the_cpu() -> None:
    little = replace(OWN, cpu_s=0.01)
    assert cause(watched(throttle_events=3)) is None
    assert cause(watched(cpu_busy_s=3.1, throttle_events=3)) is None
    assert cause(watched(little, cpu_busy_s=0.05, throttle_events=3)) == Cause.HEAT
    assert cause(watched(little, cpu_busy_s=0.05, throttle_events=0)) is None


def test_share_at_the_limit_is_still_allowed() -> None:
    at_limit_s = 3.0 * STEAL_LIMIT / (1 - STEAL_LIMIT)
    assert disturbed([watched(cpu_steal_s=at_limit_s * 0.999)]) is None
    assert cause(watched(cpu_steal_s=at_limit_s * 1.001)) == Cause.STEAL


def test_steal_is_measured_against_the_time_the_cpus_had_work() -> None:
    one_of_64 = replace(QUIET, cpu_total_s=128.0, cpu_busy_s=1.8, cpu_steal_s=0.2)
    assert steal_share(one_of_64) == pytest.approx(0.1)
    assert cause(MeasuredStretch(one_of_64, OwnUse(cpu_s=1.8))) == Cause.STEAL


def test_interrupts_are_not_attributed_to_others() -> None:
    assert disturbed([watched(cpu_irq_s=1.0)]) is None


def test_block_too_short_for_ticks_is_not_judged_by_cpu_time() -> None:
    short = MeasuredStretch(
        CounterChanges(wall_s=0.1, cpu_total_s=MIN_CPU_S / 2, cpu_busy_s=0.2, cpu_irq_s=0.0, cpu_steal_s=0.1),
        OwnUse(cpu_s=0.0),
    )
    assert disturbed([short]) is None
    assert cause(short, short) == Cause.OTHER_CPU


def test_shares_are_over_all_stretches_of_a_block() -> None:
    burst = watched(cpu_busy_s=3.3)
    assert disturbed([burst, *[watched()] * 3]) is None
    assert cause(burst, burst, watched(), watched()) == Cause.OTHER_CPU


def test_cause_furthest_beyond_its_limit_is_named() -> None:
    assert cause(watched(cpu_steal_s=0.3, io_full_s=1.0), watched(cpu_busy_s=3.3)) == Cause.IO


def test_unmeasured_counter_is_never_a_reason() -> None:
    nothing = MeasuredStretch(CounterChanges(wall_s=2.0), OWN)
    assert disturbed([nothing]) is None
    assert disturbed([watched(cpu_busy_s=4.0), nothing]) is None


def test_sum_is_none_if_one_part_is_missing() -> None:
    found = together(
        [watched(), MeasuredStretch(CounterChanges(wall_s=1.0, cpu_total_s=2.0), OwnUse(cpu_s=1.0, memory_share=0.2))]
    )
    assert found is not None
    assert (found.stretch.wall_s, found.stretch.cpu_total_s, found.stretch.cpu_busy_s) == (3.0, 6.0, None)
    assert found.own == OwnUse(cpu_s=4.0, memory_share=0.2, storage_bytes=None)
    assert together([]) is None


def test_reason_states_cause_share_and_limit() -> None:
    text = str(disturbed([watched(), watched(cpu_busy_s=3.8)]))
    assert text == "other_cpu: processes outside the run used 10.0 % of the CPUs (limit 3.0 %)"
