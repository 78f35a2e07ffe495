"""The effect of a run's design, on simulated machines: interleaved against sequential, many processes against one.

Guarantee: both designs have the same machine, with the same noise and drift, for the same time; every draw has a stated
seed. Limit: the cost of starting a process is that of one machine, stated below.

The alternative is the method of keras-benchmarks: one process for each arm, one mean, fixed order, the full budget. It
prints no interval; here it gets the exact 95 % limits of its figure without a difference, which its users do not have.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from keras_matrix.analysis.stats.blocks import CONFIDENCE, LEVEL, POWER, t_quantile
from lab.statistics.noise import Array

# One process: start, build, compile, discarded epoch; then the measured epochs. Together as the default matrix takes on
# two cores: 240 s for 54 processes.
START_S = 2.4
KEPT_S = 2.0
EPOCH_S = 0.5
# Epochs scatter within a process by so much, in addition to the scatter between processes.
EPOCH_NOISE = 0.10
# Over a run, or a budget, the machine changes its speed by so much, up or down.
DRIFT = 0.20


@dataclass(frozen=True, slots=True)
class Errors:
    """Root mean square errors of the log ratio of two equal arms, by the order in which their repeats ran."""

    in_turn: float
    one_after_other: float

    @property
    def gain(self) -> float:
        """Return the ratio of the errors without and with interleaving."""
        return self.one_after_other / self.in_turn


@dataclass(frozen=True, slots=True)
class Detectable:
    """The smallest relative differences that either design detects in 8 of 10 runs, at 5 % false alarms."""

    ours: float
    theirs: float
    blocks: int

    @property
    def share(self) -> float:
        """Return ours as a share of theirs."""
        return self.ours / self.theirs


def ramp(generator: np.random.Generator, runs: int, slots: int, drift: float = DRIFT) -> Array:
    """Return the machine's log slowness in each slot: a straight line of `drift` over the run, up or down."""
    line = np.linspace(0.0, math.log1p(drift), slots)
    return np.where(generator.random((runs, 1)) < 0.5, line, -line)


def step(generator: np.random.Generator, runs: int, slots: int) -> Array:
    """Return the machine's log slowness in each slot: a step of `DRIFT`, up or down, at a random slot."""
    line = (np.arange(slots) >= generator.integers(1, slots, (runs, 1))) * math.log1p(DRIFT)
    return np.where(generator.random((runs, 1)) < 0.5, line, -line)


def order_errors(
    drift: Callable[[np.random.Generator, int, int], Array], noise: float, repeats: int, runs: int, seed: int
) -> Errors:
    """Return the errors of `repeats` processes an arm: in blocks of random order, and first one arm, then the other."""
    generator = np.random.default_rng(seed)
    figures = drift(generator, runs, 2 * repeats) + generator.standard_normal((runs, 2 * repeats)) * noise
    signs = np.where(generator.random((runs, repeats)) < 0.5, 1.0, -1.0)
    in_turn = (signs * (figures[:, ::2] - figures[:, 1::2])).mean(axis=1)
    after = figures[:, repeats:].mean(axis=1) - figures[:, :repeats].mean(axis=1)
    return Errors(float(np.sqrt(np.mean(in_turn**2))), float(np.sqrt(np.mean(after**2))))


@dataclass(frozen=True, slots=True)
class Machine:
    """A simulated machine and its time budget.

    `noise` is the standard deviation of a process's log time: it is constant within a process, however long. `drift` is
    the linear change of the machine's speed over the budget.
    """

    noise: float
    drift: float
    budget_s: float


def smallest_detectable(machine: Machine, runs: int, seed: int) -> Detectable:
    """Return what our design and keras-benchmarks' detect of two arms on this machine, within its budget."""
    generator = np.random.default_rng(seed)
    blocks = int(machine.budget_s // (2 * (START_S + KEPT_S)))
    logs = _our_blocks(generator, machine, runs, blocks)
    half = t_quantile(blocks - 1, CONFIDENCE) * logs.std(axis=1, ddof=1) / math.sqrt(blocks)
    their_figures = _their_figure(generator, machine, runs)
    limit = np.full(runs, np.quantile(np.abs(their_figures), 1 - LEVEL))
    return Detectable(_detected(logs.mean(axis=1), half), _detected(their_figures, limit), blocks)


def _our_blocks(generator: np.random.Generator, machine: Machine, runs: int, blocks: int) -> Array:
    slowness = ramp(generator, runs, 2 * blocks, machine.drift)
    figure_noise = math.hypot(machine.noise, EPOCH_NOISE / math.sqrt(KEPT_S / EPOCH_S))
    figures = slowness + generator.standard_normal(slowness.shape) * figure_noise
    signs = np.where(generator.random((runs, blocks)) < 0.5, 1.0, -1.0)
    differences: Array = signs * (figures[:, ::2] - figures[:, 1::2])
    return differences


def _their_figure(generator: np.random.Generator, machine: Machine, runs: int) -> Array:
    figure_noise = math.hypot(machine.noise, EPOCH_NOISE / math.sqrt((machine.budget_s / 2 - START_S) / EPOCH_S))
    # The means of two halves of a straight line differ by half of it.
    halves = ramp(generator, runs, 2, machine.drift)[:, 1] / 2
    difference: Array = halves + generator.standard_normal(runs) * math.sqrt(2) * figure_noise
    return difference


def _detected(errors: Array, limits: Array) -> float:
    """Return the smallest relative difference whose figure, with these errors, passes its limit in 8 of 10 runs."""
    # A true difference d is detected if d + error > limit: in 8 of 10 runs for this d or more.
    return math.expm1(float(np.quantile(limits - errors, POWER)))
