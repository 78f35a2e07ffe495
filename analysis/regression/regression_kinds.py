"""Regression kinds: the differences between base and new in addition to the time of a step.

  slower steps                    the gate's verdict on the step time; with the FLOPs counted of both, if they differ
  slower first epoch              first epoch (trace, compile, run) beyond 1 + `FIRST_EPOCH_TOLERANCE`, and beyond the
                                  effect of slower steps
  more scatter                    between processes, or between the measured epochs within them: the ratio of the
                                  standard deviations of the logarithms beyond 1 + `SCATTER_TOLERANCE`, and new's at
                                  least `LEAST_SCATTER`
  recompiles in the timed region  more programs traced or compiled during the measured epochs than in the base: a count
  unstable processes              more blocks in which new alone was still warming up after the discard (status
                                  `unstable`) than base alone, by the exact sign test over them (McNemar, Psychometrika
                                  12 (1947)), a discovery like the figures below
  memory growth                   the memory that a process keeps with each step (`analysis.stats.memory_growth`), host
                                  or device: the paired difference new - base, over a process's measured steps together
                                  beyond `LEAST_GROWTH_BYTES`

Each of the two figures with an interval has a rule like the gate's: the interval is beyond the tolerance, and the
comparison is a discovery at the rule's level, among the run's comparisons in the same figure (Benjamini and Hochberg),
by a signed-rank p-value that spends the level from look to look. If base and new are equal, the random order within
each block makes every sign a fair coin toss, so the p-values are valid for any noise. For first epochs and for the
scatter within processes the signs are those of the blocks' log ratios. For the scatter between processes they are those
of (s - mean s) * d, with s the sum and d the difference of a block's two log step times: Pitman's and Morgan's idea
(Biometrika 31 (1939)) that the covariance of sum and difference is the difference of the variances. It has little
power if the means differ much: it is meant for a change of the scatter alone.

Differences of memory have the same rule, as a family with the error budget `MEMORY_LEVEL` of its own: judging them
takes nothing from the level of the times, and with `--also memory` a run fails for them with at most that probability
in addition.

The cause is not known. Two sessions have no blocks: only their recompiles are compared.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from keras_matrix.analysis.comparison.ratios import bracketed, change_text
from keras_matrix.analysis.regression.gate import GateOutcome, Rule, Verdict, outcome_of, spent, spent_p
from keras_matrix.analysis.stats.blocks import (
    MIN_BLOCKS,
    Estimate,
    adjusted_p_values,
    arithmetic,
    of_logs,
    paired_logs,
    signed_rank_p,
    spread,
)
from keras_matrix.analysis.stats.memory_growth import LEAST_GROWTH_BYTES, growth_text
from keras_matrix.analysis.stats.processes import scatter_ratio
from keras_matrix.records.schema import Record, Status
from keras_matrix.records.text import percent_change

FIRST_EPOCH_TOLERANCE = 0.10
SCATTER_TOLERANCE = 0.25
# Scatter below this does not matter, whatever its ratio to the base.
LEAST_SCATTER = 0.02
MEMORY_LEVEL = 0.01

# The fields of a record's usage.
HOST, DEVICE = "host_growth_bytes_per_step", "device_growth_bytes_per_step"

Key = TypeVar("Key", bound=Hashable)
ByRepeat = Mapping[int, Record]


class RegressionKind(StrEnum):
    """The kinds of regression. A closed set, in the order in which to examine them."""

    RECOMPILES = "recompiles in the timed region"
    UNSTABLE = "unstable processes"
    STEPS = "slower steps"
    FIRST_EPOCH = "slower first epoch"
    SCATTER = "more scatter"
    MEMORY = "memory growth"


# The kinds that a gate can also fail on, in addition to slower steps.
ALSO = {
    "first-epoch": RegressionKind.FIRST_EPOCH,
    "scatter": RegressionKind.SCATTER,
    "unstable": RegressionKind.UNSTABLE,
    "recompiles": RegressionKind.RECOMPILES,
    "memory": RegressionKind.MEMORY,
}

# Those of them that share the run's level; the count of recompiles is no false alarm, memory has a level of its own.
TESTED = frozenset({RegressionKind.FIRST_EPOCH, RegressionKind.SCATTER, RegressionKind.UNSTABLE})


@dataclass(frozen=True, slots=True)
class Counts:
    """A count of either side; None if it was not counted."""

    base: int | None
    new: int | None

    @property
    def more(self) -> bool:
        """Return whether new counts more than base; a base that was not counted is 0."""
        return self.new is not None and self.new > (self.base or 0)


NOT_MEASURED = Verdict(GateOutcome.NOT_MEASURED, None, None)


@dataclass(frozen=True, slots=True)
class Facets:
    """One comparison apart from its step time. Ratios are new / base; `scatter` is the ratio of standard deviations.

    `host_memory` and `device_memory` are differences new - base, in bytes that a process keeps with each step.

    `recompiles` and `unstable_processes` sum over the repeats that both sides have, `forward_flops` is of one batch.
    `said` is the text of all kinds; empty if nothing got worse.
    """

    first_epoch: Verdict
    scatter: Verdict
    scatter_within: Verdict
    unstable: Verdict
    unstable_processes: Counts
    recompiles: Counts
    forward_flops: Counts
    host_memory: Verdict = NOT_MEASURED
    device_memory: Verdict = NOT_MEASURED
    kinds: tuple[RegressionKind, ...] = ()
    said: str = ""


@dataclass(frozen=True, slots=True)
class RecordPair:
    """The measured records of a cell by repeat, and the gate's verdict on its step time; `paired` within a session."""

    base: ByRepeat
    new: ByRepeat
    steps: Verdict
    paired: bool = True


@dataclass(frozen=True, slots=True)
class _Claim:
    """A figure that may be worse than `tolerance`: its interval, and its p-value after the spending of the looks."""

    estimate: Estimate | None
    p: float = 1.0
    tolerance: float = 0.0


def facets(pairs: Mapping[str, RecordPair], rule: Rule) -> dict[str, Facets]:
    """Return the facets of each comparison of a run, and its regression kinds."""
    first_epochs = _judged(
        {n: _claim(p, lambda r: r.times.first_epoch_time_s, rule, FIRST_EPOCH_TOLERANCE) for n, p in pairs.items()},
        rule,
    )
    kinds = (_scatter_between, _scatter_within)
    scatter = _judged({(n, facet_kind): facet_kind(p, rule) for n, p in pairs.items() for facet_kind in kinds}, rule)
    unstable = _instability(pairs, rule)
    of_memory = replace(rule, level=MEMORY_LEVEL)
    memory = _judged(
        {
            (n, memory_kind): _growth(p, memory_kind, of_memory)
            for n, p in pairs.items()
            for memory_kind in (HOST, DEVICE)
        },
        of_memory,
    )
    facets_by_name = {}
    for name, pair in pairs.items():
        flops = (next(iter(_known(side.values(), "forward_flops")), None) for side in (pair.base, pair.new))
        plain_facets = Facets(
            first_epoch=first_epochs[name],
            scatter=scatter[name, _scatter_between],
            scatter_within=scatter[name, _scatter_within],
            unstable=unstable[name],
            unstable_processes=_unstable(pair),
            recompiles=_recompiles(pair),
            forward_flops=Counts(*flops),
            host_memory=memory[name, HOST],
            device_memory=memory[name, DEVICE],
        )
        facets_with_kinds = replace(plain_facets, kinds=_kinds(plain_facets, pair.steps))
        facets_by_name[name] = replace(facets_with_kinds, said=_said(facets_with_kinds, pair.steps))
    return facets_by_name


def _by_repeat(side: ByRepeat, value: Callable[[Record], float | None]) -> dict[int, float]:
    return {repeat: figure for repeat, record in side.items() if (figure := value(record))}


def _claim(pair: RecordPair, value: Callable[[Record], float | None], rule: Rule, tolerance: float) -> _Claim:
    logs = list(paired_logs(_by_repeat(pair.new, value), _by_repeat(pair.base, value)).values())
    if not pair.paired or not logs:
        return _Claim(None)
    estimate = of_logs(logs, rule.looks.confidence(len(logs)))
    return _Claim(estimate, spent_p(logs, replace(rule, threshold=tolerance)), tolerance)


def _scatter_within(pair: RecordPair, rule: Rule) -> _Claim:
    claim = _claim(pair, _epoch_spread, rule, SCATTER_TOLERANCE)
    spreads = _by_repeat(pair.new, _epoch_spread).values()
    return (
        claim
        if 2 * sum(epoch_spread >= LEAST_SCATTER for epoch_spread in spreads) >= len(spreads)
        else replace(claim, p=1.0)
    )


def _epoch_spread(record: Record) -> float | None:
    return spread(record.times.epoch_times_s)


def _scatter_between(pair: RecordPair, rule: Rule) -> _Claim:
    news, bases = (_by_repeat(side, lambda record: record.times.step_time_s) for side in (pair.new, pair.base))
    times = [(new_s, bases[repeat]) for repeat, new_s in news.items() if repeat in bases]
    if not pair.paired or not times:
        return _Claim(None)
    new, base = zip(*times, strict=True)
    estimate = scatter_ratio(new, base, rule.looks.confidence(len(times)))
    if (spread(new) or 0.0) < LEAST_SCATTER or len(times) < MIN_BLOCKS:
        return _Claim(estimate, tolerance=SCATTER_TOLERANCE)
    sums = [math.log(new_s) + math.log(base_s) for new_s, base_s in times]
    middle = statistics.fmean(sums)
    differences = [math.log(new_s) - math.log(base_s) for new_s, base_s in times]
    products = [(total - middle) * difference for total, difference in zip(sums, differences, strict=True)]
    return _Claim(estimate, spent_p(products, replace(rule, threshold=0.0)), SCATTER_TOLERANCE)


def _growth(pair: RecordPair, field: str, rule: Rule) -> _Claim:
    """Return the claim that new keeps more memory with each step than base."""

    def kept(record: Record) -> float | None:
        value: float | None = getattr(record.usage, field, None)
        return value

    new, base = _by_growth(pair.new, kept), _by_growth(pair.base, kept)
    differences = [new_bytes - base[repeat] for repeat, new_bytes in new.items() if repeat in base]
    steps = [count for repeat in new if repeat in base if (count := _measured_steps(pair.new[repeat]))]
    if not pair.paired or not differences or not steps:
        return _Claim(None)
    tolerance_bytes = LEAST_GROWTH_BYTES / statistics.median(steps)
    estimate = arithmetic(differences, rule.looks.confidence(len(differences)))
    p = spent(signed_rank_p(differences, tolerance_bytes), len(differences), rule)
    return _Claim(estimate, p, tolerance_bytes - 1)  # a verdict compares with 1 + tolerance, as of a ratio


def _by_growth(side: ByRepeat, value: Callable[[Record], float | None]) -> dict[int, float]:
    """Return the sizes by repeat; unlike a time, 0 is one."""
    return {repeat: figure for repeat, record in side.items() if (figure := value(record)) is not None}


def _measured_steps(record: Record) -> int:
    return record.resolved.steps_per_epoch * len(record.times.epoch_times_s) if record.resolved else 0


def _judged(claims: Mapping[Key, _Claim], rule: Rule) -> dict[Key, Verdict]:
    """Return the verdicts on one family of claims."""
    able_keys = [key for key, claim in claims.items() if claim.estimate and claim.estimate.low is not None]
    adjusted = dict(zip(able_keys, adjusted_p_values([claims[key].p for key in able_keys]), strict=True))
    verdicts = {}
    for key, claim in claims.items():
        p = adjusted.get(key)
        outcome = outcome_of(claim.estimate, p, claim.tolerance, rule.level) or GateOutcome.NOT_MEASURED
        verdicts[key] = Verdict(outcome, claim.estimate, p)
    return verdicts


def _instability(pairs: Mapping[str, RecordPair], rule: Rule) -> dict[str, Verdict]:
    """Return the verdicts on how often processes were unstable, over the blocks in which only one side was."""
    p = {name: _unstable_p(pair, rule) for name, pair in pairs.items() if pair.paired and _blocks(pair)}
    adjusted = dict(zip(p, adjusted_p_values(list(p.values())), strict=True))
    verdicts = {}
    for name, pair in pairs.items():
        if name not in adjusted:
            outcome = GateOutcome.NOT_MEASURED
        elif adjusted[name] <= rule.level:
            outcome = GateOutcome.REGRESSED
        else:
            outcome = GateOutcome.UNDECIDED if _unstable(pair).more else GateOutcome.NO_WORSE
        verdicts[name] = Verdict(outcome, None, adjusted.get(name))
    return verdicts


def _unstable_p(pair: RecordPair, rule: Rule) -> float:
    """Return the sign test's p-value: without a change, either side of a block is equally likely to be unstable."""
    signs = [float(_is_unstable(pair.new[b])) - _is_unstable(pair.base[b]) for b in _blocks(pair)]
    return spent(signed_rank_p([sign for sign in signs if sign]), len(signs), rule)


def _unstable(pair: RecordPair) -> Counts:
    return Counts(*(sum(_is_unstable(side[block]) for block in _blocks(pair)) for side in (pair.base, pair.new)))


def _is_unstable(record: Record) -> bool:
    return record.status is Status.UNSTABLE


def _blocks(pair: RecordPair) -> list[int]:
    return sorted(pair.base.keys() & pair.new.keys())


def _kinds(cell_facets: Facets, steps: Verdict) -> tuple[RegressionKind, ...]:
    is_slower = steps.outcome is GateOutcome.REGRESSED
    has_first_epoch_regressed = cell_facets.first_epoch.outcome is GateOutcome.REGRESSED and not (
        is_slower and _explained(cell_facets.first_epoch, steps)
    )
    worse = {
        RegressionKind.RECOMPILES: cell_facets.recompiles.more,
        RegressionKind.UNSTABLE: cell_facets.unstable.outcome is GateOutcome.REGRESSED,
        RegressionKind.STEPS: is_slower,
        RegressionKind.FIRST_EPOCH: has_first_epoch_regressed,
        RegressionKind.SCATTER: GateOutcome.REGRESSED
        in (cell_facets.scatter.outcome, cell_facets.scatter_within.outcome),
        RegressionKind.MEMORY: GateOutcome.REGRESSED
        in (cell_facets.host_memory.outcome, cell_facets.device_memory.outcome),
    }
    return tuple(kind for kind, is_worse in worse.items() if is_worse)


def _explained(first_epoch: Verdict, steps: Verdict) -> bool:
    """Return whether the slower steps explain the slower first epoch, which includes an epoch of them."""
    assert first_epoch.estimate is not None
    assert steps.estimate is not None
    return (first_epoch.estimate.low or 0.0) <= (steps.estimate.high or math.inf)


def _said(cell_facets: Facets, steps: Verdict) -> str:
    texts = {
        RegressionKind.RECOMPILES: f"{cell_facets.recompiles.new} against {cell_facets.recompiles.base or 0}",
        RegressionKind.UNSTABLE: f"{cell_facets.unstable_processes.new} against {cell_facets.unstable_processes.base}",
        RegressionKind.STEPS: _steps_said(cell_facets, steps),
        RegressionKind.FIRST_EPOCH: _changed(cell_facets.first_epoch.estimate),
        RegressionKind.SCATTER: _scatter_said(cell_facets),
        RegressionKind.MEMORY: _memory_said(cell_facets),
    }
    is_lone = len(cell_facets.kinds) == 1 and cell_facets.kinds[0] in (
        RegressionKind.FIRST_EPOCH,
        RegressionKind.SCATTER,
    )
    return "; ".join(f"{kind}{' only' if is_lone else ''}: {texts[kind]}" for kind in cell_facets.kinds)


def _steps_said(cell_facets: Facets, steps: Verdict) -> str:
    text, flops = _changed(steps.estimate), cell_facets.forward_flops
    if RegressionKind.STEPS not in cell_facets.kinds or not flops.base or not flops.new:
        return text
    if flops.new > flops.base:
        return f"{text}, with {percent_change(flops.new / flops.base)} FLOPs"
    if cell_facets.recompiles.more:
        return text
    return f"{text}, with {'the same' if flops.new == flops.base else 'fewer'} FLOPs: extra memory traffic or overhead"


def _scatter_said(cell_facets: Facets) -> str:
    texts = []
    for verdict, place_text in (
        (cell_facets.scatter, "between processes"),
        (cell_facets.scatter_within, "within them"),
    ):
        estimate = verdict.estimate
        if verdict.outcome is GateOutcome.REGRESSED and estimate:
            texts.append(f"{bracketed(estimate)} {place_text}")
    return ", ".join(texts)


def _memory_said(cell_facets: Facets) -> str:
    """Return by how much more memory new keeps with each step: "host memory, 8.00 MiB a step [7.91 8.12] more"."""
    return ", ".join(
        f"{memory_kind} memory, {growth_text(verdict.estimate)} more"
        for memory_kind, verdict in (("host", cell_facets.host_memory), ("device", cell_facets.device_memory))
        if verdict.outcome is GateOutcome.REGRESSED and verdict.estimate
    )


def _changed(ratio: Estimate | None) -> str:
    return "not measured" if ratio is None else change_text(ratio)


def _recompiles(pair: RecordPair) -> Counts:
    """Return the sums over the repeats that both sides have, so that an additional process does not count."""
    blocks = _blocks(pair)
    counts_by_side = [_known([side[repeat] for repeat in blocks], "recompiles_timed") for side in (pair.base, pair.new)]
    return Counts(*(sum(counts) if counts else None for counts in counts_by_side))


def _known(records: Iterable[Record], field: str) -> list[int]:
    counts = [getattr(record.resolved, field) for record in records if record.resolved]
    return [value for value in counts if value is not None]
