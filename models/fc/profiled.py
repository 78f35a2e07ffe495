"""How long the collectives of a compiled step take: by the backend's own profiler, in epochs of their own.

Inside a compiled program no clock of ours can stand around a collective, so the profiler's events are read. What it
does not know: what the profiler itself costs, which is in the step of these epochs too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from keras_matrix.records.fc.communication import Communication, Method
from keras_matrix.records.traces.xspace.xplane import Plane, planes

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


def seen_by(backend: str, run: Callable[[], None]) -> list[Plane]:
    """Run something under the profiler of JAX or TensorFlow; return what its own file then holds."""
    from keras_matrix.models.profiling import load, recorded

    with tempfile.TemporaryDirectory(prefix="seen-") as folder:
        path = Path(folder) / "seen"
        with recorded(load(backend), path):
            run()
        return list(planes(path.read_bytes()))
