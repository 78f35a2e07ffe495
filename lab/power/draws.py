"""Power of comparisons, by resampling of measured blocks.

A recording has, for one backend on one machine, blocks of processes in their order: two equal arms, and one slowed
down by an injected fault. It gives, for any budget, the share of comparisons that find a slowdown of a given size (the
power), the false alarm rate, the smallest slowdown found 8 times in 10, and the requirements of a method with one
process and one mean an arm.

Blocks are drawn as stretches of neighbours, so that effects of the machine that last longer than a block remain (the
circular block bootstrap: Politis and Romano, in "Exploring the Limits of Bootstrap", 1992). Without a difference the
names of the two equal arms are exchangeable, so each draw assigns them at random: a chance difference of a recording is
not taken for a true one. The interval of a power comes from resampling the recording itself, and so includes the
uncertainty of few blocks.

Limit: machines and hours that were not recorded are not covered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_matrix.analysis.regression.gate import GateOutcome, Rule, judge
from keras_matrix.analysis.stats.blocks import CONFIDENCE, LEVEL, MIN_BLOCKS, POWER, t_quantile
from keras_matrix.analysis.stats.sequential import FIXED

Array = npt.NDArray[np.float64]
Finds = Callable[[Array], npt.NDArray[np.bool_]]
"""From log ratios, one comparison a row and one block a column, to whether each comparison finds its arm slower."""

BASE, SAME, SLOWER = "base", "same", "slower"
OUTER, INNER = 200, 400


@dataclass(frozen=True, slots=True)
class Process:
    """One measured process: its figure, its measured epochs, and its cost in wall time.

    `cost_s` includes attempts that were replaced; `import_time_s` is that of the server it was forked from.
    """

    step_time_s: float
    epoch_times_s: tuple[float, ...]
    cost_s: float
    import_time_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Recording:
    """The blocks of one backend under one condition, in their order; each maps an arm to its process."""

    backend: str
    condition: str
    blocks: tuple[Mapping[str, Process], ...]

    def logs(self, arm: str) -> Array:
        """Return the log ratio of an arm to the base in every block that has both; shape (blocks,)."""
        pairs = [(block[arm], block[BASE]) for block in self.blocks if arm in block and BASE in block]
        return np.array([math.log(new.step_time_s / base.step_time_s) for new, base in pairs])

    def block_cost_s(self, arm: str) -> float:
        """Return the mean wall time of a block of the base and this arm; their servers start side by side."""
        pairs = [(block[arm], block[BASE]) for block in self.blocks if arm in block and BASE in block]
        return float(np.mean([_cost_s(pair) for pair in pairs]))


@dataclass(frozen=True, slots=True)
class Draws:
    """The source of random draws, and how many comparisons are drawn from each resampled recording."""

    generator: np.random.Generator
    inner: int = INNER


@dataclass(frozen=True, slots=True)
class Power:
    """The share of comparisons that find a slowdown, with its 95 % interval over recordings like this one."""

    share: float
    low: float
    high: float


def by_interval(logs: Array) -> npt.NDArray[np.bool_]:
    """Return whether `runner compare` calls it slower: the 95 % interval is above 1."""
    count = logs.shape[1]
    half = t_quantile(count - 1, CONFIDENCE) * logs.std(axis=1, ddof=1) / math.sqrt(count)
    is_slower: npt.NDArray[np.bool_] = logs.mean(axis=1) > half
    return is_slower


def by_gate(logs: Array) -> npt.NDArray[np.bool_]:
    """Return whether `runner gate --threshold 0` calls one comparison regressed, with a fixed number of blocks."""
    rule = Rule(threshold=0.0, looks=FIXED)
    return np.array([judge({"": row.tolist()}, rule)[""].outcome is GateOutcome.REGRESSED for row in logs])


def affordable(recording: Recording, arm: str, budget_s: float) -> int:
    """Return how many blocks of the base and this arm a budget pays for."""
    return int(budget_s // recording.block_cost_s(arm))


def power(
    logs: Array,
    count: int,
    finds: Finds,
    draws: Draws,
    slowdown: float | None = None,
) -> Power | None:
    """Return the power of comparisons of `count` blocks drawn from these; None below `MIN_BLOCKS`.

    With `slowdown` the logs are of two equal arms: every draw assigns their names at random and slows one by it.
    """
    if min(count, len(logs)) < MIN_BLOCKS:
        return None

    def share(arm_logs: Array, rows: int) -> float:
        drawn = stretches(arm_logs, rows, count, draws.generator)
        if slowdown is not None:
            drawn = tossed(drawn, draws.generator) + math.log1p(slowdown)
        return float(finds(drawn).mean())

    shares = [share(again, draws.inner) for again in stretches(logs, OUTER, len(logs), draws.generator)]
    low, high = np.quantile(shares, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Power(share(logs, OUTER * 10), float(low), float(high))


def false_alarms(logs: Array, count: int, finds: Finds, generator: np.random.Generator) -> float | None:
    """Return the share of comparisons of two equal arms, `count` blocks each, found slower; None below `MIN_BLOCKS`."""
    if min(count, len(logs)) < MIN_BLOCKS:
        return None
    drawn = stretches(logs, OUTER * 10, count, generator)
    return float(finds(tossed(drawn, generator)).mean())


def stretches(logs: Array, rows: int, count: int, generator: np.random.Generator) -> Array:
    """Return draws of `count` blocks, shape (rows, count), made of stretches of `MIN_BLOCKS` neighbours."""
    pieces = -(-count // MIN_BLOCKS)
    begins = generator.integers(len(logs), size=(rows, pieces, 1))
    places = (begins + np.arange(MIN_BLOCKS)) % len(logs)
    drawn: Array = logs[places.reshape(rows, -1)[:, :count]]
    return drawn


def tossed(logs: Array, generator: np.random.Generator) -> Array:
    """Return the logs with the arms' names exchanged at random in every block."""
    signs: Array = np.where(generator.random(logs.shape) < 0.5, 1.0, -1.0)
    return signs * logs


def smallest_found(errors: Array, limits: Array | float) -> float:
    """Return the smallest relative slowdown past its limit 8 times in 10, with these errors of the log ratio."""
    # A true slowdown d is found if d + error > limit: in 8 of 10 draws for this d or more.
    return math.expm1(float(np.quantile(limits - errors, POWER)))


def ours(logs: Array, count: int, generator: np.random.Generator) -> float | None:
    """Return the smallest slowdown that comparisons of `count` blocks find by their interval; None below five."""
    if min(count, len(logs)) < MIN_BLOCKS:
        return None
    drawn = tossed(stretches(logs, OUTER * 10, count, generator), generator)
    half = t_quantile(count - 1, CONFIDENCE) * drawn.std(axis=1, ddof=1) / math.sqrt(count)
    return smallest_found(drawn.mean(axis=1), half)


def one_process_each(recording: Recording, budget_s: float, generator: np.random.Generator) -> float | None:
    """Return the smallest slowdown found by one process and one mean an arm, one arm after the other.

    It is the method of keras-benchmarks, given half of the budget for each arm and the exact 95 % limit of its own
    error, which its users do not have. Its error has two parts, both from the recording: the difference in machine
    speed between the halves of the budget, and the distance of one process from its neighbours of the same blocks,
    less the scatter of its epochs, which a long process averages out. None for a recording shorter than the budget.
    """
    levels, deviations, at_s = _levels(recording)
    begins = np.flatnonzero(at_s + budget_s <= at_s[-1])
    if not len(begins):
        return None
    differences = np.array([_level_change(levels, at_s, at_s[begin], budget_s) for begin in begins])
    drawn = generator.choice(differences, OUTER * 10) * np.where(generator.random(OUTER * 10) < 0.5, 1.0, -1.0)
    errors = drawn + generator.choice(deviations, OUTER * 10) - generator.choice(deviations, OUTER * 10)
    return smallest_found(errors, float(np.quantile(np.abs(errors), 1 - LEVEL)))


def _levels(recording: Recording) -> tuple[Array, Array, Array]:
    """Return each block's mean log step time, each process's distance from it, and when each block began in seconds."""
    equal = [[block[arm] for arm in (BASE, SAME)] for block in recording.blocks if BASE in block and SAME in block]
    logs = np.log([[process.step_time_s for process in block] for block in equal])
    levels = logs.mean(axis=1)
    # The distance of each of two values from their mean is 1/sqrt(2) of its distance from the truth.
    deviations = ((logs - levels[:, np.newaxis]) * math.sqrt(2)).ravel()
    costs = np.array([_cost_s(list(block.values())) for block in recording.blocks])
    return (
        levels,
        deviations * _beyond_epochs(equal, deviations),
        np.concatenate([[0.0], np.cumsum(costs)])[: len(levels)],
    )


def _beyond_epochs(blocks: Sequence[Sequence[Process]], deviations: Array) -> float:
    """Return the share of the processes' scatter (as a standard deviation) that their epochs do not explain."""
    within = np.mean([np.var(np.log(p.epoch_times_s), ddof=1) / len(p.epoch_times_s) for b in blocks for p in b])
    return math.sqrt(max(0.0, 1 - float(within) / float(np.var(deviations)))) if np.var(deviations) else 0.0


def _level_change(levels: Array, at_s: Array, begin_s: float, budget_s: float) -> float:
    first = (at_s >= begin_s) & (at_s < begin_s + budget_s / 2)
    second = (at_s >= begin_s + budget_s / 2) & (at_s <= begin_s + budget_s)
    return float(levels[second].mean() - levels[first].mean()) if first.any() and second.any() else 0.0


def _cost_s(block: Sequence[Process]) -> float:
    return max(process.import_time_s for process in block) + sum(process.cost_s for process in block)


def recordings(rows: Sequence[Mapping[str, Any]]) -> list[Recording]:
    """Return the recordings of rows, one a process attempt, as `lab/run power` stores them; blocks in their order.

    Of attempts at one repeat the last counts, at the cost of all.
    """
    blocks_by_key: dict[tuple[str, str], dict[tuple[str, int], dict[str, Process]]] = {}
    for row in sorted(rows, key=lambda row: (row["session"], row["block"], row["attempt"])):
        blocks = blocks_by_key.setdefault((row["backend"], row["condition"]), {})
        block = blocks.setdefault((row["session"], row["block"]), {})
        cost_s = row["wall_time_s"] + (block[row["arm"]].cost_s if row["arm"] in block else 0.0)
        block[row["arm"]] = Process(
            row["step_time_s"], tuple(row["epoch_times_s"]), cost_s, row["import_time_s"] or 0.0
        )
    return [Recording(*key, tuple(blocks.values())) for key, blocks in sorted(blocks_by_key.items())]
