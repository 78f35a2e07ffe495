"""Examines this machine: reads what disturbs measurements, and interleaves two identical arms."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.analysis.surroundings.examination import examine
from keras_matrix.analysis.surroundings.readings import Check, MachineFinding, Rating, Readings
from keras_matrix.records.backends import BACKENDS
from keras_matrix.records.host.platform import PLATFORM
from keras_matrix.records.host.procfs import ProcTree, Unread
from keras_matrix.runner.executors import preflight as cells
from keras_matrix.runner.machine.preflight import Build, build_of, build_problems
from keras_matrix.runner.machine.surroundings import aa_pairs, snapshot
from keras_matrix.runner.machine.surroundings.aa_pairs import PairResult


def _builds(readings: Readings) -> list[MachineFinding]:
    """Return whether the builds of the installed backends can use each GPU; empty if no GPU can be read."""
    if not readings.gpus or isinstance(readings.gpus, Unread) or readings.driver is None:
        return []
    versions, findings = cells.installed(), []
    for build in (build_of(backend, versions) for backend in BACKENDS):
        if not isinstance(build, Build):
            continue
        for gpu in readings.gpus:
            problems = list(build_problems(readings.driver, gpu, build))
            findings += [
                MachineFinding(Check.GPU_BUILD, Rating.DOUBTFUL if problem.status is None else Rating.BAD, str(problem))
                for problem in problems
            ] or [MachineFinding(Check.GPU_BUILD, Rating.FINE, f"{build} has code for GPU {gpu.index}")]
    return findings


def ratios(pairs: Iterable[PairResult]) -> list[float]:
    """Return the logarithm of the ratio of each pair."""
    return [pair.log_ratio for pair in pairs]


@dataclass(frozen=True, slots=True)
class Examined:
    """What was read of the machine, what it means, and the pairs of identical work that were measured."""

    readings: Readings
    findings: Sequence[MachineFinding]
    pairs: Sequence[PairResult]
    seed: int


def examined(seconds: float, progress: Callable[[int], None]) -> Examined:
    """Read the machine, measure identical pairs for these seconds, and judge."""
    seed, cpus = random.SystemRandom().getrandbits(32), sorted(PLATFORM.usable_cpus())
    pairs: list[PairResult] = []

    def measured() -> Sequence[float]:
        pairs.extend(aa_pairs.measure(seconds, cpus, seed, progress))
        return ratios(pairs)

    readings = snapshot.look(ProcTree(Path("/")), cpus, measured)
    return Examined(readings, [*examine(readings), *_builds(readings)], pairs, seed)
