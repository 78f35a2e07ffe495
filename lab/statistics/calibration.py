"""The confidences of the looks of `analysis.stats.sequential`: their coverage and their calibration.

Guarantee: seeded, so that the constants are reproducible (`lab/run statistics --calibrate`). Limit: only the noise of
`lab.statistics.noise` is simulated; docs/lab/statistics.md states where the intervals cover less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from keras_matrix.analysis.stats.blocks import CONFIDENCE, t_quantile
from keras_matrix.analysis.stats.sequential import PRECISION_TARGET, Looks
from lab.statistics.noise import SCENARIOS, Array

# Standard deviations of a block's log ratio, from far below what the first look resolves to far above the last.
SCATTERS = np.geomspace(0.005, 0.5, 41)
NOISES = (0.01, 0.02, 0.03, 0.05, 0.10)


@dataclass(frozen=True, slots=True)
class Paths:
    """The scatter of each of many runs at each look, and the distance of its mean from the truth."""

    scatter: Array
    distance: Array


def plain(blocks: tuple[int, ...]) -> Looks:
    """Return these looks with 95 % at each, to show the cost of uncorrected stopping."""
    return Looks(blocks, (CONFIDENCE,) * len(blocks))


def normal_coverage(looks: Looks, scatters: Array, runs: int, seed: int) -> Array:
    """Return the coverage at the stopping time of normal blocks, for each standard deviation of their log ratio.

    Stopping depends on the scatter only, which for normal blocks is independent of the mean; so each run gives its
    probability of covering instead of yes or no, and the estimate has little error.
    """
    logs = np.random.default_rng(seed).standard_normal((runs, looks.blocks[-1]))
    shares: Array = _normal(_seen(logs, looks.blocks).scatter, looks, scatters)
    return shares


def calibrate(blocks: tuple[int, ...], runs: int = 40_000, seed: int = 1) -> tuple[Looks, float]:
    """Return the looks whose coverage is nearest to 95 % at worst, and that distance.

    At worst over normal blocks of every scatter and over every scenario at five levels of noise, all on draws made
    once, so that the search has a smooth objective.
    """
    from scipy.optimize import minimize

    generator = np.random.default_rng(seed)
    normal = _seen(generator.standard_normal((runs, blocks[-1])), blocks).scatter
    other_paths = [
        _seen(scenario.draw(generator, (runs, blocks[-1]), noise), blocks)
        for scenario in SCENARIOS[1:]
        for noise in NOISES
    ]

    def worst(logits: Array) -> float:
        looks = _looks(blocks, logits)
        covered = [*_normal(normal, looks, SCATTERS), *(_held(paths, looks) for paths in other_paths)]
        return max(abs(float(share) - CONFIDENCE) for share in covered)

    logits = _logits([CONFIDENCE, *[0.98] * (len(blocks) - 2), CONFIDENCE])
    for _ in range(2):  # a second simplex, about what the first one found: the first shrinks too soon
        options = {"xatol": 2e-3, "fatol": 2e-5, "maxiter": 300}
        minimum = minimize(worst, logits, method="Nelder-Mead", options=options)
        logits = minimum.x
    return _looks(blocks, logits), float(minimum.fun)


def _logits(confidences: Sequence[float]) -> Array:
    shares = np.asarray(confidences)
    odds: Array = np.log(shares / (1 - shares))
    return odds


def _looks(blocks: tuple[int, ...], logits: Array) -> Looks:
    return Looks(blocks, tuple(float(confidence) for confidence in 1 / (1 + np.exp(-logits))))


def _seen(logs: Array, blocks: tuple[int, ...]) -> Paths:
    scatter = np.stack([logs[:, :count].std(axis=1, ddof=1) for count in blocks], axis=1)
    return Paths(scatter, np.stack([np.abs(logs[:, :count].mean(axis=1)) for count in blocks], axis=1))


def _factors(looks: Looks) -> Array:
    return np.array(
        [t_quantile(count - 1, c) / math.sqrt(count) for count, c in zip(looks.blocks, looks.confidences, strict=True)]
    )


def _stops(halves: Array) -> tuple[Array, Array]:
    """Return the index of each run and of the look at which it stops."""
    precise = halves <= math.log1p(PRECISION_TARGET)
    precise[:, -1] = True
    return np.arange(len(halves)), precise.argmax(axis=1)


def _normal(scatter: Array, looks: Looks, scatters: Array) -> Array:
    halves = scatter * _factors(looks)
    shares = []
    for true_scatter in scatters:
        run, look = _stops(halves * true_scatter)
        reach = halves[run, look] * np.sqrt(np.asarray(looks.blocks))[look]
        shares.append(np.mean(2 * ndtr(reach) - 1))
    return np.array(shares)


def _held(paths: Paths, looks: Looks) -> float:
    halves = paths.scatter * _factors(looks)
    stops = _stops(halves)
    return float(np.mean(paths.distance[stops] <= halves[stops]))
