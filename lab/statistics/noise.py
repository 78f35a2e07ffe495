"""Synthetic noise of benchmarks, from which the simulations draw the blocks' log ratios.

Each scenario gives log ratios of two arms that are truly equal, one a block, the order within a block drawn at random.
Differences between blocks cancel in the ratio, so a block's draw does not depend on its neighbours; of a drift only the
change between two adjacent processes remains, with a random sign.

`noise` is the standard deviation of one process's log time; a ratio's is `sqrt(2)` times that, plus the scenario's
own. The slow mode is the one observed on shared machines: entire processes at half speed (3.5 and 7.0 ms).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Draw = Callable[[np.random.Generator, tuple[int, int], float], Array]

SLOW_FACTOR = 2.0
SLOW_SHARE = 0.3
DRIFT_PER_PROCESS = 0.005
TAIL_DEGREES = 3
# A drift turns after so many processes of a race.
TURN = 80


@dataclass(frozen=True, slots=True)
class Scenario:
    """A type of noise: its name, its meaning, and the draw of log ratios, runs by blocks."""

    name: str
    meaning: str
    draw: Draw


def normal(generator: np.random.Generator, shape: tuple[int, int], noise: float) -> Array:
    """Return differences of two normal processes."""
    return generator.standard_normal(shape) * (math.sqrt(2) * noise)


def heavy_tails(generator: np.random.Generator, shape: tuple[int, int], noise: float) -> Array:
    """Return differences of two processes, each Student's t of 3 degrees, scaled to the standard deviation `noise`."""
    scale = noise / math.sqrt(TAIL_DEGREES / (TAIL_DEGREES - 2))
    return (generator.standard_t(TAIL_DEGREES, shape) - generator.standard_t(TAIL_DEGREES, shape)) * scale


def drift(generator: np.random.Generator, shape: tuple[int, int], noise: float) -> Array:
    """Return ratios while the machine slows by 0.5 % a process (49 % over 80) and walks at random on top of it."""
    between = DRIFT_PER_PROCESS + generator.standard_normal(shape) * (noise / 2)
    return normal(generator, shape, noise) + np.where(generator.random(shape) < 0.5, between, -between)


def slow_modes(generator: np.random.Generator, shape: tuple[int, int], noise: float) -> Array:
    """Return ratios where each process of either arm is at half speed with probability 0.3."""
    return normal(generator, shape, noise) + _slow(generator, shape) - _slow(generator, shape)


def near_modes(generator: np.random.Generator, shape: tuple[int, int], noise: float) -> Array:
    """Return ratios where each process of either arm is 10 % slower with probability 0.3."""
    return normal(generator, shape, noise) + (_slow(generator, shape) - _slow(generator, shape)) * math.log(
        1.1, SLOW_FACTOR
    )


def slow_modes_of_one(generator: np.random.Generator, shape: tuple[int, int], noise: float) -> Array:
    """Return ratios, less their mean, where the processes of one arm alone are at half speed with probability 0.3."""
    return normal(generator, shape, noise) + _slow(generator, shape) - SLOW_SHARE * math.log(SLOW_FACTOR)


def _slow(generator: np.random.Generator, shape: tuple[int, int]) -> Array:
    return (generator.random(shape, dtype=np.float32) < SLOW_SHARE) * math.log(SLOW_FACTOR)


SCENARIOS = (
    Scenario("normal", "normal processes", normal),
    Scenario("heavy tails", "processes of Student's t with 3 degrees", heavy_tails),
    Scenario("drift", "the machine slows by 0.5 % a process and walks at random", drift),
    Scenario("slow modes", "3 in 10 processes of either arm at half speed", slow_modes),
    Scenario("near modes", "3 in 10 processes of either arm 10 % slower", near_modes),
)
LIMIT = Scenario("slow modes of one arm", "3 in 10 processes of one arm alone at half speed", slow_modes_of_one)


def normal_processes(generator: np.random.Generator, shape: tuple[int, ...], noise: float) -> Array:
    """Return the log times of single normal processes."""
    return generator.standard_normal(shape) * noise


def heavy_tailed_processes(generator: np.random.Generator, shape: tuple[int, ...], noise: float) -> Array:
    """Return the log times of processes of Student's t of 3 degrees, scaled to the standard deviation `noise`."""
    return generator.standard_t(TAIL_DEGREES, shape) * (noise / math.sqrt(TAIL_DEGREES / (TAIL_DEGREES - 2)))


def sometimes_slow_processes(generator: np.random.Generator, shape: tuple[int, ...], noise: float) -> Array:
    """Return the log times of processes of which 3 in 10 are at half speed."""
    slow = generator.random(shape) < SLOW_SHARE
    return normal_processes(generator, shape, noise) + slow * math.log(SLOW_FACTOR)


def sometimes_slower_processes(generator: np.random.Generator, shape: tuple[int, ...], noise: float) -> Array:
    """Return the log times of processes of which 3 in 10 are 10 % slower."""
    slow = generator.random(shape) < SLOW_SHARE
    return normal_processes(generator, shape, noise) + slow * math.log(1.1)


def course(generator: np.random.Generator, processes: int, noise: float) -> Array:
    """Return the machine's log slowness at each process of a long run.

    As in `drift`, it changes by 0.5 % a process and walks at random; after each 80 processes it turns, since a long
    race has thousands.
    """
    turns = np.abs((np.arange(processes) + generator.integers(2 * TURN)) % (2 * TURN) - TURN)
    walk: Array = turns * DRIFT_PER_PROCESS + np.cumsum(generator.standard_normal(processes) * (noise / 2))
    return walk
