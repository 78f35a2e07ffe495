"""The verdict on base against new, for two sessions and for undecided comparisons."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from keras_matrix.analysis.comparison.versus import CellComparison, NullArms, versus, with_null
from keras_matrix.analysis.history.sessions import SessionRatio, SessionSpread, across_sessions
from keras_matrix.analysis.regression.gate import GATE_LOOKS, GateOutcome, Rule
from keras_matrix.analysis.stats.blocks import of_logs, paired_logs
from keras_matrix.analysis.stats.sequential import FIXED, LOOKS
from keras_matrix.records.schema import Learning, Record, Status
from tests.conftest import MACHINE, make_record, make_settings

SPREAD = SessionSpread(0.01, 0.01, 10)


def times_s(records: Sequence[Record]) -> list[float]:
    return [record.times.step_time_s for record in records if record.times.step_time_s]


def across(base: Sequence[Record], new: Sequence[Record]) -> SessionRatio | None:
    return across_sessions(times_s(base), times_s(new), SPREAD)


def session(levels: Sequence[float], count: int = 3) -> list[Record]:
    """One cell for each level, of three processes."""
    return [
        make_record(0.01 * level * (1 + 0.001 * repeat), repeat, settings=make_settings(batch_size=size))
        for size, level in enumerate(levels, 1)
        for repeat in range(count)
    ]


def above(comparisons: Sequence[CellComparison]) -> set[int]:
    """Return the cells whose interval is above 1."""
    return {one.either.settings.batch_size for one in comparisons if one.ratio and (one.ratio.low or 0) > 1}


def test_many_equal_cells_of_two_sessions_do_not_regress_and_a_large_slowdown_does() -> None:
    """A 95 % interval is above 1 for one equal cell in forty: such a cell is not a discovery among them."""
    levels = [*[1.0] * 39, 1.035, 1.3]
    found = versus(session([1.0] * 41), session(levels), Rule(threshold=0.0, looks=FIXED), across).comparisons
    assert {40, 41} == above(found)
    assert [one.either.settings.batch_size for one in found if one.outcome is GateOutcome.REGRESSED] == [41]
    (by_chance,) = (one for one in found if one.either.settings.batch_size == 40)
    assert (by_chance.outcome, by_chance.adjusted_p) == (GateOutcome.UNDECIDED, pytest.approx(0.38, abs=0.1))


def test_gate_on_equal_cells_of_two_sessions_rarely_alarms() -> None:
    """30 runs of 30 cells: 1 % of the runs may alarm; plain 95 % intervals alarm in a third of them."""
    noise = random.Random(5)
    rule, alarms, plain = Rule(threshold=0.0, looks=FIXED), 0, 0
    for _ in range(30):
        levels = [[math.exp(noise.gauss(0, 0.01)) for _ in range(30)] for _ in range(2)]
        found = versus(session(levels[0]), session(levels[1]), rule, across).comparisons
        alarms += any(one.outcome is GateOutcome.REGRESSED for one in found)
        plain += bool(above(found))
    assert plain > 5
    assert alarms <= 1


def test_every_repeat_of_two_sessions_counts_for_failures() -> None:
    new = [
        *session([1.0]),
        *(make_record(None, 3 + n, Status.TIMEOUT, settings=make_settings(batch_size=1)) for n in (0, 1)),
    ]
    (one,) = versus(session([1.0]), new, Rule(), across).comparisons
    assert (one.outcome, one.reason) == (GateOutcome.NOT_MEASURED, "not measured in new: timeout in 2 of 5 repeats")


def test_unstable_process_of_two_sessions_is_stated_to_be_in_the_time_and_not_in_the_ratio() -> None:
    """Mutation: `verdicts_across` takes all measured records."""
    slow = make_record(0.1, 3, Status.UNSTABLE, settings=make_settings(batch_size=1), reason="still_warming_up")
    (one,) = versus(session([1.0]), [*session([1.0]), slow], Rule(), across).comparisons
    assert one.ratio is not None
    assert one.ratio.centre == pytest.approx(1.0)
    assert one.caveats == (
        "new: unstable in 1 of 4 processes; they are in the time, but not in the ratio of two sessions: "
        "still_warming_up",
    )


def test_ratio_at_the_threshold_advises_another_threshold() -> None:
    base = [make_record(0.01 * (1 + 0.01 * (-1) ** repeat), repeat) for repeat in range(6)]
    new = [make_record(0.01 * (1 - 0.01 * (-1) ** repeat), repeat) for repeat in range(6)]
    (one,) = versus(base, new, Rule(threshold=0.0, looks=FIXED)).comparisons
    assert (one.outcome, one.more_blocks) == (GateOutcome.UNDECIDED, None)
    assert one.said == "undecided: too near the threshold for 10,000 repeats to decide; set another --threshold"
    nearer = replace(one, more_blocks=1)
    assert nearer.said == "undecided: about 1 more repeat would decide it"


def blocks(count: int = 8, **changes: Any) -> list[Record]:
    """One side of a session whose processes scatter."""
    return [make_record(0.01 * (1 + 0.01 * (repeat % 3)), repeat, **changes) for repeat in range(count)]


def test_geometric_means_have_the_confidence_of_their_look() -> None:
    shuffled = [replace(record, repeat=7 - record.repeat) for record in blocks()]
    found = versus(blocks(), shuffled, Rule(looks=GATE_LOOKS))
    (one,) = found.comparisons
    assert found.suite is not None
    assert one.ratio == found.suite.estimate == found.by_backend["jax"].estimate


def test_different_kernel_and_host_are_listed_as_changes() -> None:
    old, new = (replace(MACHINE, kernel=kernel, host_id=kernel[-1] * 16) for kernel in ("6.1", "6.2"))
    found = versus(blocks(machine=old), blocks(machine=new), Rule())
    assert found.changed == (f"host {'1' * 16} -> {'2' * 16}", "kernel 6.1 -> 6.2")


def test_comparison_lists_the_caveats_of_both_sides_and_of_each() -> None:
    base, new = blocks(learning=Learning(loss=[2.0, 1.0])), blocks(learning=Learning(loss=[2.0, 1.9]))
    far = [0.01] * 9 + [0.5]
    new[0] = replace(new[0], times=replace(new[0].times, epoch_times_s=far))
    (one,) = versus(base, new, Rule()).comparisons
    apart, outliers = one.caveats
    assert apart.startswith("losses differ: in epoch 2 base is at 1 and new at 1.9")
    assert outliers == "new: outliers: 1 of 31 epochs are beyond ten robust deviations; they are included"


def test_ratio_with_disturbed_blocks_has_the_confidence_of_the_look() -> None:
    base, new = blocks(), [replace(record, repeat=7 - record.repeat) for record in blocks()]
    again = [[replace(record, attempt=1) for record in side if record.repeat == 2] for side in (base, new)]
    (one,) = versus([*base, *again[0]], [*new, *again[1]], Rule(looks=LOOKS)).comparisons
    assert (len(one.logs), one.ratio) == (8, of_logs(one.logs, LOOKS.confidence(8)))
    twice = paired_logs(*({r.repeat: r.times.step_time_s or 0.0 for r in side} for side in (new, base)))
    expected = of_logs([*twice.values(), twice[2]], LOOKS.confidence(8))
    assert one.all_data is not None
    assert expected is not None
    assert (one.all_data.low, one.all_data.high) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(
    ("count", "excluding", "void"),
    [(0, 0, False), (1, 0, False), (1, 1, False), (3, 1, False), (3, 2, True), (12, 2, False), (12, 4, True)],
)
def test_session_is_void_if_null_arms_differ_more_often_than_chance_allows(
    count: int, excluding: int, void: bool
) -> None:
    """Probabilities of the binomial distribution with 5 %: 2 of 3 by chance in 0.7 % of sessions, 2 of 12 in 12 %."""
    null = NullArms(count, excluding)
    assert null.void == void
    draws = random.Random(1)
    sessions = [sum(draws.random() < 0.05 for _ in range(count)) >= excluding for _ in range(4000)]
    assert null.probability == pytest.approx(sum(sessions) / len(sessions), abs=0.025)


def test_void_session_has_no_verdict() -> None:
    """Mutation: the verdict is that on base and new alone."""
    base, slower = session([1.0] * 3, 8), session([1.1] * 3, 8)
    rule = Rule(threshold=0.05)
    compared = versus(base, slower, rule)
    quiet = with_null(compared, versus(base, session([1.0] * 3, 8), rule))
    assert (quiet.outcome, quiet.null) == (compared.outcome, NullArms(3, 0))
    shaken = with_null(compared, versus(base, session([1.02] * 3, 8), rule))
    assert (shaken.outcome, shaken.null) == (GateOutcome.UNDECIDED, NullArms(3, 3))
