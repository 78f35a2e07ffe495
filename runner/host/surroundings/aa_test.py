"""The A/A measurement: pairs of identical processes that take turns, as the arms of a comparison do.

Promise: every pair is two new processes, started side by side, which then take turns with the same number of steps in
an order drawn anew for each pair and turned round at every turn (ABBA); one pair gives one log ratio. Nothing is left
out. Processes end with their pair, however it ends.
Not known here: how a backend scatters; this is the machine's own scatter, with a barrier over all CPUs at each step.
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

from keras_matrix.analysis.surroundings.disturbance import Disturbed, OwnUse, Watched, disturbed
from keras_matrix.runner.errors import InfrastructureError
from keras_matrix.runner.executors.supervise.environment import THREAD_VARIABLES
from keras_matrix.runner.host.surroundings.counters import Sampler, since

TURNS = 4
TURN_S = 0.1
CALIBRATION_STEPS = 4
CALIBRATIONS = 5
ANSWER_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Pair:
    """What one pair showed: the mean log ratio of adjacent turns, second arm over first, and what disturbed it."""

    log_ratio: float
    turn_times_s: tuple[tuple[float, float], ...]
    disturbed: Disturbed | None


class Process:
    """A running arm."""

    def __init__(self, threads: int) -> None:
        """Start it; it is ready only when `answer` has been heard once."""
        environment = os.environ | dict.fromkeys(THREAD_VARIABLES, "1")
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "keras_matrix.runner.host.surroundings.aa_worker", str(threads)],
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
            ended = self._process.poll()
            what = f"gave no answer in {ANSWER_LIMIT_S:.0f} s" if ended is None else f"ended with status {ended}"
            raise InfrastructureError(f"check: a measuring process {what}; is numpy installed in {sys.prefix}?")
        return words

    def turn(self, steps: int) -> tuple[float, float]:
        """Have it do its steps; return its seconds and its CPU seconds."""
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


def measure(seconds: float, cpus: Sequence[int], seed: int, told: Callable[[int], None]) -> list[Pair]:
    """Measure pairs until the time is over, finishing the one begun; `told` hears of each. Raises `RunnerError`."""
    if seconds <= 0:
        return []
    ends_s = time.perf_counter() + seconds
    drawn = random.Random(seed)
    pairs: list[Pair] = []
    with Sampler(cpus) as sampler:
        steps = calibrate(len(cpus))
        taken_s = 0.0
        # A pair that would end after the time is not begun.
        while not pairs or time.perf_counter() + taken_s < ends_s:
            begun_s = time.perf_counter()
            with _started(len(cpus)) as processes:
                pairs.append(take_turns(processes, steps, drawn.random() < 0.5, sampler))
            taken_s = time.perf_counter() - begun_s
            told(len(pairs))
    return pairs


def calibrate(threads: int) -> int:
    """Return how many steps make a turn of `TURN_S` when nothing disturbs: the fastest of a few tries counts."""
    with _started(threads) as (first, _):
        taken_s = min(first.turn(CALIBRATION_STEPS)[0] for _ in range(CALIBRATIONS))
    return max(1, math.ceil(TURN_S * CALIBRATION_STEPS / taken_s))


def take_turns(processes: tuple[Process, Process], steps: int, second_first: bool, sampler: Sampler) -> Pair:
    """Return what two running arms show, in the order AB BA AB ... or its mirror image."""
    times_s: tuple[list[float], list[float]] = ([], [])
    watched: list[Watched] = []
    for process in processes:
        process.turn(steps)  # the first is a warm-up and counts nothing
    for turn in range(TURNS):
        for arm in (0, 1) if second_first == bool(turn % 2) else (1, 0):
            taken_s, seen = _watched_turn(processes[arm], steps, sampler)
            times_s[arm].append(taken_s)
            watched.append(seen)
    times = tuple(zip(*times_s, strict=True))
    ratio = statistics.fmean(math.log(second_s / first_s) for first_s, second_s in times)
    return Pair(ratio, times, disturbed(watched))


def _watched_turn(process: Process, steps: int, sampler: Sampler) -> tuple[float, Watched]:
    """Return a turn's seconds and what was seen meanwhile. The arms hold little memory and touch no storage."""
    before, own_before_s = sampler.read(), time.process_time()
    taken_s, cpu_s = process.turn(steps)
    own_s = time.process_time() - own_before_s
    return taken_s, Watched(since(before, sampler.read()), OwnUse(cpu_s + own_s, 0.0, 0))


@contextmanager
def _started(threads: int) -> Iterator[tuple[Process, Process]]:
    with ExitStack() as ends:
        found = []
        for _ in range(2):
            process = Process(threads)
            ends.callback(process.end)
            found.append(process)
        for process in found:
            process.answer()
        yield found[0], found[1]
