"""Regression kinds: the other differences are tested with an interval and named."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest

from keras_matrix.analysis.comparison.versus import CellComparison, Versus, versus
from keras_matrix.analysis.regression.gate import GateOutcome, Rule, sharing
from keras_matrix.analysis.regression.regression_kinds import ALSO, TESTED, RegressionKind
from keras_matrix.analysis.stats.sequential import FIXED
from keras_matrix.records.instruments.usage import Usage
from keras_matrix.records.schema import Record, Resolved, Status, Times
from tests.conftest import NIGHTLY, make_record, make_settings
from tests.golden import Golden
from tests.messages import check_messages

RULE = Rule(looks=FIXED)
Figure = Callable[[int], float]


BASE = make_record()


def always(value: float) -> Figure:
    return lambda repeat: value


USUAL, QUIET = always(1.0), always(0.001)


def side(
    step: Figure = USUAL,
    first: Figure = USUAL,
    within: Figure = QUIET,
    seed: int = 0,
    count: int = 12,
    **resolved: Any,
) -> list[Record]:
    """Records whose step time, first epoch and scatter within are these multiples of usual ones, with 1 % of noise."""
    noise = random.Random(seed)
    made = []
    for repeat in range(count):
        step_s = 0.01 * step(repeat) * noise.lognormvariate(0, 0.01)
        apart = within(repeat) * noise.lognormvariate(0, 0.1)
        times = Times(
            step_time_s=step_s,
            first_epoch_time_s=first(repeat) * noise.lognormvariate(0, 0.01),
            epoch_times_s=[step_s * (1 - apart), step_s, step_s * (1 + apart)],
        )
        plain = Resolved(50, 32, "fork", "float32", parameters=1000, **resolved)
        made.append(replace(BASE, repeat=repeat, resolved=plain, times=times))
    return made


def unstable(records: list[Record], repeats: Collection[int]) -> list[Record]:
    """The same records, those of these repeats still warming up after the discard."""
    return [
        replace(record, status=Status.UNSTABLE, reason="still_warming_up: set discard")
        if record.repeat in repeats
        else record
        for record in records
    ]


def keeping(mib_a_step: float, seed: int, records: list[Record] | None = None) -> list[Record]:
    """Return processes that keep so much memory with each step, a thousandth more or less, over 150 steps."""
    rng, plain = random.Random(seed), side(seed=seed) if records is None else records
    kept = [mib_a_step * rng.uniform(0.999, 1.001) * 2**20 for _ in plain]
    return [
        replace(record, usage=Usage(1.0, 0.1, "processes", host_growth_bytes_per_step=size))
        for record, size in zip(plain, kept, strict=True)
    ]


def compared(base: list[Record], new: list[Record], rule: Rule = RULE) -> Versus:
    return versus(base, new, rule)


def only(found: Versus) -> CellComparison:
    (one,) = found.comparisons
    assert one.facets is not None
    return one


def said(base: list[Record], new: list[Record], rule: Rule = RULE) -> tuple[tuple[RegressionKind, ...], str]:
    facets = only(compared(base, new, rule)).facets
    assert facets is not None
    return facets.kinds, facets.said


def test_two_equal_sides_have_no_kind_of_regression() -> None:
    assert said(side(), side(seed=1)) == ((), "")


def test_slower_steps_are_named() -> None:
    assert said(side(), side(always(1.5), always(1.2), seed=1))[0] == (RegressionKind.STEPS,)


def test_slower_first_epoch_alone_is_named() -> None:
    assert said(side(), side(first=always(2.0), seed=1))[0] == (RegressionKind.FIRST_EPOCH,)


def test_first_epoch_counts_only_if_slower_than_its_steps_explain() -> None:
    assert said(side(), side(always(2.0), always(1.9), seed=1))[0] == (RegressionKind.STEPS,)
    assert said(side(), side(always(2.0), always(4.0), seed=1))[0] == (RegressionKind.STEPS, RegressionKind.FIRST_EPOCH)


def alternating(repeat: int) -> float:
    return 1.3 if repeat % 2 else 1 / 1.3


def test_more_scatter_between_processes_with_the_same_mean_is_named() -> None:
    assert said(side(), side(alternating, seed=1))[0] == (RegressionKind.SCATTER,)


def test_more_scatter_within_processes_is_named() -> None:
    assert said(side(within=always(0.01)), side(within=always(0.1), seed=1))[0] == (RegressionKind.SCATTER,)


@pytest.mark.parametrize(("times", "kinds"), [(1.07, ()), (1.14, (RegressionKind.FIRST_EPOCH,))])
def test_first_epoch_counts_from_ten_per_cent_slower(times: float, kinds: tuple[RegressionKind, ...]) -> None:
    assert said(side(), side(first=always(times), seed=1))[0] == kinds


@pytest.mark.parametrize(
    ("base", "new", "kinds"),
    [
        (0.05, 0.06, ()),  # 1.2 times is no more than tolerated
        (0.05, 0.10, (RegressionKind.SCATTER,)),
        (0.004, 0.016, ()),  # four times, but below 2 %
        (0.004, 0.025, (RegressionKind.SCATTER,)),
    ],
)
def test_scatter_counts_from_a_quarter_more_and_from_two_per_cent(
    base: float, new: float, kinds: tuple[RegressionKind, ...]
) -> None:
    assert said(side(within=always(base)), side(within=always(new), seed=1))[0] == kinds


def test_figure_is_worse_only_if_its_interval_is_beyond_the_tolerance() -> None:
    """All blocks are beyond the tolerance, one so far that the interval includes it."""
    new = side(first=lambda repeat: 40.0 if repeat == 3 else 1.3, seed=1)
    facets = only(compared(side(), new)).facets
    assert facets is not None
    assert facets.first_epoch.adjusted_p is not None
    assert facets.first_epoch.adjusted_p <= 0.01
    assert (facets.first_epoch.outcome, facets.kinds) == (GateOutcome.UNDECIDED, ())


def test_additional_process_is_not_an_additional_recompile() -> None:
    assert said(side(count=8, recompiles_timed=1), side(count=9, seed=1, recompiles_timed=1)) == ((), "")
    assert said(side(), side(seed=1, recompiles_timed=2))[0] == (RegressionKind.RECOMPILES,)


@pytest.mark.parametrize(
    ("base", "new", "kinds"),
    [
        (range(0), range(12), (RegressionKind.UNSTABLE,)),
        (range(5), range(12), (RegressionKind.UNSTABLE,)),  # seven blocks in which new alone is
        (range(6), range(12), ()),
        (range(12), range(12), ()),
        (range(6), range(6, 12), ()),
        (range(12), range(0), ()),
    ],
)
def test_processes_unstable_only_in_new_are_named_from_seven_blocks(
    base: range, new: range, kinds: tuple[RegressionKind, ...]
) -> None:
    found, text = said(unstable(side(), base), unstable(side(seed=1), new))
    assert (found, bool(text)) == (kinds, bool(kinds))


def test_unstable_processes_spend_the_level_of_their_look() -> None:
    """Eight of twelve blocks, 1 in 256: too many at the third look of a gate, which may spend a quarter of 1 %."""
    new = unstable(side(seed=1), range(8))
    assert said(side(), new)[0] == (RegressionKind.UNSTABLE,)
    assert said(side(), new, Rule())[0] == ()


def test_every_figure_has_the_confidence_of_its_look() -> None:
    plain, looked = (only(compared(side(), side(seed=1), rule)).facets for rule in (RULE, Rule()))
    assert plain is not None
    assert looked is not None
    for name in ("first_epoch", "scatter", "scatter_within"):
        narrow, wide = (getattr(facets, name).estimate for facets in (plain, looked))
        assert narrow.centre == wide.centre
        assert narrow.half_width < wide.half_width


def test_few_unstable_processes_are_a_caveat_and_not_a_kind() -> None:
    one = only(compared(side(), unstable(side(seed=1), range(3))))
    assert one.facets is not None
    assert (one.facets.unstable.outcome, one.facets.kinds) == (GateOutcome.UNDECIDED, ())
    assert one.caveats == ("new: unstable in 3 of 12 processes: still_warming_up: set discard",)


def test_more_unstable_cells_are_needed_among_many() -> None:
    """Seven blocks give 1 in 128: enough for one comparison at 1 %, not for two."""
    settings = make_settings(batch_size=64)
    other = [replace(r, settings=settings, cell_id=make_record(settings=settings).cell_id) for r in side(seed=2)]
    found = compared([*side(), *other], [*unstable(side(seed=1), range(7)), *other])
    assert [one.facets.kinds for one in found.comparisons if one.facets] == [(), ()]


def test_slower_first_epoch_must_be_a_discovery_among_the_comparisons_in_that_figure() -> None:
    """As above: seven blocks beyond 10 % are enough for one comparison, not for one of two."""
    settings = make_settings(batch_size=64)
    other = [replace(r, settings=settings, cell_id=make_record(settings=settings).cell_id) for r in side(count=7)]
    slow = side(first=always(2.0), seed=1, count=7)
    assert said(side(count=7), slow)[0] == (RegressionKind.FIRST_EPOCH,)
    found = compared([*side(count=7), *other], [*slow, *other])
    assert [one.facets.kinds for one in found.comparisons if one.facets] == [(), ()]


def test_scatter_too_small_to_matter_is_not_named() -> None:
    assert said(side(within=always(0.0001)), side(within=always(0.003), seed=1))[0] == ()


@pytest.mark.parametrize(("new", "kinds"), [(0.015, ()), (0.03, (RegressionKind.SCATTER,))])
def test_scatter_between_processes_counts_from_two_per_cent(new: float, kinds: tuple[RegressionKind, ...]) -> None:
    """Processes of equal work without other noise: seven and fifteen times the scatter of the base."""
    apart: dict[float, list[Record]] = {0.002: [], new: []}
    for scatter, made in apart.items():
        for repeat in range(12):
            step_s = 0.01 * math.exp(scatter * (-1) ** repeat)
            made.append(replace(make_record(step_s, repeat), times=Times(step_time_s=step_s, epoch_times_s=[step_s])))
    assert said(apart[0.002], apart[new])[0] == kinds


def test_recompiles_are_counted_and_named_first() -> None:
    base = side(recompiles_timed=0, forward_flops=1000)
    kinds, _ = said(base, side(always(3.0), seed=1, recompiles_timed=2, forward_flops=1000))
    assert kinds == (RegressionKind.RECOMPILES, RegressionKind.STEPS)
    assert said(base, side(seed=1, recompiles_timed=0))[0] == ()
    assert said(base, side(seed=1))[0] == ()


@pytest.mark.parametrize("count", [4, 6])
def test_too_few_blocks_give_only_counts(count: int) -> None:
    new = side(always(1.9), always(3.0), count=count, seed=1, recompiles_timed=1)
    assert said(side(count=count), new)[0] == (RegressionKind.RECOMPILES,)


def test_two_sessions_compare_only_recompiles() -> None:
    new = unstable(side(first=always(2.0), seed=1, recompiles_timed=1), range(12))
    found = versus(side(), new, RULE, lambda base, new: None)
    facets = only(found).facets
    assert facets is not None
    assert facets.kinds == (RegressionKind.RECOMPILES,)
    assert (facets.first_epoch.outcome, facets.first_epoch.estimate) == (GateOutcome.NOT_MEASURED, None)


def test_incomparable_cell_has_no_facets() -> None:
    other = [replace(record, machine=replace(record.machine, host_id="1" * 16)) for record in side(seed=1)]
    (one,) = compared(side(), other).comparisons
    assert one.facets is None


@pytest.mark.parametrize("name", list(ALSO))
def test_gate_fails_only_on_the_requested_kinds(name: str) -> None:
    sides = {
        "first-epoch": side(first=always(2.0), seed=1),
        "scatter": side(within=always(0.1), seed=1),
        "unstable": unstable(side(seed=1), range(12)),
        "recompiles": side(seed=1, recompiles_timed=1),
        "memory": keeping(8.0, 1),
    }
    base = keeping(0.0, 0, side(within=always(0.01)))
    outcomes = {also: compared(base, sides[name], sharing(RULE, [kind], 1)).outcome for also, kind in ALSO.items()}
    assert outcomes == {also: GateOutcome.REGRESSED if also == name else GateOutcome.NO_WORSE for also in ALSO}
    assert compared(base, sides[name]).outcome is GateOutcome.NO_WORSE


def test_level_is_shared_by_the_figures_that_can_fail_a_gate() -> None:
    assert math.isclose(
        sharing(Rule(), [RegressionKind.FIRST_EPOCH, RegressionKind.SCATTER, RegressionKind.RECOMPILES], 2).level,
        0.01 / 3,
    )


def test_equal_sides_with_wide_scatter_are_rarely_called_worse() -> None:
    """200 comparisons in runs of 4, slow processes in both arms: at 1 % per run and figure, 3 of 100 runs may alarm.

    At night 400 comparisons.
    """
    runs = 100 if NIGHTLY else 50
    noise, alarms = random.Random(7), 0
    settings = [make_settings(batch_size=size) for size in (1, 2, 3, 4)]

    def slow_factor(repeat: int) -> float:
        return 1.5 if noise.random() < 0.3 else 1.0

    def run(seed: int) -> list[Record]:
        made = []
        for place, one in enumerate(settings):
            records = side(
                slow_factor, slow_factor, lambda repeat: 0.05 * slow_factor(repeat), seed=1000 * seed + place
            )
            cell = make_record(settings=one).cell_id
            made += [replace(record, settings=one, cell_id=cell) for record in records]
        return made

    for number in range(runs):
        found = compared(run(2 * number), run(2 * number + 1))
        alarms += any(one.facets and one.facets.kinds for one in found.comparisons)
    assert alarms <= 0.08 * runs


@pytest.mark.parametrize(
    ("base", "new", "kinds"),
    [
        (0.0, 8.0, (RegressionKind.MEMORY,)),
        (8.0, 8.0, ()),
        (8.0, 0.0, ()),
        (8.0, 16.0, (RegressionKind.MEMORY,)),
        (0.0, 0.001, ()),
    ],
)
def test_more_memory_kept_at_each_step_is_a_kind(base: float, new: float, kinds: tuple[RegressionKind, ...]) -> None:
    found, text = said(keeping(base, 0), keeping(new, 1))
    assert (found, bool(text)) == (kinds, bool(kinds))


def test_memory_has_a_level_of_its_own() -> None:
    """It takes nothing from the level of the times, and does not become stricter when they share theirs."""
    strict = replace(RULE, level=1e-9)
    assert said(keeping(0.0, 0), keeping(8.0, 1), strict)[0] == (RegressionKind.MEMORY,)
    assert RegressionKind.MEMORY not in TESTED
    assert ALSO["memory"] is RegressionKind.MEMORY


def test_equal_memory_is_called_growth_in_at_most_one_of_a_hundred_runs() -> None:
    """Slopes of either side from the same wide distribution: one process in four keeps up to 16 MiB a step."""
    rng = random.Random(0)

    def of(seed: int) -> list[Record]:
        kept = [rng.choice([0.0, 0.0, 0.0, rng.uniform(0, 16)]) * 2**20 for _ in range(12)]
        return [
            replace(record, usage=Usage(1.0, 0.1, "processes", host_growth_bytes_per_step=size))
            for record, size in zip(side(seed=seed), kept, strict=True)
        ]

    alarms = sum(RegressionKind.MEMORY in said(of(seed), of(seed + 1000))[0] for seed in range(200))
    assert alarms <= 4, alarms


def test_what_is_said_of_each_kind(golden: Golden) -> None:
    """Slower steps have the FLOPs that explain them, unless recompiles do."""
    counted = side(forward_flops=1000)
    not_recompiled = side(recompiles_timed=0, forward_flops=1000)
    texts = {
        "slower steps of more work": said(counted, side(always(1.5), always(1.2), seed=1, forward_flops=1500)),
        "slower steps of the same work": said(counted, side(always(1.5), seed=1, forward_flops=1000)),
        "slower steps of less work": said(counted, side(always(1.5), seed=1, forward_flops=500)),
        "slower steps": said(side(), side(always(1.5), seed=1)),
        "slower steps with recompiles": said(
            not_recompiled, side(always(3.0), seed=1, recompiles_timed=2, forward_flops=1000)
        ),
        "recompiles": said(side(), side(seed=1, recompiles_timed=2)),
        "a slower first epoch": said(side(), side(first=always(2.0), seed=1)),
        "more scatter between processes": said(side(), side(alternating, seed=1)),
        "more scatter within processes": said(side(within=always(0.01)), side(within=always(0.1), seed=1)),
        "unstable processes": said(unstable(side(), range(5)), unstable(side(seed=1), range(12))),
        "memory growth": said(keeping(0.0, 0), keeping(8.0, 1)),
        "more memory growth": said(keeping(8.0, 0), keeping(16.0, 1)),
    }
    check_messages(golden, "kinds.txt", {title: [text] for title, (_, text) in texts.items()})
