"""How long the collectives of a compiled step take: by the backend's own profiler, in epochs of their own.

Inside a compiled program no clock of ours can stand around a collective, so the profiler's events are read. What it
does not know: what the profiler itself costs, which is in the step of these epochs too.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter

from records.communication import Communication, Method

InsideS = Callable[[Callable[[], None]], float]
"""Runs something under the profiler; returns the seconds inside collectives, the mean over the workers."""


def by_profiling(inside_s: InsideS, run: Callable[[int], None], steps: int, epochs: int) -> Communication | None:
    """Return the times of a step over so many epochs; None where the profiler saw no collective.

    `run` takes a number of steps and returns with every device idle.
    """
    step_times_s: list[float] = []
    compute_times_s: list[float] = []

    def timed() -> None:
        begun_s = perf_counter()
        run(steps)
        step_times_s.append((perf_counter() - begun_s) / steps)

    for _ in range(epochs + 1):
        seen_s = inside_s(timed) / steps
        if not seen_s:
            return None
        compute_times_s.append(step_times_s[-1] - seen_s)
    # The first starts the profiler.
    return Communication(Method.PROFILED, step_times_s[1:], compute_times_s[1:])


def traced(start: Callable[[str], None], stop: Callable[[], None], run: Callable[[], None]) -> bytes:
    """Run something between `start`, which is given a folder, and `stop`; return the trace that then lies there."""
    with tempfile.TemporaryDirectory(prefix="trace-") as folder:
        start(folder)
        try:
            run()
        finally:
            stop()
        (path,) = Path(folder).rglob("*.xplane.pb")
        return path.read_bytes()


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return how long at least one of these spans, each from its start to its end, lasts."""
    total, reached = 0.0, -math.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
