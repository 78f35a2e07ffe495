"""The A/A measurement: pairs of identical processes, interleaved like the arms of a comparison.

Every pair is two new processes, started concurrently and then interleaved with the same number of steps, in an order
drawn for each pair and reversed at every turn (ABBA); one pair gives one log ratio. No pair is left out. Processes end
with their pair in every case. The result is the machine's own scatter, with a barrier over all CPUs at each step; the
scatter of a backend is not included.
"""

from __future__ import annotations

import math
import os
import random
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from keras_matrix.analysis.surroundings.disturbance import Disturbed, MeasuredStretch, OwnUse, disturbed
from keras_matrix.records.host.inherited_environment import THREAD_VARIABLES
from keras_matrix.runner.errors import InfrastructureError
from keras_matrix.runner.machine.surroundings.counters import Sampler, since

TURNS = 4
TURN_S = 0.1
CALIBRATION_STEPS = 4
CALIBRATIONS = 5
ANSWER_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class PairResult:
    """The result of a pair: the mean log ratio of adjacent turns, second arm over first, and what disturbed it."""

    log_ratio: float
    turn_times_s: tuple[tuple[float, float], ...]
    disturbed: Disturbed | None


class ArmProcess:
    """A running arm."""

    def __init__(self, threads: int) -> None:
        """Start it; it is ready once `answer` has returned."""
        environment = os.environ | dict.fromkeys(THREAD_VARIABLES, "1")
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "keras_matrix.runner.machine.surroundings.aa_worker", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )

    def answer(self) -> list[str]:
        """Wait for the next line and return its words. Raises `InfrastructureError`."""
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], ANSWER_LIMIT_S)
        words = self._process.stdout.readline().decode("ascii", errors="replace").split() if readable else []
        if not words:
            exit_status = self._process.poll()
            outcome_text = (
                f"did not answer in {ANSWER_LIMIT_S:.0f} s"
                if exit_status is None
                else f"ended with status {exit_status}"
            )
            raise InfrastructureError(f"check: a measuring process {outcome_text}; is numpy installed in {sys.prefix}?")
        return words

    def turn(self, steps: int) -> tuple[float, float]:
        """Run the steps; return their seconds and CPU seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d\n" % steps)
        self._process.stdin.flush()
        seconds, cpu_s = map(float, self.answer())
        return seconds, cpu_s

    def end(self) -> None:
        """End it and wait for its end."""
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait()


def measure(seconds: float, cpus: Sequence[int], seed: int, report: Callable[[int], None]) -> list[PairResult]:
    """Measure pairs for these seconds, calling `report` with their number after each. Raises `RunnerError`."""
    if seconds <= 0:
        return []
    ends_s = time.perf_counter() + seconds
    generator = random.Random(seed)
    pairs: list[PairResult] = []
    with Sampler(cpus) as sampler:
        steps = calibrate(len(cpus))
        taken_s = 0.0
        # A pair that would end after the time limit is not begun.
        while not pairs or time.perf_counter() + taken_s < ends_s:
            begun_s = time.perf_counter()
            with _started(len(cpus)) as processes:
                pairs.append(interleaved(processes, steps, generator.random() < 0.5, sampler))
            taken_s = time.perf_counter() - begun_s
            report(len(pairs))
    return pairs


def calibrate(threads: int) -> int:
    """Return the steps of an undisturbed turn of `TURN_S`, from the shortest of a few runs."""
    with _started(threads) as (first_process, _):
        taken_s = min(first_process.turn(CALIBRATION_STEPS)[0] for _ in range(CALIBRATIONS))
    return max(1, math.ceil(TURN_S * CALIBRATION_STEPS / taken_s))


def interleaved(
    processes: tuple[ArmProcess, ArmProcess], steps: int, second_first: bool, sampler: Sampler
) -> PairResult:
    """Return the result of two running arms, in the order AB BA AB ... or its mirror image."""
    times_s: tuple[list[float], list[float]] = ([], [])
    measured_stretches: list[MeasuredStretch] = []
    for process in processes:
        process.turn(steps)  # the first is a warm-up and does not count
    for turn in range(TURNS):
        for arm in (0, 1) if second_first == bool(turn % 2) else (1, 0):
            taken_s, stretch = _watched_turn(processes[arm], steps, sampler)
            times_s[arm].append(taken_s)
            measured_stretches.append(stretch)
    times = tuple(zip(*times_s, strict=True))
    ratio = statistics.fmean(math.log(second_s / first_s) for first_s, second_s in times)
    return PairResult(ratio, times, disturbed(measured_stretches))


def _watched_turn(process: ArmProcess, steps: int, sampler: Sampler) -> tuple[float, MeasuredStretch]:
    """Return a turn's seconds and the machine's activity. The arms use little memory and no storage."""
    counters_before, own_before_s = sampler.read(), time.process_time()
    taken_s, cpu_s = process.turn(steps)
    own_s = time.process_time() - own_before_s
    return taken_s, MeasuredStretch(since(counters_before, sampler.read()), OwnUse(cpu_s + own_s, 0.0, 0))


@contextmanager
def _started(threads: int) -> Iterator[tuple[ArmProcess, ArmProcess]]:
    with ExitStack() as stack:
        processes = []
        for _ in range(2):
            process = ArmProcess(threads)
            stack.callback(process.end)
            processes.append(process)
        for process in processes:
            process.answer()
        yield processes[0], processes[1]
