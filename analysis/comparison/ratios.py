"""The ratios of a row: over blocks at one machine, or over those of several equal machines, and their texts.

A block is at one machine, so that its ratio does not depend on the machine's speed; the machine is a level of the
mean over blocks (`analysis.stats.sequential`). Guarantee: pure.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from keras_matrix.analysis.comparison.machines import MACHINES, noun, short
from keras_matrix.analysis.comparison.primary_metric import STEP_TIME, Figure
from keras_matrix.analysis.stats.blocks import MIN_BLOCKS, Estimate, minimum_detectable_effect, of_logs, p_value
from keras_matrix.analysis.stats.sequential import DISAGREEMENT_LEVEL, LEAST_DEGREES, Looks, levels
from keras_matrix.analysis.stats.sessions import BY_SPREAD, NO_INTERVAL
from keras_matrix.records.text import interval, percent_change, percentage, ratio_text


@dataclass(frozen=True, slots=True)
class MachineRatio:
    """A ratio at one of several machines, by its `host_id`."""

    machine: str
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class BackendRatio:
    """The ratio of the time of a step on `backend` to that on the backend with the lowest time.

    `smallest_difference` is the relative one that these blocks would probably have shown; None below 5 blocks.
    `scatter` is the standard deviation of the blocks' log ratios. `all_data` includes blocks that were disturbed and
    measured again; None without such blocks. `separate`: the two cells are of separate sessions, without common blocks.

    If the blocks were at several machines, `by_machine` has the ratio at each of them, `scatter` is within them, and
    `disagreement` is the p-value of the F test that it is the same at all. If they disagree, or if the interval
    excludes 1 although the backend is not slower at each of them, there is no interval.
    """

    backend: str
    estimate: Estimate
    p_value: float | None = None
    smallest_difference: float | None = None
    all_data: Estimate | None = None
    scatter: float | None = None
    separate: bool = False
    by_machine: tuple[MachineRatio, ...] = ()
    disagreement: float | None = None
    opposed: bool = False

    @property
    def machines_disagree(self) -> bool:
        """Whether the ratio differs between the machines, or says at one of them the opposite of its mean."""
        return self.opposed or (self.disagreement is not None and self.disagreement < DISAGREEMENT_LEVEL)


def ratio_of(backend: str, logs_by_machine: Mapping[str, Sequence[float]], looks: Looks) -> BackendRatio:
    """Return the ratio whose logarithm, block by block, is `logs_by_machine`, by machine; there must be a block."""
    if len(logs_by_machine) == 1:
        return _at_one(backend, next(iter(logs_by_machine.values())), looks)
    machine_levels = levels(logs_by_machine)
    assert machine_levels is not None
    own_p, estimate = machine_levels.p_value(), machine_levels.estimate(looks.confidence(machine_levels.count))
    ratio = BackendRatio(
        backend,
        estimate,
        None if own_p is None else min(1.0, looks.p_factor * own_p),
        machine_levels.smallest_difference(),
        scatter=machine_levels.scatter,
        by_machine=tuple(
            MachineRatio(machine, machine_estimate)
            for machine, machine_logs in logs_by_machine.items()
            if (machine_estimate := of_logs(machine_logs))
        ),
        disagreement=machine_levels.disagreement(),
        opposed=estimate.excludes(1.0)
        and any((mean > 0) != (machine_levels.centre > 0) for mean in machine_levels.means),
    )
    if not ratio.machines_disagree:
        return ratio
    without_interval = Estimate(ratio.estimate.centre, None, None, ratio.estimate.count)
    return replace(ratio, estimate=without_interval, p_value=None, smallest_difference=None)


def _at_one(backend: str, logs: Sequence[float], looks: Looks) -> BackendRatio:
    estimate = of_logs(logs, looks.confidence(len(logs)))
    assert estimate is not None
    scatter = statistics.stdev(logs) if len(logs) > 1 else None
    detectable = None if scatter is None else minimum_detectable_effect(scatter, len(logs))
    own_p = p_value(logs)
    adjusted_p = None if own_p is None else min(1.0, looks.p_factor * own_p)
    return BackendRatio(backend, estimate, adjusted_p, detectable, scatter=scatter)


def estimate_over(logs_by_machine: Mapping[str, Sequence[float]], confidence: float) -> Estimate | None:
    """Return the ratio whose logarithm, block by block, is `logs_by_machine`, by machine; None for no block."""
    if len(logs_by_machine) > 1:
        machine_levels = levels(logs_by_machine)
        return machine_levels.estimate(confidence) if machine_levels else None
    return of_logs(next(iter(logs_by_machine.values()), ()), confidence)


def open_verdict(lowest: str, ratios: Sequence[BackendRatio], other_count: int, figure: Figure = STEP_TIME) -> str:
    """Return the verdict of a row that names no backend fastest; `other_count` are the backends but the lowest."""
    if reason := without_verdict(lowest, ratios, other_count, figure):
        return reason
    near_ratios = [ratio for ratio in ratios if (ratio.estimate.low or 0) <= 1] or list(ratios)
    return f"not separable: {ratios_text(near_ratios, figure, lowest)}{would_have_shown(ratios)}{how(ratios)}"


def without_verdict(lowest: str, ratios: Sequence[BackendRatio], other_count: int, figure: Figure) -> str | None:
    """Return why a row's ratios show nothing about the order of its backends; None if they may."""
    if any(ratio.separate and ratio.estimate.low is None for ratio in ratios):
        return NO_INTERVAL
    if disagreeing := [ratio for ratio in ratios if ratio.machines_disagree]:
        return _disagreement(lowest, disagreeing, figure)
    if without_interval := [ratio for ratio in ratios if ratio.estimate.low is None]:
        return f"not separable: {too_few(without_interval)}"
    return "not separable: some cells have no repeat in common" if len(ratios) < other_count else None


def partial_verdict(
    lowest: str,
    near_ratios: Sequence[BackendRatio],
    ratios_behind: Sequence[BackendRatio],
    figure: Figure = STEP_TIME,
    chance: str = "",
) -> str:
    """Return the verdict of a row in which `ratios_behind` are slower than the lowest, and `near_ratios` are not.

    `chance` says why those near are not, if not by their intervals.
    """
    candidates = _listed([lowest, *(ratio.backend for ratio in near_ratios)], "or")
    best = "fastest" if figure == STEP_TIME else f"best by {figure.name}"
    reason = f": {chance}" if chance else would_have_shown(near_ratios)
    undecided_text = f"not separable: {ratios_text(near_ratios, figure, lowest)}{reason}"
    return (
        f"{candidates} is {best} ({undecided_text}); "
        f"{_behind_text(ratios_behind, figure, lowest)}{how([*near_ratios, *ratios_behind])}"
    )


def would_have_shown(ratios: Sequence[BackendRatio]) -> str:
    """Return the relative difference that all of these ratios would probably have shown, empty if it is not known."""
    differences = [ratio.smallest_difference for ratio in ratios if ratio.smallest_difference is not None]
    if not differences or any(ratio.separate for ratio in ratios):
        return ""
    return f"; a difference of {percentage(max(differences))} would have shown"


def _behind_text(ratios: Sequence[BackendRatio], figure: Figure, lowest: str) -> str:
    """Return which backends are slower than the lowest, such as `torch is slower: 1.42x [1.26 1.59] as long as jax`."""
    names = _listed([ratio.backend for ratio in ratios], "and")
    amounts = _listed([f"{bracketed(ratio.estimate)}{with_disturbed(ratio)}" for ratio in ratios], "and")
    verb, worse = ("is" if len(ratios) == 1 else "are"), ("slower" if figure.is_time else "behind")
    return f"{names} {verb} {worse}: {amounts} {_AS[figure.is_time][1]} as {lowest}"


def _listed(words: Sequence[str], joint: str) -> str:
    *first_words, last_word = words
    return f"{', '.join(first_words)} {joint} {last_word}" if first_words else last_word


def _disagreement(lowest: str, ratios: Sequence[BackendRatio], figure: Figure) -> str:
    """Return the ratio at each machine, of the ratios about which the machines disagree."""
    takes, as_long = _AS[figure.is_time]
    disagreement_texts = (f"{ratio.backend} {takes} {at_each(ratio)} {as_long} as {lowest}" for ratio in ratios)
    places_noun = noun([machine_ratio.machine for ratio in ratios for machine_ratio in ratio.by_machine])
    key, name, unit = (
        ("across_nodes", "machine", "machine") if places_noun == MACHINES else ("across_gpus", "gpus", "GPU")
    )
    return (
        f"not separable: the {places_noun} disagree: {'; '.join(disagreement_texts)}; compare at one {unit}: "
        f"leave out {key}, or name one with {name}"
    )


def at_each(ratio: BackendRatio) -> str:
    """Return the ratio at each machine, and the p-value of the test that it is the same at all."""
    listing = ", ".join(
        f"{ratio_text(machine_ratio.estimate.centre)} at {short(machine_ratio.machine)}"
        for machine_ratio in ratio.by_machine
    )
    return f"{listing}{_chance(ratio)}"


def _chance(ratio: BackendRatio) -> str:
    return "" if ratio.disagreement is None else f" (p {ratio.disagreement:.2g})"


def too_few(ratios: Sequence[BackendRatio]) -> str:
    """Return why there is no interval, and of several machines how many blocks would give one."""
    spread = [ratio for ratio in ratios if ratio.by_machine]
    if not spread:
        return f"fewer than {MIN_BLOCKS} repeats give no interval"
    ratio = max(spread, key=_missing)
    count, missing_count = len(ratio.by_machine), _missing(ratio)
    places_noun = noun([machine_ratio.machine for machine_ratio in ratio.by_machine])
    return (
        f"{ratio.estimate.count} repeats over {count} {places_noun} give no interval: it needs "
        f"{LEAST_DEGREES} more repeats than {places_noun}, {missing_count} more than there are at these {places_noun}"
    )


def _missing(ratio: BackendRatio) -> int:
    return LEAST_DEGREES - ratio.estimate.count + len(ratio.by_machine)


def repeats_for_intervals(ratios: Sequence[BackendRatio]) -> int | None:
    """Return the repeats that would give each of these ratios an interval; None if none lacks one for this reason."""
    few_ratios = [r for r in ratios if r.estimate.low is None and not r.separate and not r.machines_disagree]
    return max((max(MIN_BLOCKS, LEAST_DEGREES + len(ratio.by_machine)) for ratio in few_ratios), default=None)


def how(ratios: Sequence[BackendRatio]) -> str:
    """Return what the ratios are from, if not blocks at one machine, as text in brackets with a blank before it."""
    if any(ratio.separate for ratio in ratios):
        return f" ({BY_SPREAD})"
    machines = max(
        ([machine_ratio.machine for machine_ratio in ratio.by_machine] for ratio in ratios), key=len, default=[]
    )
    return f" (over {len(machines)} {noun(machines)})" if machines else ""


def bracketed(estimate: Estimate) -> str:
    """Return a ratio with its interval, such as `1.42x [1.30 1.55]`; without an interval only the ratio."""
    return ratio_text(estimate.centre, estimate.low, estimate.high)


@dataclass(frozen=True, slots=True)
class RatioText:
    """A ratio with its interval as text, and what that does not show: `1.42x [1.30 1.55] (not separable from 1)`."""

    amount: str
    remark: str = ""

    def __str__(self) -> str:
        return self.in_a_sentence(self.amount)

    def in_a_sentence(self, sentence: str) -> str:
        """Return a sentence that has the amount, with the remark behind it."""
        return f"{sentence} ({self.remark})" if self.remark else sentence


def text_of(ratio: BackendRatio, open_remark: str = "") -> RatioText:
    """Return a ratio as text with the reason why it has no interval, or `open_remark` if its interval contains 1."""
    amount = bracketed(ratio.estimate)
    if ratio.machines_disagree:
        places_noun = noun([machine_ratio.machine for machine_ratio in ratio.by_machine])
        return RatioText(amount, f"the {places_noun} disagree: {at_each(ratio)}")
    if ratio.estimate.bounds is None:
        return RatioText(amount, too_few([ratio]))
    return RatioText(amount, "" if ratio.estimate.excludes(1.0) else open_remark)


def share_text(share: Estimate) -> str:
    """Return a share with its interval in percent, such as `3.1 % [1.9 4.3]`; without an interval only the share."""
    return percentage(share.centre, share.low, share.high)


def change_text(ratio: Estimate) -> str:
    """Return a ratio as a change with its interval, such as `-3.1 % [-4.0 -2.2]`."""
    return percent_change(ratio.centre, ratio.low, ratio.high)


_AS = {True: ("takes", "as long"), False: ("costs", "as much")}
"""How a ratio reads: of times, and of other costs, such as the inverse of a throughput."""


def takes(name: str, amount: str, figure: Figure = STEP_TIME, reference: str = "") -> str:
    """Return a ratio as a sentence, such as `jax takes 1.42x [1.30 1.55] as long as torch`."""
    verb, as_long = _AS[figure.is_time]
    return f"{name} {verb} {amount} {as_long}" + (f" as {reference}" if reference else "")


def ratios_text(ratios: Sequence[BackendRatio], figure: Figure = STEP_TIME, reference: str = "") -> str:
    """Return ratios as one sentence: `jax takes 1.66x [1.48 1.86] as long, torch 1.93x [1.59 2.35]`.

    With `reference`, the backend with the lowest figure, the first one ends in `as long as REFERENCE`.
    """
    first_ratio, *others = ratios
    text = takes(first_ratio.backend, bracketed(first_ratio.estimate), figure, reference) + with_disturbed(first_ratio)
    return ", ".join(
        [text, *(f"{ratio.backend} {bracketed(ratio.estimate)}{with_disturbed(ratio)}" for ratio in others)]
    )


def with_disturbed(ratio: BackendRatio) -> str:
    """Return the interval that includes the disturbed blocks, in brackets; empty without such blocks."""
    bounds = ratio.all_data.bounds if ratio.all_data else None
    return f" (with disturbed blocks {interval(*bounds)})" if bounds else ""
