"""The statistics on synthetic noise with known truth: coverage at the stopping time, and false alarms of the gate.

Guarantee: the same rules as `analysis.stats.sequential.decide` and `analysis.regression.gate.judge`, vectorised over
many runs (tests compare them); every draw has a stated seed. Limit: the noise of real machines may differ:
`lab.statistics.noise` states the assumptions, and `runner selftest` measures real machines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr

from keras_matrix.analysis.regression.gate import SLOW_PROCESS, Rule, early_spending, spending
from keras_matrix.analysis.stats.blocks import LEVEL, adjusted_p_values, signed_rank_chances, t_quantile
from keras_matrix.analysis.stats.sequential import LOOKS, PRECISION_TARGET, Looks
from lab.statistics.noise import Array, Scenario

COMPARISONS = 300
NAMED_ROWS = 20
# The threshold 0 is the hardest case: any tolerance only removes alarms.
NO_TOLERANCE = Rule(threshold=0.0, looks=LOOKS)
UNTIL_DECIDED = Rule(threshold=0.0)
CHUNK_RUNS = 50


@dataclass(frozen=True, slots=True)
class Stopped:
    """Where each run of a simulation stopped: centre and half-width on the logarithms, and how many blocks it took."""

    centre: Array
    half: Array
    count: Array


@dataclass(frozen=True, slots=True)
class Coverage:
    """The coverage of the interval at the stopping time, its standard error, and the mean number of blocks."""

    share: float
    error: float
    blocks: float
    at_first: float


@dataclass(frozen=True, slots=True)
class FalseAlarms:
    """The share of runs in which a gate called any of its comparisons, all truly equal, regressed.

    `by_student` is the share of the same gate with Student's p-values in place of the signed-rank ones.
    """

    share: float
    by_student: float
    runs: int


@dataclass(frozen=True, slots=True)
class UntilDecided:
    """A gate that continues from look to look until decided, over comparisons exactly at its threshold.

    `passed` is the share of them called no worse, `alarmed` that of runs of 300 with any called regressed.
    """

    passed: float
    alarmed: float


@dataclass(frozen=True, slots=True)
class EarlyCalls:
    """Comparisons that a gate calls regressed early, at any of its looks: see `early_calls`.

    `of_runs` is the share of runs of 300 comparisons with any such call, `of_single` that of runs of one comparison;
    `at_first` the share of comparisons that a run of one calls at its first look.
    """

    of_runs: float
    of_single: float
    at_first: float


@dataclass(frozen=True, slots=True)
class FalseNames:
    """The share of tables, of `NAMED_ROWS` rows of two truly equal backends each, in which any row names a fastest.

    Without a difference every name is wrong, so this is also the expected share of wrong names in a table.
    """

    share: float
    tables: int


def stopped(logs: Array, target: float = PRECISION_TARGET, looks: Looks = LOOKS) -> Stopped:
    """Return where each row of blocks stops: at the first look precise enough, else where its blocks (the budget) end.

    Blocks beyond the last look are ignored.
    """
    most = min(logs.shape[1], looks.blocks[-1])
    runs = len(logs)
    centre, half, count = np.empty(runs), np.empty(runs), np.zeros(runs, dtype=int)
    for blocks in [*(blocks for blocks in looks.blocks if blocks < most), most]:
        open_ = np.flatnonzero(count == 0)
        drawn = logs[open_, :blocks]
        error = drawn.std(axis=1, ddof=1) / math.sqrt(blocks)
        width = t_quantile(blocks - 1, looks.confidence(blocks)) * error
        ends = (width <= math.log1p(target)) & (blocks in looks.blocks)
        if blocks == most:
            width = np.where(ends, width, t_quantile(blocks - 1, looks.confidences[-1]) * error)
            ends = np.ones(len(open_), dtype=bool)
        rows = open_[ends]
        centre[rows], half[rows], count[rows] = drawn.mean(axis=1)[ends], width[ends], blocks
    return Stopped(centre, half, count)


def coverage(scenario: Scenario, noise: float, runs: int, seed: int, most_blocks: int = LOOKS.blocks[-1]) -> Coverage:
    """Return how often the interval at the stopping time covers the true ratio, 1; the budget is `most_blocks`."""
    generator = np.random.default_rng(seed)
    stops = stopped(scenario.draw(generator, (runs, most_blocks), noise))
    share = float(np.mean(np.abs(stops.centre) <= stops.half))
    return Coverage(
        share,
        math.sqrt(share * (1 - share) / runs),
        float(stops.count.mean()),
        float(np.mean(stops.count == LOOKS.blocks[0])),
    )


def false_alarms(scenario: Scenario, noise: float, runs: int, seed: int, rule: Rule = NO_TOLERANCE) -> FalseAlarms:
    """Return how often a gate over 300 equal comparisons, each stopped by its own rule, raises a false alarm."""
    generator = np.random.default_rng(seed)
    alarmed = by_student = 0
    for begun in range(0, runs, CHUNK_RUNS):
        size = min(CHUNK_RUNS, runs - begun)
        ranks, students = _smallest_p_values(scenario, noise, size * COMPARISONS, generator, rule)
        alarmed += _alarms(ranks, size, rule.level)
        by_student += _alarms(students, size, rule.level)
    return FalseAlarms(alarmed / runs, by_student / runs, runs)


def until_decided(scenario: Scenario, noise: float, runs: int, seed: int, rule: Rule = UNTIL_DECIDED) -> UntilDecided:
    """Return the verdicts of a gate that looks until decided, on comparisons at its threshold, the hardest case."""
    generator = np.random.default_rng(seed)
    passed = alarmed = 0
    for begun in range(0, runs, CHUNK_RUNS):
        size = min(CHUNK_RUNS, runs - begun)
        well, p_values = _decide_all(scenario, noise, size * COMPARISONS, generator, rule)
        passed += well
        alarmed += _alarms(p_values, size, rule.level)
    return UntilDecided(passed / (runs * COMPARISONS), alarmed / runs)


def early_calls(
    scenario: Scenario, noise: float, runs: int, seed: int, slowdown: float = 1.0, rule: Rule = UNTIL_DECIDED
) -> EarlyCalls:
    """Return how often a gate calls comparisons early that are `slowdown` times beyond its threshold."""
    generator = np.random.default_rng(seed)
    of_runs = of_single = at_first = 0
    for begun in range(0, runs, CHUNK_RUNS):
        size = min(CHUNK_RUNS, runs - begun)
        p_values, first = _early_p_values(scenario, noise, (size * COMPARISONS, slowdown), generator, rule)
        of_runs += _alarms(p_values, size, rule.early_level)
        of_single += len(p_values)
        at_first += first
    rows = runs * COMPARISONS
    return EarlyCalls(of_runs / runs, of_single / rows, at_first / rows)


def false_names(scenario: Scenario, noise: float, tables: int, seed: int) -> FalseNames:
    """Return how often a table of equal backends names a fastest, each comparison stopped by its own rule."""
    generator = np.random.default_rng(seed)
    stops = stopped(scenario.draw(generator, (tables * NAMED_ROWS, LOOKS.blocks[-1]), noise))
    widths = {blocks: t_quantile(blocks - 1, LOOKS.confidence(blocks)) for blocks in LOOKS.blocks}
    error = stops.half / np.array([widths[int(count)] for count in stops.count])
    by_chance = LOOKS.p_factor * 2 * stdtr(stops.count - 1, -np.abs(stops.centre) / error)
    p_values = np.where(np.abs(stops.centre) > stops.half, np.minimum(by_chance, 1.0), 1.0)
    named = sum(min(adjusted_p_values(row.tolist())) <= LEVEL for row in p_values.reshape(tables, NAMED_ROWS))
    return FalseNames(named / tables, tables)


def _decide_all(
    scenario: Scenario, noise: float, rows: int, generator: np.random.Generator, rule: Rule
) -> tuple[int, dict[int, float]]:
    """Return how many comparisons pass, and the smallest p-value at any look of those that could be discoveries.

    A regressed comparison would stop; here it continues, which can only add alarms.
    """
    smallest: dict[int, float] = {}
    centre = math.log1p(rule.threshold)
    names, logs = np.arange(rows), np.empty((rows, 0))
    for blocks, confidence in zip(rule.looks.blocks, rule.looks.confidences, strict=True):
        drawn = scenario.draw(generator, (len(names), blocks - logs.shape[1]), noise) + centre
        logs = np.hstack([logs, drawn])
        mean = logs.mean(axis=1)
        half = t_quantile(blocks - 1, confidence) / math.sqrt(blocks) * logs.std(axis=1, ddof=1)
        beyond = np.flatnonzero(mean - half > centre)
        if share := spending(blocks, rule):
            _add(smallest, names[beyond], _rank_chances(logs[beyond] - centre) / share, rule.level)
        on = mean + half > centre
        names, logs = names[on], logs[on]
    return rows - len(names), smallest


def _early_p_values(
    scenario: Scenario, noise: float, rows: tuple[int, float], generator: np.random.Generator, rule: Rule
) -> tuple[dict[int, float], int]:
    """Return the smallest p-value of each comparison that a run of one calls early, and how many at the first look.

    `rows` are the number of comparisons and their slowdown beyond the threshold. Called ones continue, which can only
    add calls.
    """
    smallest: dict[int, float] = {}
    first = 0
    centre = math.log1p(rule.threshold)
    names, logs = np.arange(rows[0]), np.empty((rows[0], 0))
    for blocks, confidence in zip(rule.looks.blocks, rule.looks.confidences, strict=True):
        drawn = scenario.draw(generator, (len(names), blocks - logs.shape[1]), noise) + centre + math.log(rows[1])
        logs = np.hstack([logs, drawn])
        mean, scatter = logs.mean(axis=1), logs.std(axis=1, ddof=1) / math.sqrt(blocks)
        half = t_quantile(blocks - 1, confidence) * scatter
        beyond = np.flatnonzero(mean - half > centre + math.log(SLOW_PROCESS))
        p_values = stdtr(blocks - 1, (centre - mean[beyond]) / scatter[beyond]) / early_spending(blocks, rule)
        _add(smallest, names[beyond], p_values, rule.early_level)
        first = len(smallest) if blocks == rule.looks.blocks[0] else first
        on = mean + half > centre
        names, logs = names[on], logs[on]
    return smallest, first


def _smallest_p_values(
    scenario: Scenario, noise: float, rows: int, generator: np.random.Generator, rule: Rule
) -> tuple[dict[int, float], dict[int, float]]:
    """Return, for those comparisons that could be discoveries, the p-values by signed ranks and by Student's t.

    From look to look, blocks are drawn only for the comparisons that continue.
    """
    ranks: dict[int, float] = {}
    students: dict[int, float] = {}
    centre, target = math.log1p(rule.threshold), math.log1p(PRECISION_TARGET)
    names, logs = np.arange(rows), np.empty((rows, 0))
    for blocks, confidence in zip(rule.looks.blocks, rule.looks.confidences, strict=True):
        logs = np.hstack([logs, scenario.draw(generator, (len(names), blocks - logs.shape[1]), noise)])
        mean, scatter = logs.mean(axis=1), logs.std(axis=1, ddof=1) / math.sqrt(blocks)
        half = t_quantile(blocks - 1, confidence) * scatter
        ends = np.full(len(names), blocks == rule.looks.blocks[-1]) | (half <= target)
        beyond = np.flatnonzero(ends & (mean - half > centre))
        _add(students, names[beyond], stdtr(blocks - 1, (centre - mean[beyond]) / scatter[beyond]), rule.level)
        if share := spending(blocks, rule):
            _add(ranks, names[beyond], _rank_chances(logs[beyond] - centre) / share, rule.level)
        names, logs = names[~ends], logs[~ends]
    return ranks, students


def _add(smallest: dict[int, float], names: Array, p_values: Array, level: float) -> None:
    for index in np.flatnonzero(p_values <= level):
        name = int(names[index])
        smallest[name] = min(float(p_values[index]), smallest.get(name, 1.0))


def _rank_chances(distances: Array) -> Array:
    """Return, for each row without ties, the result of `signed_rank_p`."""
    ranks = np.abs(distances).argsort(axis=1).argsort(axis=1) + 1
    below = np.where(distances <= 0, ranks, 0).sum(axis=1)
    chances: Array = signed_rank_chances(tuple(range(1, distances.shape[1] + 1)))[below]
    return chances


def _alarms(p_values: dict[int, float], runs: int, level: float) -> int:
    """Return in how many runs, of 300 comparisons each, any is a discovery; those not named have p-value 1."""
    by_run: dict[int, list[float]] = {}
    for name, p in p_values.items():
        by_run.setdefault(name // COMPARISONS, []).append(p)
    return sum(
        1
        for run_p_values in by_run.values()
        if min(adjusted_p_values([*run_p_values, *[1.0] * (COMPARISONS - len(run_p_values))])) <= level
    )
