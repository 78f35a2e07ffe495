"""A race: which of many candidates is fastest, from interleaved blocks, with slow candidates dropped on the way.

The promise: with probability 1 - `delta` the candidate that a decided race returns is within `within` of the best, in
time. It includes the choice of the leader from the same data, every drop, and every look: a race may be looked at after
each block and ended at any of them. What an undecided race promises instead is `Race.leader_excess`, the largest amount
by which its leader is slower than the best, with the same probability.

The estimand is the median over blocks of the log ratio of two candidates' mean step times. It equals the mean log ratio
of `analysis.stats.blocks` if noise affects both candidates alike. It does not if one candidate alone is sometimes slow:
then the race ranks typical processes. `Race.better_on_average` names those that the mean prefers.

The method is one test for each candidate, "it is the best". If it is, each rival is faster in at most half of the
blocks in which both were measured. For n blocks of which s go against it, `evidence` gives the likelihood of s against
a fair coin, averaged over all chances above one half (Jeffreys' prior): a nonnegative supermartingale that begins at 1.
So is its mean over all rivals, and by Ville's inequality it ever reaches 1 / `delta` with probability `delta` at most,
for any noise and however many looks. A candidate is dropped when the mean reaches 1 / `delta`. The race is decided when
each candidate that is left would be refuted too if its blocks against the leader were counted with `within` of
tolerance. Both errors are refutations of the best by the same sum, hence one `delta` for both. The mean over rivals
replaces the division of `delta` by their number: a candidate that is slower than most of them goes after six or seven
blocks.

Assumptions: the order within each block is drawn at random, and, given the earlier blocks, a block is no likelier to
favour the slower of two candidates. No distribution, variance or independence of drift between blocks is assumed.
Limit: n blocks cannot give more evidence than about 2**n, however large a difference is (`fewest_blocks`).

Guarantee: pure; the order of the candidates and the unit of time change nothing.

Sources: Maron and Moore, "Hoeffding races", NIPS 6 (1994); Even-Dar, Mannor and Mansour, "Action elimination and
stopping conditions", JMLR 7 (2006), for the promise; Ville, "Étude critique de la notion de collectif" (1939); Robbins,
"Statistical methods related to the law of the iterated logarithm", Ann. Math. Statist. 41 (1970), and Howard and
Ramdas, "Sequential estimation of quantiles with applications to A/B testing and best-arm identification", Bernoulli 28
(2022), for tests of a median that are valid at all times; Vovk and Wang, "E-values: calibration, combination and
applications", Ann. Statist. 49 (2021), for their mean.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from keras_matrix.analysis.stats.blocks import MIN_BLOCKS, MOST_BLOCKS, Estimate, Method, of_logs

if TYPE_CHECKING:
    import numpy

    Matrix = numpy.ndarray[Any, numpy.dtype[Any]]

WITHIN = 0.02
DELTA = 0.05
# Evidence above this changes nothing, and products of it stay finite.
MOST_LOG_EVIDENCE = 600.0


@dataclass(frozen=True, slots=True)
class RaceRule:
    """What a race promises, and for how many candidates.

    `candidates` counts all that take part, with those that failed and those that join later: set it before the first
    block. `within` is the tolerated excess of time over the best (0.02 means 2 %), `delta` the probability of an error.
    """

    candidates: int
    within: float = WITHIN
    delta: float = DELTA

    @property
    def threshold(self) -> float:
        """The sum of the evidence of all rivals that refutes a candidate."""
        return max(1, self.candidates - 1) / self.delta


@dataclass(frozen=True, slots=True)
class Standing:
    """A candidate that is left, against the leader.

    `ratio` is its time divided by the leader's, with an interval each end of which holds with 1 - `delta` for this pair
    at all looks; no ends with too few blocks. `leader_excess` is the most by which the leader is slower than this
    candidate if this one is the best: 0.013 means 1.3 %, a negative number that the leader is faster. None if nothing
    can be said yet. The race is decided when it is below `within` for every standing.
    """

    candidate: str
    ratio: Estimate | None
    leader_excess: float | None


@dataclass(frozen=True, slots=True)
class Drop:
    """A candidate that is not the best: after which block it was dropped, and the rival with most evidence against it.

    `block` counts from 1. `ratio` is its time divided by the rival's, over the blocks of both up to there; its interval
    excludes 1, each end with 1 - `delta` for this pair at all looks. `evidence` is at least 1 / `delta`.
    """

    candidate: str
    block: int
    rival: str
    ratio: Estimate
    evidence: float


@dataclass(frozen=True, slots=True)
class Race:
    """The state of a race after its blocks.

    `standings` are the candidates left without the leader, the lowest ratio first; `dropped` in the order in which they
    went. `leader_excess` is the most by which the leader is slower than the best, with probability 1 - `delta`; None if
    nothing can be said yet. `better_on_average` has the candidates that are faster than the leader by more than
    `within` in the mean of the log ratios (Student's interval), although not in their median.
    """

    leader: str
    standings: tuple[Standing, ...]
    dropped: tuple[Drop, ...]
    blocks: int
    decided: bool
    leader_excess: float | None
    better_on_average: tuple[str, ...] = ()

    @property
    def tied(self) -> tuple[str, ...]:
        """The candidates left, the leader first: to be measured in the next block, or the tied set of a race's end."""
        return (self.leader, *(standing.candidate for standing in self.standings))


def race(blocks: Sequence[Mapping[str, float]], rule: RaceRule) -> Race | None:
    """Return the state of a race after these blocks, in their order; None if no block has a candidate.

    A block maps each candidate that was measured in it to its mean time per step or sample (positive, of any unit). A
    candidate may be missing from some blocks: only blocks that have both candidates of a pair are used. Leave a
    candidate that failed out of all blocks, but not out of `rule.candidates`. Times of a candidate after its drop are
    ignored. More candidates than `rule.candidates` are a ValueError.
    """
    tally = RaceTally.of(sorted({name for block in blocks for name in block}), rule)
    if not tally.names:
        return None
    dropped: list[Drop] = []
    for block in blocks:
        tally.add([math.log(block[name]) if name in block else math.nan for name in tally.names])
        dropped += [tally.drop(index) for index in tally.refuted()]
    deciders = tally.deciders()
    leader = tally.lowest(deciders or tally.left())
    standings = tally.standings(leader)
    return Race(
        tally.names[leader],
        tuple(sorted(standings, key=lambda standing: (*_place(standing.ratio), standing.candidate))),
        tuple(dropped),
        len(blocks),
        bool(deciders),
        leader_excess(standings),
        tuple(tally.better_on_average(leader)),
    )


def leader_excess(standings: Sequence[Standing]) -> float | None:
    """Return the most by which the leader of these candidates is slower than the best; None if one has no bound."""
    excesses = [standing.leader_excess for standing in standings]
    return None if None in excesses else max([0.0, *(excess for excess in excesses if excess is not None)])


def _place(ratio: Estimate | None) -> tuple[bool, float]:
    return ratio is None, ratio.centre if ratio else 0.0


def fewest_blocks(rule: RaceRule) -> tuple[int, int]:
    """Return the blocks that can drop a candidate, and those that can decide a race, if all of them say the same.

    The first is for a candidate that is slower than each rival in each block, the second for two candidates of the same
    speed, or one that only the leader beats.
    """
    return _fewest_against(1 / rule.delta), _fewest_against(rule.threshold)


def evidence(blocks: int, against: int) -> float:
    """Return the evidence of `blocks` blocks, of which `against` go against a candidate, that its rival is faster.

    The likelihood of the count with chances p above one half, averaged over p with the weight of Beta(1/2, 1/2), over
    that with p = 1/2. It rises with `against`, and is 1 without blocks.
    """
    return float(_evidences(blocks)[against])


@lru_cache(maxsize=MOST_BLOCKS)
def _evidences(blocks: int) -> Matrix:
    """Return the evidence of this number of blocks for each number of them that go against a candidate."""
    import numpy as np

    from keras_matrix.analysis.stats.special import betainc

    counts = range(blocks + 1)
    logs = [
        (blocks + 1) * math.log(2)
        + math.lgamma(against + 0.5)
        + math.lgamma(blocks - against + 0.5)
        - math.lgamma(blocks + 1)
        - math.log(math.pi)
        for against in counts
    ]
    above_half = [float(betainc(blocks - against + 0.5, against + 0.5, 0.5)) for against in counts]
    return np.array(
        [math.exp(min(log, MOST_LOG_EVIDENCE)) * share for log, share in zip(logs, above_half, strict=True)]
    )


@lru_cache(maxsize=MOST_BLOCKS)
def _evidence_table(most_blocks: int) -> Matrix:
    """Return the evidence by the number of blocks, up to `most_blocks`, and the number of those against a candidate."""
    import numpy as np

    table = np.zeros((most_blocks + 1,) * 2)
    for blocks in range(most_blocks + 1):
        table[blocks, : blocks + 1] = _evidences(blocks)
    return table


def _fewest_against(least_evidence: float) -> int:
    return next(count for count in range(MIN_BLOCKS, MOST_BLOCKS) if evidence(count, count) >= least_evidence)


def _least_count(blocks: int, least_evidence: float) -> int | None:
    """Return the smallest number of blocks against a candidate that has this evidence; None if all have less."""
    import numpy as np

    count = max(1, int(np.searchsorted(_evidences(blocks), least_evidence)))
    return count if blocks >= MIN_BLOCKS and count <= blocks else None


@dataclass(slots=True)
class RaceTally:
    """The counts of a race so far, block by block. Rows and columns of its matrices are the candidates `names`.

    `common` counts the blocks of both candidates, `slower` those in which the row is slower than the column, `near`
    those in which the row is faster than the column's time with the tolerance: they speak against "the column is the
    best, and the row is not within the tolerance". `against` is the evidence from each rival, the column, against "the
    row is the best"; 1 from a rival without blocks. `logs` has the log times of each block, NaN if not measured.
    """

    rule: RaceRule
    names: Sequence[str]
    alive: Matrix
    common: Matrix
    slower: Matrix
    near: Matrix
    against: Matrix
    logs: list[Matrix]

    @classmethod
    def of(cls, names: Sequence[str], rule: RaceRule) -> RaceTally:
        """Return the tally of a race of these candidates before its first block."""
        import numpy as np

        if len(names) > rule.candidates:
            raise ValueError(f"blocks: must have at most the rule's {rule.candidates} candidates, got {len(names)}")
        size = len(names)
        common, slower, near = (np.zeros((size, size), dtype=int) for _ in range(3))
        return cls(rule, names, np.ones(size, dtype=bool), common, slower, near, 1.0 - np.eye(size), [])

    def add(self, log_times: Sequence[float] | Matrix) -> None:
        """Count a block: the log time of each candidate, NaN if it was not measured. Dropped ones are ignored."""
        import numpy as np

        logs = np.where(self.alive, np.asarray(log_times, dtype=float), np.nan)
        present = ~np.isnan(logs)
        self.logs.append(logs)
        self.common += present[:, None] & present
        self.slower += logs[:, None] > logs
        self.near += logs[:, None] < logs + math.log1p(self.rule.within)
        self.against = self._evidence_of(self.slower)
        np.fill_diagonal(self.against, 0.0)

    def _evidence_of(self, counts: Matrix) -> Matrix:
        width = len(self.logs) + 1
        values: Matrix = _evidence_table(len(self.logs)).ravel().take(self.common * width + counts)
        return values

    def sums(self) -> Matrix:
        """Return the sum of the evidence of all rivals against each candidate, of those still to come included."""
        total: Matrix = self.against.sum(axis=1) + (self.rule.candidates - len(self.names))
        return total

    def refuted(self) -> list[int]:
        """Return the candidates to drop now, but never all of them: the one with least evidence against it stays."""
        sums = self.sums()
        enough = self.common.diagonal() >= MIN_BLOCKS
        refuted = [int(index) for index in (self.alive & enough & (sums >= self.rule.threshold)).nonzero()[0]]
        if len(refuted) == self.alive.sum():
            refuted.remove(min(refuted, key=lambda index: (sums[index], self.names[index])))
        return refuted

    def drop(self, index: int) -> Drop:
        """Drop a candidate that is refuted."""
        self.alive[index] = False
        rival = max(range(len(self.names)), key=lambda other: (self.against[index, other], self.names[other]))
        ratio = _ratio(self.pair(index, rival), self.rule.delta)
        mean = float(self.sums()[index]) / max(1, self.rule.candidates - 1)
        return Drop(self.names[index], len(self.logs), self.names[rival], ratio, mean)

    def deciders(self) -> list[int]:
        """Return the candidates left that are within the tolerance of the best, whichever of those left it is."""
        import numpy as np

        rest = self.sums() - self.against.T  # row: the leader; column: the best, without the leader's evidence
        decided = (rest + self._evidence_of(self.near) >= self.rule.threshold) & (self.common >= MIN_BLOCKS)
        decided |= ~self.alive | np.eye(len(self.names), dtype=bool)
        return [int(index) for index in (self.alive & decided.all(axis=1)).nonzero()[0]]

    def lowest(self, indices: Sequence[int]) -> int:
        """Return the one of these candidates with the lowest median, over blocks, of its log time.

        The log times of a block are taken from the median of the candidates left, so that drift cancels.
        """
        import numpy as np

        left = self.left()
        centred = [logs - np.nanmedian(logs[left]) for logs in self.logs if not np.isnan(logs[left]).all()]
        medians = {index: float(np.nanmedian([logs[index] for logs in centred])) for index in indices}
        return min(indices, key=lambda index: (medians[index], self.names[index]))

    def left(self) -> list[int]:
        """Return the candidates that have not been dropped."""
        return [int(index) for index in self.alive.nonzero()[0]]

    def pair(self, numerator: int, denominator: int) -> list[float]:
        """Return the log ratio of two candidates in each block that has both, in order."""
        ratios = (float(logs[numerator] - logs[denominator]) for logs in self.logs)
        return [ratio for ratio in ratios if not math.isnan(ratio)]

    def standings(self, leader: int) -> list[Standing]:
        """Return the other candidates left, against this one."""
        rest = self.sums() - self.against[:, leader]
        standings = []
        for index in self.left():
            if index == leader:
                continue
            logs = self.pair(leader, index)
            count = _least_count(len(logs), self.rule.threshold - float(rest[index]))
            excess = None if count is None else math.expm1(sorted(logs)[count - 1])
            ratio = _ratio([-log for log in logs], self.rule.delta) if logs else None
            standings.append(Standing(self.names[index], ratio, excess))
        return standings

    def better_on_average(self, leader: int) -> Iterator[str]:
        """Yield the candidates whose mean log ratio to the leader is below the tolerance, by Student's interval."""
        confidence = 1 - 2 * self.rule.delta / max(1, self.rule.candidates - 1)
        for index, name in enumerate(self.names):
            logs = self.pair(index, leader)
            is_lower = bool(logs) and sum(logs) < -math.log1p(self.rule.within) * len(logs)
            estimate = of_logs(logs, confidence) if is_lower else None
            if estimate and estimate.bounds and estimate.bounds[1] < 1 / (1 + self.rule.within):
                yield name


def _ratio(logs: Sequence[float], delta: float) -> Estimate:
    """Return the median ratio; each end of its interval holds at all looks with probability 1 - `delta`."""
    centre, ordered = math.exp(statistics.median(logs)), sorted(logs)
    count = _least_count(len(logs), 1 / delta)
    if count is None:
        return Estimate(centre, None, None, len(logs), Method.SIGN)
    return Estimate(centre, math.exp(ordered[-count]), math.exp(ordered[count - 1]), len(logs), Method.SIGN)


@dataclass(frozen=True, slots=True)
class MainEffect:
    """The effect of one value of a setting: time with it, divided by time with the setting's reference value.

    `ratio` is the geometric mean over the pairs of candidates that differ in this setting only, with Student's 95 %
    interval over blocks. `least` and `most` are the extremes of the single pairs: if they are far apart, the effect
    depends on the other settings, and the mean describes none of them.
    """

    setting: str
    value: str
    reference: str
    ratio: Estimate
    pairs: int
    least: float
    most: float


def main_effects(
    settings: Mapping[str, Mapping[str, str]], blocks: Sequence[Mapping[str, float]]
) -> tuple[MainEffect, ...]:
    """Return the effect of each value of each setting, from the blocks in which all these candidates were measured.

    `settings` has each candidate's value of each setting; leave failed candidates out. Later blocks, from which a race
    has dropped candidates, have no weight: those that remain were selected by the same times. The reference of a
    setting is the value that its first candidate has. Values without a pair are left out.
    """
    balanced = [block for block in blocks if all(name in block for name in settings)]
    effects = []
    for setting in dict.fromkeys(setting for values in settings.values() for setting in values):
        values = list(dict.fromkeys(chosen[setting] for chosen in settings.values() if setting in chosen))
        for value in values[1:]:
            pairs = list(_pairs(settings, setting, value, values[0]))
            if pairs and balanced:
                effects.append(_main_effect((setting, value, values[0]), pairs, balanced))
    return tuple(effects)


def _pairs(
    settings: Mapping[str, Mapping[str, str]], setting: str, value: str, reference: str
) -> Iterator[tuple[str, str]]:
    """Yield the candidates with this value, each with that one which has the reference and is equal otherwise."""
    references = {
        _others(chosen, setting): name for name, chosen in settings.items() if chosen.get(setting) == reference
    }
    for name, chosen in settings.items():
        if chosen.get(setting) == value and (other := references.get(_others(chosen, setting))) is not None:
            yield name, other


def _others(chosen: Mapping[str, str], setting: str) -> frozenset[tuple[str, str]]:
    return frozenset((name, value) for name, value in chosen.items() if name != setting)


def _main_effect(
    names: tuple[str, str, str], pairs: Sequence[tuple[str, str]], blocks: Sequence[Mapping[str, float]]
) -> MainEffect:
    logs = [[math.log(block[name] / block[other]) for name, other in pairs] for block in blocks]
    ratio = of_logs([statistics.fmean(block_logs) for block_logs in logs])
    if ratio is None:
        raise ValueError("blocks: must not be empty")
    means = [math.exp(statistics.fmean(pair_logs)) for pair_logs in zip(*logs, strict=True)]
    return MainEffect(*names, ratio, len(pairs), min(means), max(means))
