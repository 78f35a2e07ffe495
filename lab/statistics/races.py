"""Simulated races of `analysis.racing`, on noise with known truth: errors, decisions, and processes saved.

Guarantee: a race here is the product's `RaceTally`, block by block; every draw has a stated seed. Limit: candidates
have the noise of `lab.statistics.noise`, all of the same kind.

A field is one best candidate and others behind it: a *ladder*, in which each is slower than the one before by the gap,
up to three times the best, or a *pack*, in which all others are slower by the gap, where the most of them can err.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from keras_matrix.analysis.racing import WITHIN, RaceRule, RaceTally, leader_excess
from keras_matrix.analysis.selftest import Rate
from keras_matrix.analysis.stats.blocks import CONFIDENCE, MIN_BLOCKS, t_quantile
from lab.statistics import noise
from lab.statistics.noise import Array, Draw

SIZES = (4, 8, 24, 64, 200)
GAPS = (0.01, 0.02, 0.05, 0.20)
SHAPES = ("ladder", "pack")
MOST_BLOCKS = 40
SLOWEST = 3.0
ROUNDING = 1e-9
TOLERATED = WITHIN + ROUNDING


@dataclass(frozen=True, slots=True)
class RaceNoise:
    """A kind of noise: its name, the draw of single processes, and whether the machine drifts.

    `best_only` restricts what the draw adds to normal noise to the processes of the best candidate.
    """

    name: str
    processes: Draw
    drifts: bool = False
    best_only: bool = False


NOISES = (
    RaceNoise("normal", noise.normal_processes),
    RaceNoise("heavy tails", noise.heavy_tailed_processes),
    RaceNoise("drift", noise.normal_processes, drifts=True),
    RaceNoise("slow modes", noise.sometimes_slow_processes),
    RaceNoise("near modes", noise.sometimes_slower_processes),
)
LIMIT = RaceNoise("slow modes of the best alone", noise.sometimes_slow_processes, best_only=True)


@dataclass(frozen=True, slots=True)
class Field:
    """The candidates of a race: their number, the gap between them, and the shape of the field."""

    size: int
    gap: float
    shape: str

    @property
    def truth(self) -> Array:
        """The log times without noise; the first candidate is the best."""
        steps = np.arange(self.size) if self.shape == "ladder" else np.minimum(np.arange(self.size), 1)
        return np.minimum(steps * math.log1p(self.gap), math.log(SLOWEST))


FIELDS = tuple(Field(size, gap, shape) for size, gap, shape in product(SIZES, GAPS, SHAPES))


@dataclass(frozen=True, slots=True)
class SimulatedRace:
    """The end of a simulated race.

    `excess` is the true excess of its leader over the best, `bound` the one that it stated; `processes` the number of
    processes measured, of `all_processes` without drops.
    """

    field: Field
    decided: bool
    best_dropped: bool
    excess: float
    bound: float | None
    blocks: int
    processes: int
    warned: bool

    @property
    def all_processes(self) -> int:
        """The processes that would give each candidate as many blocks as the leader has."""
        return self.field.size * self.blocks


def races(kind: RaceNoise, level: float, count: int, seed: int, part: tuple[int, int] = (0, 1)) -> list[SimulatedRace]:
    """Return simulated races, over all fields in turn; of `count`, those of one part, (0, 4) for the first of four."""
    return [
        simulated(FIELDS[number % len(FIELDS)], kind, level, np.random.default_rng((seed, number)))
        for number in range(count)[part[0] :: part[1]]
    ]


def simulated(
    field: Field, kind: RaceNoise, level: float, generator: np.random.Generator, most_blocks: int = MOST_BLOCKS
) -> SimulatedRace:
    """Return the end of a race of this field: at its decision, else after `most_blocks`."""
    tally = RaceTally.of([f"{index:03d}" for index in range(field.size)], RaceRule(field.size))
    processes = 0
    deciders: list[int] = []
    for log_times in blocks(field, kind, level, generator, most_blocks):
        processes += int(tally.alive.sum())
        tally.add(log_times)
        for index in tally.refuted():
            tally.drop(index)
        deciders = tally.deciders() if len(tally.logs) >= MIN_BLOCKS else []
        if deciders:
            break
    leader = tally.lowest(deciders or tally.left())
    return SimulatedRace(
        field,
        bool(deciders),
        not tally.alive[0],
        math.expm1(field.truth[leader]),
        leader_excess(tally.standings(leader)),
        len(tally.logs),
        processes,
        any(tally.better_on_average(leader)),
    )


def blocks(
    field: Field, kind: RaceNoise, level: float, generator: np.random.Generator, most_blocks: int
) -> Iterator[Array]:
    """Yield the log times of all candidates in each block, as if none was dropped, in a new random order each."""
    course = noise.course(generator, field.size * most_blocks, level) if kind.drifts else None
    for number in range(most_blocks):
        log_times = field.truth + kind.processes(generator, (field.size,), level)
        if kind.best_only:
            log_times[1:] = field.truth[1:] + noise.normal_processes(generator, (field.size - 1,), level)
        if course is not None:
            log_times += generator.permutation(course[number * field.size : (number + 1) * field.size])
        yield log_times


def plain_t_drops_the_best(
    field: Field, kind: RaceNoise, level: float, generator: np.random.Generator, most_blocks: int = MOST_BLOCKS
) -> bool:
    """Return whether a race by plain t-tests at 5 %, of each candidate against the leader after each block, drops it.

    The method that many tuners use; the leader is the candidate with the lowest mean.
    """
    drawn = np.empty((0, field.size))
    alive = np.ones(field.size, dtype=bool)
    for log_times in blocks(field, kind, level, generator, most_blocks):
        drawn = np.vstack([drawn, log_times])
        if len(drawn) < MIN_BLOCKS:
            continue
        leader = int(np.where(alive, drawn.mean(axis=0), np.inf).argmin())
        ratios = drawn - drawn[:, [leader]]
        half = t_quantile(len(drawn) - 1, CONFIDENCE) * ratios.std(axis=0, ddof=1) / math.sqrt(len(drawn))
        alive &= ~(ratios.mean(axis=0) > half)
        if not alive[0] or alive.sum() == 1:
            break
    return not alive[0]


def plain_t_share(kind: RaceNoise, level: float, count: int, seed: int, size: int = 24) -> float:
    """Return the share of races of equal candidates but one, 5 % faster, in which plain t-tests drop that one."""
    field = Field(size, 0.05, "pack")
    generators = [np.random.default_rng((seed, number)) for number in range(count)]
    return sum(plain_t_drops_the_best(field, kind, level, generator) for generator in generators) / count


@dataclass(frozen=True, slots=True)
class RaceShares:
    """Shares of simulated races.

    `returned_within` counts the decided races whose candidate is within the tolerance of the best, `leaders_within` the
    leaders of all races, decided or not, `bound_held` the stated bounds of the leader's excess that were true. `warned`
    counts the races in which the mean of the log ratios prefers another candidate. `saved` is the share of processes
    that drops saved, against as many blocks of each candidate as the leader has.
    """

    decided: Rate
    returned_within: Rate
    best_dropped: Rate
    leaders_within: Rate
    bound_held: Rate
    warned: Rate
    saved: float
    blocks: float


def shares(outcomes: Sequence[SimulatedRace]) -> RaceShares:
    """Return the shares of these races; `blocks` is their median."""
    count = len(outcomes)
    good = [outcome.decided for outcome in outcomes if outcome.excess <= TOLERATED]
    held = [outcome.excess <= outcome.bound + ROUNDING for outcome in outcomes if outcome.bound is not None]
    decided = sum(outcome.decided for outcome in outcomes)
    return RaceShares(
        Rate(decided, count),
        Rate(sum(good), decided),
        Rate(sum(outcome.best_dropped for outcome in outcomes), count),
        Rate(len(good), count),
        Rate(sum(held), len(held)),
        Rate(sum(outcome.warned for outcome in outcomes), count),
        1 - sum(outcome.processes for outcome in outcomes) / sum(outcome.all_processes for outcome in outcomes),
        float(np.median([outcome.blocks for outcome in outcomes])),
    )
